/**
 * Described device wrappers: a msgpack map of plain values (clients since 0.5.6, spec wire 5.3).
 *
 *   type       further keys (besides type, version, metadata)
 *   cpu_shm    shm_name, nbytes
 *   cuda       handle: array of 8
 *   cuda_raw   ipc_handle, alloc_offset, nbytes
 *   cuda_vmm   export_id, kind, fabric_blob, alloc_size, alloc_offset, nbytes
 *   musa npu   refused
 *
 *   metadata   dtype, shape, stride, storage_offset, device_uuid
 *
 * Each type has its keys and no others: a map with one more is refused, because the key could mean
 * that the rest has to be read differently. Values are looked up by key, in any order.
 */
import type {
  CpuShmWrapper,
  DtypeName,
  TensorGeometry,
  TensorWrapper,
} from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';
import { MsgpackReader, MsgpackWriter } from './msgpack.ts';
import {
  CUDA_HANDLE_COUNT,
  checkAllocation,
  checkGeometry,
  EXPORT_ID_SIZE_BYTES,
  exactBytes,
  fail,
  IPC_HANDLE_SIZE_BYTES,
  isDtypeName,
  MUSA_REFUSAL,
  RANK_MAX,
  readMemoryHandle,
  shmWrapper,
  WRAPPER_BYTES_MAX,
} from './wrapper-checks.ts';

const VERSION = 1;
/** Keys and elements of one wrapper, those of its metadata included; real ones have about 30. */
const ELEMENTS_MAX = 256;
const METADATA_KEYS = ['dtype', 'shape', 'stride', 'storage_offset', 'device_uuid'];
const TEXT_BYTES_MAX = 1024;

type Build = (map: DescribedMap, geometry: TensorGeometry) => TensorWrapper;

const TYPES: ReadonlyMap<string, { readonly keys: readonly string[]; readonly build: Build }> =
  new Map([
    [
      'cpu_shm',
      {
        keys: ['shm_name', 'nbytes'],
        build: (map, geometry) => shmWrapper(geometry, map.text('shm_name'), map.count('nbytes')),
      },
    ],
    ['cuda', { keys: ['handle'], build: cudaWrapper }],
    ['cuda_raw', { keys: ['ipc_handle', 'alloc_offset', 'nbytes'], build: rawCudaWrapper }],
    [
      'cuda_vmm',
      {
        keys: ['export_id', 'kind', 'fabric_blob', 'alloc_size', 'alloc_offset', 'nbytes'],
        build: vmmWrapper,
      },
    ],
  ]);

/** Types that a genuine client may send and that no kvd can use, with the reason. */
const REFUSALS: ReadonlyMap<string, string> = new Map([
  ['musa', MUSA_REFUSAL],
  ['npu', 'NPU devices are not supported: run the engine without kvd or on CUDA'],
]);

/** Throws `ERR_WIRE_WRAPPER` or `ERR_UNSUPPORTED`. */
export function readDescribedWrapper(data: Uint8Array): TensorWrapper {
  if (data.length > WRAPPER_BYTES_MAX) fail(`expected at most ${WRAPPER_BYTES_MAX} bytes`);
  const reader = new MsgpackReader();
  reader.startMessage(ELEMENTS_MAX);
  reader.reset(data);
  try {
    return readMap(reader);
  } catch (error) {
    if (!(error instanceof KvdError) || error.code !== 'ERR_WIRE_PAYLOAD') throw error;
    throw new KvdError('ERR_WIRE_WRAPPER', `device wrapper: ${error.message}`, { cause: error });
  }
}

function readMap(reader: MsgpackReader): TensorWrapper {
  const map = new DescribedMap(reader);
  reader.end();
  const type = map.text('type');
  const refusal = REFUSALS.get(type);
  if (refusal) throw new KvdError('ERR_UNSUPPORTED', refusal);
  const known = TYPES.get(type);
  if (!known) return fail(`type ${JSON.stringify(type.slice(0, 40))} is unknown`);
  map.expectKeys(['type', 'version', 'metadata', ...known.keys]);
  const version = map.count('version');
  if (version !== VERSION) fail(`version ${version} is unknown, expected ${VERSION}`);
  return known.build(map, readGeometry(map));
}

function readGeometry(map: DescribedMap): TensorGeometry {
  const metadata = map.map('metadata');
  metadata.expectKeys(METADATA_KEYS);
  const dtype = metadata.text('dtype');
  if (!isDtypeName(dtype)) fail(`dtype ${JSON.stringify(dtype.slice(0, 40))} is unknown`);
  return {
    dtype: dtype as DtypeName,
    shape: metadata.counts('shape'),
    stride: metadata.counts('stride'),
    storageOffset: metadata.count('storage_offset'),
    deviceUuid: metadata.text('device_uuid'),
  };
}

/** A map that has been walked over: where the value of each key begins. */
class DescribedMap {
  readonly #reader: MsgpackReader;
  readonly #offsets = new Map<string, number>();

  constructor(reader: MsgpackReader) {
    this.#reader = reader;
    const count = reader.readMapHeader();
    for (let pair = 0; pair < count; pair += 1) {
      const key = reader.readText(TEXT_BYTES_MAX);
      this.#offsets.set(key, reader.offset);
      reader.skip();
    }
  }

