/**
 * Device wrappers: msgpack ext type 1 whose data is a pickle of one wrapper object.
 *
 * `pickle.ts` turns the bytes into inert data; here the attributes are checked one by one and
 * against each other, so that a `TensorWrapper` describes a view that lies inside its storage.
 * Whether the memory behind it exists and is that large is the device's question.
 *
 *   class (spec wire 5.1)     attributes besides dtype, shape, stride, storage_offset, device_uuid
 *   CpuShmTensorWrapper   S   shm_name, nbytes
 *   CudaIPCWrapper        C   handle: tuple of 8
 *   RawCudaIPCWrapper     R   _ipc_handle_reserved, _nbytes, _alloc_offset (optional)
 *   VmmCudaIPCWrapper     V   refused: needs a file descriptor of the other process
 *   MusaIPCWrapper            refused
 *
 * Unknown attributes are ignored. Only the wrapper of host memory is ever written, by our client.
 */
import {
  DTYPE_SIZE_BYTES,
  type DtypeName,
  type TensorGeometry,
  type TensorWrapper,
} from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';
import type { MsgpackWriter } from './msgpack.ts';
import {
  PickledClass,
  type PickledDict,
  PickledObject,
  PickledSequence,
  type PickledValue,
  type PickleRules,
  readPickle,
} from './pickle.ts';
import { writeShmWrapperPickle } from './pickle-writer.ts';
import type { Codec } from './schema.ts';

const EXTENSION_TYPE = 1;
const RANK_MAX = 8;
const IPC_HANDLE_SIZE_BYTES = 64;
const SHM_NAME = /^\/?[A-Za-z0-9_.-]{1,255}$/;

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

/** Classes that a genuine client may send and that no kvd can use, with the remedy. */
const REFUSALS: Readonly<Partial<Record<Kind, string>>> = {
  vmm:
    'CUDA virtual memory (VmmCudaIPCWrapper) cannot be shared with kvd: ' +
    'turn off expandable segments in the engine (PYTORCH_CUDA_ALLOC_CONF without ' +
    "'expandable_segments:True') and cumem allocators",
  musa: 'MUSA devices are not supported: run the engine without --kv-transfer-config or on CUDA',
};

function kindOf(type: { module: string; name: string }): Kind | undefined {
  return CLASSES.get(`${type.module} ${type.name}`);
}

function isDtypeName(name: string): name is DtypeName {
  return Object.hasOwn(DTYPE_SIZE_BYTES, name);
}

const RULES: PickleRules = {
  subject: 'device wrapper',
  errorCode: 'ERR_WIRE_WRAPPER',
  bounds: {
    inputBytesMax: 64 * 1024,
    stackCountMax: 1000,
    memoCountMax: 1000,
    stepCountMax: 64 * 1024,
  },
  isKnownClass(module, name) {
    if (module === 'torch') return isDtypeName(name);
    const kind = kindOf({ module, name });
    const refusal = kind && REFUSALS[kind];
    if (refusal) throw new KvdError('ERR_UNSUPPORTED', refusal);
    return kind !== undefined;
  },
  isObjectClass: (type) => kindOf(type) !== undefined,
};

/** The wrapper in the data of an ext 1. Throws `ERR_WIRE_WRAPPER` or `ERR_UNSUPPORTED`. */
export function readDeviceWrapper(data: Uint8Array): TensorWrapper {
  const { value } = readPickle(data, RULES);
  if (!(value instanceof PickledObject)) fail('expected an object at STOP');
  const object = value as PickledObject;
  const attributes = new Attributes(object.state);
  const geometry = readGeometry(attributes);
  switch (kindOf(object.type)) {
    case 'shm':
      return shmWrapper(attributes, geometry);
    case 'cuda':
      return cudaWrapper(attributes, geometry);
    default:
      return rawCudaWrapper(attributes, geometry);
  }
}

export const deviceWrapper: Codec<TensorWrapper> = {
  read(reader) {
    const start = reader.offset;
    const { type, data } = reader.readExtension();
    if (type !== EXTENSION_TYPE) {
      reader.fail(`expected ext type ${EXTENSION_TYPE}, got ${type}`, start);
    }
    return readDeviceWrapper(data);
  },
  write(writer: MsgpackWriter, wrapper) {
    if (wrapper.kind !== 'cpu-shm') {
      throw new KvdError('ERR_UNSUPPORTED', `kvd does not write ${wrapper.kind} wrappers`);
    }
    writer.writeExtension(EXTENSION_TYPE, writeShmWrapperPickle(wrapper));
  },
};

