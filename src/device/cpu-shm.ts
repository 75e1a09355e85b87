/**
 * The CPU device: KV caches in POSIX shared memory of the engines' processes (spec engine 5.8).
 *
 * What a client may do to us, and what stands against it:
 *   a name that leads elsewhere       only /lmcache_kv_ and safe characters, never a path
 *   a segment shorter than announced  fstat before mapping: refused
 *   a view that leaves the segment    shape, stride and offset against the size: refused
 *   a segment cut short afterwards    the job fails (shim/guard.c), the server lives
 *   block ids out of range            every job is checked before anything moves
 *
 * Several tensors may lie in one segment: it is mapped once per instance, at the largest size that
 * one of them needs, and unmapped when the instance closes, after its jobs have ended.
 *
 *     open ── submit … submit ── close ─▶ closing: later submits are refused
 *                                           └─ last job settled ─▶ unmapped
 *
 * There are no events: the client takes every handle for one that has already happened, so a
 * reply must not leave before the copy has ended (`submit` resolves).
 */
import { availableParallelism } from 'node:os';
import { assert } from '../assert.ts';
import { KvdError } from '../errors.ts';
import type { Logger } from '../observability/log.ts';
import { MIB } from '../units.ts';
import {
  type BlockReader,
  type BlockSource,
  type ChecksumOptions,
  checksumBlocks,
} from './block-checksums.ts';
import { checkPlan, encodePlan, jobProblem, joinLists, type TensorPlace } from './copy-plan.ts';
import { CopyPool } from './copy-pool.ts';
import type {
  CopyJob,
  CopyPlan,
  Device,
  DeviceInstance,
  HostCopyJob,
  KernelGroupPlan,
  MappedTensor,
  ProcessOwner,
} from './device.ts';
import { HostCopier } from './host-copier.ts';
import type { HostMemory } from './host-memory.ts';
import { findOwner, removeName } from './process-owner.ts';
import { DIRECTION, type Handle, type Segment, type Shim, ShimError } from './shim.ts';
import { readWrappers, segmentSizes } from './shm-wrappers.ts';
import { toPhysicalOrder } from './tensor-geometry.ts';
import { type CpuShmWrapper, DTYPE_SIZE_BYTES, type TensorWrapper } from './tensor-wrapper.ts';

/** What a client is given where an accelerator has an event (spec engine 5.8). */
const COMPLETION_EVENT = new TextEncoder().encode('stub_ipc_handle');

export interface CpuDeviceOptions {
  readonly shim: Shim;
  /** L1: where the objects of copy plans lie. */
  readonly arena: HostMemory;
  readonly log: Logger;
  /** Default: one per core, at least 2, at most 8: more than that saturates memory anyway. */
  readonly workerCount?: number;
  /**
   * Default 5: the event loop wins against copies when cores are short (on two cores with two
   * workers, p99 of an echo fell from 3.2-4.0 ms to 1.1 ms at the same bandwidth).
   */
  readonly workerNice?: number;
  /** Default 16,384, over all instances. */
  readonly jobCountMax?: number;
  /** Objects begin at multiples of this in L1. Default 4096. */
  readonly objectAlignBytes?: number;
}

export function openCpuDevice(options: CpuDeviceOptions): Device {
  return new CpuDevice(options);
}

class CpuDevice implements Device {
  readonly kind = 'cpu';
  readonly #shim: Shim;
  readonly #arena: HostMemory;
  readonly #log: Logger;
  readonly #pool: CopyPool;
  readonly #workerCount: number;
  readonly #hostCopier: HostCopier;
  readonly #instances = new Set<CpuInstance>();
  #closed: Promise<void> | null = null;

