import { createHash } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { decode, encode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import {
  Float,
  writePythonFloat,
  writePythonJson,
} from '../../../src/observability/python-json.ts';
import {
  decodeFrame,
  encodeRecord,
  encodeTrailer,
  readArguments,
} from '../../../src/observability/trace-file/frames.ts';
import { FRAME_HEAD_BYTES, Packer } from '../../../src/observability/trace-file/packer.ts';
import { describeStorageConfig } from '../../../src/observability/trace-file/storage-config.ts';
import {
  packValue,
  readValue,
  type TraceValue,
} from '../../../src/observability/trace-file/values.ts';
import { suite } from '../../support/suite.ts';

const VECTORS = path.join(import.meta.dirname, '../../vectors/metrics');

const typed = (tag: string, payload: unknown) => ({ __t__: tag, v: payload });
const KEY = { chunk_hash: Buffer.alloc(32, 7), model_name: 'm', kv_rank: 2 ** 40 };

function encodeValue(value: TraceValue): Buffer {
  const packer = new Packer();
  packValue(packer, value);
  return packer.joined();
}

/** What comes out when `raw` is read and written again. */
function again(raw: unknown): Buffer {
  return encodeValue(readValue(decode(encode(raw), { useBigInt64: true })));
}

suite('values of a storage trace', (test) => {
  test('every type of the reference comes out as it came in', () => {
    const values = [
      typed('ObjectKey', { ...KEY, object_group_id: 3 }),
      typed('ObjectKey', { ...KEY, object_group_id: 0, cache_salt: 'tenant' }),
      typed('MemoryLayoutDesc', {
        shapes: [[2, 300], []],
        dtypes: ['torch.float16', 'torch.half'],
      }),
      typed('PrefetchHandle', {
        prefetch_request_id: -1,
        l1_found_indices: [0, 2],
        submit_time: 1.5,
      }),
      ...['PREFIX', 'SPARSE', 'SEGMENTED_PREFIX'].map((name) => typed('TrimPolicy', name)),
      ...[typed('torch.Size', [1, 70_000]), typed('torch.dtype', 'torch.bfloat16')],
      ...[typed('tuple', [typed('set', ['a'])]), typed('set', [])],
      ...[null, true, -5, 2 ** 33, 0.25, 'text', new Uint8Array([1, 2]), [1, [2]], { a: { b: 1 } }],
    ];
    for (const value of values) {
      assert.ok(again(value).equals(encode(value)), JSON.stringify(value));
    }
  });

  test('integers of 64 bits keep all of their digits', () => {
    for (const value of [2n ** 64n - 1n, -(2n ** 63n)]) {
      const encoded = encode(value, { useBigInt64: true });
      const read = readValue(decode(encoded, { useBigInt64: true }));
      assert.is(read, value);
      assert.ok(encodeValue(read).equals(encoded));
    }
  });

  test('types of newer traces are kept as they are', () => {
    const value = typed('PrefetchTaskSpec', { keys: [typed('GroupedObjectKeys', [1])], n: 2 });
    const read = readValue(value) as { tag: string; name: string };
    assert.equal([read.tag, read.name], ['opaque', 'PrefetchTaskSpec']);
    assert.ok(again(value).equals(encode(value)));
  });

  test('a key without group and salt has group 0 and no salt', () => {
    const read = readValue(typed('ObjectKey', { ...KEY, some_later_field: 1 })) as {
      value: { objectGroupId: number; cacheSalt: string; kvRank: number };
    };
    const { objectGroupId, cacheSalt, kvRank } = read.value;
    assert.equal([objectGroupId, cacheSalt, kvRank], [0, '', 2 ** 40]);
  });

  test('keys that differ in salt or length of hash do not get each other’s bytes', () => {
    for (const [modelName, cacheSalt] of [
      ['m', ''],
      ['m', 'x'],
      ['mx', ''],
      ['m', 'x'],
    ] as const) {
      for (const size of [8, 32]) {
        const key = { chunkHash: Buffer.alloc(size, 1), modelName, kvRank: 1, objectGroupId: 0 };
        const value = { tag: 'ObjectKey', value: { ...key, cacheSalt } } as const;
        assert.equal(readValue(decode(encodeValue(value))), value);
      }
    }
  });

  test('a map that only looks like a type is a map', () => {
    for (const raw of [{ __t__: 'ObjectKey' }, { __t__: 1, v: 2 }, { __t__: 'set', v: [], w: 1 }]) {
      assert.instance(readValue(raw), Map);
      assert.ok(again(raw).equals(encode(raw)));
    }
  });

  test('a type with the wrong content is refused by name', () => {
    const faults: readonly (readonly [unknown, RegExp])[] = [
      [typed('ObjectKey', 'x'), /ObjectKey: expected a map, got string "x"/],
      [typed('ObjectKey', { ...KEY, chunk_hash: 'ff' }), /chunk_hash: expected bytes, got string/],
      [typed('ObjectKey', { ...KEY, kv_rank: -1 }), /kv_rank: expected a whole number, got number/],
      [typed('ObjectKey', { ...KEY, cache_salt: 5 }), /cache_salt: expected text, got number "5"/],
      [typed('MemoryLayoutDesc', { shapes: [1], dtypes: [] }), /shapes: expected lists/],
      [typed('MemoryLayoutDesc', { shapes: [], dtypes: null }), /dtypes: expected a list, got nil/],
      [typed('TrimPolicy', ['PREFIX']), /TrimPolicy: expected text, got a list/],
      [typed('torch.Size', 4), /torch.Size: expected a list/],
    ];
    for (const [raw, expected] of faults) {
      assert.throws(
        () => readArguments({ rawArguments: { some: raw } }),
        (error: Error) => error.message.startsWith('some: ') && expected.test(error.message),
      );
    }
  });
});

suite('frames of a storage trace', (test) => {
  test('what the vector’s frames are is what they are decoded to', () => {
    const bytes = new Uint8Array(fs.readFileSync(path.join(VECTORS, 'trace_storage_0.5.0.lct')));
    const text = fs.readFileSync(path.join(VECTORS, 'trace_storage_0.5.0.json'), 'utf8');
    const expected = JSON.parse(text, (_, value) =>
      value?.$bytes_hex === undefined
        ? value
        : new Uint8Array(Buffer.from(value.$bytes_hex, 'hex')),
    );
    const records = expected.slice(1);
    assert.is(records.length, 24);
    for (const { offset, length, frame } of records) {
      const start = offset + FRAME_HEAD_BYTES;
      assert.equal(decodeFrame(bytes.subarray(start, start + length)), {
        monoSeconds: frame.t_mono,
        wallSeconds: frame.t_wall,
        qualname: frame.qualname,
        rawArguments: frame.args,
      });
    }
  });

  test('times are floats of 64 bits also when they are whole', () => {
    const record = encodeRecord({ monoSeconds: 2, wallSeconds: 3, qualname: 'q' }, new Map());
    const trailer = encodeTrailer({ monoSeconds: 0, recordCount: 1, droppedCount: 0 });
    const floats = (frame: Buffer) => frame.toString('hex').match(/cb(4[0-9a-f]{15}|0{16})/g);
    assert.equal(floats(record), ['cb4000000000000000', 'cb4008000000000000']);
    assert.equal(floats(trailer), ['cb0000000000000000']);
    const handle = new Map<string, TraceValue>([['submit_time', 2]]);
    const value = encodeValue({ tag: 'PrefetchHandle', value: handle });
    assert.equal(floats(value), ['cb4000000000000000']);
  });

  test('a record that is none is refused with what was expected', () => {
    const good = { type: 'record', t_mono: 0, t_wall: 0, qualname: 'q', args: {} };
    const faults: readonly (readonly [unknown, RegExp])[] = [
      [7, /expected a map, got 7/],
      [{ ...good, type: 'header' }, /expected type "record", got "header"/],
      [{ ...good, type: 'events' }, /got "events"/],
      [{ ...good, t_mono: -1 }, /expected t_mono of at least 0, got -1/],
      [{ ...good, t_mono: Number.NaN }, /got NaN/],
      [{ ...good, t_mono: Number.POSITIVE_INFINITY }, /got Infinity/],
      [{ ...good, t_wall: 'now' }, /expected t_wall, got "now"/],
      [{ ...good, qualname: null }, /expected qualname, got null/],
      [{ ...good, args: [] }, /expected args to be a map, got a list/],
      [{ ...good, type: 'trailer', records: -1, dropped: 0 }, /expected counts/],
    ];
    for (const [value, expected] of faults) {
      const decoded = decodeFrame(encode(value));
      assert.instance(decoded, Error);
      assert.match((decoded as Error).message, expected);
    }
    assert.not.instance(decodeFrame(encode(good)), Error);
  });
});

suite('the storage configuration in a trace', (test) => {
  const described = (shmName: string, url: string) => ({
    store_policy: 'default',
    l1_manager_config: { memory_config: { size_in_bytes: 5, shm_name: shmName, use_lazy: true } },
    l2_adapter_config: { adapters: [{ type: 'resp', url, password: 'hush', port: 6379 }] },
    eviction_config: { trigger_watermark: 0.5 },
  });

  test('is sorted, and has no secrets and nothing of one process', () => {
    const { text, digest } = describeStorageConfig(described('pool_1', 'redis://u:pw@host/0'));
    assert.is(
      text,
      '{"eviction_config": {"trigger_watermark": 0.5}, "l1_manager_config": ' +
        '{"memory_config": {"size_in_bytes": 5, "use_lazy": true}}, "l2_adapter_config": ' +
        '{"adapters": [{"password": "***", "port": 6379, "type": "resp", "url": ' +
        '"redis://***@host/0"}]}, "store_policy": "default"}',
    );
    assert.is(digest, createHash('sha256').update(text).digest('hex'));
  });

  test('is the same for the same settings, and another for others', () => {
    const { digest } = describeStorageConfig(described('pool_1', 'redis://host/0'));
    assert.is(describeStorageConfig(described('pool_2', 'redis://host/0')).digest, digest);
    assert.is.not(describeStorageConfig(described('pool_1', 'redis://host/1')).digest, digest);
  });
});

suite('JSON as Python writes it', (test) => {
  test('floats stay floats, in their shortest form', () => {
    // Checked against repr() of Python 3.
    const known = {
      '0.0': 0,
      '2.0': 2,
      '0.1': 0.1,
      '0.0001': 0.0001,
      '1e-05': 0.00001,
      '9.298324584960938e-06': 9.298324584960938e-6,
      '1.5e-300': 1.5e-300,
      '1e+16': 1e16,
      '9007199254740992.0': 2 ** 53,
      '-3.25': -3.25,
    };
    for (const [text, value] of Object.entries(known)) assert.is(writePythonFloat(value), text);
  });

  test('text is ASCII, lists and maps have a space behind their signs', () => {
    const value = { b: ['é\u007f\n', new Float(1), 1, null, true], a: {}, c: [] };
    const text = '{"b": ["\\u00e9\\u007f\\n", 1.0, 1, null, true], "a": {}, "c": []}';
    assert.is(writePythonJson(value), text);
  });

  test('indented, each entry has its line and keys may be sorted', () => {
    const text = writePythonJson({ b: [1, {}], a: { c: 2 } }, { sortsKeys: true, indent: 2 });
    assert.is(text, '{\n  "a": {\n    "c": 2\n  },\n  "b": [\n    1,\n    {}\n  ]\n}');
  });
});
