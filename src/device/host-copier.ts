/**
 * Copies between buffers of this process (received and sent messages) and L1, on the threads of
 * the shim: payloads of engine-driven workers without shared memory have up to 4 GB, and the event
 * loop must not stand still for them.
 *
 * The copy engine of `shim/copy.c` moves runs between blocks of "engine" memory and "objects". Here
 * the roles are turned round, so that it needs nothing new: L1 is the engine side, whose blocks
 * begin at every multiple of the alignment, and the objects are the tensors in the buffer, which
 * may begin at any byte.
 *
 *     buffer   ┄┄│ header │ tensor 0 ▒▒▒▒▒▒▒▒ │ header │ tensor 1 ▒▒▒▒▒▒▒▒ │┄┄   (may have gaps)
 *                           │ scatter  ▲ gather
 *                           ▼          │
 *     L1       ┄┄│ object ▒▒▒▒▒▒▒▒ │┄┄┄┄┄┄┄┄┄┄│ object ▒▒▒▒▒▒▒▒ │┄┄            (contiguous)
 *
 * A tensor is cut into planes of at most `PIECE_BYTES`, so all threads work on it. Cost: one read
 * and one write per byte, at memory bandwidth.
 *
 * Fails as a whole: what of a failed job has arrived is unknown, its caller discards all of it.
 */
import { assert } from '../assert.ts';
import { KvdError } from '../errors.ts';
import { encodePlan } from './copy-plan.ts';
import type { CopyPool } from './copy-pool.ts';
import type {
  CopyPlan,
  CopyPlane,
  HostCopyJob,
  HostTensorCopy,
  KernelGroupPlan,
} from './device.ts';
import type { HostMemory } from './host-memory.ts';
import { DIRECTION, type Handle, type Shim } from './shim.ts';

/** What a thread of the shim takes at once (`PIECE_BYTES` of pool.c). */
const PIECE_BYTES = 256 * 1024;
/** `PLANE_COUNT_MAX` of copy.c. */
const PLANE_COUNT_MAX = 65_536;
const ID_MAX = 2 ** 32 - 1;

export interface HostCopierOptions {
  readonly shim: Shim;
  readonly pool: CopyPool;
  readonly arena: HostMemory;
  /** Objects begin at multiples of this. */
  readonly alignBytes: number;
}

/** One dimension that is left after neighbours have melted together, outermost first. */
interface Dimension {
  readonly count: number;
  readonly hostStrideBytes: number;
  readonly l1StrideBytes: number;
}

interface TensorRuns {
  readonly dimensions: readonly Dimension[];
  /** Bytes that follow each other on both sides. */
  readonly runBytes: number;
}

/** Copies of one job that share a buffer and strides, and so a plan. */
interface Batch {
  readonly stride: readonly number[];
  readonly copies: HostTensorCopy[];
}

export class HostCopier {
  readonly #options: HostCopierOptions;
  /** Jobs that run now; being here also keeps their buffers alive. */
  readonly #running = new Map<HostCopyJob, Promise<void>>();

  constructor(options: HostCopierOptions) {
    this.#options = options;
  }

  copy(job: HostCopyJob): Promise<void> {
    const running = this.#copyAll(job).finally(() => this.#running.delete(job));
    this.#running.set(job, running);
    return running;
  }

  /** Resolves when no job runs any more. */
  async close(): Promise<void> {
    await Promise.allSettled(this.#running.values());
  }

  async #copyAll(job: HostCopyJob): Promise<void> {
    if (job.shape.includes(0)) return;
    for (const copy of job.copies) checkBounds(job, copy);
    // All of them end before the first failure is told: only then may memory be given back.
    const results = await Promise.allSettled(
      batchesOf(job.copies).map((batch) => this.#copyBatch(job, batch)),
    );
    const failed = results.find((result) => result.status === 'rejected');
    if (failed) throw failed.reason;
  }

  async #copyBatch(job: HostCopyJob, { stride, copies }: Batch): Promise<void> {
    const { shim, pool, alignBytes } = this.#options;
    const buffer = new Uint8Array((copies[0] as HostTensorCopy).bytes.buffer);
    const plan = this.#createPlan(job, stride, buffer);
    let lane: Handle | null = null;
    try {
      lane = pool.openLane();
      const ids = Uint32Array.from(copies, ({ objectOffset }) => objectOffset / alignBytes);
      const blockIds = new Uint32Array(ids.length * plan.groupCount);
      for (let group = 0; group < plan.groupCount; group += 1)
        blockIds.set(ids, group * ids.length);
      await pool.run(lane, plan.handle, {
        direction: job.direction === 'to-l1' ? DIRECTION.scatter : DIRECTION.gather,
        objectOffsets: Float64Array.from(
          copies,
          ({ bytes, offsetBytes }) => bytes.byteOffset + offsetBytes,
        ),
        blockIds,
        skipBlocks: null,
      });
    } finally {
      shim.destroyPlan(plan.handle);
      if (lane !== null) pool.closeLane(lane);
    }
  }

