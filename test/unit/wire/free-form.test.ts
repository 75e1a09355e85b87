/** Maps of a client's own making: any plain value, within bounds, and nothing else. */
import { decode as decodeAny, encode as encodeAny } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import type { KvdError } from '../../../src/errors.ts';
import { freeMap } from '../../../src/wire/free-form.ts';
import { decode, encode, PayloadReader } from '../../../src/wire/schema.ts';
import { openHasher } from '../../support/core-hasher.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

const reader = new PayloadReader(openHasher({ chunkSizeTokens: 16, tokenCountMax: 16 }));

function read(frame: Uint8Array): Readonly<Record<string, unknown>> {
  return decode(freeMap, frame, reader);
}

function refusal(value: unknown): string {
  let map: unknown;
  try {
    map = read(value instanceof Uint8Array ? value : encodeAny(value));
  } catch (error) {
    assert.is((error as KvdError).code, 'ERR_WIRE_PAYLOAD');
    return (error as KvdError).message;
  }
  return assert.unreachable(`read as ${JSON.stringify(map)}`) as never;
}

suite('free-form map', (test) => {
  test('has values of every kind, in the form that another codec gives them', () => {
    // The other codec refuses this one key; the test after the next has it.
    const key = fc.string().filter((text) => text !== '__proto__');
    const value = fc.letrec((tie) => ({
      any: fc.oneof(
        { maxDepth: 4 },
        fc.constantFrom(null, true, false),
        fc.integer(),
        fc.double({ noNaN: true }).filter((number) => !Number.isInteger(number)),
        fc.string(),
        fc.uint8Array({ maxLength: 40 }),
        fc.array(tie('any'), { maxLength: 4 }),
        fc.dictionary(key, tie('any'), { maxKeys: 4, noNullPrototype: true }),
      ),
    })).any;
    fc.assert(
      fc.property(fc.dictionary(key, value, { maxKeys: 6 }), (map) => {
        const frame = encodeAny({ ...map });
        assert.equal(JSON.stringify(read(frame)), JSON.stringify(decodeAny(frame)));
        assert.equal(
          JSON.stringify(read(encode(freeMap, read(frame)))),
          JSON.stringify(read(frame)),
        );
      }),
      { numRuns: 300 },
    );
  });

  test('keeps integers of 64 bits, and extensions as they are', () => {
    const frame = Buffer.from('82a161cfffffffffffffffffa162d4057f', 'hex');
    const { a, b } = read(frame);
    assert.is(a, 0xffff_ffff_ffff_ffffn);
    assert.equal(b, { type: 5, data: Uint8Array.of(0x7f) });
  });

  test('has no key that means something to JavaScript', () => {
    const map = read(encodeAny({ constructor: 1, toString: 2 }));
    assert.equal([map['constructor'], map['toString'], map['valueOf']], [1, 2, undefined]);
    const proto = read(Buffer.from('81a95f5f70726f746f5f5f81a16101', 'hex'));
    assert.is((proto as { a?: number }).a, undefined);
    assert.equal(Object.keys(proto), ['__proto__']);
  });

  test('keeps no bytes of the frame, which is given back', () => {
    const frame = Buffer.from(encodeAny({ a: Uint8Array.of(1, 2) }));
    const map = read(frame);
    frame.fill(0);
    assert.equal(map['a'], Uint8Array.of(1, 2));
  });

  test('has text keys, and is a map', () => {
    assert.match(refusal(Buffer.from('810101', 'hex')), /expected str, got int/);
    assert.match(refusal([1]), /expected map, got array/);
  });

  test('is bounded in depth, elements and bytes', () => {
    const nested = (depth: number): unknown => (depth === 0 ? 1 : { a: nested(depth - 1) });
    assert.is(typeof read(encodeAny(nested(16))), 'object');
    assert.match(refusal(nested(17)), /nesting deeper than 16/);
    const flat = (count: number) => ({ a: new Array<number>(count).fill(1) });
    assert.is((read(encodeAny(flat(4095)))['a'] as number[]).length, 4095);
    assert.match(refusal(flat(4096)), /more than 4096 elements/);
    assert.match(refusal({ a: 'x'.repeat(65_537) }), /at most 65536 bytes/);
    assert.match(
      refusal({ a: 'x'.repeat(40_000), b: 'y'.repeat(40_000) }),
      /more than 65536 bytes/,
    );
    assert.match(refusal({ a: new Uint8Array(65_537) }), /more than 65536 bytes/);
  });

  test('cut short anywhere is refused', () => {
    const frame = encodeAny({ a: [1, { b: 'text' }], c: Uint8Array.of(1), d: 1.5 });
    for (let length = 0; length < frame.length; length += 1) {
      refusal(frame.slice(0, length));
    }
  });
});
