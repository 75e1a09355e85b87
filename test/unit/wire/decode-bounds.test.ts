/** What one message can cost: counts are bounded before anything is made of the elements. */

import * as assert from 'uvu/assert';
import type { CacheKey, RequestOf } from '../../../src/engine/api.ts';
import type { KvdError } from '../../../src/errors.ts';
import { MsgpackWriter } from '../../../src/wire/msgpack.ts';
import { OPERATIONS } from '../../../src/wire/requests.ts';
import {
  array,
  bool,
  decode,
  encode,
  integers,
  looseBool,
  PayloadReader,
} from '../../../src/wire/schema.ts';
import { field, struct } from '../../../src/wire/struct.ts';
import { ELEMENTS_PER_MESSAGE_MAX, LIST_COUNT_MAX } from '../../../src/wire/wire-limits.ts';
import { callA } from '../../support/calls.ts';
import { openHasher } from '../../support/core-hasher.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';
import {
  encodeArrayHeader,
  encodeInteger,
  INTEGER_FORM_NAMES,
} from '../../support/token-arrays.ts';

const reader = new PayloadReader(openHasher({ chunkSizeTokens: 16, tokenCountMax: 1000 }));
/** Block ids of one request as spec engine 8 bounds them. */
const BLOCK_IDS_MAX = 1_048_576;

const key: CacheKey = {
  modelName: 'm',
  worldSize: 1,
  workerId: 0,
  tokens: { bytes: Uint8Array.of(0x90), count: 0 },
  startToken: 0,
  endToken: 0,
  requestId: 'r',
  cacheSalt: '',
  readerCount: null,
  requestConfigs: null,
};
const storeFrames = callA('STORE').encodeRequest({
  key,
  instanceId: 1n,
  blockIds: [],
  event: new Uint8Array(0),
});

function decodeStore(blockIds: Uint8Array): RequestOf<'STORE'> {
  return callA('STORE').decodeRequest(storeFrames.with(2, blockIds), 0, reader);
}

/** An array of `count` times the same byte, which is a value. */
function repeated(count: number, byte: number): Buffer {
  return Buffer.concat([Buffer.from(encodeArrayHeader(count)), Buffer.alloc(count, byte)]);
}

/** Time and heap that a decoder takes until it has refused. */
function refusalCost(run: () => unknown, expected: RegExp): { ms: number; heapBytes: number } {
  const heapBefore = process.memoryUsage().heapUsed;
  const startMs = performance.now();
  assert.throws(run, (error: KvdError) => {
    assert.is(error.code, 'ERR_WIRE_PAYLOAD', error.message);
    assert.match(error.message, expected);
    return true;
  });
  const ms = performance.now() - startMs;
  return { ms, heapBytes: process.memoryUsage().heapUsed - heapBefore };
}

function assertCheap({ ms, heapBytes }: { ms: number; heapBytes: number }): void {
  assert.ok(ms < 100, `${ms} ms`);
  assert.ok(heapBytes < 16 << 20, `${heapBytes} bytes of heap`);
}

suite('array', (test) => {
  test('with more elements than its bound is refused at its header', () => {
    const codec = array(bool, 3);
    assert.equal(decode(codec, Buffer.from('93c3c2c3', 'hex'), reader), [true, false, true]);
    assert.throws(
      () => decode(codec, Buffer.from('94c3c2c3c2', 'hex'), reader),
      /expected at most 3 elements, got 4 at byte 0/,
    );
  });

  test('shares one budget of elements with all arrays and maps of its message', () => {
    const nested = array(array(bool, ELEMENTS_PER_MESSAGE_MAX), 2);
    const inner = repeated(ELEMENTS_PER_MESSAGE_MAX / 2, 0xc3);
    const fits = Buffer.concat([Buffer.of(0x91), inner]);
    assert.is(decode(nested, fits, reader)[0]?.length, ELEMENTS_PER_MESSAGE_MAX / 2);
    assert.throws(
      () => decode(nested, Buffer.concat([Buffer.of(0x92), inner, inner]), reader),
      new RegExp(`more than ${ELEMENTS_PER_MESSAGE_MAX} elements in one message`),
    );
    // The next message begins anew.
    assert.is(decode(nested, fits, reader).length, 1);
  });
});

suite('list of integers', (test) => {
  test('comes out as its numbers were sent, whatever they are', () => {
    const value = fc.oneof(
      fc.integer({ min: -200, max: 300 }),
      fc.integer(),
      fc.maxSafeInteger(),
      fc.constantFrom(0x7f, 0x80, 0xffff, 0x1_0000, 0xffff_ffff, 2 ** 32, -33, -(2 ** 31) - 1),
    );
    fc.assert(
      fc.property(fc.array(value, { maxLength: 40 }), (values) => {
        assert.equal(decode(integers, Buffer.from(encode(integers, values)), reader), values);
      }),
    );
  });

  test('reads every width of an integer', () => {
    for (const form of INTEGER_FORM_NAMES) {
      const element = encodeInteger(100, form);
      const frame = Buffer.from([0x93, ...element, 0xff, ...element]);
      assert.equal(decode(integers, frame, reader), [100, -1, 100], form);
      for (let length = 1; length < frame.length; length += 1) {
        assert.throws(
          () => decode(integers, frame.subarray(0, length), reader),
          /truncated|end of/,
        );
      }
    }
  });

  test('refuses other kinds and what is beyond 53 bits, with the place', () => {
    assert.throws(
      () => decode(integers, Buffer.from('9301c302', 'hex'), reader),
      /expected int, got bool at byte 2/,
    );
    assert.throws(
      () => decode(integers, Buffer.from('91cfffffffffffffffff', 'hex'), reader),
      /expected an integer from -9007199254740991 to .*, got 18446744073709551615 at byte 1/,
    );
  });
});

