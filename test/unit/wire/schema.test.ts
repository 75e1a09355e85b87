/** Rules of types that the golden messages do not show (spec wire 2). */
import * as assert from 'uvu/assert';
import { MsgpackWriter } from '../../../src/wire/msgpack.ts';
import { frames } from '../../../src/wire/payload-frames.ts';
import { cacheKey } from '../../../src/wire/requests/fields.ts';
import {
  array,
  bool,
  type Codec,
  decode,
  encode,
  enumeration,
  float,
  instanceId,
  integer,
  looseBool,
  looseInstanceId,
  looseInteger,
  nullable,
  PayloadReader,
  text,
} from '../../../src/wire/schema.ts';
import { field, fieldOr, fieldWhen, omittable, struct } from '../../../src/wire/struct.ts';
import { openHasher } from '../../support/core-hasher.ts';
import { suite } from '../../support/suite.ts';

const reader = new PayloadReader(openHasher({ chunkSizeTokens: 16, tokenCountMax: 1000 }));

function read<T>(codec: Codec<T>, hex: string): T {
  reader.place = '';
  return decode(codec, Buffer.from(hex, 'hex'), reader);
}

interface Sample {
  readonly count: number;
  readonly label: string;
  readonly hint?: boolean;
  /** 1 = not said. */
  readonly generation: number;
}

const sample = struct<Sample>({
  count: field('n', integer(0, 100)),
  label: fieldOr('label', text(10), 'none'),
  hint: omittable('hint', bool),
  generation: fieldWhen('g', integer(), 1, ({ generation }: Sample) => generation > 1),
});

suite('struct', (test) => {
  test('takes keys in any order, ignores unknown ones, and lets the last of two win', () => {
    assert.equal(read(sample, '82a56c6162656ca161a16e05'), {
      count: 5,
      label: 'a',
      generation: 1,
    });
    assert.equal(read(sample, '82a3666f6f81a17801a16e05'), {
      count: 5,
      label: 'none',
      generation: 1,
    });
    assert.is(read(sample, '83a16e05a16e06a16e07').count, 7);
  });

  test('names the key that is missing, and the place of a wrong value', () => {
    assert.throws(() => read(sample, '80'), /missing key in the map at byte 0 \(n\)/);
    assert.throws(() => read(sample, '81a16ea131'), /expected int, got str at byte 3 \(n\)/);
    assert.throws(() => read(sample, '81a16e65'), /from 0 to 100, got 101 at byte 3 \(n\)/);
  });

  test('is a map with text keys, never an array', () => {
    assert.throws(() => read(sample, '9105'), /expected map, got array/);
    assert.throws(() => read(sample, '810505'), /expected str, got int/);
  });

  test('is written in the declared order, defaults included, omitted values left out', () => {
    const hex = (value: Sample) => Buffer.from(encode(sample, value)).toString('hex');
    assert.is(hex({ count: 5, label: 'none', generation: 1 }), '82a16e05a56c6162656ca46e6f6e65');
    assert.is(
      hex({ generation: 1, hint: true, label: 'none', count: 5 }),
      '83a16e05a56c6162656ca46e6f6e65a468696e74c3',
    );
  });

  test('of older clients is read and written without the fields of newer ones', () => {
    assert.is(read(sample, '82a16e05a16702').generation, 2);
    assert.is(read(sample, '81a16e05').generation, 1);
    const hex = (generation: number) =>
      Buffer.from(encode(sample, { count: 5, label: '', generation })).toString('hex');
    assert.is(hex(1), '82a16e05a56c6162656ca0');
    assert.is(hex(2), '83a16e05a56c6162656ca0a16702');
  });

  test('with a key that JavaScript treats specially is an unknown key', () => {
    const proto = '82a95f5f70726f746f5f5f81a16e01a16e05';
    const value = read(sample, proto);
    assert.is(value.count, 5);
    assert.is(Object.getPrototypeOf(value), Object.prototype);
  });
});

suite('int as a whole frame', (test) => {
  test('is coerced as Python would', () => {
    for (const [hex, value] of [
      ['4d', 77],
      ['cb40537999999999a0', 77],
      ['cbc053799999999999', -77],
      ['a23737', 77],
      ['a4202b3737', 77],
      ['a3375f37', 77],
      ['c4023737', 77],
      ['c3', 1],
      ['c2', 0],
    ] as const) {
      assert.is(read(looseInteger, hex), value, hex);
    }
  });

  test('is refused where Python raises', () => {
    for (const hex of [
      'c0',
      '90',
      '80',
      'a0',
      'a178',
      'a3375f5f',
      'cb7ff8000000000000',
      'd40178',
    ]) {
      assert.throws(() => read(looseInteger, hex), /expected int, got/, hex);
    }
    assert.throws(() => read(looseInteger, 'cb7ff0000000000000'), /got Infinity/);
    const digits = Buffer.from('9'.repeat(33)).toString('hex');
    assert.throws(() => read(looseInteger, `d921${digits}`), /that is no number/);
  });

  test('beyond what a number holds is refused for counts and kept for instance ids', () => {
    assert.throws(() => read(looseInteger, 'cf0020000000000000'), /within ±/);
    assert.is(read(looseInstanceId, 'cf7fffffffffffffff'), (1n << 63n) - 1n);
  });

  test('as an instance id lies in 0 to 2^63 − 1', () => {
    for (const codec of [looseInstanceId, instanceId]) {
      assert.throws(() => read(codec, 'ff'), /instance id from 0 to 2\^63 − 1, got -1/);
      assert.throws(() => read(codec, 'cf8000000000000000'), /instance id/);
      assert.is(read(codec, '00'), 0n);
    }
    assert.throws(() => read(instanceId, 'a131'), /expected int, got str/);
  });
});