  expectKeys(keys: readonly string[]): void {
    for (const key of this.#offsets.keys()) {
      if (!keys.includes(key)) fail(`key ${JSON.stringify(key.slice(0, 40))} is unknown`);
    }
    const missing = keys.find((key) => !this.#offsets.has(key));
    if (missing !== undefined) fail(`key ${missing} is missing`);
  }

  /** The reader, at the value of `key`. */
  at(key: string): MsgpackReader {
    const offset = this.#offsets.get(key);
    if (offset === undefined) return fail(`key ${key} is missing`);
    this.#reader.offset = offset;
    this.#reader.place = key;
    return this.#reader;
  }

  text(key: string): string {
    return this.at(key).readText(TEXT_BYTES_MAX);
  }

  bytes(key: string, sizeBytes: number): Uint8Array {
    return exactBytes(this.at(key).readBytes(), sizeBytes, key);
  }

  count(key: string): number {
    return readCount(this.at(key));
  }

  counts(key: string): number[] {
    const reader = this.at(key);
    const count = reader.readArrayHeader(RANK_MAX);
    return Array.from({ length: count }, () => readCount(reader));
  }

  map(key: string): DescribedMap {
    return new DescribedMap(this.at(key));
  }
}

function readCount(reader: MsgpackReader): number {
  return reader.readIntegerIn(0, Number.MAX_SAFE_INTEGER);
}

function cudaWrapper(map: DescribedMap, geometry: TensorGeometry): TensorWrapper {
  const reader = map.at('handle');
  const count = reader.readArrayHeader();
  if (count !== CUDA_HANDLE_COUNT) fail(`handle has ${count} elements, not ${CUDA_HANDLE_COUNT}`);
  readCount(reader);
  const memoryHandle = reader.tryNil() ? null : readMemoryHandle(reader.readBytes());
  const storageSizeBytes = readCount(reader);
  const storageOffsetBytes = readCount(reader);
  if (!reader.tryNil()) reader.readBytes();
  readCount(reader);
  if (!reader.tryNil()) reader.readBytes();
  if (!reader.tryNil()) reader.readBool();
  if (memoryHandle === null && storageSizeBytes > 0) fail('a storage with bytes has no handle');
  checkGeometry(geometry, storageSizeBytes);
  return { kind: 'cuda-ipc', ...geometry, memoryHandle, storageSizeBytes, storageOffsetBytes };
}

function rawCudaWrapper(map: DescribedMap, geometry: TensorGeometry): TensorWrapper {
  const sizeBytes = map.count('nbytes');
  checkGeometry(geometry, sizeBytes);
  return {
    kind: 'cuda-raw-ipc',
    ...geometry,
    memoryHandle: map.bytes('ipc_handle', IPC_HANDLE_SIZE_BYTES),
    allocationOffsetBytes: map.count('alloc_offset'),
    sizeBytes,
  };
}

function vmmWrapper(map: DescribedMap, geometry: TensorGeometry): TensorWrapper {
  const shareKind = map.text('kind');
  if (shareKind !== 'fabric' && shareKind !== 'posix_fd') fail('kind is unknown');
  const place = {
    exportId: map.bytes('export_id', EXPORT_ID_SIZE_BYTES),
    shareKind: shareKind as 'fabric' | 'posix_fd',
    fabricHandle: map.at('fabric_blob').tryNil()
      ? null
      : map.bytes('fabric_blob', IPC_HANDLE_SIZE_BYTES),
    allocationSizeBytes: map.count('alloc_size'),
    allocationOffsetBytes: map.count('alloc_offset'),
    sizeBytes: map.count('nbytes'),
  };
  checkAllocation(place);
  checkGeometry(geometry, place.sizeBytes);
  return { kind: 'cuda-vmm', ...geometry, ...place };
}

/** The description of one tensor in shared memory, for our own client. */
export function writeShmDescription(wrapper: CpuShmWrapper): Uint8Array {
  const writer = new MsgpackWriter();
  writer.writeMapHeader(5);
  writer.writeText('type');
  writer.writeText('cpu_shm');
  writer.writeText('shm_name');
  writer.writeText(wrapper.shmName);
  writer.writeText('nbytes');
  writer.writeInteger(wrapper.sizeBytes);
  writer.writeText('version');
  writer.writeInteger(VERSION);
  writer.writeText('metadata');
  writer.writeMapHeader(METADATA_KEYS.length);
  writer.writeText('dtype');
  writer.writeText(wrapper.dtype);
  writeCounts(writer, 'shape', wrapper.shape);
  writeCounts(writer, 'stride', wrapper.stride);
  writer.writeText('storage_offset');
  writer.writeInteger(wrapper.storageOffset);
  writer.writeText('device_uuid');
  writer.writeText(wrapper.deviceUuid);
  return writer.take();
}

function writeCounts(writer: MsgpackWriter, key: string, values: readonly number[]): void {
  writer.writeText(key);
  writer.writeArrayHeader(values.length);
  for (const value of values) writer.writeInteger(value);
}
