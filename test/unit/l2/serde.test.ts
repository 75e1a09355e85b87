import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { gunzipSync } from 'node:zlib';
import * as assert from 'uvu/assert';
import type { KvdError } from '../../../src/errors.ts';
import type { L2Object } from '../../../src/l2/backend.ts';
import type { Serde } from '../../../src/l2/serde/serde.ts';
import { readSerdeSpec } from '../../../src/l2/serde/serde-types.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import fc from '../../support/property.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const never = new AbortController().signal;
const VECTORS = path.resolve(import.meta.dirname, '..', '..', 'vectors', 'l2', 'serde');

const readVector = (name: string): Buffer => readFileSync(path.join(VECTORS, name));

async function openSerde(json: Record<string, unknown>): Promise<Serde> {
  const { type, values, where } = readSerdeSpec(json, { where: 'test', env: {} });
  return type.open(values, where);
}

async function roundTrip(serde: Serde, object: L2Object): Promise<Uint8Array> {
  const stored = await serde.serialize(object);
  assert.ok(serde.acceptsSize(stored.length, object.bytes.length));
  const size = serde.serializedSize(object);
  if (size !== null) assert.is(size, stored.length);
  const target = { ...object, bytes: new Uint8Array(object.bytes.length) };
  await serde.deserialize(target, stored, never);
  return target.bytes;
}

function deserialize(serde: Serde, object: L2Object, stored: Uint8Array): Promise<void> {
  return serde.deserialize(object, stored, never);
}

// ---------------------------------------------------------------- fp8

/** Every 16-bit pattern, as an object. */
function allPatterns(dtype: string): L2Object {
  const words = Uint16Array.from({ length: 65_536 }, (_, i) => i);
  return { key: l2Key(1), bytes: new Uint8Array(words.buffer), layout: `${dtype}[65536]` };
}

const DTYPES = [
  ['bfloat16', 'bf16'],
  ['float16', 'fp16'],
] as const;
const FORMATS = ['float8_e4m3fn', 'float8_e5m2'] as const;

suite('serde: fp8', (test) => {
  for (const fp8 of FORMATS) {
    for (const [dtype, short] of DTYPES) {
      test(`${dtype} becomes ${fp8} as torch does it, bit by bit`, async () => {
        const serde = await openSerde({ type: 'fp8', fp8_dtype: fp8 });
        const stored = await serde.serialize(allPatterns(dtype));
        const expected = gunzipSync(readVector(`${short}_to_${fp8}.bin.gz`));
        for (const [i, code] of expected.entries()) {
          assert.is(stored[i], code, `pattern 0x${i.toString(16)}`);
        }
      });

      test(`${fp8} becomes ${dtype} as torch does it`, async () => {
        const serde = await openSerde({ type: 'fp8', fp8_dtype: fp8 });
        const object = { key: l2Key(1), bytes: new Uint8Array(512), layout: `${dtype}[2,128]` };
        await deserialize(
          serde,
          object,
          Uint8Array.from({ length: 256 }, (_, i) => i),
        );
        const expected = readVector(`${fp8}_to_${short}.bin`);
        assert.is(createHash('sha256').update(object.bytes).digest('hex'), digestOf(expected));
      });
    }
  }

  test('fp32 is rounded once', async () => {
    const serde = await openSerde({ type: 'fp8' });
    const inputs = [0, -0, 1, 1.0625, 1.0626, 1.1875, 448, 464, 1e9, -1e9, 2 ** -9, 2 ** -10];
    const words = Float32Array.from([...inputs, 2 ** -10 * 1.0001, Number.NaN, Infinity]);
    const object = {
      key: l2Key(1),
      bytes: new Uint8Array(words.buffer),
      layout: `float32[${words.length}]`,
    };
    assert.equal(
      [...new Float32Array((await roundTrip(serde, object)).buffer)],
      [0, -0, 1, 1, 1.125, 1.25, 448, 448, 448, -448, 2 ** -9, 0, 2 ** -9, Number.NaN, 448],
    );
  });

  test('parts of an object follow each other, each of its own type', async () => {
    const serde = await openSerde({ type: 'fp8' });
    const halves = new Uint16Array([0x3c00, 0xbc00]); // 1, −1
    const words = new Float32Array([2]);
    const bytes = new Uint8Array(8);
    bytes.set(new Uint8Array(words.buffer));
    bytes.set(new Uint8Array(halves.buffer), 4);
    const object = { key: l2Key(1), bytes, layout: 'float32[1]{b16};float16[2]' };
    assert.is(serde.serializedSize(object), 3);
    assert.equal(await roundTrip(serde, object), bytes);
  });

  test('what is no floating point is refused, with the reason', async () => {
    const serde = await openSerde({ type: 'fp8' });
    assert.match(serde.refusalOf('uint8[2,4]') ?? '', /uint8/);
    assert.match(serde.refusalOf(undefined) ?? '', /not known/);
    assert.match(serde.refusalOf('bfloat16[4];float8_e4m3fn[4]') ?? '', /float8_e4m3fn/);
    assert.is(serde.refusalOf('bfloat16[4]'), null);
    const object = { key: l2Key(1), bytes: new Uint8Array(8), layout: 'bfloat16[5]' };
    await rejects(serde.serialize(object), /has 10 bytes, the object 8/);
    const good = { key: l2Key(1), bytes: new Uint8Array(8), layout: 'bfloat16[4]' };
    await rejects(deserialize(serde, good, new Uint8Array(5)), /expected 4 bytes, got 5/);
  });
});

