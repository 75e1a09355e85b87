/**
 * An engine-driven worker without an engine (spec engine 6), one request at a time: a test can
 * break off, stop or repeat it between any two steps.
 *
 *   shm      fills and reads its slots through the segment in /dev/shm that the server names
 *   inline   sends and gets its bytes inside messages, whatever the server offers
 *
 * What it stores follows from a seed and the number of the chunk.
 */
import { createCipheriv, createHash } from 'node:crypto';
import { type CallReply, KvdClient } from '../../src/client/client.ts';
import { hostTensor, tensorsOf } from '../../src/client/host-tensors.ts';
import { Segment } from '../../src/client/load/segment.ts';
import type { InlinePayload, ReplyOf, TransferContext } from '../../src/engine/api.ts';
import { type KeyOptions, keyOf, promptOf } from './fake-worker.ts';

const CALL_DEADLINE_MS = 10_000;
const CHUNK_TOKENS = 16;
const DTYPE = 'float16';

export interface ChunkGeometry {
  readonly layerCount: number;
  readonly hiddenSize: number;
}

/** 4096 bytes a chunk. */
export const SMALL_CHUNK: ChunkGeometry = { layerCount: 2, hiddenSize: 32 };

export function chunkShapeOf({ layerCount, hiddenSize }: ChunkGeometry): number[] {
  return [2, layerCount, CHUNK_TOKENS, hiddenSize];
}

export function chunkSizeOf(geometry: ChunkGeometry): number {
  return chunkShapeOf(geometry).reduce((product, size) => product * size, 2);
}

