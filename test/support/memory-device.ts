/**
 * A `Device` over plain buffers: named segments stand for POSIX shared memory, `l1` for the arena.
 * Jobs of an instance run in order and settle in later turns of the event loop, as on a real
 * device; `hold()` keeps them waiting until it is released.
 */
import {
  type BlockReader,
  type ChecksumOptions,
  checksumBlocks,
} from '../../src/device/block-checksums.ts';
import { checkPlan, jobProblem } from '../../src/device/copy-plan.ts';
import type {
  CopyJob,
  CopyPlan,
  Device,
  DeviceInstance,
  HostCopyJob,
  KernelGroupPlan,
  MappedTensor,
  ProcessOwner,
} from '../../src/device/device.ts';
import { storageBytesNeeded, toPhysicalOrder } from '../../src/device/tensor-geometry.ts';
import {
  type CpuShmWrapper,
  DTYPE_SIZE_BYTES,
  type TensorWrapper,
} from '../../src/device/tensor-wrapper.ts';
import { KvdError } from '../../src/errors.ts';
import { runCopyJob } from './copy-plan.ts';

export const STUB_EVENT = new TextEncoder().encode('stub_ipc_handle');

const identities = new WeakMap<Uint8Array, number>();
let identityCount = 0;

/** What tells a segment from a later one of the same name, as an inode number does. */
function identityOf(segment: Uint8Array): number {
  const known = identities.get(segment);
  if (known !== undefined) return known;
  identityCount += 1;
  identities.set(segment, identityCount);
  return identityCount;
}

export class MemoryDevice implements Device {
  readonly kind: 'cpu' | 'cuda' | 'hip';
  readonly l1: Uint8Array;
  readonly segments = new Map<string, Uint8Array>();
  /** Instances that are open now. */
  readonly openInstances = new Set<MemoryInstance>();
  /** Set by a test: the next job rejects with this message and copies nothing. */
  failNextJob: string | null = null;
  /** Set by a test: whose memory instances have that are opened from now on. */
  ownerOfNext: ProcessOwner | null = null;
  /** Set by a test: what `anyEvent` throws. */
  eventError: KvdError | null = null;
  gate: Promise<void> = Promise.resolve();
  /** Events that jobs were told to wait for. */
  readonly awaitedEvents: Uint8Array[] = [];
  #lastHostCopy: Promise<unknown> = Promise.resolve();
  #isClosed = false;

  constructor(l1SizeBytes: number, kind: 'cpu' | 'cuda' = 'cpu') {
    this.l1 = new Uint8Array(l1SizeBytes);
    this.kind = kind;
  }

  /** Jobs and openings that start from now on wait until the returned function is called. */
  hold(): () => void {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.gate = promise;
    return () => {
      this.gate = Promise.resolve();
      resolve();
    };
  }

  async openInstance(wrappers: readonly TensorWrapper[]): Promise<DeviceInstance> {
    this.#refuseWhenClosed();
    await this.gate;
    const segments = wrappers.map((wrapper) => this.#map(wrapper));
    const instance = new MemoryInstance(this, wrappers as readonly CpuShmWrapper[], segments);
    this.openInstances.add(instance);
    return instance;
  }

  async copyHostTensors(job: HostCopyJob): Promise<void> {
    this.#refuseWhenClosed();
    const done = this.#copyHostTensors(job);
    this.#lastHostCopy = Promise.allSettled([this.#lastHostCopy, done]);
    await done;
  }

  async #copyHostTensors(job: HostCopyJob): Promise<void> {
    await this.gate;
    const failure = this.failNextJob;
    this.failNextJob = null;
    if (failure !== null) throw new KvdError('ERR_DEVICE_COPY', failure);
    const { shape, itemSizeBytes } = job;
    for (const copy of job.copies) {
      for (const [index, offset] of elementOffsets(shape, copy.stride).entries()) {
        const host = copy.offsetBytes + offset * itemSizeBytes;
        const l1 = copy.objectOffset + index * itemSizeBytes;
        for (let i = 0; i < itemSizeBytes; i += 1) {
          if (job.direction === 'to-l1') this.l1[l1 + i] = copy.bytes[host + i] as number;
          else copy.bytes[host + i] = this.l1[l1 + i] as number;
        }
      }
    }
  }

  anyEvent(): Uint8Array {
    if (this.eventError) throw this.eventError;
    return STUB_EVENT;
  }

  status(): Record<string, unknown> {
    return {};
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.openInstances].map((instance) => instance.close()));
    await this.#lastHostCopy;
  }

  #refuseWhenClosed(): void {
    if (this.#isClosed) throw new KvdError('ERR_SHUTTING_DOWN', 'the device is closed');
  }

  #map(wrapper: TensorWrapper): Uint8Array {
    if (wrapper.kind !== 'cpu-shm') throw new KvdError('ERR_UNSUPPORTED', wrapper.kind);
    const segment = this.segments.get(wrapper.shmName);
    if (!segment) throw new KvdError('ERR_DEVICE_MEMORY', `${wrapper.shmName} does not exist`);
    const neededBytes = storageBytesNeeded(wrapper, wrapper.shmName);
    if (neededBytes > segment.length || wrapper.sizeBytes > segment.length) {
      throw new KvdError('ERR_DEVICE_MEMORY', `${wrapper.shmName} has ${segment.length} bytes`);
    }
    return segment;
  }
}

