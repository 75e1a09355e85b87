/**
 * Pickled device wrappers: one object of a known class (clients up to 0.5.5).
 *
 * `pickle.ts` turns the bytes into inert data; here the attributes are checked one by one and
 * against each other, so that a `TensorWrapper` describes a view that lies inside its storage.
 *
 *   class (spec wire 5.1)     attributes besides dtype, shape, stride, storage_offset, device_uuid
 *   CpuShmTensorWrapper   S   shm_name, nbytes
 *   CudaIPCWrapper        C   handle: tuple of 8
 *   RawCudaIPCWrapper     R   _ipc_handle_reserved, _nbytes, _alloc_offset (optional)
 *   VmmCudaIPCWrapper     V   _export_id, _kind, _fabric_blob, _alloc_size, _alloc_offset, _nbytes
 *   MusaIPCWrapper            refused
 *
 * Unknown attributes are ignored.
 */
import type { DtypeName, TensorGeometry, TensorWrapper } from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';
import {
  PickledClass,
  type PickledDict,
  PickledObject,
  PickledSequence,
  type PickledValue,
  type PickleRules,
  readPickle,
} from './pickle.ts';
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

type Kind = 'shm' | 'cuda' | 'cuda-raw' | 'vmm' | 'musa';

const CLASSES: ReadonlyMap<string, Kind> = new Map([
  ['lmcache.v1.platform.cpu.shm CpuShmTensorWrapper', 'shm'],
  ['lmcache.v1.multiprocess.custom_types CudaIPCWrapper', 'cuda'],
  ['lmcache.v1.platform.cuda.ipc_wrapper CudaIPCWrapper', 'cuda'],
  ['lmcache.v1.multiprocess.custom_types RawCudaIPCWrapper', 'cuda-raw'],
  ['lmcache.v1.platform.cuda.ipc_wrapper RawCudaIPCWrapper', 'cuda-raw'],
  ['lmcache.v1.platform.cuda.ipc_wrapper VmmCudaIPCWrapper', 'vmm'],
  ['lmcache.v1.platform.musa.ipc MusaIPCWrapper', 'musa'],
  ['lmcache.v1.platform.musa.ipc_wrapper MusaIPCWrapper', 'musa'],
]);

function kindOf(type: { module: string; name: string }): Kind | undefined {
  return CLASSES.get(`${type.module} ${type.name}`);
}

const RULES: PickleRules = {
  subject: 'device wrapper',
  errorCode: 'ERR_WIRE_WRAPPER',
  bounds: {
    inputBytesMax: WRAPPER_BYTES_MAX,
    stackCountMax: 1000,
    memoCountMax: 1000,
    stepCountMax: 64 * 1024,
  },
  isKnownClass(module, name) {
    if (module === 'torch') return isDtypeName(name);
    const kind = kindOf({ module, name });
    if (kind === 'musa') throw new KvdError('ERR_UNSUPPORTED', MUSA_REFUSAL);
    return kind !== undefined;
  },
  isObjectClass: (type) => kindOf(type) !== undefined,
};

/** Throws `ERR_WIRE_WRAPPER` or `ERR_UNSUPPORTED`. */
export function readPickledWrapper(data: Uint8Array): TensorWrapper {
  const { value } = readPickle(data, RULES);
  if (!(value instanceof PickledObject)) fail('expected an object at STOP');
  const object = value as PickledObject;
  const attributes = new Attributes(object.state);
  const geometry = readGeometry(attributes);
  switch (kindOf(object.type)) {
    case 'shm':
      return shmWrapper(geometry, attributes.text('shm_name'), attributes.count('nbytes'));
    case 'cuda':
      return cudaWrapper(attributes, geometry);
    case 'vmm':
      return vmmWrapper(attributes, geometry);
    default:
      return rawCudaWrapper(attributes, geometry);
  }
}

/** The attributes of a wrapper, taken by name with their types checked. */
class Attributes {
  readonly #entries: ReadonlyMap<PickledValue, PickledValue>;

  constructor(state: PickledDict | null) {
    if (!state) fail('the object has no attributes');
    this.#entries = (state as PickledDict).entries;
  }

  get(name: string): PickledValue {
    const value = this.#entries.get(name);
    if (value === undefined) fail(`attribute ${name} is missing`);
    return value as PickledValue;
  }

  has(name: string): boolean {
    return this.#entries.has(name);
  }

