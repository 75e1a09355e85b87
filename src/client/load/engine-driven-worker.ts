/**
 * A worker that copies its blocks by itself (spec engine 6). Two ways, chosen by the server as for
 * every client:
 *
 *   shared memory   PREPARE names slots in the server's segment; the worker writes or reads them,
 *                   COMMIT says that it is done
 *   inline          the bytes travel in COMMIT_STORE and in the reply of PREPARE_RETRIEVE
 *
 * A slot or tensor is one chunk, all layers' keys before all values:
 *
 *   [kv][layer][token of the chunk][hidden]      =  [kv][layer][block of the chunk] pieces
 *
 * The worker's own cache is token-major, so that a block of a plane is one piece here, too. Its
 * source blocks are the pattern itself, gathered by one vectored write per slot; its target is one
 * buffer for the whole request.
 *
 * A segment that cannot be opened (another IPC namespace) means inline, as it does for real
 * clients, which do not tell the server either.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Clock } from '../../clock.ts';
import type { CacheKey, RequestOf, TransferContext, TransferSlot } from '../../engine/api.ts';
import { KvdError } from '../../errors.ts';
import { readTensorList } from '../../wire/tensor-list.ts';
import { contiguousStride, copyTensor } from '../../wire/tensor-list-writer.ts';
import { type BenchWorker, type Caller, RefusedStepError } from './bench-worker.ts';
import type { BlockPattern } from './block-pattern.ts';
import type { CacheShape, LayerGroup } from './cache-shape.ts';
import type { LatencyBook } from './latency-series.ts';
import { Segment } from './segment.ts';

export interface EngineDrivenOptions {
  readonly caller: Caller;
  readonly instanceId: bigint;
  readonly modelName: string;
  readonly shape: CacheShape;
  readonly pattern: BlockPattern;
  readonly clock: Clock;
  /** Gets the durations of the single calls. */
  readonly latencies: LatencyBook;
}

type InlineData = RequestOf<'COMMIT_STORE'>['data'];
const NO_DATA: InlineData = { kind: 'none' };
/** Then replies to other workers have their turn: 0.3 ms. */
const COMPARED_BYTES_MAX = 4 << 20;

export class EngineDrivenWorker implements BenchWorker {
  readonly mode = 'engine_driven';
  readonly #options: EngineDrivenOptions;
  readonly #group: LayerGroup;
  readonly #chunkBytes: number;
  readonly #chunkShape: readonly number[];
  /** Where retrieves put their chunks. */
  readonly #target: Buffer;
  #transport = '';
  /** The server's; null = inline. */
  #segment: Segment | null = null;

  /** Throws `ERR_BAD_REQUEST` for caches that the protocol cannot describe on this path. */
  constructor(options: EngineDrivenOptions) {
    const { shape } = options;
    const { groups } = shape.geometry;
    const [group] = groups;
    if (group === undefined || groups.length > 1) {
      throw new KvdError(
        'ERR_BAD_REQUEST',
        `engine-driven workers have one kind of layer, got ${groups.length}`,
      );
    }
    const { kvSize, layerCount, headCount, headSize } = group;
    this.#options = options;
    this.#group = group;
    this.#chunkBytes = shape.requestBytes / shape.chunkCount;
    const planeShape = [layerCount, shape.chunkSizeTokens, headCount * headSize];
    this.#chunkShape = kvSize === 1 ? planeShape : [2, ...planeShape];
    this.#target = Buffer.alloc(shape.requestBytes);
  }

  get transport(): string {
    return this.#transport;
  }

  async register(): Promise<void> {
    const { caller, instanceId, modelName, shape } = this.#options;
    const { kvSize, layerCount, headCount, headSize, dtype } = this.#group;
    const { shmName } = await caller.call('REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', {
      instanceId,
      modelName,
      worldSize: 1,
      blockSize: shape.geometry.slotsPerBlock,
      layerCount,
      hiddenSize: headCount * headSize,
      dtype,
      usesMla: kvSize === 1,
      physicalSlotCount: null,
    });
    this.#transport = 'inline';
    if (shmName === '') return;
    try {
      this.#segment = Segment.open(shmName);
      this.#transport = `shared memory of the server, ${shmName}`;
    } catch (error) {
      this.#transport = `inline: ${(error as Error).message}`;
    }
  }

  /** Nothing to do: the pattern is the memory of the worker. */
  async fill(): Promise<void> {}

