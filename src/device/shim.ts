/**
 * The door to `shim/kv_shim.h`, and the only file that knows koffi.
 *
 * Handles and addresses are numbers that mean something to C alone; they stay inside `device/`.
 * Lists cross as typed arrays, one call per job, never one per block. Calls marked `[blocks]` in
 * the header run on libuv's pool (`.async`): they are rare (a registration, a shutdown). Copies
 * have threads of their own (`copy-pool.ts`).
 */
import { getSystemErrorMap } from 'node:util';
import koffi, { type KoffiFunc, type LibraryHandle } from 'koffi';
import { KvdError } from '../errors.ts';
import { loadNative } from '../native.ts';

/** A pointer of the shim. Never a number to compute with. */
export type Handle = number | bigint;

/** `KV_ABI_VERSION` of the header that this file was written for. */
const ABI_VERSION = 3;

/** `enum kv_code`; everything else negative is an errno. */
export const SHIM_CODE = {
  argument: -2001,
  blockId: -2002,
  object: -2003,
  queueFull: -2004,
  fault: -2005,
  shrunk: -2006,
  short: -2007,
  held: -2008,
  busy: -2009,
} as const;

const CODE_TEXT: Readonly<Record<number, string>> = {
  [SHIM_CODE.argument]: 'the request describes memory that does not exist',
  [SHIM_CODE.blockId]: 'a block id lies beyond the cache of the engine',
  [SHIM_CODE.object]: 'an object lies outside L1',
  [SHIM_CODE.queueFull]: 'the copy queue is full',
  [SHIM_CODE.fault]: 'the memory vanished during the copy',
  [SHIM_CODE.shrunk]: 'a shared memory segment is shorter than when it was registered',
  [SHIM_CODE.short]: 'the segment is shorter than announced',
  [SHIM_CODE.held]: 'another live process owns the segment',
  [SHIM_CODE.busy]: 'jobs are still running',
};

/** A call of the shim that failed; the caller says what that means for its request. */
export class ShimError extends Error {
  override readonly name = 'ShimError';
  readonly code: number;
  constructor(code: number) {
    super(describeCode(code));
    this.code = code;
  }
}

/** `-2` → `"no such file or directory (ENOENT)"`. */
export function describeCode(code: number): string {
  const known = CODE_TEXT[code];
  if (known !== undefined) return known;
  const [name, text] = getSystemErrorMap().get(code) ?? [`code ${code}`, 'unknown error'];
  return `${text} (${name})`;
}

export const MEMORY_FLAGS = { transparentHuge: 1, explicitHuge: 2 } as const;
export const DIRECTION = { gather: 0, scatter: 1 } as const;

/** A mapped segment or arena. */
export interface Segment {
  readonly handle: Handle;
  readonly base: bigint;
  readonly sizeBytes: number;
  readonly device: bigint;
  readonly inode: bigint;
}

export interface JobDescriptor {
  readonly direction: number;
  readonly id: number;
  readonly objectOffsets: Float64Array;
  readonly blockIds: Uint32Array;
  readonly skipBlocks: Uint32Array | null;
}

type Returning<Arguments extends unknown[], Result> = KoffiFunc<(...args: Arguments) => Result>;
type Declare = <Arguments extends unknown[], Result>(
  definition: string,
) => Returning<Arguments, Result>;