/** What a worker with this seed has in this chunk. */
export function chunkBytesOf(seed: number, chunk: number, sizeBytes: number): Buffer {
  const key = createHash('sha256').update(`chunk ${seed}:${chunk}`).digest();
  return createCipheriv('aes-256-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(sizeBytes));
}

export function digestOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export interface SlotWorkerOptions {
  readonly transport: 'shm' | 'inline';
  readonly instanceId?: bigint;
  readonly modelName?: string;
  readonly geometry?: ChunkGeometry;
}

type PreparedRetrieve = ReplyOf<'PREPARE_RETRIEVE'>;

export class SlotWorker {
  readonly instanceId: bigint;
  readonly client: KvdClient;
  readonly #geometry: ChunkGeometry;
  readonly #modelName: string;
  readonly #usesSlots: boolean;
  #segment: Segment | null = null;

  constructor(url: string, options: SlotWorkerOptions) {
    this.instanceId = options.instanceId ?? 2n ** 62n + 70n;
    this.#geometry = options.geometry ?? SMALL_CHUNK;
    this.#modelName = options.modelName ?? 'm';
    this.#usesSlots = options.transport === 'shm';
    this.client = KvdClient.connect(url);
  }

  get objectSizeBytes(): number {
    return chunkSizeOf(this.#geometry);
  }

  /** Name of the segment that the server offers; empty = none. */
  async register(): Promise<string> {
    const { layerCount, hiddenSize } = this.#geometry;
    const { value } = await this.client.call(
      'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
      {
        instanceId: this.instanceId,
        modelName: this.#modelName,
        worldSize: 1,
        blockSize: CHUNK_TOKENS,
        layerCount,
        hiddenSize,
        dtype: DTYPE,
        usesMla: false,
        physicalSlotCount: null,
      },
      CALL_DEADLINE_MS,
    );
    const name = value?.shmName ?? '';
    this.#segment?.close();
    this.#segment = this.#usesSlots && name !== '' ? Segment.open(name) : null;
    return name;
  }

  async unregister(): Promise<void> {
    const { instanceId } = this;
    const name = 'UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT';
    await this.client.call(name, { instanceId }, CALL_DEADLINE_MS);
  }

  async ping(): Promise<boolean | null> {
    const { instanceId } = this;
    return (await this.client.call('PING', { instanceId }, CALL_DEADLINE_MS)).value;
  }

  async prepareStore(tokens: readonly number[], options?: KeyOptions): Promise<TransferContext> {
    const request = this.requestOf(tokens, options);
    const { value } = await this.client.call('PREPARE_STORE', request, CALL_DEADLINE_MS);
    return value?.context ?? {};
  }

  /** Writes this worker's chunks into the slots that it was given, as far as `bytesPerSlot`. */
  async fill(
    { slots = [], chunk_indices: chunks = [] }: TransferContext,
    seed: number,
    bytesPerSlot = this.objectSizeBytes,
  ): Promise<void> {
    for (const [i, { offset }] of slots.entries()) {
      const bytes = chunkBytesOf(seed, chunks[i] as number, this.objectSizeBytes);
      await this.#segment?.write([bytes.subarray(0, bytesPerSlot)], offset);
    }
  }

  /** The chunks of a request as an inline payload. */
  payloadOf(tokens: readonly number[], seed: number): InlinePayload {
    const shape = chunkShapeOf(this.#geometry);
    const count = Math.floor(tokens.length / CHUNK_TOKENS);
    const tensors = Array.from({ length: count }, (_, chunk) =>
      hostTensor(DTYPE, shape, chunkBytesOf(seed, chunk, this.objectSizeBytes)),
    );
    return { kind: 'tensors', tensors };
  }

  /** Null when the server answered with an error. */
  async commitStore(
    tokens: readonly number[],
    data: InlinePayload = { kind: 'none' },
    options?: KeyOptions,
  ): Promise<boolean | null> {
    return (await this.tryCommitStore(tokens, data, options)).value;
  }

  /** With the error map behind a refusal. */
  tryCommitStore(
    tokens: readonly number[],
    data: InlinePayload = { kind: 'none' },
    options?: KeyOptions,
  ): Promise<CallReply<'COMMIT_STORE'>> {
    const request = { ...this.requestOf(tokens, options), data };
    return this.client.call('COMMIT_STORE', request, CALL_DEADLINE_MS);
  }

  /** A whole store. False when the server refused it. */
  async store(tokens: readonly number[], seed: number, options?: KeyOptions): Promise<boolean> {
    const context = await this.prepareStore(tokens, options);
    if (!this.#segment) {
      const data = this.payloadOf(tokens, seed);
      return (await this.commitStore(tokens, data, options)) === true;
    }
    await this.fill(context, seed);
    if (context.slots?.length === 0) return true;
    return (await this.commitStore(tokens, undefined, options)) === true;
  }

  async prepareRetrieve(
    tokens: readonly number[],
    options?: KeyOptions,
  ): Promise<PreparedRetrieve | null> {
    const request = this.requestOf(tokens, options);
    return (await this.client.call('PREPARE_RETRIEVE', request, CALL_DEADLINE_MS)).value;
  }

  /** The chunks behind the reply, from the slots or from the data, as this worker reads them. */
  async chunksOf({ context, data }: PreparedRetrieve): Promise<Buffer[]> {
    if (!this.#segment) return tensorsOf(data, 65_536).map(({ bytes }) => Buffer.from(bytes));
    const chunks: Buffer[] = [];
    for (const { offset, length } of context.slots ?? []) {
      const bytes = Buffer.alloc(length);
      await this.#segment.read(bytes, offset);
      chunks.push(bytes);
    }
    return chunks;
  }

  async commitRetrieve(
    tokens: readonly number[],
    options?: KeyOptions,
  ): Promise<CallReply<'COMMIT_RETRIEVE'>> {
    const request = this.requestOf(tokens, options);
    return await this.client.call('COMMIT_RETRIEVE', request, CALL_DEADLINE_MS);
  }

  /** A whole retrieve; null when the server refused it. */
  async retrieve(tokens: readonly number[], options?: KeyOptions): Promise<Buffer[] | null> {
    const prepared = await this.prepareRetrieve(tokens, options);
    if (!prepared?.success) return null;
    const chunks = await this.chunksOf(prepared);
    await this.commitRetrieve(tokens, options);
    return chunks;
  }

  /** As `retrieve`, for workers in another process: SHA-256 of each chunk. */
  async retrieveDigests(tokens: readonly number[]): Promise<string[] | null> {
    return (await this.retrieve(tokens))?.map(digestOf) ?? null;
  }

  /** One prompt after the other, each named and filled by its seed. */
  async storeAndRetrieve(seeds: readonly number[], chunkCount: number): Promise<void> {
    for (const seed of seeds) {
      const tokens = promptOf(seed, chunkCount);
      await this.store(tokens, seed);
      await this.retrieve(tokens);
    }
  }

  /** The chunks that a worker with this seed has stored. */
  expected(seed: number, chunkCount: number): Buffer[] {
    return Array.from({ length: chunkCount }, (_, chunk) =>
      chunkBytesOf(seed, chunk, this.objectSizeBytes),
    );
  }

  /** What PREPARE and COMMIT say about a transfer. */
  requestOf(tokens: readonly number[], options: KeyOptions = {}) {
    const key = keyOf(tokens, { modelName: this.#modelName, workerId: 0, ...options });
    return { key, instanceId: this.instanceId };
  }

  close(): void {
    this.client.close();
    this.#segment?.close();
    this.#segment = null;
  }
}