  async store(key: CacheKey, sequence: number): Promise<void> {
    const { caller, instanceId } = this.#options;
    const { context } = await this.#time('prepare_store', () =>
      caller.call('PREPARE_STORE', { key, instanceId }),
    );
    let data = NO_DATA;
    if (this.#segment === null) data = this.#gatherInline(sequence);
    else await this.#writeSlots(this.#segment, context, sequence);
    const isStored = await this.#time('commit_store', () =>
      caller.call('COMMIT_STORE', { key, instanceId, data }),
    );
    if (!isStored) throw new RefusedStepError('COMMIT_STORE was refused');
  }

  async retrieve(key: CacheKey): Promise<void> {
    const { caller, instanceId } = this.#options;
    const { success, data, context } = await this.#time('prepare_retrieve', () =>
      caller.call('PREPARE_RETRIEVE', { key, instanceId }),
    );
    if (!success) throw new RefusedStepError('PREPARE_RETRIEVE was refused');
    if (this.#segment === null) this.#scatterInline(data);
    else await this.#readSlots(this.#segment, context.slots ?? []);
    await this.#time('commit_retrieve', () => caller.call('COMMIT_RETRIEVE', { key, instanceId }));
  }

  async findDifference(sequence: number): Promise<string | null> {
    const { chunkCount } = this.#options.shape;
    let offset = 0;
    let pauseOffset = COMPARED_BYTES_MAX;
    for (let chunk = 0; chunk < chunkCount; chunk += 1) {
      for (const [index, piece] of this.#pieces(sequence, chunk).entries()) {
        const end = offset + piece.length;
        if (piece.compare(this.#target, offset, end) !== 0) return this.#describe(chunk, index);
        offset = end;
        if (offset < pauseOffset) continue;
        pauseOffset += COMPARED_BYTES_MAX;
        await nextTurn();
      }
    }
    return null;
  }

  async unregister(): Promise<void> {
    const { caller, instanceId } = this.#options;
    await caller.call('UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', { instanceId });
  }

  close(): void {
    this.#segment?.close();
    this.#segment = null;
  }

  async #writeSlots(
    segment: Segment,
    { slots, chunk_indices: chunks }: TransferContext,
    sequence: number,
  ): Promise<void> {
    const { chunkCount } = this.#options.shape;
    if (slots === undefined) throw new RefusedStepError('PREPARE_STORE was refused');
    if (slots.length !== chunkCount) {
      throw new RefusedStepError(
        `PREPARE_STORE: expected ${chunkCount} slots, got ${slots.length}; ` +
          'is the L1 of the server large enough?',
      );
    }
    for (const [i, slot] of slots.entries()) {
      this.#checkSlot(segment, slot);
      await segment.write(this.#pieces(sequence, chunks?.[i] ?? i), slot.offset);
    }
  }

  async #readSlots(segment: Segment, slots: readonly TransferSlot[]): Promise<void> {
    const { chunkCount } = this.#options.shape;
    if (slots.length !== chunkCount) {
      throw new RefusedStepError(
        `PREPARE_RETRIEVE: expected ${chunkCount} slots, got ${slots.length}`,
      );
    }
    for (const [chunk, slot] of slots.entries()) {
      this.#checkSlot(segment, slot);
      const start = chunk * this.#chunkBytes;
      await segment.read(this.#target.subarray(start, start + this.#chunkBytes), slot.offset);
    }
  }

  #checkSlot(segment: Segment, { offset, length }: TransferSlot): void {
    const isInside = offset >= 0 && offset + length <= segment.sizeBytes;
    if (length === this.#chunkBytes && isInside) return;
    throw new RefusedStepError(
      `expected a slot of ${this.#chunkBytes} bytes in ${segment.name}, ` +
        `got ${length} bytes at ${offset}`,
    );
  }

  #gatherInline(sequence: number): InlineData {
    const { chunkCount } = this.#options.shape;
    const shape = this.#chunkShape;
    const tensors = Array.from({ length: chunkCount }, (_, chunk) => ({
      dtype: this.#group.dtype,
      shape,
      stride: contiguousStride(shape),
      offsetBytes: 0,
      bytes: Buffer.concat(this.#pieces(sequence, chunk)),
    }));
    return { kind: 'tensors', tensors };
  }

  #scatterInline(data: Uint8Array): void {
    const { chunkCount } = this.#options.shape;
    const payload = readTensorList(data, chunkCount);
    if (payload.kind === 'malformed') {
      throw new RefusedStepError(`PREPARE_RETRIEVE: ${payload.reason}`);
    }
    const tensors = payload.kind === 'tensors' ? payload.tensors : [];
    const isExpected = tensors.every(({ shape }) => shape.join() === this.#chunkShape.join());
    if (tensors.length !== chunkCount || !isExpected) {
      throw new RefusedStepError(
        `PREPARE_RETRIEVE: expected ${chunkCount} tensors of shape [${this.#chunkShape}], ` +
          `got ${tensors.length} of shape [${tensors[0]?.shape ?? ''}]`,
      );
    }
    for (const [chunk, tensor] of tensors.entries()) {
      const start = chunk * this.#chunkBytes;
      copyTensor(tensor, this.#target.subarray(start, start + this.#chunkBytes));
    }
  }

  /** The source blocks of one chunk, in the order of an object's bytes. */
  #pieces(sequence: number, chunk: number): Buffer[] {
    const { shape, pattern } = this.#options;
    const { kvSize, layerCount } = this.#group;
    const pieces: Buffer[] = [];
    for (let kv = 0; kv < kvSize; kv += 1) {
      for (let layer = 0; layer < layerCount; layer += 1) {
        const plane = layer * kvSize + kv;
        const sizeBytes = shape.planes[plane]?.pieceBytes ?? 0;
        for (let i = 0; i < shape.blocksPerChunk; i += 1) {
          const block = chunk * shape.blocksPerChunk + i;
          pieces.push(pattern.piece(sequence, { plane, block }, sizeBytes));
        }
      }
    }
    return pieces;
  }

  #describe(chunk: number, pieceIndex: number): string {
    const { blocksPerChunk } = this.#options.shape;
    const { layerCount } = this.#group;
    const block = chunk * blocksPerChunk + (pieceIndex % blocksPerChunk);
    const plane = Math.floor(pieceIndex / blocksPerChunk);
    const where = `layer ${plane % layerCount}, ${plane < layerCount ? 'keys' : 'values'}`;
    return `loaded block differs: block ${block} of the request, ${where}`;
  }

  async #time<T>(step: string, run: () => Promise<T>): Promise<T> {
    const { clock, latencies } = this.#options;
    const startMs = clock.preciseMs();
    const result = await run();
    latencies.add(step, clock.preciseMs() - startMs);
    return result;
  }
}