suite('STORE', (test) => {
  test('may name as many block ids as the engine takes', () => {
    const { blockIds } = decodeStore(Buffer.concat([Buffer.of(0x91), repeated(BLOCK_IDS_MAX, 7)]));
    assert.is(blockIds[0]?.length, BLOCK_IDS_MAX);
    assert.ok(blockIds[0]?.every((id) => id === 7));
  });

  test('keeps ids visible that no block can have', () => {
    const writer = new MsgpackWriter();
    const lists = [[-1, 2 ** 32, 5], [], [2 ** 40]];
    writer.writeArrayHeader(lists.length);
    for (const list of lists) {
      writer.writeArrayHeader(list.length);
      for (const id of list) writer.writeInteger(id);
    }
    assert.equal(decodeStore(writer.take()).blockIds, lists);
  });

  test('of 10 MB of block ids in one byte each is refused at once', () => {
    const frame = Buffer.concat([Buffer.of(0x91), repeated(10_000_000, 7)]);
    assertCheap(refusalCost(() => decodeStore(frame), /payload 2: more than \d+ elements/));
  });

  test('of 10 MB of empty lists is refused at once', () => {
    const frame = repeated(10_000_000, 0x90);
    const expected = new RegExp(`at most ${LIST_COUNT_MAX} elements, got 10000000`);
    assertCheap(refusalCost(() => decodeStore(frame), expected));
  });

  test('with a budget spread over its frames is refused', () => {
    // An unknown field of the key takes most of the budget, the block ids the rest and more.
    const [head, ...rest] = storeFrames as [Uint8Array, ...Uint8Array[]];
    const half = repeated(ELEMENTS_PER_MESSAGE_MAX / 2, 7);
    const wide = Buffer.concat([
      Buffer.of(head[0]! + 1),
      head.subarray(1),
      Buffer.of(0xa1, 0x78),
      half,
    ]);
    const frames = [wide, ...rest].with(2, Buffer.concat([Buffer.of(0x91), half]));
    refusalCost(() => callA('STORE').decodeRequest(frames, 0, reader), /payload 2: more than/);
  });
});

suite('map', (test) => {
  const one = struct<{ readonly n: boolean }>({ n: field('n', bool) });

  test('takes some unknown and repeated keys', () => {
    const frame = Buffer.from('83a16e c2 a178 90 a16e c3'.replaceAll(' ', ''), 'hex');
    assert.equal(decode(one, frame, reader), { n: true });
  });

  test('of many more pairs than it has fields is refused at its header', () => {
    const pairs = Buffer.concat(Array.from({ length: 1000 }, () => Buffer.from('a16ec3', 'hex')));
    const frame = Buffer.concat([Buffer.from('de03e8', 'hex'), pairs]);
    refusalCost(() => decode(one, frame, reader), /expected at most \d+ pairs, got 1000 at byte 0/);
  });
});

suite('value that nobody asked for', (test) => {
  test('is skipped within the budget of the message only', () => {
    const [head] = storeFrames as [Uint8Array];
    const wide = Buffer.concat([
      Buffer.of(head[0]! + 1),
      head.subarray(1),
      Buffer.of(0xa1, 0x78),
      repeated(10_000_000, 0x90),
    ]);
    const frames = storeFrames.with(0, wide);
    assertCheap(refusalCost(() => callA('STORE').decodeRequest(frames, 0, reader), /more than/));
  });

  test('is walked through within the budget when a whole frame is read as a bool', () => {
    const frame = repeated(10_000_000, 0x90);
    assertCheap(refusalCost(() => decode(looseBool, frame, reader), /more than \d+ elements/));
  });
});

suite('list of records', (test) => {
  const lists: [string, () => unknown][] = [
    ['wrappers', () => callA('REGISTER_KV_CACHE').decodeRequest(registration(1), 0, reader)],
    ['group infos', () => callA('REGISTER_KV_CACHE').decodeRequest(registration(6), 0, reader)],
    ['records', () => callA('REPORT_BLOCK_ALLOCATION').decodeRequest(report, 0, reader)],
    ['object keys', () => callA('P2P_UNLOCK_OBJECTS').decodeRequest([many], 0, reader)],
    ['matches', () => OPERATIONS.CB_LOOKUP_PRE_COMPUTED_V2.decodeReply(many, reader)],
    ['ranges', () => OPERATIONS.CB_LOOKUP_PRE_COMPUTED.decodeReply(many, reader)],
  ];
  const many = repeated(1_000_000, 0x90);
  const report = [Buffer.of(1), Buffer.from('a16d', 'hex'), many];

  /** A registration whose payload `index` is the long list. */
  function registration(index: number): Buffer[] {
    const frames: Buffer[] = ['01', '90', 'a16d', '01', 'a4766c6c6d', '80', '90'].map((hex) =>
      Buffer.from(hex, 'hex'),
    );
    return frames.with(index, many);
  }

  for (const [name, run] of lists) {
    test(`of ${name} has a bound`, () => {
      assertCheap(refusalCost(run, /expected at most \d+ elements, got 1000000/));
    });
  }
});
