/**
 * Checks that all forms of device wrappers have in common: a view lies inside its storage, a handle
 * has its length, a name is a plain name. Whether the memory behind a wrapper exists and is that
 * large is the device's question.
 */
import {
  type CpuShmWrapper,
  DTYPE_SIZE_BYTES,
  type DtypeName,
  type TensorGeometry,
} from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';

/** Bytes of one wrapper; real ones have 300 to 900. */
export const WRAPPER_BYTES_MAX = 64 * 1024;
export const RANK_MAX = 8;
export const IPC_HANDLE_SIZE_BYTES = 64;
export const EXPORT_ID_SIZE_BYTES = 16;
/** Elements of PyTorch's description of a CUDA storage (spec wire 5.1). */
export const CUDA_HANDLE_COUNT = 8;
const SHM_NAME = /^\/?[A-Za-z0-9_.-]{1,255}$/;

export const MUSA_REFUSAL =
  'MUSA devices are not supported: run the engine without --kv-transfer-config or on CUDA';

export function fail(problem: string): never {
  throw new KvdError('ERR_WIRE_WRAPPER', `device wrapper: ${problem}`);
}

export function isDtypeName(name: string): name is DtypeName {
  return Object.hasOwn(DTYPE_SIZE_BYTES, name);
}

/** Throws for a view that reaches beyond `sizeBytes`. */
export function checkGeometry(geometry: TensorGeometry, sizeBytes: number): void {
  const { shape, stride } = geometry;
  if (shape.length !== stride.length) {
    fail(`shape has ${shape.length} dimensions, stride has ${stride.length}`);
  }
  const end = viewEndBytes(geometry);
  // Products beyond 2^53 lose digits but stay larger than any size that is let through.
  if (end > sizeBytes) fail(`the view ends at byte ${end} of a storage of ${sizeBytes} bytes`);
}

/** Bytes from the start of the storage to the end of the view; 0 when the view has no elements. */
function viewEndBytes({ dtype, shape, stride, storageOffset }: TensorGeometry): number {
  if (shape.includes(0)) return 0;
  let last = storageOffset;
  for (const [axis, size] of shape.entries()) last += (size - 1) * (stride[axis] as number);
  return (last + 1) * DTYPE_SIZE_BYTES[dtype];
}

export function shmWrapper(
  geometry: TensorGeometry,
  name: string,
  sizeBytes: number,
): CpuShmWrapper {
  if (name === '') {
    if (sizeBytes > 0) fail('a tensor with bytes has no segment name');
  } else if (!SHM_NAME.test(name) || /^\/?\.\.?$/.test(name)) {
    fail('shm_name is not a plain name (letters, digits, _ . -)');
  }
  checkGeometry(geometry, sizeBytes);
  const shmName = name === '' || name.startsWith('/') ? name : `/${name}`;
  return { kind: 'cpu-shm', ...geometry, shmName, sizeBytes };
}

/** A copy of exactly so many bytes. */
export function exactBytes(value: Uint8Array, sizeBytes: number, name: string): Uint8Array {
  if (value.length !== sizeBytes) fail(`${name} is not ${sizeBytes} bytes`);
  return Uint8Array.from(value);
}

/**
 *   64 bytes                   a bare handle (old PyTorch)
 *   version, 'c', 64 bytes     a plain allocation
 *   version, 'e', …            an expandable segment
 */
export function readMemoryHandle(raw: Uint8Array): Uint8Array {
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
    fail(`handle[1] has no known form (${raw.length} bytes)`);
  }
  return Uint8Array.from(raw.subarray(2));
}

/** A place inside an allocation of CUDA's virtual memory, and how it is shared. */
export function checkAllocation(place: {
  readonly allocationSizeBytes: number;
  readonly allocationOffsetBytes: number;
  readonly sizeBytes: number;
  readonly shareKind: string;
  readonly fabricHandle: Uint8Array | null;
}): void {
  const { allocationSizeBytes, allocationOffsetBytes, sizeBytes, shareKind, fabricHandle } = place;
  const end = allocationOffsetBytes + sizeBytes;
  if (end > allocationSizeBytes) {
    fail(`byte ${end} of an allocation of ${allocationSizeBytes} bytes`);
  }
  if ((shareKind === 'fabric') !== (fabricHandle !== null)) {
    fail('a fabric handle belongs to shared fabric memory, and to nothing else');
  }
}