  text(name: string): string {
    const value = this.get(name);
    if (typeof value !== 'string') fail(`attribute ${name} is not a string`);
    return value as string;
  }

  bytes(name: string, sizeBytes: number): Uint8Array {
    const value = this.get(name);
    if (!(value instanceof Uint8Array)) fail(`attribute ${name} is not bytes`);
    return exactBytes(value as Uint8Array, sizeBytes, `attribute ${name}`);
  }

  count(name: string): number {
    return asCount(this.get(name), name);
  }

  counts(name: string): number[] {
    const value = this.get(name);
    if (!(value instanceof PickledSequence)) fail(`attribute ${name} is not a tuple`);
    const { items } = value as PickledSequence;
    if (items.length > RANK_MAX) fail(`attribute ${name} has more than ${RANK_MAX} elements`);
    return items.map((item) => asCount(item, name));
  }
}

/** A whole number from 0 to 2^53 − 1. Python's bool is an int, but no client sends one here. */
function asCount(value: PickledValue | undefined, name: string): number {
  if (typeof value !== 'number') fail(`attribute ${name} is not an integer of up to 53 bits`);
  if ((value as number) < 0) fail(`attribute ${name} is negative`);
  return value as number;
}

function readGeometry(attributes: Attributes): TensorGeometry {
  const dtype = attributes.get('dtype');
  if (!(dtype instanceof PickledClass) || dtype.module !== 'torch') {
    fail('attribute dtype is not a torch dtype');
  }
  return {
    dtype: (dtype as PickledClass).name as DtypeName,
    shape: attributes.counts('shape'),
    stride: attributes.counts('stride'),
    storageOffset: attributes.count('storage_offset'),
    deviceUuid: attributes.text('device_uuid'),
  };
}

function cudaWrapper(attributes: Attributes, geometry: TensorGeometry): TensorWrapper {
  const handle = attributes.get('handle');
  if (!(handle instanceof PickledSequence) || handle.items.length !== CUDA_HANDLE_COUNT) {
    fail(`attribute handle is not a tuple of ${CUDA_HANDLE_COUNT}`);
  }
  const { items } = handle as PickledSequence;
  const [, raw] = items;
  const storageSizeBytes = asCount(items[2], 'handle[2]');
  const storageOffsetBytes = asCount(items[3], 'handle[3]');
  if (raw !== null && !(raw instanceof Uint8Array)) fail('attribute handle[1] is not bytes');
  const memoryHandle = raw === null ? null : readMemoryHandle(raw as Uint8Array);
  if (memoryHandle === null && storageSizeBytes > 0) fail('a storage with bytes has no handle');
  checkGeometry(geometry, storageSizeBytes);
  return { kind: 'cuda-ipc', ...geometry, memoryHandle, storageSizeBytes, storageOffsetBytes };
}

function rawCudaWrapper(attributes: Attributes, geometry: TensorGeometry): TensorWrapper {
  const memoryHandle = attributes.bytes('_ipc_handle_reserved', IPC_HANDLE_SIZE_BYTES);
  const sizeBytes = attributes.count('_nbytes');
  checkGeometry(geometry, sizeBytes);
  const allocationOffsetBytes = attributes.has('_alloc_offset')
    ? attributes.count('_alloc_offset')
    : 0;
  return { kind: 'cuda-raw-ipc', ...geometry, memoryHandle, allocationOffsetBytes, sizeBytes };
}

function vmmWrapper(attributes: Attributes, geometry: TensorGeometry): TensorWrapper {
  const shareKind = attributes.text('_kind');
  if (shareKind !== 'fabric' && shareKind !== 'posix_fd') fail('attribute _kind is unknown');
  const fabricHandle =
    attributes.get('_fabric_blob') === null
      ? null
      : attributes.bytes('_fabric_blob', IPC_HANDLE_SIZE_BYTES);
  const place = {
    exportId: attributes.bytes('_export_id', EXPORT_ID_SIZE_BYTES),
    shareKind: shareKind as 'fabric' | 'posix_fd',
    fabricHandle,
    allocationSizeBytes: attributes.count('_alloc_size'),
    allocationOffsetBytes: attributes.count('_alloc_offset'),
    sizeBytes: attributes.count('_nbytes'),
  };
  checkAllocation(place);
  checkGeometry(geometry, place.sizeBytes);
  return { kind: 'cuda-vmm', ...geometry, ...place };
}
