/**
 * A worker whose blocks the server copies by itself: KV cache tensors in shared memory, one
 * segment per layer, registered once; STORE and RETRIEVE name blocks (spec engine 5).
 *
 *   blocks of the cache:  0 … n−1   the request's, in an order that is different for each request
 *                         n … 2n−1  where RETRIEVE puts them, in another order
 *
 * After RETRIEVE both halves are compared with the pattern: the upper for what was loaded, the
 * lower because nothing may have been written there.
 */
import type { CacheKey, RequestOf } from '../../engine/api.ts';
import type { BenchWorker, Caller } from './bench-worker.ts';
import { RefusedStepError } from './bench-worker.ts';
import { type BlockPattern, shuffledIds } from './block-pattern.ts';
import type { CacheShape, LayerGroup, Plane } from './cache-shape.ts';
import { Segment } from './segment.ts';

/** What CPU clients send; the server ignores it. */
export const CPU_CLIENT_EVENT = new TextEncoder().encode('stub_ipc_handle');
/** One read, and so the longest comparison without a pause for others: 0.3 ms. */
const READ_BYTES_MAX = 4 << 20;

type Wrapper = RequestOf<'REGISTER_KV_CACHE'>['wrappers'][number];

export interface LmcacheDrivenOptions {
  readonly caller: Caller;
  readonly instanceId: bigint;
  readonly modelName: string;
  readonly shape: CacheShape;
  readonly pattern: BlockPattern;
}

export class LmcacheDrivenWorker implements BenchWorker {
  readonly mode = 'lmcache_driven';
  readonly transport = 'shared memory, copied by the server';
  readonly #options: LmcacheDrivenOptions;
  readonly #segments: Segment[] = [];
  readonly #wrappers: Wrapper[] = [];

  constructor(options: LmcacheDrivenOptions) {
    this.#options = options;
  }

  async register(): Promise<void> {
    await this.#allocate();
    const { caller, instanceId, modelName } = this.#options;
    await caller.call('REGISTER_KV_CACHE', {
      instanceId,
      wrappers: this.#wrappers,
      modelName,
      worldSize: 1,
      engineType: 'vllm',
      layoutHints: { kvLayout: 'HND' },
      engineGroupInfos: [],
    });
  }

