/** The msgpack codec against the format's edges, another implementation, and damaged input. */
import { Decoder, Encoder } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import { DEPTH_MAX, MsgpackReader, MsgpackWriter } from '../../../src/wire/msgpack.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

const other = new Encoder({ useBigInt64: true });
const otherDecoder = new Decoder({ useBigInt64: true });

function readerOf(bytes: Uint8Array | number[] | string): MsgpackReader {
  const reader = new MsgpackReader();
  reader.reset(typeof bytes === 'string' ? Buffer.from(bytes, 'hex') : Uint8Array.from(bytes));
  return reader;
}

function written(write: (writer: MsgpackWriter) => void): string {
  const writer = new MsgpackWriter();
  write(writer);
  return Buffer.from(writer.take()).toString('hex');
}

/** Widths change at these integers. */
const INTEGER_EDGES: readonly [bigint, string][] = [
  [0n, '00'],
  [127n, '7f'],
  [128n, 'cc80'],
  [255n, 'ccff'],
  [256n, 'cd0100'],
  [65_535n, 'cdffff'],
  [65_536n, 'ce00010000'],
  [4_294_967_295n, 'ceffffffff'],
  [4_294_967_296n, 'cf0000000100000000'],
  [9_007_199_254_740_991n, 'cf001fffffffffffff'],
  [9_007_199_254_740_992n, 'cf0020000000000000'],
  [9_223_372_036_854_775_807n, 'cf7fffffffffffffff'],
  [18_446_744_073_709_551_615n, 'cfffffffffffffffff'],
  [-1n, 'ff'],
  [-32n, 'e0'],
  [-33n, 'd0df'],
  [-128n, 'd080'],
  [-129n, 'd1ff7f'],
  [-32_768n, 'd18000'],
  [-32_769n, 'd2ffff7fff'],
  [-2_147_483_648n, 'd280000000'],
  [-2_147_483_649n, 'd3ffffffff7fffffff'],
  [-9_223_372_036_854_775_808n, 'd38000000000000000'],
];

suite('msgpack integers', (test) => {
  test('take the shortest form at every edge, from number and from bigint', () => {
    for (const [value, hex] of INTEGER_EDGES) {
      assert.is(
        written((w) => w.writeInteger(value)),
        hex,
      );
      if (Number.isSafeInteger(Number(value))) {
        assert.is(
          written((w) => w.writeInteger(Number(value))),
          hex,
        );
      }
    }
  });

  test('come out as number while a number holds them, else as bigint', () => {
    for (const [value, hex] of INTEGER_EDGES) {
      const read = readerOf(hex).readInteger();
      assert.is(BigInt(read), value);
      assert.is(typeof read, Number.isSafeInteger(Number(value)) ? 'number' : 'bigint');
    }
  });

  test('are accepted in forms that are longer than needed', () => {
    for (const hex of ['cc15', 'cd0015', 'ce00000015', 'cf0000000000000015', 'd015', 'd10015']) {
      assert.is(readerOf(hex).readInteger(), 21);
    }
  });

  test('outside the wanted range are an error that names both', () => {
    assert.throws(
      () => readerOf('00').readIntegerIn(1, 65_535),
      /expected an integer from 1 to 65535, got 0 at byte 0/,
    );
    assert.throws(() => readerOf('cfffffffffffffffff').readIntegerIn(0, 5), /18446744073709551615/);
  });

  test('are never floats, bools or text', () => {
    for (const hex of ['cb3ff0000000000000', 'c3', 'a131', 'c0', '90']) {
      assert.throws(() => readerOf(hex).readInteger(), /expected int, got /);
    }
  });
});

suite('msgpack values', (test) => {
  test('of kind str and kind bin are not taken for each other', () => {
    assert.throws(() => readerOf('a178').readBytes(), /expected bin, got str at byte 0/);
    assert.throws(() => readerOf('c40178').readText(), /expected str, got bin at byte 0/);
  });

  test('of kind str must be valid UTF-8, short or long', () => {
    const bad = [[0xff], [0xc3], [0xed, 0xa0, 0x80], [0xf5, 0x80, 0x80, 0x80], [0xc0, 0x80]];
    for (const bytes of bad) {
      for (const padding of [0, 100]) {
        const body = [...new Array<number>(padding).fill(0x61), ...bytes];
        assert.throws(() => readerOf([0xd9, body.length, ...body]).readText(), /valid UTF-8/);
      }
    }
  });

  test('longer than the bytes that are there are refused before anything is made of them', () => {
    const liars = [
      'dbffffffff',
      'c6ffffffff',
      'c9ffffffff01',
      'ddffffffff',
      'dfffffffff',
      'dcffff',
    ];
    for (const hex of liars) {
      assert.throws(() => readerOf(hex).skip(), /truncated: /);
    }
  });

  test('are skipped whole, whatever their kind', () => {
    const value = [1, -1, 1.5, 'text', Uint8Array.of(1, 2), null, true, { a: [1, { b: 2 }] }];
    const reader = readerOf(other.encode(value));
    reader.skip();
    reader.end();
  });

  test('nested deeper than the bound are refused, without using the stack', () => {
    const allowed = readerOf([...new Array<number>(DEPTH_MAX - 1).fill(0x91), 0x90]);
    allowed.skip();
    allowed.end();
    assert.throws(
      () => readerOf([...new Array<number>(100_000).fill(0x91), 0x90]).skip(),
      /nesting deeper than/,
    );
  });

  test('of the reserved byte are an error', () => {
    assert.throws(() => readerOf('c1').skip(), /expected a value, got reserved byte at byte 0/);
    assert.throws(() => readerOf('').skip(), /expected a value, got end of data at byte 0/);
  });

  test('with bytes behind them fail at the end', () => {
    const reader = readerOf('0100');
    reader.skip();
    assert.throws(() => reader.end(), /expected end of data, got 1 bytes more at byte 1/);
  });

  test('of kind ext keep type and data, in every length form', () => {
    for (const length of [0, 1, 2, 3, 4, 8, 15, 16, 17, 255, 256, 65_536]) {
      const data = new Uint8Array(length).fill(7);
      const writer = new MsgpackWriter();
      writer.writeExtension(1, data);
      const reader = readerOf(writer.take());
      const extension = reader.readExtension();
      reader.end();
      assert.is(extension.type, 1);
      assert.is(extension.data.length, length);
    }
    assert.is(readerOf('d4ff00').readExtension().type, -1);
  });
});

