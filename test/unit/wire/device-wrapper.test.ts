/** Pickled device wrappers: every golden one is read, every hostile one is refused. */
import { existsSync } from 'node:fs';
import { decode, encode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import type { CpuShmWrapper, TensorWrapper } from '../../../src/device/tensor-wrapper.ts';
import { KvdError } from '../../../src/errors.ts';
import { readDeviceWrapper } from '../../../src/wire/device-wrapper.ts';
import { writeShmWrapperPickle } from '../../../src/wire/pickle-writer.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';
import {
  frameBytes,
  type VectorWrapper,
  wireVectors,
  wireVectors056,
} from '../../support/wire-vectors.ts';

const byCase = new Map(wireVectors.wrappers.map((wrapper) => [wrapper.case, wrapper]));

function bytesOf(name: string): Buffer {
  return Buffer.from((byCase.get(name) as VectorWrapper).hex, 'hex');
}

function refusal(data: Uint8Array): KvdError {
  let wrapper: TensorWrapper;
  try {
    wrapper = readDeviceWrapper(data);
  } catch (error) {
    assert.instance(error, KvdError);
    return error as KvdError;
  }
  return assert.unreachable(`read as ${wrapper.kind}`) as never;
}

/** The golden fields in the words of `TensorWrapper`. */
function expected(fields: Record<string, unknown>): Record<string, unknown> {
  const handle = fields['handle'] as unknown[];
  const geometry = {
    dtype: fields['dtype'],
    shape: fields['shape'],
    stride: fields['stride'],
    storageOffset: fields['storage_offset'],
    deviceUuid: fields['device_uuid'],
  };
  switch (fields['class']) {
    case 'CpuShmTensorWrapper':
      return {
        kind: 'cpu-shm',
        ...geometry,
        shmName: fields['shm_name'],
        sizeBytes: fields['nbytes'],
      };
    case 'CudaIPCWrapper':
      return {
        kind: 'cuda-ipc',
        ...geometry,
        memoryHandle: goldenBytes(handle[1]).slice(-64),
        storageSizeBytes: handle[2],
        storageOffsetBytes: handle[3],
      };
    case 'VmmCudaIPCWrapper':
      return {
        kind: 'cuda-vmm',
        ...geometry,
        exportId: goldenBytes(fields['_export_id']),
        shareKind: fields['_kind'],
        fabricHandle: fields['_fabric_blob'] === null ? null : goldenBytes(fields['_fabric_blob']),
        allocationSizeBytes: fields['_alloc_size'],
        allocationOffsetBytes: fields['_alloc_offset'],
        sizeBytes: fields['_nbytes'],
      };
    default:
      return {
        kind: 'cuda-raw-ipc',
        ...geometry,
        memoryHandle: goldenBytes(fields['_ipc_handle_reserved']),
        allocationOffsetBytes: fields['_alloc_offset'] ?? 0,
        sizeBytes: fields['_nbytes'],
      };
  }
}

function goldenBytes(value: unknown): Uint8Array {
  return Uint8Array.from(Buffer.from((value as { $bytes: string }).$bytes, 'hex'));
}

const UNSUPPORTED = 'cuda-expandable-segment';

const GOLDEN = [...wireVectors.wrappers, ...wireVectors056.wrappers];

suite('device wrapper', (test) => {
  test('of every golden case is read with all its fields, pickled or described', () => {
    for (const wrapper of GOLDEN) {
      if (wrapper.case === UNSUPPORTED) continue;
      const read = readDeviceWrapper(Buffer.from(wrapper.hex, 'hex'));
      assert.equal({ ...read }, expected(wrapper.fields), wrapper.case);
    }
  });

  test('is read alike from protocols 3 and 5, and from 2 when it holds no bytes', () => {
    for (const wrapper of wireVectors.wrappers) {
      if (wrapper.case === UNSUPPORTED) continue;
      const hasBytes = wrapper.fields['class'] !== 'CpuShmTensorWrapper';
      for (const [protocol, hex] of Object.entries(wrapper.other_protocols ?? {})) {
        const data = Buffer.from(hex, 'hex');
        if (protocol === '2' && hasBytes) {
          assert.match(refusal(data).message, /_codecs\.encode" is not allowed/);
        } else {
          assert.equal({ ...readDeviceWrapper(data) }, expected(wrapper.fields), wrapper.case);
        }
      }
    }
  });

  test('of memory that cannot be shared is refused with the remedy', () => {
    const expandable = refusal(bytesOf(UNSUPPORTED));
    assert.is(expandable.code, 'ERR_UNSUPPORTED');
    assert.match(expandable.message, /expandable_segments/);
    for (const [module, name, remedy] of [
      ['lmcache.v1.platform.musa.ipc', 'MusaIPCWrapper', /MUSA/],
      ['lmcache.v1.platform.musa.ipc_wrapper', 'MusaIPCWrapper', /MUSA/],
    ] as const) {
      const error = refusal(pickle(text(module), text(name), 0x93, 0x2e));
      assert.is(error.code, 'ERR_UNSUPPORTED');
      assert.match(error.message, remedy);
    }
  });

  test('survives no truncation', () => {
    for (const wrapper of GOLDEN) {
      const data = Buffer.from(wrapper.hex, 'hex');
      for (let length = 0; length < data.length; length += 1) {
        assert.is(refusal(data.subarray(0, length)).code, 'ERR_WIRE_WRAPPER');
      }
    }
  });

  test('with any byte changed is read or refused, never anything else', () => {
    const data = bytesOf('cuda-bf16-vllm-5d');
    fc.assert(
      fc.property(fc.nat(data.length - 1), fc.nat(255), (index, byte) => {
        const damaged = Buffer.from(data);
        damaged[index] = byte;
        try {
          readDeviceWrapper(damaged);
        } catch (error) {
          assert.instance(error, KvdError);
        }
      }),
      { numRuns: 3000 },
    );
  });
});

/** Cases of the hostile list that the specification accepts. */
const ACCEPTED = new Set(['trailing-garbage', 'list-instead-of-tuple', 'unknown-extra-attribute']);

suite('described wrapper', (test) => {
  test('that is none, or says more than it should, is refused', () => {
    for (const { case: name, hex } of wireVectors056.bad_descriptors ?? []) {
      assert.is(refusal(Buffer.from(hex, 'hex')).code, 'ERR_WIRE_WRAPPER', name);
    }
  });

  test('of a device that no server can use is refused with the reason', () => {
    for (const [type, reason] of [
      ['musa', /MUSA/],
      ['npu', /NPU/],
    ] as const) {
      const error = refusal(described({ type }));
      assert.is(error.code, 'ERR_UNSUPPORTED');
      assert.match(error.message, reason);
    }
    assert.match(refusal(described({ type: 'tpu' })).message, /type "tpu" is unknown/);
  });

  test('needs every key of its type, each of its kind', () => {
    const metadata = {
      dtype: 'uint8',
      shape: [4],
      stride: [1],
      storage_offset: 0,
      device_uuid: '',
    };
    const good = { type: 'cpu_shm', version: 1, metadata, shm_name: '/a', nbytes: 4 };
    assert.is(readDeviceWrapper(described(good)).kind, 'cpu-shm');
    const damages = [
      { version: 2 },
      { version: '1' },
      { nbytes: 3 },
      { nbytes: -1 },
      { nbytes: 4.5 },
      { nbytes: null },
      { shm_name: '/a/b' },
      { shm_name: '..' },
      { handle: [] },
      { metadata: { ...metadata, shape: [4, 1] } },
      { metadata: { ...metadata, dtype: 'load' } },
      { metadata: { ...metadata, more: 1 } },
      { metadata: [] },
    ];
    for (const damage of damages) {
      const { code } = refusal(described({ ...good, ...damage }));
      assert.is(code, 'ERR_WIRE_WRAPPER', JSON.stringify(damage));
    }
    for (const key of Object.keys(good) as (keyof typeof good)[]) {
      const { [key]: _, ...rest } = good;
      assert.match(refusal(described(rest)).message, /missing/, key);
    }
  });

  test('with an allocation smaller than its view, or a handle too many, is refused', () => {
    const golden = GOLDEN.find((wrapper) => wrapper.case === 'cuda-vmm-fabric') as VectorWrapper;
    const map = decode(Buffer.from(golden.hex, 'hex')) as Record<string, unknown>;
    assert.is(readDeviceWrapper(described(map)).kind, 'cuda-vmm');
    for (const damage of [
      { alloc_offset: 0x20_0000 },
      { fabric_blob: null },
      { kind: 'posix_fd' },
      { kind: 'pipe' },
      { export_id: new Uint8Array(15) },
    ]) {
      assert.is(refusal(described({ ...map, ...damage })).code, 'ERR_WIRE_WRAPPER');
    }
  });

  test('with any byte changed is read or refused, never anything else', () => {
    const data = Buffer.from(wireVectors056.wrappers[0]?.hex ?? '', 'hex');
    fc.assert(
      fc.property(fc.nat(data.length - 1), fc.nat(255), (index, byte) => {
        const damaged = Buffer.from(data);
        damaged[index] = byte;
        try {
          readDeviceWrapper(damaged);
        } catch (error) {
          assert.instance(error, KvdError);
        }
      }),
      { numRuns: 3000 },
    );
  });
});

function described(map: Record<string, unknown>): Uint8Array {
  return encode(map);
}

suite('hostile pickle', (test) => {
  test('of every golden case is refused, and nothing is executed', () => {
    for (const hostile of wireVectors.hostile_pickles) {
      const data = frameBytes(hostile.hex);
      if (ACCEPTED.has(hostile.case)) {
        assert.is(readDeviceWrapper(data).kind, 'cpu-shm', hostile.case);
      } else {
        assert.is(refusal(data).code, 'ERR_WIRE_WRAPPER', hostile.case);
      }
    }
    assert.not.ok(existsSync('pwned_by_pickle'));
  });

  test('cannot use an opcode that is not on the list', () => {
    const allowed =
      '2e80952828 4e88894a4b4d8a 8c588d43428e 29858687745d61657d7375 947172686a 63938162';
    const list = new Set(Buffer.from(allowed.replaceAll(' ', ''), 'hex'));
    for (let opcode = 0; opcode < 256; opcode += 1) {
      if (list.has(opcode)) continue;
      assert.match(refusal(pickle(opcode)).message, /is not allowed at byte 2/);
    }
  });

  test('cannot refer to anything but wrapper classes and dtypes', () => {
    for (const [module, name] of [
      ['builtins', 'eval'],
      ['os', 'system'],
      ['torch', 'load'],
      ['torch', 'constructor'],
      ['torch', '__proto__'],
      ['lmcache.v1.platform.cpu.shm', 'os.system'],
      ['lmcache.v1.platform.cpu.shm CpuShmTensorWrapper', ''],
    ] as const) {
      assert.match(refusal(pickle(text(module), text(name), 0x93, 0x2e)).message, /not allowed/);
      const global = [0x63, ...Buffer.from(`${module}\n${name}\n`), 0x2e];
      assert.match(refusal(pickle(global)).message, /not allowed/);
    }
  });

  test('cannot grow beyond the bounds of stack, memo, nesting, numbers and input', () => {
    assert.match(refusal(pickle(new Array(1001).fill(0x4e))).message, /more than 1000 values/);
    assert.match(refusal(pickle(0x4e, 0x72, 0xe8, 0x03, 0, 0)).message, /memo index 1000/);
    assert.match(refusal(pickle(new Array(33).fill(0x28))).message, /nesting deeper than 32/);
    assert.match(refusal(pickle(0x4e, new Array(33).fill(0x85))).message, /nesting deeper than 32/);
    assert.match(refusal(pickle(0x8a, 10, new Array(10).fill(1))).message, /too large/);
    assert.match(refusal(new Uint8Array(65_537).fill(0x80)).message, /at most 65536 bytes/);
    assert.match(
      refusal(pickle(0x8d, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])).message,
      /length/,
    );
  });

  test('may hold itself without harm', () => {
    // A list that is appended to itself, then put where an object should be.
    assert.match(refusal(pickle(0x5d, 0x94, 0x68, 0, 0x61, 0x2e)).message, /expected an object/);
  });

  test('cannot take what lies below an open mark', () => {
    assert.match(refusal(pickle(0x4e, 0x28, 0x85, 0x2e)).message, /the stack is empty/);
    assert.match(refusal(pickle(0x74)).message, /no MARK is open/);
    assert.match(refusal(pickle(0x68, 0)).message, /nothing is remembered under 0/);
  });
});

/** A protocol 4 pickle of the given opcodes. */
function pickle(...parts: readonly (number | readonly number[])[]): Uint8Array {
  return Uint8Array.from([0x80, 4, ...parts.flat()]);
}

function text(value: string): number[] {
  return [0x8c, Buffer.byteLength(value), ...Buffer.from(value)];
}

function shm(changes: Partial<CpuShmWrapper>): CpuShmWrapper {
  return {
    kind: 'cpu-shm',
    dtype: 'float16',
    shape: [2, 8],
    stride: [8, 1],
    storageOffset: 0,
    deviceUuid: 'cpu',
    shmName: '/lmcache_kv_1_0',
    sizeBytes: 32,
    ...changes,
  };
}

function readBack(changes: Partial<CpuShmWrapper>): TensorWrapper {
  return readDeviceWrapper(writeShmWrapperPickle(shm(changes)));
}

suite('wrapper of host memory', (test) => {
  test('is written byte for byte as Python writes it', () => {
    for (const wrapper of wireVectors.wrappers) {
      if (wrapper.fields['class'] !== 'CpuShmTensorWrapper') continue;
      const written = writeShmWrapperPickle(expected(wrapper.fields) as unknown as CpuShmWrapper);
      assert.is(Buffer.from(written).toString('hex'), wrapper.hex, wrapper.case);
    }
  });

  test('comes back as it was written, whatever its numbers', () => {
    const size = fc.integer({ min: 0, max: 1 << 20 });
    fc.assert(
      fc.property(fc.array(size, { maxLength: 8 }), size, (shape, storageOffset) => {
        const stride = shape.map((_, axis) => axis);
        const changes = { shape, stride, storageOffset, sizeBytes: 2 ** 50 };
        assert.equal({ ...readBack(changes) }, { ...shm(changes) });
      }),
      { numRuns: 300 },
    );
  });

  test('must describe a view that lies inside its storage', () => {
    readBack({ storageOffset: 0, sizeBytes: 32 });
    assert.throws(() => readBack({ sizeBytes: 31 }), /the view ends at byte 32 of a storage of 31/);
    assert.throws(() => readBack({ storageOffset: 1 }), /the view ends at byte 34/);
    assert.throws(() => readBack({ stride: [2 ** 52, 1] }), /the view ends at byte/);
    assert.throws(
      () =>
        readBack({ shape: [2 ** 52, 2 ** 52], stride: [2 ** 52, 2 ** 52], sizeBytes: 2 ** 53 - 1 }),
      /the view ends at byte/,
    );
    readBack({ shape: [0, 8], sizeBytes: 0, shmName: '' });
    readBack({ shape: [2, 8], stride: [0, 0], sizeBytes: 2 });
  });

  test('must have matching ranks of at most 8', () => {
    assert.throws(() => readBack({ stride: [1] }), /shape has 2 dimensions, stride has 1/);
    const shape = new Array<number>(9).fill(1);
    assert.throws(() => readBack({ shape, stride: shape }), /more than 8 elements/);
  });

  test('must have a plain segment name', () => {
    for (const shmName of ['/..', '..', '/.', '/a/b', 'a b', 'ä', '/a\n', '']) {
      assert.throws(() => readBack({ shmName }), /shm_name|no segment name/, shmName);
    }
    assert.is((readBack({ shmName: 'name' }) as CpuShmWrapper).shmName, '/name');
  });
});