  #createPlan(
    job: HostCopyJob,
    stride: readonly number[],
    buffer: Uint8Array,
  ): { handle: Handle; groupCount: number } {
    const { shim, arena, alignBytes } = this.#options;
    const plan = planHostCopy({
      ...job,
      stride,
      l1Bytes: arena.sizeBytes,
      alignBytes,
    });
    const handle = shim.createPlan({
      segments: [arena.segment],
      words: encodePlan(plan, [{ segmentIndex: 0, offsetBytes: 0 }]),
      objectBase: shim.addressOf(buffer),
      objectAreaBytes: buffer.length,
    });
    return { handle, groupCount: plan.groups.length };
  }
}

/** Copies with the same buffer and the same strides. */
function batchesOf(copies: readonly HostTensorCopy[]): Batch[] {
  const batches = new Map<ArrayBufferLike, Map<string, Batch>>();
  for (const copy of copies) {
    const { buffer } = copy.bytes;
    const ofBuffer = batches.get(buffer) ?? new Map<string, Batch>();
    batches.set(buffer, ofBuffer);
    const key = copy.stride.join();
    const batch = ofBuffer.get(key) ?? { stride: copy.stride, copies: [] };
    ofBuffer.set(key, batch);
    batch.copies.push(copy);
  }
  return [...batches.values()].flatMap((ofBuffer) => [...ofBuffer.values()]);
}

function checkBounds(job: HostCopyJob, copy: HostTensorCopy): void {
  const { bytes, offsetBytes, stride } = copy;
  const endBytes = offsetBytes + hostReachBytes({ ...job, stride });
  assert(offsetBytes >= 0 && endBytes <= bytes.length, 'a tensor leaves its buffer');
}

interface Geometry {
  readonly shape: readonly number[];
  readonly stride: readonly number[];
  readonly itemSizeBytes: number;
}

/** From the first byte of the first element to behind the last one. */
function hostReachBytes({ shape, stride, itemSizeBytes }: Geometry): number {
  const elements = shape.reduce((sum, count, d) => sum + (count - 1) * (stride[d] as number), 0);
  return (elements + 1) * itemSizeBytes;
}

/** Melts dimensions that follow each other on both sides. */
function runsOf({ shape, stride, itemSizeBytes }: Geometry): TensorRuns {
  let runBytes = itemSizeBytes;
  let l1StrideBytes = itemSizeBytes;
  const dimensions: Dimension[] = [];
  for (let d = shape.length - 1; d >= 0; d -= 1) {
    const count = shape[d] as number;
    if (count === 1) continue;
    const hostStrideBytes = (stride[d] as number) * itemSizeBytes;
    const inner = dimensions[0];
    if (!inner && hostStrideBytes === runBytes) {
      runBytes *= count;
    } else if (inner && hostStrideBytes === inner.hostStrideBytes * inner.count) {
      dimensions[0] = { ...inner, count: inner.count * count };
    } else {
      dimensions.unshift({ count, hostStrideBytes, l1StrideBytes });
    }
    l1StrideBytes *= count;
  }
  return { dimensions, runBytes };
}

/**
 * The plan of one tensor. Inner dimensions become the two loops of a block as long as a block stays
 * small; the others, and the pieces of a long run, become planes.
 */