  constructor(options: CpuDeviceOptions) {
    this.#shim = options.shim;
    this.#arena = options.arena;
    this.#log = options.log;
    this.#workerCount = options.workerCount ?? Math.min(Math.max(availableParallelism(), 2), 8);
    this.#pool = new CopyPool(options.shim, {
      workerCount: this.#workerCount,
      nice: options.workerNice ?? 5,
      jobCountMax: options.jobCountMax ?? 16_384,
      // 16 million block ids: more than all prompts in flight can have.
      descriptorBytesMax: 64 * MIB,
    });
    this.#hostCopier = new HostCopier({
      shim: options.shim,
      pool: this.#pool,
      arena: options.arena,
      alignBytes: options.objectAlignBytes ?? 4096,
    });
    this.#arena.retain();
  }

  async openInstance(wrappers: readonly TensorWrapper[]): Promise<DeviceInstance> {
    this.#refuseWhenClosed();
    const named = readWrappers(wrappers);
    const segments = new Map<string, Segment>();
    let instance: CpuInstance;
    try {
      for (const [name, sizeBytes] of segmentSizes(named)) {
        segments.set(name, await this.#openSegment(name, sizeBytes));
        this.#refuseWhenClosed();
      }
      const owner = await findOwner(segments);
      this.#refuseWhenClosed();
      instance = new CpuInstance({
        shim: this.#shim,
        pool: this.#pool,
        arena: this.#arena,
        wrappers: named,
        segments,
        owner,
        onClose: (closed) => this.#instances.delete(closed),
      });
    } catch (error) {
      for (const segment of segments.values()) await this.#shim.closeSegment(segment);
      throw error;
    }
    this.#instances.add(instance);
    this.#log.debug('instance mapped', {
      tensorCount: wrappers.length,
      segmentCount: segments.size,
      mappedBytes: instance.mappedBytes,
      ownerPid: instance.owner?.pid ?? null,
    });
    return instance;
  }

  #refuseWhenClosed(): void {
    if (this.#closed) throw new KvdError('ERR_SHUTTING_DOWN', 'the device is closed');
  }

  async #openSegment(name: string, sizeBytes: number): Promise<Segment> {
    try {
      return await this.#shim.openSegment(name, sizeBytes);
    } catch (error) {
      if (!(error instanceof ShimError)) throw error;
      throw new KvdError(
        'ERR_DEVICE_MEMORY',
        `cannot map ${sizeBytes} bytes of ${name}: ${error.message}`,
        { cause: error },
      );
    }
  }

  async copyHostTensors(job: HostCopyJob): Promise<void> {
    this.#refuseWhenClosed();
    await this.#hostCopier.copy(job);
  }

  anyEvent(): Uint8Array {
    return COMPLETION_EVENT;
  }

  status(): Record<string, unknown> {
    let mappedBytes = 0;
    for (const instance of this.#instances) {
      mappedBytes += instance.mappedBytes;
    }
    return {
      kind: this.kind,
      worker_count: this.#workerCount,
      instance_count: this.#instances.size,
      job_count_in_flight: this.#pool.jobCountInFlight,
      mapped_bytes: mappedBytes,
    };
  }

  close(): Promise<void> {
    this.#closed ??= this.#end();
    return this.#closed;
  }

  async #end(): Promise<void> {
    await Promise.all([...this.#instances].map((instance) => instance.close()));
    await this.#hostCopier.close();
    await this.#pool.close();
    this.#arena.release();
  }
}

interface CpuInstanceOptions {
  readonly shim: Shim;
  readonly pool: CopyPool;
  readonly arena: HostMemory;
  readonly wrappers: readonly CpuShmWrapper[];
  readonly segments: ReadonlyMap<string, Segment>;
  readonly owner: ProcessOwner | null;
  onClose(instance: CpuInstance): void;
}

class CpuInstance implements DeviceInstance {
  readonly deviceKind = 'cpu';
  readonly tensors: readonly MappedTensor[];
  readonly mappingIds: readonly string[];
  readonly owner: ProcessOwner | null;
  readonly mappedBytes: number;
  readonly #shim: Shim;
  readonly #pool: CopyPool;
  readonly #arena: HostMemory;
  readonly #onClose: (instance: CpuInstance) => void;
  readonly #segmentNames: readonly string[];
  readonly #segments: readonly Segment[];
  readonly #places: readonly TensorPlace[];
  readonly #lane: Handle;
  readonly #plans: { readonly handle: Handle; readonly plan: CopyPlan }[] = [];
  #jobCount = 0;
  #closed: Promise<void> | null = null;
  #onIdle: (() => void) | null = null;