const digestOf = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

// ---------------------------------------------------------------- aesgcm

interface AesVector {
  readonly master_key_hex: string;
  readonly cases: readonly {
    readonly aes_bits: number;
    readonly cache_salt: string;
    readonly plaintext_hex: string;
    readonly frame_hex: string;
  }[];
}

async function withMasterKey(hex: string, body: (file: string) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(path.join(tmpdir(), 'kvd-serde-'));
  try {
    const file = path.join(folder, 'master.key');
    await writeFile(file, Buffer.from(hex, 'hex'));
    await body(file);
  } finally {
    await rm(folder, { recursive: true });
  }
}

const KEY_HEX = '000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f';

suite('serde: aesgcm', (test) => {
  test('frames of the reference are read', async () => {
    const vector = JSON.parse(readVector('aesgcm.json').toString()) as AesVector;
    await withMasterKey(vector.master_key_hex, async (file) => {
      for (const { aes_bits, cache_salt: cacheSalt, plaintext_hex, frame_hex } of vector.cases) {
        const serde = await openSerde({ type: 'aesgcm', aes_bits, master_key_path: file });
        const plain = Buffer.from(plaintext_hex, 'hex');
        const object = { key: l2Key(1, { cacheSalt }), bytes: new Uint8Array(plain.length) };
        await deserialize(serde, object, Buffer.from(frame_hex, 'hex'));
        assert.is(Buffer.from(object.bytes).toString('hex'), plaintext_hex);
      }
    });
  });

  test('values come back, and every frame is another one', () =>
    withMasterKey(KEY_HEX, async (file) => {
      const serde = await openSerde({ type: 'aesgcm', master_key_path: file });
      const object = { key: l2Key(1), bytes: l2Value(5000, 1) };
      assert.equal(await roundTrip(serde, object), object.bytes);
      const [first, second] = [await serde.serialize(object), await serde.serialize(object)];
      assert.is(first[0], 1);
      assert.is(first.length, 5029);
      assert.not.equal(first, second);
    }));

  test('any changed bit, another salt, another master key: no value', () =>
    withMasterKey(KEY_HEX, async (file) => {
      const serde = await openSerde({ type: 'aesgcm', master_key_path: file });
      const object = { key: l2Key(1, { cacheSalt: 'a' }), bytes: l2Value(40, 1) };
      const stored = await serde.serialize(object);
      const expectNothing = async (from: Serde, key: L2Object['key'], frame: Uint8Array) => {
        await rejects(deserialize(from, { key, bytes: new Uint8Array(40) }, frame), /aesgcm/);
      };
      for (let bit = 0; bit < 8 * stored.length; bit += 1) {
        const frame = Uint8Array.from(stored);
        frame[bit >> 3] = (frame[bit >> 3] as number) ^ (1 << (bit & 7));
        await expectNothing(serde, object.key, frame);
      }
      for (let length = 0; length < stored.length; length += 1) {
        await expectNothing(serde, object.key, stored.subarray(0, length));
      }
      await expectNothing(serde, l2Key(1, { cacheSalt: 'b' }), stored);
      await withMasterKey('ff', async (other) => {
        const stranger = await openSerde({ type: 'aesgcm', master_key_path: other });
        await expectNothing(stranger, object.key, stored);
      });
    }));

  test('frame version 2 binds a value to its key; both versions are read', () =>
    withMasterKey(KEY_HEX, async (file) => {
      const keys = { type: 'aesgcm', master_key_path: file };
      const bound = await openSerde({ ...keys, frame_version: 2 });
      const plain = await openSerde(keys);
      const object = { key: l2Key(1), bytes: l2Value(100, 1) };
      const stored = await bound.serialize(object);
      assert.is(stored[0], 2);
      for (const serde of [bound, plain]) {
        const target = { key: object.key, bytes: new Uint8Array(100) };
        await deserialize(serde, target, stored);
        assert.equal(target.bytes, object.bytes);
        await deserialize(serde, target, await plain.serialize(object));
        const other = { key: l2Key(2), bytes: new Uint8Array(100) };
        await rejects(deserialize(serde, other, stored), /aesgcm/);
        // Version 1 lets values of one salt be exchanged: that is what version 2 is for.
        await deserialize(serde, other, await plain.serialize(object));
      }
    }));

  test('a master key that cannot be read stops the start', async () => {
    const missing = { type: 'aesgcm', master_key_path: '/nonexistent/master.key' };
    await rejects(openSerde(missing), /master_key_path.*ENOENT/);
    await withMasterKey('', async (file) => {
      await rejects(openSerde({ type: 'aesgcm', master_key_path: file }), /is empty/);
      await rejects(openSerde({ ...missing, aes_bits: 192 }), /aes_bits must be 128 or 256/);
    });
  });
});