function declareFunctions(library: LibraryHandle) {
  const declare = ((definition: string) => library.func(definition)) as Declare;
  return {
    abiVersion: declare<[], number>('int32_t kv_abi_version()'),
    segmentOpen: declare<[string, number], Handle>(
      'int64_t kv_segment_open(const char *name, uint64_t size)',
    ),
    segmentCreate: declare<[string, number, number, number], Handle>(
      'int64_t kv_segment_create(const char *name, uint64_t size, uint32_t mode, uint32_t flags)',
    ),
    memoryReserve: declare<[number, number], Handle>(
      'int64_t kv_memory_reserve(uint64_t size, uint32_t flags)',
    ),
    segmentDescribe: declare<[Handle, BigUint64Array], void>(
      'void kv_segment_describe(uint64_t segment, _Out_ uint64_t *out)',
    ),
    segmentClose: declare<[Handle], number>('int32_t kv_segment_close(uint64_t segment)'),
    segmentUnlink: declare<[string], number>('int32_t kv_segment_unlink(const char *name)'),
    segmentRemoveStale: declare<[string], number>(
      'int32_t kv_segment_remove_stale(const char *name)',
    ),
    fileLock: declare<[number], number>('int32_t kv_file_lock(int32_t fd)'),
    preparerOpen: declare<[Handle], Handle>('int64_t kv_preparer_open(uint64_t segment)'),
    preparerTarget: declare<[Handle, number, number], void>(
      'void kv_preparer_target(uint64_t preparer, uint64_t used, uint64_t target)',
    ),
    preparerPrepared: declare<[Handle], number>('int64_t kv_preparer_prepared(uint64_t preparer)'),
    preparerCode: declare<[Handle], number>('int32_t kv_preparer_code(uint64_t preparer)'),
    preparerClose: declare<[Handle], void>('void kv_preparer_close(uint64_t preparer)'),
    planCreate: declare<[BigUint64Array, number, Float64Array, number, bigint, number], Handle>(
      'int64_t kv_plan_create(uint64_t *segments, uint32_t segment_count, double *words, ' +
        'uint32_t word_count, uint64_t object_base, uint64_t object_area)',
    ),
    planDestroy: declare<[Handle], void>('void kv_plan_destroy(uint64_t plan)'),
    poolOpen: declare<[number, number, number, number], Handle>(
      'int64_t kv_pool_open(uint32_t workers, int32_t nice, uint32_t jobs, uint64_t bytes)',
    ),
    poolWakeFd: declare<[Handle], number>('int32_t kv_pool_wake_fd(uint64_t pool)'),
    poolCollect: declare<[Handle, Float64Array, Int32Array, number], number>(
      'int32_t kv_pool_collect(uint64_t pool, _Out_ double *ids, _Out_ int32_t *codes, ' +
        'uint32_t max)',
    ),
    poolClose: declare<[Handle], number>('int32_t kv_pool_close(uint64_t pool)'),
    laneOpen: declare<[Handle], Handle>('int64_t kv_lane_open(uint64_t pool)'),
    laneClose: declare<[Handle], number>('int32_t kv_lane_close(uint64_t lane)'),
    jobSubmit: declare<
      [
        Handle,
        Handle,
        number,
        number,
        number,
        Float64Array,
        Uint32Array,
        number,
        Uint32Array | null,
      ],
      number
    >(
      'int32_t kv_job_submit(uint64_t lane, uint64_t plan, int32_t direction, double id, ' +
        'uint32_t object_count, double *offsets, uint32_t *ids, uint64_t id_count, ' +
        'uint32_t *skips)',
    ),
  };
}

function checked(result: Handle): Handle {
  if (result < 0) throw new ShimError(Number(result));
  return result;
}

/** Runs a call of the shim on libuv's pool. */
function offLoop<Arguments extends unknown[], Result>(
  call: Returning<Arguments, Result>,
  ...args: Arguments
): Promise<Result> {
  return new Promise((resolve, reject) => {
    call.async(...args, (error: unknown, result: Result) =>
      error ? reject(error) : resolve(result),
    );
  });
}

export class Shim {
  readonly #calls: ReturnType<typeof declareFunctions>;

  private constructor(file: string) {
    this.#calls = declareFunctions(koffi.load(file));
    const version = this.#calls.abiVersion();
    if (version !== ABI_VERSION) {
      throw new KvdError(
        'ERR_NATIVE',
        `${file} has interface ${version}, this kvd needs ${ABI_VERSION}: run \`npm run build\``,
      );
    }
  }

  /** Loads `libkvshim.so` from where this form of kvd keeps it, or from `file`. */
  static load(file?: string): Shim {
    if (file !== undefined) return new Shim(file);
    return loadNative('libkvshim.so', (path) => new Shim(path));
  }

  async openSegment(name: string, sizeBytes: number): Promise<Segment> {
    return this.#describe(await offLoop(this.#calls.segmentOpen, name, sizeBytes));
  }

  async createSegment(options: {
    readonly name: string;
    readonly sizeBytes: number;
    readonly mode: number;
    readonly flags: number;
  }): Promise<Segment> {
    const { name, sizeBytes, mode, flags } = options;
    return this.#describe(await offLoop(this.#calls.segmentCreate, name, sizeBytes, mode, flags));
  }