suite('bool as a whole frame', (test) => {
  test('is false for nil, zero and everything empty, else true', () => {
    for (const hex of [
      'c0',
      'c2',
      '00',
      'cb0000000000000000',
      'a0',
      'c400',
      '90',
      '80',
      'dc0000',
    ]) {
      assert.is(read(looseBool, hex), false, hex);
    }
    for (const hex of [
      'c3',
      '01',
      'cb7ff8000000000000',
      'a130',
      'c40100',
      '91c0',
      '810000',
      'd40100',
    ]) {
      assert.is(read(looseBool, hex), true, hex);
    }
  });
});

suite('nested value', (test) => {
  test('that may be nil is strict otherwise', () => {
    assert.is(read(nullable(integer()), 'c0'), null);
    for (const hex of ['c3', 'a131', 'cb3ff0000000000000']) {
      assert.throws(() => read(nullable(integer()), hex), /expected int/);
    }
  });

  test('declared float takes an int, and no text', () => {
    assert.is(read(float, '05'), 5);
    assert.is(read(float, 'ca3fc00000'), 1.5);
    assert.throws(() => read(float, 'a131'), /expected float, got str/);
  });

  test('of a closed list is refused with the list and a short quotation', () => {
    const kinds = enumeration(['vllm', 'mock']);
    assert.throws(() => read(kinds, 'a4564c4c4d'), /one of vllm, mock, got "VLLM"/);
    const long = Buffer.from('x'.repeat(200)).toString('hex');
    assert.throws(() => read(kinds, `d9c8${long}`), /got "x{20}" at/);
  });

  test('in an array grows with what is there, not with what is announced', () => {
    assert.throws(() => read(array(integer()), 'ddffffffff'), /truncated: array of 4294967295/);
  });
});

suite('payload frames', (test) => {
  const two = frames<{ a: number; b: number }>({ a: integer(), b: integer() });

  test('are read in order, and an error names the frame', () => {
    const payloads = ['00', '01', '02'].map((hex) => Buffer.from(hex, 'hex'));
    assert.equal(two.read(payloads, 1, reader), { a: 1, b: 2 });
    assert.throws(
      () => two.read([Buffer.from([1]), Buffer.from([0xa0])], 0, reader),
      /payload 1: expected int, got str at byte 0$/,
    );
    assert.throws(
      () => two.read([Buffer.from([1, 1]), Buffer.from([1])], 0, reader),
      /payload 0: expected end of data, got 1 bytes more/,
    );
  });
});

/** A key frame with one field replaced by raw msgpack. */
function keyWith(changes: Readonly<Record<string, string>>): string {
  const fields: Record<string, string> = {
    model_name: 'a16d',
    world_size: '01',
    worker_id: 'c0',
    token_ids: '920102',
    start: '00',
    end: '02',
    request_id: 'a172',
    cache_salt: 'a0',
    ...changes,
  };
  const writer = new MsgpackWriter();
  writer.writeMapHeader(Object.keys(fields).length);
  for (const [name, hex] of Object.entries(fields)) {
    writer.writeText(name);
    writer.writeRaw(Buffer.from(hex, 'hex'));
  }
  return Buffer.from(writer.take()).toString('hex');
}

suite('cache key', (test) => {
  test('may have a salt of 128 characters, counted as characters', () => {
    const smile = '😀'.repeat(128);
    const bytes = Buffer.from(smile);
    const hex = `da0200${bytes.toString('hex')}`;
    assert.is(read(cacheKey, keyWith({ cache_salt: hex })).cacheSalt, smile);
    const long = `d981${Buffer.from('s'.repeat(129)).toString('hex')}`;
    assert.throws(() => read(cacheKey, keyWith({ cache_salt: long })), /at most 128 characters/);
  });

  test('cannot have a salt with separators, and the error does not quote it', () => {
    for (const salt of ['a@b', 'a/b', 'a\\b', 'a\0b']) {
      const hex = `a3${Buffer.from(salt).toString('hex')}`;
      assert.throws(
        () => read(cacheKey, keyWith({ cache_salt: hex })),
        (error: Error) => /without @/.test(error.message) && !error.message.includes(salt),
      );
    }
  });

  test('has a world size from 1 to 65,535 and a rank in the same range, or none', () => {
    for (const world of ['00', 'ff', 'ce00010000', 'cf0000010000000000']) {
      assert.throws(() => read(cacheKey, keyWith({ world_size: world })), /\(world_size\)/);
    }
    assert.throws(() => read(cacheKey, keyWith({ worker_id: 'ff' })), /\(worker_id\)/);
    assert.is(read(cacheKey, keyWith({ worker_id: '07' })).workerId, 7);
  });

  test('has token ids of 32 bits, of which errors say place and kind only', () => {
    for (const token of [
      '91ff',
      '91cf0000000100000000',
      '91c3',
      '91a131',
      '91cb3ff0000000000000',
    ]) {
      assert.throws(() => read(cacheKey, keyWith({ token_ids: token })), /./);
    }
    assert.is(read(cacheKey, keyWith({ token_ids: '91ceffffffff' })).tokens.count, 1);
  });

  test('has names of at most 4 KiB', () => {
    const long = `da1001${'6d'.repeat(4097)}`;
    assert.throws(() => read(cacheKey, keyWith({ model_name: long })), /at most 4096 bytes/);
    assert.throws(() => read(cacheKey, keyWith({ request_id: long })), /at most 4096 bytes/);
  });
});