/** Offsets of the elements of a strided tensor, in their order. */
function elementOffsets(shape: readonly number[], stride: readonly number[]): number[] {
  let offsets = [0];
  for (const [d, count] of shape.entries()) {
    const step = stride[d] as number;
    offsets = offsets.flatMap((at) => Array.from({ length: count }, (_, i) => at + i * step));
  }
  return offsets;
}

export class MemoryInstance implements DeviceInstance {
  readonly deviceKind: 'cpu' | 'cuda' | 'hip';
  readonly tensors: readonly MappedTensor[];
  readonly mappingIds: readonly string[];
  readonly owner: ProcessOwner | null;
  readonly #device: MemoryDevice;
  readonly #engine: readonly Uint8Array[];
  readonly #plans: CopyPlan[] = [];
  #last: Promise<void> = Promise.resolve();
  #isClosed = false;
  jobCountInFlight = 0;

  constructor(
    device: MemoryDevice,
    wrappers: readonly CpuShmWrapper[],
    segments: readonly Uint8Array[],
  ) {
    this.#device = device;
    this.deviceKind = device.kind;
    this.owner = device.ownerOfNext;
    this.tensors = wrappers.map((wrapper) => ({
      dtype: wrapper.dtype,
      ...toPhysicalOrder(wrapper),
    }));
    this.mappingIds = wrappers.map(
      ({ shmName }, index) => `${shmName}#${identityOf(segments[index] as Uint8Array)}`,
    );
    this.#engine = wrappers.map(({ storageOffset, dtype }, index) =>
      (segments[index] as Uint8Array).subarray(storageOffset * DTYPE_SIZE_BYTES[dtype]),
    );
  }

  addPlan(plan: CopyPlan): void {
    checkPlan(plan, this.tensors);
    this.#plans.push(plan);
  }

  #planOf(job: CopyJob): CopyPlan {
    return this.#plans[job.planIndex ?? 0] as CopyPlan;
  }

  submit(job: CopyJob): Promise<void> {
    if (this.#isClosed) return Promise.reject(new KvdError('ERR_SHUTTING_DOWN', 'closed'));
    const plan = this.#planOf(job);
    const problem = jobProblem(plan, job) ?? placeProblem(plan, job, this.#device.l1.length);
    if (problem) return Promise.reject(new KvdError('ERR_DEVICE_COPY', problem));
    this.jobCountInFlight += 1;
    const done = this.#last.then(() => this.#run(job));
    // The next job runs whatever became of this one; its own promise tells the submitter.
    this.#last = done.catch(() => {});
    return done;
  }

  waitForEvent(handle: Uint8Array): void {
    this.#device.awaitedEvents.push(handle);
  }

  completionEvent(): Uint8Array {
    return STUB_EVENT;
  }

  async checksumBlocks(options: ChecksumOptions): Promise<string[][]> {
    if (this.#isClosed) throw new KvdError('ERR_SHUTTING_DOWN', 'closed');
    const { tensors } = this;
    return checksumBlocks({ tensors, openReader: (_, group) => this.#openReader(group) }, options);
  }

  /** Blocks are objects of one block, gathered to the buffer in place of L1. */
  #openReader(group: KernelGroupPlan): BlockReader {
    const blockBytes = group.objectBlockStrideBytes;
    const plan = { groups: [group], objectSizeBytes: blockBytes };
    return {
      blockBytes,
      read: async (ids, buffer) => {
        const objectOffsets = Float64Array.from(ids, (_, i) => i * blockBytes);
        const job: CopyJob = { direction: 'gather', objectOffsets, blockIds: [ids] };
        runCopyJob(plan, { engine: this.#engine, l1: buffer }, job);
      },
      close() {},
    };
  }

  removeNames(): number {
    const names = this.mappingIds.map((id) => id.split('#')[0] as string);
    return names.filter((name) => this.#device.segments.delete(name)).length;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#last;
    this.#device.openInstances.delete(this);
  }

  async #run(job: CopyJob): Promise<void> {
    try {
      await this.#device.gate;
      const failure = this.#device.failNextJob;
      this.#device.failNextJob = null;
      if (failure !== null) throw new KvdError('ERR_DEVICE_COPY', failure);
      runCopyJob(this.#planOf(job), { engine: this.#engine, l1: this.#device.l1 }, job);
    } finally {
      this.jobCountInFlight -= 1;
    }
  }
}

/** Null when every block and every object is where the plan and L1 have one. */
function placeProblem(plan: CopyPlan, job: CopyJob, l1SizeBytes: number): string | null {
  const limit = l1SizeBytes - plan.objectSizeBytes;
  const offset = job.objectOffsets.find((one) => !(one === -1 || (one >= 0 && one <= limit)));
  if (offset !== undefined) return `an object at ${offset} lies outside L1`;
  const isOutside = plan.groups.some(({ engineBlockCount }, g) =>
    job.blockIds[g]?.some((id) => id >= engineBlockCount),
  );
  return isOutside ? 'a block id lies beyond the cache' : null;
}
