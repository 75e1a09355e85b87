/** The protobuf format: what is read, what is refused, and that nothing is read past an end. */

import * as assert from 'uvu/assert';
import { KvdError } from '../../../../src/errors.ts';
import { int, many, map, nested, optional, text, tuple } from '../../../../src/wire/grpc/fields.ts';
import { ProtobufReader, ProtobufWriter } from '../../../../src/wire/grpc/protobuf.ts';
import { RequestTranscoder } from '../../../../src/wire/grpc/request-transcoder.ts';
import { requestVectors } from '../../../support/grpc-vectors.ts';
import fc from '../../../support/property.ts';
import { suite } from '../../../support/suite.ts';

function readerOf(hex: string): ProtobufReader {
  const bytes = Buffer.from(hex, 'hex');
  return new ProtobufReader(bytes, 0, bytes.length, 'test');
}

function refuses(run: () => unknown, expected: RegExp): void {
  assert.throws(run, (error: unknown) => {
    assert.instance(error, KvdError);
    assert.is((error as KvdError).code, 'ERR_WIRE_PAYLOAD');
    return expected.test((error as KvdError).message);
  });
}

const EDGES = [0n, 1n, 127n, 128n, 2n ** 21n, 2n ** 28n - 1n, 2n ** 28n, 2n ** 32n - 1n, 2n ** 32n]
  .concat([2n ** 53n - 1n, 2n ** 53n, 2n ** 63n - 1n, 1_800_000_000_000_000_000n])
  .flatMap((value) => [value, -value, -value - 1n]);

suite('varint', (test) => {
  test('keeps every integer of 64 bits, as a number where that is exact', () => {
    const writer = new ProtobufWriter();
    const check = (value: bigint) => {
      const number = Number(value);
      writer.reset();
      writer.writeInteger(Number.isSafeInteger(number) ? number : value);
      const bytes = writer.take();
      const reader = new ProtobufReader(bytes, 0, bytes.length, 'test');
      const read = reader.readInteger();
      assert.is(BigInt(read), value);
      assert.is(typeof read, Number.isSafeInteger(number) ? 'number' : 'bigint', `${value}`);
      assert.ok(reader.isAtEnd);
    };
    for (const value of EDGES) check(value);
    fc.assert(fc.property(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), check));
  });

  test('may be longer than it needs to be, but not than ten bytes and 64 bits', () => {
    assert.is(readerOf('8000').readInteger(), 0);
    assert.is(readerOf('ffffffffffffffffff01').readInteger(), -1);
    refuses(() => readerOf('ffffffffffffffffff02').readInteger(), /varint of 64 bits/);
    refuses(() => readerOf('8080808080808080808000').readInteger(), /varint of 64 bits/);
    refuses(() => readerOf('ffff').readInteger(), /truncated varint at byte 0 \(test\)/);
    refuses(() => readerOf('').readInteger(), /truncated varint/);
  });
});

suite('field', (test) => {
  test('has a number and a type of this version', () => {
    refuses(() => readerOf('00').readTag(), /expected a field/);
    refuses(() => readerOf('07').readTag(), /expected a field/);
    refuses(() => readerOf('80808080808001').readTag(), /expected a field/);
    for (const type of [3, 4, 6, 7]) {
      refuses(() => readerOf('0000000000').skipValue(type), /wire type/);
    }
  });

  test('ends inside its message, however long it says that it is', () => {
    for (const hex of ['01', '7f', 'ffffffff0f', 'ffffffffffffffffff01', '8080808010']) {
      refuses(() => readerOf(hex).skipValue(2), /truncated/);
    }
    refuses(() => readerOf('00000000000000').skipValue(1), /truncated: 8 bytes/);
    refuses(() => readerOf('000000').skipValue(5), /truncated: 4 bytes/);
    const reader = readerOf('0261620000');
    assert.is(reader.skipValue(2), 1);
    assert.is(reader.offset, 3);
  });
});

const INNER = map('Inner', text(1, 'name'), optional(int(2, 'rank')), many(int(3, 'ids')));
const OUTER = tuple('Outer', nested(1, 'inner', INNER), many(nested(2, 'list', INNER), 2));

function transcode(hex: string): string[] {
  const { frames } = new RequestTranscoder(OUTER, Buffer.from(hex, 'hex')).transcode();
  return frames.map((frame) => Buffer.from(frame).toString('hex'));
}

/** `{name, rank, ids}` in hex. */
const inner = (name: string, rank: string, ids: string) =>
  `83a46e616d65${name}a472616e6b${rank}a3696473${ids}`;
const EMPTY_INNER = inner('a0', 'c0', '90');