export function planHostCopy(
  tensor: Geometry & { readonly l1Bytes: number; readonly alignBytes: number },
): CopyPlan {
  const { l1Bytes, alignBytes } = tensor;
  const { dimensions, runBytes } = runsOf(tensor);
  const outer = [...dimensions];
  const loops: Dimension[] = [];
  let blockBytes = runBytes;
  while (loops.length < 2 && outer.length > 0) {
    const next = outer.at(-1) as Dimension;
    const isSmall = blockBytes * next.count <= PIECE_BYTES;
    if (!isSmall && planeCount(outer) <= PLANE_COUNT_MAX) break;
    loops.unshift(next);
    outer.pop();
    blockBytes *= next.count;
  }
  const objectBytes = tensor.shape.reduce(
    (product, count) => product * count,
    tensor.itemSizeBytes,
  );
  const engineBlockCount = Math.floor((l1Bytes - objectBytes) / alignBytes) + 1;
  if (!(engineBlockCount >= 1 && engineBlockCount <= ID_MAX)) {
    throw new KvdError('ERR_UNSUPPORTED', `objects of ${objectBytes} bytes in L1 of ${l1Bytes}`);
  }
  const pieceBytes = loops.length === 0 ? Math.min(runBytes, PIECE_BYTES) : runBytes;
  const wholeCount = Math.floor(runBytes / pieceBytes);
  if (planeCount(outer) * (wholeCount + 1) > PLANE_COUNT_MAX) {
    throw new KvdError('ERR_UNSUPPORTED', 'a tensor with too many separate runs');
  }
  const starts = planeStarts(outer);
  const common = { alignBytes, engineBlockCount, loops };
  const groups = [groupOf({ ...common, runBytes: pieceBytes, starts, pieceCount: wholeCount })];
  const tailBytes = runBytes % pieceBytes;
  if (tailBytes > 0) {
    const shifted = starts.map(({ host, l1 }) => ({
      host: host + wholeCount * pieceBytes,
      l1: l1 + wholeCount * pieceBytes,
    }));
    groups.push(groupOf({ ...common, runBytes: tailBytes, starts: shifted, pieceCount: 1 }));
  }
  return { groups, objectSizeBytes: hostReachBytes(tensor) };
}

interface PlaneStart {
  readonly host: number;
  readonly l1: number;
}

const planeCount = (dimensions: readonly Dimension[]): number =>
  dimensions.reduce((product, { count }) => product * count, 1);

/** Where each combination of the outer dimensions begins. */
function planeStarts(dimensions: readonly Dimension[]): PlaneStart[] {
  let starts: PlaneStart[] = [{ host: 0, l1: 0 }];
  for (const { count, hostStrideBytes, l1StrideBytes } of dimensions) {
    starts = starts.flatMap(({ host, l1 }) =>
      Array.from({ length: count }, (_, i) => ({
        host: host + i * hostStrideBytes,
        l1: l1 + i * l1StrideBytes,
      })),
    );
  }
  return starts;
}

function groupOf(of: {
  readonly alignBytes: number;
  readonly engineBlockCount: number;
  readonly loops: readonly Dimension[];
  readonly runBytes: number;
  readonly starts: readonly PlaneStart[];
  readonly pieceCount: number;
}): KernelGroupPlan {
  const once: Dimension = { count: 1, hostStrideBytes: 0, l1StrideBytes: 0 };
  const inner = of.loops.at(-1) ?? once;
  const outer = of.loops.length > 1 ? (of.loops[0] as Dimension) : once;
  const planes = of.starts.flatMap(({ host, l1 }) =>
    Array.from(
      { length: of.pieceCount },
      (_, piece): CopyPlane => ({
        tensorIndex: 0,
        engineOffsetBytes: l1 + piece * of.runBytes,
        engineBlockStrideBytes: of.alignBytes,
        objectOffsetBytes: host + piece * of.runBytes,
      }),
    ),
  );
  return {
    planes,
    objectBlockStrideBytes: 0,
    outerCount: outer.count,
    engineOuterStrideBytes: outer.l1StrideBytes,
    objectOuterStrideBytes: outer.hostStrideBytes,
    innerCount: inner.count,
    engineInnerStrideBytes: inner.l1StrideBytes,
    objectInnerStrideBytes: inner.hostStrideBytes,
    runBytes: of.runBytes,
    objectBlockCount: 1,
    engineBlockCount: of.engineBlockCount,
  };
}