function fail(problem: string): never {
  throw new KvdError('ERR_WIRE_WRAPPER', `device wrapper: ${problem}`);
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
  const shape = attributes.counts('shape');
  const stride = attributes.counts('stride');
  if (shape.length !== stride.length) {
    fail(`shape has ${shape.length} dimensions, stride has ${stride.length}`);
  }
  return {
    dtype: (dtype as PickledClass).name as DtypeName,
    shape,
    stride,
    storageOffset: attributes.count('storage_offset'),
    deviceUuid: attributes.text('device_uuid'),
  };
}

/** Bytes from the start of the storage to the end of the view; 0 when the view has no elements. */
function viewEndBytes(geometry: TensorGeometry): number {
  const { shape, stride, storageOffset } = geometry;
  if (shape.includes(0)) return 0;
  let last = storageOffset;
  for (const [axis, size] of shape.entries()) last += (size - 1) * (stride[axis] as number);
  return (last + 1) * DTYPE_SIZE_BYTES[geometry.dtype];
}

/** Products beyond 2^53 lose digits but stay larger than any size that `asCount` lets through. */
function checkView(geometry: TensorGeometry, sizeBytes: number): void {
  const end = viewEndBytes(geometry);
  if (end > sizeBytes) fail(`the view ends at byte ${end} of a storage of ${sizeBytes} bytes`);
}

function shmWrapper(attributes: Attributes, geometry: TensorGeometry): TensorWrapper {
  const name = attributes.text('shm_name');
  const sizeBytes = attributes.count('nbytes');
  if (name === '') {
    if (sizeBytes > 0) fail('a tensor with bytes has no segment name');
  } else if (!SHM_NAME.test(name) || /^\/?\.\.?$/.test(name)) {
    fail('shm_name is not a plain name (letters, digits, _ . -)');
  }
  checkView(geometry, sizeBytes);
  const shmName = name === '' || name.startsWith('/') ? name : `/${name}`;
  return { kind: 'cpu-shm', ...geometry, shmName, sizeBytes };
}

function cudaWrapper(attributes: Attributes, geometry: TensorGeometry): TensorWrapper {
  const handle = attributes.get('handle');
  if (!(handle instanceof PickledSequence) || handle.items.length !== 8) {
    fail('attribute handle is not a tuple of 8');
  }
  const { items } = handle as PickledSequence;
  const storageSizeBytes = asCount(items[2], 'handle[2]');
  const storageOffsetBytes = asCount(items[3], 'handle[3]');
  const memoryHandle = readMemoryHandle(items[1] as PickledValue);
  if (memoryHandle === null && storageSizeBytes > 0) fail('a storage with bytes has no handle');
  checkView(geometry, storageSizeBytes);
  return { kind: 'cuda-ipc', ...geometry, memoryHandle, storageSizeBytes, storageOffsetBytes };
}

/**
 *   64 bytes                   a bare handle (old PyTorch)
 *   version, 'c', 64 bytes     a plain allocation
 *   version, 'e', …            an expandable segment
 */
function readMemoryHandle(value: PickledValue): Uint8Array | null {
  if (value === null) return null;
  if (!(value instanceof Uint8Array)) fail('attribute handle[1] is not bytes');
  const raw = value as Uint8Array;
  if (raw.length === IPC_HANDLE_SIZE_BYTES) return Uint8Array.from(raw);
  const tag = raw.length >= 2 ? String.fromCharCode(raw[1] as number) : '';
  if (tag === 'e') {
    throw new KvdError(
      'ERR_UNSUPPORTED',
      'the tensor lies in an expandable segment of PyTorch, which cannot be shared: ' +
        "start the engine without 'expandable_segments:True' in PYTORCH_CUDA_ALLOC_CONF",
    );
  }
  if (tag !== 'c' || raw.length !== 2 + IPC_HANDLE_SIZE_BYTES) {
    fail(`attribute handle[1] has no known form (${raw.length} bytes)`);
  }
  return Uint8Array.from(raw.subarray(2));
}

function rawCudaWrapper(attributes: Attributes, geometry: TensorGeometry): TensorWrapper {
  const handle = attributes.get('_ipc_handle_reserved');
  if (!(handle instanceof Uint8Array) || handle.length !== IPC_HANDLE_SIZE_BYTES) {
    fail(`attribute _ipc_handle_reserved is not ${IPC_HANDLE_SIZE_BYTES} bytes`);
  }
  const sizeBytes = attributes.count('_nbytes');
  checkView(geometry, sizeBytes);
  return {
    kind: 'cuda-raw-ipc',
    ...geometry,
    memoryHandle: Uint8Array.from(handle as Uint8Array),
    allocationOffsetBytes: attributes.has('_alloc_offset') ? attributes.count('_alloc_offset') : 0,
    sizeBytes,
  };
}