suite('message', (test) => {
  test('of nothing has zeros, empties and nils', () => {
    assert.equal(transcode(''), [EMPTY_INNER, '90']);
  });

  test('has its fields in any order, and others are skipped', () => {
    const shuffled = '1801' + '1005' + '0a0161' + '1802';
    const foreign = '2001' + '2a0161' + '3100000000000000ff' + '3d00000000';
    const message = `0a${(shuffled.length / 2 + foreign.length / 2).toString(16)}`;
    assert.equal(transcode(message + shuffled + foreign), [inner('a161', '05', '920102'), '90']);
  });

  test('has lists of numbers packed, one by one, or both', () => {
    const message = '0a08' + '1a03010203' + '18ac02';
    assert.is(transcode(message)[0], inner('a0', 'c0', '94010203cd012c'));
  });

  test('gives of a scalar that is there twice the last value', () => {
    assert.equal(transcode('0a08' + '0a0161' + '0a0162' + '1000')[0], inner('a162', '00', '90'));
  });

  test('is refused when a message is there twice', () => {
    refuses(() => transcode('0a00' + '0a00'), /expected it once at byte 2 \(Outer.inner\)/);
  });

  test('is refused when a field has another type than its own', () => {
    refuses(() => transcode('0801'), /expected message, got wire type 0 .*Outer.inner/);
    refuses(() => transcode('0a020801'), /expected text, got wire type 0 .*Inner.name/);
    refuses(() => transcode('0a03120161'), /expected int, got wire type 2 .*Inner.rank/);
    refuses(() => transcode('0a091900000000000000ff'), /expected int, got wire type 1 .*Inner.ids/);
  });

  test('is refused when a list has more messages than it may', () => {
    assert.is(transcode('1200' + '1200')[1], `92${EMPTY_INNER}${EMPTY_INNER}`);
    refuses(() => transcode('1200' + '1200' + '1200'), /at most 2 elements, got 3.*list/);
  });

  test('is refused when it has more numbers or fields than any request', () => {
    const numbers = Buffer.alloc(1_200_000, 1);
    const writer = new ProtobufWriter();
    writer.writeTag(1, 2);
    writer.writeNested(() => {
      writer.writeTag(3, 2);
      writer.writeBytes(numbers);
    });
    const packed = writer.take();
    refuses(
      () => new RequestTranscoder(OUTER, packed).transcode(),
      /expected at most \d+ elements/,
    );
    const fields = Buffer.alloc(2_400_000, Buffer.from('2001', 'hex'));
    refuses(
      () => new RequestTranscoder(OUTER, fields).transcode(),
      /expected at most \d+ elements/,
    );
  });

  test('is refused when a packed list ends inside a number', () => {
    refuses(() => transcode('0a041a020180'), /truncated varint.*ids/);
  });

  test('has numbers of every width as msgpack has them', () => {
    const values = [0, 127, 128, 255, 256, 65_535, 65_536, 2 ** 21 - 1, 2 ** 21, 2 ** 32 - 1];
    const expected = '9b' + '00' + '7f' + 'cc80' + 'ccff' + 'cd0100' + 'cdffff' + 'ce00010000';
    const wide = 'ce001fffff' + 'ce00200000' + 'ceffffffff' + 'ff';
    const writer = new ProtobufWriter();
    writer.writeTag(1, 2);
    writer.writeNested(() => {
      writer.writeTag(3, 2);
      writer.writeNested(() => {
        for (const value of [...values, -1]) writer.writeInteger(value);
      });
    });
    const [frame] = transcode(writer.take().toString('hex'));
    assert.is(frame, inner('a0', 'c0', expected + wide));
  });
});

suite('golden message', (test) => {
  test('cut off anywhere is refused, or shorter by whole fields', () => {
    for (const { title, method, message } of requestVectors) {
      const ends = new Set([0]);
      const reader = new ProtobufReader(message, 0, message.length, 'test');
      while (!reader.isAtEnd) {
        reader.skipValue(reader.readTag() & 7);
        ends.add(reader.offset);
      }
      for (let length = 0; length < message.length; length += 1) {
        const run = () =>
          new RequestTranscoder(method.request, message.subarray(0, length)).transcode();
        if (ends.has(length)) run();
        else refuses(run, /truncated|expected a field/);
      }
      assert.ok(ends.has(message.length), title);
    }
  });

  test('with any byte changed is read or refused, and nothing else happens', () => {
    const arbitrary = fc.record({
      vector: fc.constantFrom(...requestVectors),
      at: fc.nat(),
      byte: fc.nat(255),
    });
    fc.assert(
      fc.property(arbitrary, ({ vector: { method, message }, at, byte }) => {
        const changed = Buffer.from(message);
        if (changed.length > 0) changed[at % changed.length] = byte;
        try {
          new RequestTranscoder(method.request, changed).transcode();
        } catch (error) {
          assert.instance(error, KvdError, String(error));
        }
      }),
      { numRuns: 2000 },
    );
  });
});
