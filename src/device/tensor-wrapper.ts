/**
 * What a client sends to say where one KV cache tensor lives (spec wire 5). Plain data: names and
 * numbers, already checked against each other by `wire/`, never anything that could be executed.
 */

export type DtypeName =
  | 'float16'
  | 'bfloat16'
  | 'float32'
  | 'float64'
  | 'uint8'
  | 'int8'
  | 'int16'
  | 'int32'
  | 'int64'
  | 'bool'
  | 'uint16'
  | 'uint32'
  | 'uint64'
  | 'float8_e4m3fn'
  | 'float8_e5m2'
  | 'float8_e4m3fnuz'
  | 'float8_e5m2fnuz'
  | 'float8_e8m0fnu';

/** Bytes per element. A closed table: no other dtype name is ever accepted (spec wire 4). */
export const DTYPE_SIZE_BYTES: Readonly<Record<DtypeName, number>> = {
  float16: 2,
  bfloat16: 2,
  float32: 4,
  float64: 8,
  uint8: 1,
  int8: 1,
  int16: 2,
  int32: 4,
  int64: 8,
  bool: 1,
  uint16: 2,
  uint32: 4,
  uint64: 8,
  float8_e4m3fn: 1,
  float8_e5m2: 1,
  float8_e4m3fnuz: 1,
  float8_e5m2fnuz: 1,
  float8_e8m0fnu: 1,
};

/** Shape and stride are in elements, outermost first; `storageOffset` is in elements. */
export interface TensorGeometry {
  readonly dtype: DtypeName;
  readonly shape: readonly number[];
  readonly stride: readonly number[];
  readonly storageOffset: number;
  readonly deviceUuid: string;
}

export interface CpuShmWrapper extends TensorGeometry {
  readonly kind: 'cpu-shm';
  /** POSIX name with its leading slash, or `''` for an empty tensor. */
  readonly shmName: string;
  /** Bytes of the segment that the tensor may use. */
  readonly sizeBytes: number;
}

/** A CUDA allocation shared by PyTorch: `handle` of spec wire 5.1, table C. */
export interface CudaIpcWrapper extends TensorGeometry {
  readonly kind: 'cuda-ipc';
  /** 64 bytes, or null for an empty storage. */
  readonly memoryHandle: Uint8Array | null;
  readonly storageSizeBytes: number;
  readonly storageOffsetBytes: number;
}

/** A bare `cudaIpcMemHandle_t` (table R). */
export interface RawCudaIpcWrapper extends TensorGeometry {
  readonly kind: 'cuda-raw-ipc';
  readonly memoryHandle: Uint8Array;
  readonly allocationOffsetBytes: number;
  readonly sizeBytes: number;
}

/** A place in CUDA virtual memory (table V): what opens it is asked for elsewhere. */
export interface VmmCudaWrapper extends TensorGeometry {
  readonly kind: 'cuda-vmm';
  /** 16 bytes that name the allocation among those of its process. */
  readonly exportId: Uint8Array;
  readonly shareKind: 'posix_fd' | 'fabric';
  /** 64 bytes; null unless it is shared over the fabric. */
  readonly fabricHandle: Uint8Array | null;
  readonly allocationSizeBytes: number;
  readonly allocationOffsetBytes: number;
  readonly sizeBytes: number;
}

export type TensorWrapper = CpuShmWrapper | CudaIpcWrapper | RawCudaIpcWrapper | VmmCudaWrapper;