  async fill(sequence: number): Promise<void> {
    const { shape } = this.#options;
    const blockAt = invert(this.#sourceIds(sequence), 0);
    for (const [p, plane] of shape.planes.entries()) {
      const pieces = Array.from(blockAt, (block) => this.#piece(sequence, p, block));
      await this.#segmentOf(plane).write(pieces, this.#planeOffset(plane));
    }
  }

  async store(key: CacheKey, sequence: number): Promise<void> {
    const { caller, instanceId } = this.#options;
    const blockIds = this.#perGroup(this.#sourceIds(sequence));
    const { ok } = await caller.call('STORE', {
      key,
      instanceId,
      blockIds,
      event: CPU_CLIENT_EVENT,
    });
    if (!ok) throw new RefusedStepError('STORE was refused');
  }

  async retrieve(key: CacheKey, sequence: number): Promise<void> {
    const { caller, instanceId } = this.#options;
    const blockIds = this.#perGroup(this.#targetIds(sequence));
    const request = { key, instanceId, blockIds, event: CPU_CLIENT_EVENT, skipFirstTokens: 0 };
    const { ok } = await caller.call('RETRIEVE', request);
    if (!ok) throw new RefusedStepError('RETRIEVE was refused');
  }

  async findDifference(sequence: number): Promise<string | null> {
    const { shape } = this.#options;
    const halves = [this.#sourceIds(sequence), this.#targetIds(sequence)];
    for (const [half, ids] of halves.entries()) {
      const blockAt = invert(ids, half * shape.blockCount);
      for (const p of shape.planes.keys()) {
        const block = await this.#findWrongBlock({ sequence, planeIndex: p, half, blockAt });
        if (block !== null) return describe(shape.planes[p] as Plane, block, half);
      }
    }
    return null;
  }

  async unregister(): Promise<void> {
    const { caller, instanceId } = this.#options;
    await caller.call('UNREGISTER_KV_CACHE', { instanceId });
  }

  close(): void {
    for (const segment of this.#segments.splice(0)) segment.close();
  }

  /**
   * Creates the tensors and touches every page that will be used: a server that copies into a page
   * which /dev/shm has no room for would be killed by it.
   */
  async #allocate(): Promise<void> {
    const { shape } = this.#options;
    const { slotsPerBlock, groups } = shape.geometry;
    for (const group of groups) {
      for (let i = 0; i < group.layerCount; i += 1) {
        const tensorShape = shapeOf(group, shape.cacheBlockCount, slotsPerBlock);
        const sizeBytes = group.itemSizeBytes * tensorShape.reduce((a, b) => a * b, 1);
        const segment = Segment.create(sizeBytes);
        this.#segments.push(segment);
        this.#wrappers.push({
          kind: 'cpu-shm',
          shmName: segment.name,
          sizeBytes,
          dtype: group.dtype,
          shape: tensorShape,
          stride: tensorShape.map((_, d) => tensorShape.slice(d + 1).reduce((a, b) => a * b, 1)),
          storageOffset: 0,
          deviceUuid: 'cpu',
        });
      }
    }
    for (const plane of shape.planes) {
      const zeros = new Array<Buffer>(2 * shape.blockCount).fill(Buffer.alloc(plane.pieceBytes));
      await this.#segmentOf(plane).write(zeros, this.#planeOffset(plane));
    }
  }

  async #findWrongBlock(at: {
    readonly sequence: number;
    readonly planeIndex: number;
    readonly half: number;
    readonly blockAt: Uint32Array;
  }): Promise<number | null> {
    const { shape } = this.#options;
    const plane = shape.planes[at.planeIndex] as Plane;
    const { pieceBytes } = plane;
    const perRead = Math.max(1, Math.floor(READ_BYTES_MAX / pieceBytes));
    for (let first = 0; first < shape.blockCount; first += perRead) {
      const count = Math.min(perRead, shape.blockCount - first);
      const bytes = Buffer.allocUnsafe(count * pieceBytes);
      const blockIndex = at.half * shape.blockCount + first;
      await this.#segmentOf(plane).read(bytes, this.#planeOffset(plane) + blockIndex * pieceBytes);
      for (let i = 0; i < count; i += 1) {
        const block = at.blockAt[first + i] as number;
        const expected = this.#piece(at.sequence, at.planeIndex, block);
        const start = i * pieceBytes;
        if (expected.compare(bytes, start, start + pieceBytes) !== 0) return block;
      }
    }
    return null;
  }

  #sourceIds(sequence: number): Uint32Array {
    return shuffledIds(0, this.#options.shape.blockCount, 2 * sequence);
  }

  #targetIds(sequence: number): Uint32Array {
    const { blockCount } = this.#options.shape;
    return shuffledIds(blockCount, blockCount, 2 * sequence + 1);
  }

  #perGroup(ids: Uint32Array): number[][] {
    return Array.from({ length: this.#options.shape.kernelGroupCount }, () => [...ids]);
  }

  #piece(sequence: number, planeIndex: number, block: number): Buffer {
    const { shape, pattern } = this.#options;
    const { pieceBytes } = shape.planes[planeIndex] as Plane;
    return pattern.piece(sequence, { plane: planeIndex, block }, pieceBytes);
  }

  #segmentOf(plane: Plane): Segment {
    return this.#segments[plane.layerIndex] as Segment;
  }

  #planeOffset(plane: Plane): number {
    return plane.kvIndex * this.#options.shape.cacheBlockCount * plane.pieceBytes;
  }
}

/** Which block of the request lies at each place, counted from `first`. */
function invert(ids: Uint32Array, first: number): Uint32Array {
  const blockAt = new Uint32Array(ids.length);
  for (const [block, id] of ids.entries()) blockAt[id - first] = block;
  return blockAt;
}

function describe(plane: Plane, block: number, half: number): string {
  const what = plane.kvIndex === 0 ? 'keys' : 'values';
  const where = half === 0 ? 'source block was overwritten' : 'loaded block differs';
  return `${where}: block ${block} of the request, layer ${plane.layerIndex}, ${what}`;
}

function shapeOf(group: LayerGroup, blockCount: number, slotsPerBlock: number): number[] {
  const { kvSize, headCount, headSize } = group;
  if (kvSize === 1) return [blockCount, slotsPerBlock, headCount * headSize];
  return [2, blockCount, headCount, slotsPerBlock, headSize];
}