  reserveMemory(sizeBytes: number, flags: number): Segment {
    return this.#describe(this.#calls.memoryReserve(sizeBytes, flags));
  }

  #describe(result: Handle): Segment {
    const handle = checked(result);
    const out = new BigUint64Array(4);
    this.#calls.segmentDescribe(handle, out);
    const [base, sizeBytes, device, inode] = out as unknown as [bigint, bigint, bigint, bigint];
    return { handle, base, sizeBytes: Number(sizeBytes), device, inode };
  }

  async closeSegment(segment: Segment): Promise<void> {
    checked(await offLoop(this.#calls.segmentClose, segment.handle));
  }

  unlinkSegment(name: string): void {
    checked(this.#calls.segmentUnlink(name));
  }

  /** 0 when removed, else the code for which it was left alone. */
  removeStaleSegment(name: string): number {
    return this.#calls.segmentRemoveStale(name);
  }

  /** False when somebody else has it. The lock ends with the descriptor. */
  lockFile(descriptor: number): boolean {
    const code = this.#calls.fileLock(descriptor);
    if (code === SHIM_CODE.held) return false;
    checked(code);
    return true;
  }

  openPreparer(segment: Segment): Handle {
    return checked(this.#calls.preparerOpen(segment.handle));
  }

  setPreparerTarget(preparer: Handle, usedBytes: number, targetBytes: number): void {
    this.#calls.preparerTarget(preparer, usedBytes, targetBytes);
  }

  preparerState(preparer: Handle): { preparedBytes: number; code: number } {
    return {
      preparedBytes: this.#calls.preparerPrepared(preparer),
      code: this.#calls.preparerCode(preparer),
    };
  }

  async closePreparer(preparer: Handle): Promise<void> {
    await offLoop(this.#calls.preparerClose, preparer);
  }

  createPlan(options: {
    readonly segments: readonly Segment[];
    readonly words: Float64Array;
    readonly objectBase: bigint;
    readonly objectAreaBytes: number;
  }): Handle {
    const { segments, words, objectBase, objectAreaBytes } = options;
    const handles = BigUint64Array.from(segments, (segment) => BigInt(segment.handle));
    return checked(
      this.#calls.planCreate(
        handles,
        handles.length,
        words,
        words.length,
        objectBase,
        objectAreaBytes,
      ),
    );
  }

  destroyPlan(plan: Handle): void {
    this.#calls.planDestroy(plan);
  }

  openPool(options: {
    readonly workerCount: number;
    readonly nice: number;
    readonly jobCountMax: number;
    readonly descriptorBytesMax: number;
  }): { pool: Handle; wakeFd: number } {
    const { workerCount, nice, jobCountMax, descriptorBytesMax } = options;
    const pool = checked(this.#calls.poolOpen(workerCount, nice, jobCountMax, descriptorBytesMax));
    return { pool, wakeFd: this.#calls.poolWakeFd(pool) };
  }

  /** Fills `ids` and `codes` with finished jobs; answers how many. */
  collect(pool: Handle, ids: Float64Array, codes: Int32Array): number {
    return this.#calls.poolCollect(pool, ids, codes, ids.length);
  }

  async closePool(pool: Handle): Promise<void> {
    checked(await offLoop(this.#calls.poolClose, pool));
  }

  openLane(pool: Handle): Handle {
    return checked(this.#calls.laneOpen(pool));
  }

  closeLane(lane: Handle): void {
    checked(this.#calls.laneClose(lane));
  }

  /** 0, or the code for which the job was refused. */
  submitJob(lane: Handle, plan: Handle, job: JobDescriptor): number {
    return this.#calls.jobSubmit(
      lane,
      plan,
      job.direction,
      job.id,
      job.objectOffsets.length,
      job.objectOffsets,
      job.blockIds,
      job.blockIds.length,
      job.skipBlocks,
    );
  }

  /** Address of the buffer's bytes. They do not move, but the caller must keep the buffer alive. */
  addressOf(buffer: Uint8Array): bigint {
    return koffi.address(buffer);
  }

  /** Bytes of foreign memory. The caller detaches the buffer before the memory goes away. */
  viewMemory(base: bigint, sizeBytes: number): ArrayBuffer {
    return koffi.view(base, sizeBytes);
  }
}