// ---------------------------------------------------------------- zstd

suite('serde: zstd', (test) => {
  test('any value comes back', async () => {
    const serde = await openSerde({ type: 'zstd' });
    const values = fc.oneof(
      fc.uint8Array({ minLength: 1, maxLength: 2000 }),
      fc.tuple(fc.nat(255), fc.integer({ min: 1, max: 200_000 })).map(([byte, length]) => {
        return new Uint8Array(length).fill(byte);
      }),
    );
    await fc.assert(
      fc.asyncProperty(values, async (bytes) => {
        assert.equal(await roundTrip(serde, { key: l2Key(1), bytes }), bytes);
      }),
      { numRuns: 100 },
    );
  });

  test('what repeats becomes smaller', async () => {
    const serde = await openSerde({ type: 'zstd', level: 19 });
    const stored = await serde.serialize({ key: l2Key(1), bytes: new Uint8Array(100_000) });
    assert.ok(stored.length < 100);
  });

  test('a frame that was changed, cut or is another one gives no value', async () => {
    const serde = await openSerde({ type: 'zstd' });
    const object = { key: l2Key(1), bytes: l2Value(3000, 1).map((byte) => byte & 15) };
    const stored = await serde.serialize(object);
    const target = { key: l2Key(1), bytes: new Uint8Array(3000) };
    for (let i = 0; i < stored.length; i += 1) {
      const frame = Uint8Array.from(stored);
      frame[i] = (frame[i] as number) ^ 0x10;
      const outcome = await deserialize(serde, target, frame).catch((error: KvdError) => error);
      // A bit that means nothing (the unused one of the descriptor) may be what it likes.
      if (outcome === undefined) assert.equal(target.bytes, object.bytes);
      else assert.is(outcome.code, 'ERR_L2_CORRUPT');
    }
    for (let length = 0; length < stored.length; length += 7) {
      await rejects(deserialize(serde, target, stored.subarray(0, length)), /zstd/);
    }
    const longer = { key: l2Key(1), bytes: new Uint8Array(3001) };
    await rejects(deserialize(serde, longer, stored), /3000 bytes, not 3001/);
  });
});

// ---------------------------------------------------------------- configuration

suite('serde: configuration', (test) => {
  const read = (json: Record<string, unknown>) => () =>
    readSerdeSpec(json, { where: "--l2-adapter #1 ('fs')", env: {} });

  test('what cannot be applied stops the start', () => {
    assert.throws(
      read({ type: 'gzip' }),
      /Unknown serde type 'gzip'\. Registered: aesgcm, fp8, zstd/,
    );
    assert.throws(read({}), /Unknown serde type undefined/);
    assert.throws(read({ type: 'turboquant' }), /turboquant.*GPU/);
    assert.throws(read({ type: 'aesgcm' }), /missing "master_key_path"/);
    assert.throws(read({ type: 'aesgcm', master_key_path: '' }), /non-empty/);
    assert.throws(read({ type: 'fp8', fp8_dtype: 'float8_e8m0fnu' }), /float8_e4m3fn, float8_e5m2/);
    assert.throws(read({ type: 'zstd', level: 20 }), /at most 19/);
    assert.throws(read({ type: 'zstd', levle: 3 }), /unknown key "levle"/);
  });
});
