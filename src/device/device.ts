/**
 * Memory that is not ours: the KV caches of the engines, and how their bytes get to L1 and back.
 *
 * The interface is the same for host shared memory, CUDA and HIP. The engine room describes *what*
 * to copy (a `CopyPlan` per kind of object, `CopyJob`s per request) and never touches a
 * pointer; a device decides *how*: worker threads and memcpy on the host, streams and events on an
 * accelerator.
 *
 * One job runs at a time per instance, in the order of submission; jobs of different instances run
 * side by side. A job's promise settles when its bytes have arrived, never earlier.
 *
 *   engine tensor (paged)                                L1 object (one chunk, contiguous)
 *   plane p: base + block * blockStride                  planeOffset + k * objectBlockStride
 *   ┌─────────┬─────────┬─────────┐                      ┌──────────┬──────────┬───
 *   │ block 0 │ block 1 │ block 2 │ …   ── gather ──▶    │ block k=0│ block k=1│ …
 *   └─────────┴─────────┴─────────┘     ◀─ scatter ──    └──────────┴──────────┴───
 *   inside a block: outerCount × innerCount runs of runBytes, with strides on each side
 */
import type { DtypeName, TensorWrapper } from './tensor-wrapper.ts';

/** A tensor whose memory is mapped and checked: every block of it can be reached. */
export interface MappedTensor {
  readonly dtype: DtypeName;
  /** Physical order: outermost dimension first, as spec engine 5.3 step 0 defines it. */
  readonly shape: readonly number[];
  readonly stride: readonly number[];
}

/**
 * One plane = one (kv, layer) of one kernel group. All numbers are bytes; offsets of the engine
 * side count from the first element of the tensor (its storage offset is already applied).
 */
export interface CopyPlane {
  readonly tensorIndex: number;
  readonly engineOffsetBytes: number;
  readonly engineBlockStrideBytes: number;
  readonly objectOffsetBytes: number;
}

/** The pattern that all planes of one kernel group share. */
export interface KernelGroupPlan {
  readonly planes: readonly CopyPlane[];
  readonly objectBlockStrideBytes: number;
  readonly outerCount: number;
  readonly engineOuterStrideBytes: number;
  readonly objectOuterStrideBytes: number;
  readonly innerCount: number;
  readonly engineInnerStrideBytes: number;
  readonly objectInnerStrideBytes: number;
  readonly runBytes: number;
  /** Blocks of one object in this group after the window cut (`bpw` of spec engine 5.4). */
  readonly objectBlockCount: number;
  /** Number of blocks of the engine's cache: every block id must be below it. */
  readonly engineBlockCount: number;
}

export interface CopyPlan {
  readonly groups: readonly KernelGroupPlan[];
  readonly objectSizeBytes: number;
}

/**
 * `blockIds[g]` holds, for kernel group g, `objects * objectBlockCount` ids in object order, after
 * the window cut. `objectOffsets[o]` is the byte offset of object o in L1, or −1 to leave it out.
 */
export interface CopyJob {
  readonly direction: 'gather' | 'scatter';
  /** Number of the plan; absent = the first. */
  readonly planIndex?: number;
  readonly objectOffsets: Float64Array;
  readonly blockIds: readonly Uint32Array[];
  /**
   * Scatter only: `skipBlocks[g][o]` leading blocks of object o that the engine already has.
   * Absent: copy all.
   */
  readonly skipBlocks?: readonly Uint32Array[];
}

/** A process of this host, told from others that had or will have its pid. */
export interface ProcessOwner {
  readonly pid: number;
  /** When it was started, in clock ticks since boot. */
  readonly startTicks: number;
}

export interface DeviceInstance {
  readonly deviceKind: 'cpu' | 'cuda' | 'hip';
  readonly tensors: readonly MappedTensor[];
  /**
   * Binds a plan. Jobs name it by its number: plans are counted from 0 in the order of binding.
   * Throws `ERR_LAYOUT` when it leaves a tensor.
   */
  addPlan(plan: CopyPlan): void;
  /** Rejects with `ERR_DEVICE_COPY` when bytes could not be moved. */
  submit(job: CopyJob): Promise<void>;
  /** Makes later jobs wait for the work behind the client's event handle. */
  waitForEvent(handle: Uint8Array): void;
  /** A handle that the client can wait on for everything submitted so far. */
  completionEvent(): Uint8Array;
  /**
   * MD5 per run of `blocksPerChecksum` block ids, over all layers in order, as `http.md` 5.8 asks.
   * `blockAxes` are the dimensions that count blocks, one per tensor. Layerwise: a list per tensor.
   */
  checksumBlocks(options: {
    readonly blockIds: readonly number[];
    readonly blocksPerChecksum: number;
    readonly blockAxes: readonly number[];
    readonly isLayerwise: boolean;
  }): Promise<string[][]>;
  /** Jobs submitted and not settled. */
  readonly jobCountInFlight: number;
  /** Ids of the memory that this instance maps, to tell whether a re-registration changed it. */
  readonly mappingIds: readonly string[];
  /** The process whose memory this is; null when that is not certain. */
  readonly owner: ProcessOwner | null;
  /**
   * Removes the names under which the owner's memory can be found, so that it is freed when it is
   * unmapped here. Only for an owner that has certainly ended: nobody else cleans up behind it. A
   * name that stands for something else by now stays. Returns how many were removed.
   */
  removeNames(): number;
  /** Lets running jobs end, then unmaps. Later submits reject with `ERR_SHUTTING_DOWN`. */
  close(): Promise<void>;
}

/** A tensor in memory of this process, beside its object in L1. */
export interface HostTensorCopy {
  readonly bytes: Uint8Array;
  /** Of the first element inside `bytes`. */
  readonly offsetBytes: number;
  /** In elements, one per dimension; nothing below zero. */
  readonly stride: readonly number[];
  /** Byte offset of the object in L1, a multiple of the alignment of objects. */
  readonly objectOffset: number;
}

/** Tensors of one shape, to or from L1, where they are contiguous. */
export interface HostCopyJob {
  readonly direction: 'to-l1' | 'from-l1';
  readonly shape: readonly number[];
  readonly itemSizeBytes: number;
  readonly copies: readonly HostTensorCopy[];
}

export interface Device {
  readonly kind: 'cpu' | 'cuda' | 'hip';
  /**
   * Maps the memory behind the wrappers, off the event loop, and checks its size.
   * Rejects with `ERR_DEVICE_MEMORY` (missing, short, foreign) or `ERR_UNSUPPORTED`.
   */
  openInstance(wrappers: readonly TensorWrapper[]): Promise<DeviceInstance>;
  /**
   * Moves tensors between this process and L1, off the event loop. The buffers are kept alive and
   * must not change until the promise settles. Rejects with `ERR_DEVICE_COPY`, `ERR_OVERLOADED` or
   * `ERR_UNSUPPORTED`; then none of the bytes may be trusted.
   */
  copyHostTensors(job: HostCopyJob): Promise<void>;
  /** A valid event for a refused transfer of an unknown instance. */
  anyEvent(): Uint8Array;
  status(): Record<string, unknown>;
  close(): Promise<void>;
}