  constructor(options: CpuInstanceOptions) {
    const { wrappers, segments } = options;
    this.#shim = options.shim;
    this.#pool = options.pool;
    this.#arena = options.arena;
    this.#onClose = options.onClose;
    this.owner = options.owner;
    const names = [...segments.keys()];
    this.#segmentNames = names;
    this.#segments = [...segments.values()];
    this.tensors = wrappers.map((wrapper) => ({
      dtype: wrapper.dtype,
      ...toPhysicalOrder(wrapper),
    }));
    this.#places = wrappers.map((wrapper) => ({
      segmentIndex: names.indexOf(wrapper.shmName),
      offsetBytes: wrapper.storageOffset * DTYPE_SIZE_BYTES[wrapper.dtype],
    }));
    this.mappedBytes = this.#segments.reduce((sum, segment) => sum + segment.sizeBytes, 0);
    this.mappingIds = [...segments].map(
      ([name, { device, inode, sizeBytes }]) => `${name}:${device}:${inode}:${sizeBytes}`,
    );
    this.#lane = this.#pool.openLane();
  }

  get jobCountInFlight(): number {
    return this.#jobCount;
  }

  addPlan(plan: CopyPlan): void {
    assert(this.#closed === null, 'the instance is closed');
    checkPlan(plan, this.tensors);
    const handle = this.#createPlan(plan, this.#arena.base, this.#arena.sizeBytes);
    this.#plans.push({ handle, plan });
  }

  #createPlan(plan: CopyPlan, objectBase: bigint, objectAreaBytes: number): Handle {
    try {
      const words = encodePlan(plan, this.#places);
      return this.#shim.createPlan({
        segments: this.#segments,
        words,
        objectBase,
        objectAreaBytes,
      });
    } catch (error) {
      if (!(error instanceof ShimError)) throw error;
      throw new KvdError('ERR_LAYOUT', `copy plan refused: ${error.message}`, { cause: error });
    }
  }

  submit(job: CopyJob): Promise<void> {
    const bound = this.#plans[job.planIndex ?? 0];
    assert(bound, 'a job names a plan that was bound');
    const problem = jobProblem(bound.plan, job);
    if (problem) return Promise.reject(new KvdError('ERR_DEVICE_COPY', problem));
    return this.#asJob(() =>
      this.#copy(bound.handle, {
        direction: DIRECTION[job.direction],
        objectOffsets: job.objectOffsets,
        blockIds: joinLists(job.blockIds),
        skipBlocks: job.skipBlocks ? joinLists(job.skipBlocks) : null,
      }),
    );
  }

  /** `close` waits until `run` has settled, so the segments are there for as long as it runs. */
  async #asJob<T>(run: () => Promise<T>): Promise<T> {
    this.#jobCount += 1;
    try {
      return await run();
    } finally {
      this.#jobCount -= 1;
      if (this.#jobCount === 0) this.#onIdle?.();
    }
  }

  async #copy(plan: Handle, job: Parameters<CopyPool['run']>[2]): Promise<void> {
    this.#refuseWhenClosing();
    await this.#pool.run(this.#lane, plan, job);
  }

  #refuseWhenClosing(): void {
    if (this.#closed) throw new KvdError('ERR_SHUTTING_DOWN', 'the instance is closing');
  }

  waitForEvent(): void {
    // Handles of CPU clients mean nothing: their work has ended before they ask.
  }

  completionEvent(): Uint8Array {
    return COMPLETION_EVENT;
  }

  removeNames(): number {
    // As long as a file is mapped here its inode number is not given to another one.
    if (this.#closed) return 0;
    return this.#segments.filter((segment, index) =>
      removeName(this.#segmentNames[index] as string, segment),
    ).length;
  }

  /** One job from its first block to its last: ends at the next block when the instance closes. */
  checksumBlocks(options: ChecksumOptions): Promise<string[][]> {
    const source: BlockSource = {
      tensors: this.tensors,
      openReader: (_, group, buffer) => this.#openReader(group, buffer),
    };
    return this.#asJob(() => checksumBlocks(source, options));
  }

  #openReader(group: KernelGroupPlan, buffer: Uint8Array): BlockReader {
    this.#refuseWhenClosing();
    const blockBytes = group.objectBlockStrideBytes;
    const plan = this.#createPlan(
      { groups: [group], objectSizeBytes: blockBytes },
      this.#shim.addressOf(buffer),
      buffer.length,
    );
    return {
      blockBytes,
      read: (ids, target) => {
        assert(target === buffer, 'a reader fills the buffer that it was opened with');
        return this.#copy(plan, {
          direction: DIRECTION.gather,
          objectOffsets: Float64Array.from(ids, (_, i) => i * blockBytes),
          blockIds: ids,
          skipBlocks: null,
        });
      },
      close: () => this.#shim.destroyPlan(plan),
    };
  }

  close(): Promise<void> {
    this.#closed ??= this.#end();
    return this.#closed;
  }

  async #end(): Promise<void> {
    if (this.#jobCount > 0) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    for (const { handle } of this.#plans) this.#shim.destroyPlan(handle);
    this.#pool.closeLane(this.#lane);
    for (const segment of this.#segments) await this.#shim.closeSegment(segment);
    this.#onClose(this);
  }
}