/** Values that both implementations can carry. */
const anyValue = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: 'small' },
    fc.constant(null),
    fc.boolean(),
    fc.bigInt({ min: -(1n << 63n), max: (1n << 64n) - 1n }),
    fc.double(),
    fc.string({ unit: 'binary' }).filter((text) => text.isWellFormed()),
    fc.uint8Array(),
    fc.array(tie('value')),
    fc.dictionary(
      fc.string().filter((key) => key !== '__proto__'),
      tie('value'),
    ),
  ),
})).value;

/** Writes what the other implementation's decoder gives, with ours. */
function write(writer: MsgpackWriter, value: unknown): void {
  if (value === null) writer.writeNil();
  else if (typeof value === 'boolean') writer.writeBool(value);
  else if (typeof value === 'bigint') writer.writeInteger(value);
  else if (typeof value === 'number') writer.writeFloat(value);
  else if (typeof value === 'string') writer.writeText(value);
  else if (value instanceof Uint8Array) writer.writeBytes(value);
  else if (Array.isArray(value)) {
    writer.writeArrayHeader(value.length);
    for (const item of value) write(writer, item);
  } else {
    const entries = Object.entries(value as object);
    writer.writeMapHeader(entries.length);
    for (const [key, item] of entries) {
      writer.writeText(key);
      write(writer, item);
    }
  }
}

suite('msgpack beside another implementation', (test) => {
  test('what we write it reads back', () => {
    fc.assert(
      fc.property(anyValue, (value) => {
        const writer = new MsgpackWriter();
        write(writer, value);
        const bytes = writer.take();
        const rewritten = new MsgpackWriter();
        write(rewritten, normalised(otherDecoder.decode(bytes), value));
        assert.equal(Buffer.from(rewritten.take()), Buffer.from(bytes));
      }),
      { numRuns: 200 },
    );
  });

  test('what it writes we walk over to the last byte', () => {
    fc.assert(
      fc.property(anyValue, (value) => {
        const reader = readerOf(other.encode(value));
        reader.skip();
        reader.end();
      }),
      { numRuns: 200 },
    );
  });

  test('a value cut anywhere is an error with a place', () => {
    fc.assert(
      fc.property(anyValue, fc.nat(), (value, seed) => {
        const bytes = other.encode(value);
        const cut = bytes.subarray(0, seed % bytes.length);
        assert.throws(() => readerOf(cut).skip(), /at byte \d+/);
      }),
      { numRuns: 300 },
    );
  });

  test('random bytes are walked over or refused, nothing else', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
        try {
          readerOf(bytes).skip();
        } catch (error) {
          assert.is((error as { code?: string }).code, 'ERR_WIRE_PAYLOAD');
        }
      }),
      { numRuns: 2000 },
    );
  });
});

/** Small integers come back as numbers from the other decoder; ours writes numbers as floats. */
function normalised(decoded: unknown, original: unknown): unknown {
  if (typeof original === 'bigint') return BigInt(decoded as number);
  if (Array.isArray(original)) {
    return original.map((item, index) => normalised((decoded as unknown[])[index], item));
  }
  if (original !== null && typeof original === 'object' && !(original instanceof Uint8Array)) {
    return Object.fromEntries(
      Object.entries(original).map(([key, item]) => [
        key,
        normalised((decoded as Record<string, unknown>)[key], item),
      ]),
    );
  }
  return decoded;
}

suite('msgpack writer', (test) => {
  test('hands out results that later writing does not change', () => {
    const writer = new MsgpackWriter();
    writer.writeText('first');
    const first = writer.take();
    writer.writeBytes(new Uint8Array(100_000).fill(1));
    const second = writer.take();
    writer.writeBytes(new Uint8Array(100_000).fill(2));
    writer.take();
    assert.is(Buffer.from(first).toString('latin1'), '\xa5first');
    assert.is(second[50_000], 1);
  });

  test('refuses what is not an integer or has more than 64 bits', () => {
    const writer = new MsgpackWriter();
    assert.throws(() => writer.writeInteger(1.5), /whole numbers/);
    assert.throws(() => writer.writeInteger(1n << 64n), /64 bits/);
    assert.throws(() => writer.writeInteger(-(1n << 63n) - 1n), /64 bits/);
  });
  test('writes around bytes in place only where there is room in front of them', () => {
    const frame = Buffer.alloc(10_000, 7);
    const writer = new MsgpackWriter();
    writer.writeText('head');
    assert.throws(() => writer.writeBytesInPlace(frame, 7, 9_000), /do not fit in front/);
    writer.reset();
    writer.writeText('head');
    // Five bytes of text and three of the header of the bytes.
    writer.writeBytesInPlace(frame, 8, 9_000);
    const written = writer.take();
    assert.is(written.buffer, frame.buffer);
    assert.is(Buffer.from(written.subarray(0, 9)).toString('hex'), 'a468656164c5232007');
    assert.is(written.length, 9_000);
  });
});
