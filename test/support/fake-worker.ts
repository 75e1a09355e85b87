/**
 * An engine worker without an engine: KV cache tensors in real shared memory, and the requests
 * that a worker and its scheduler send (spec engine 5.8, field-lessons 0).
 *
 * Tensors are [2, blocks, heads, slots, head size] in float16, one segment per layer. The worker
 * writes and reads them through the files in /dev/shm, which are the pages that the server maps.
 */
import { createCipheriv, createHash } from 'node:crypto';
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import { type CallReply, KvdClient, tokenSpan } from '../../src/client/client.ts';
import type { CpuShmWrapper } from '../../src/device/tensor-wrapper.ts';
import type { CacheKey, EngineType, TransferReply } from '../../src/engine/api.ts';

const CALL_DEADLINE_MS = 10_000;
const ITEM_SIZE_BYTES = 2;
const EVENT = new TextEncoder().encode('stub_ipc_handle');

export interface KvGeometry {
  readonly layerCount: number;
  readonly blockCount: number;
  readonly headCount: number;
  readonly slotsPerBlock: number;
  readonly headSize: number;
}

/** Hidden size 32, blocks as long as chunks: one object has 4096 bytes. */
export const SMALL: KvGeometry = {
  layerCount: 2,
  blockCount: 16,
  headCount: 2,
  slotsPerBlock: 16,
  headSize: 16,
};
/** Hidden size 1024: one object has 1 MiB. */
export const BIG: KvGeometry = {
  layerCount: 16,
  blockCount: 8,
  headCount: 8,
  slotsPerBlock: 16,
  headSize: 128,
};

/** Bytes of one chunk of 16 tokens. */
export function objectSizeOf({ layerCount, headCount, headSize }: KvGeometry): number {
  return 2 * layerCount * 16 * headCount * headSize * ITEM_SIZE_BYTES;
}

/** Tokens of a prompt that shares no chunk with the prompts of other numbers. */
export function promptOf(number: number, chunkCount: number, chunkSize = 16): number[] {
  return Array.from({ length: chunkCount * chunkSize }, (_, i) => (i === 0 ? number : i % 50_000));
}

export interface KeyOptions {
  readonly requestId?: string;
  readonly modelName?: string;
  readonly worldSize?: number;
  /** Null = a scheduler's key. */
  readonly workerId?: number | null;
  readonly cacheSalt?: string;
  readonly startToken?: number;
  readonly endToken?: number;
}

export function keyOf(tokens: readonly number[], options: KeyOptions = {}): CacheKey {
  return {
    modelName: 'm',
    worldSize: 1,
    workerId: null,
    tokens: tokenSpan(tokens),
    startToken: 0,
    endToken: tokens.length,
    requestId: 'request',
    cacheSalt: '',
    readerCount: null,
    requestConfigs: null,
    ...options,
  };
}

/** What a scheduler sends: LOOKUP, then QUERY until the result is in. */
export async function lookup(
  client: KvdClient,
  tokens: readonly number[],
  options: KeyOptions & { readonly tpSize?: number } = {},
): Promise<number> {
  const { tpSize = 1, ...rest } = options;
  const key = keyOf(tokens, rest);
  await client.call('LOOKUP', { key, tpSize }, CALL_DEADLINE_MS);
  for (;;) {
    const { requestId } = key;
    const reply = await client.call('QUERY_PREFETCH_STATUS', { requestId }, CALL_DEADLINE_MS);
    if (reply.value !== null) return reply.value;
  }
}

export async function endSession(client: KvdClient, requestId = 'request'): Promise<void> {
  await client.call('END_SESSION', { requestId }, CALL_DEADLINE_MS);
}

/** Chunks that are cached, without keeping a lock on them. */
export async function hitsOf(
  client: KvdClient,
  tokens: readonly number[],
  options: KeyOptions & { readonly tpSize?: number } = {},
): Promise<number> {
  const requestId = options.requestId ?? 'hits';
  const hits = await lookup(client, tokens, { ...options, requestId });
  await endSession(client, requestId);
  return hits;
}

export interface WorkerOptions {
  readonly instanceId?: bigint;
  readonly modelName?: string;
  readonly worldSize?: number;
  readonly workerId?: number;
  readonly engineType?: EngineType;
  readonly geometry?: KvGeometry;
}

interface TransferOptions extends KeyOptions {
  /** One per chunk (of several when chunks span blocks); default 0, 1, 2, … round the cache. */
  readonly blockIds?: readonly number[];
  readonly skipFirstTokens?: number;
  readonly deadlineMs?: number;
}

let segmentCount = 0;

/** Segments of a process that was killed stay; whoever killed it calls this. */
export function removeSegments(pid: number): void {
  for (const name of fs.readdirSync('/dev/shm')) {
    if (name.startsWith(`lmcache_kv_${pid}_`)) fs.rmSync(`/dev/shm/${name}`, { force: true });
  }
}

export class FakeWorker {
  readonly instanceId: bigint;
  readonly geometry: KvGeometry;
  readonly client: KvdClient;
  readonly #options: Required<Omit<WorkerOptions, 'geometry' | 'instanceId'>>;
  readonly #names: readonly string[];
  readonly #files: readonly number[];

  constructor(url: string, options: WorkerOptions = {}) {
    const { instanceId = 2n ** 62n + 7n, geometry = SMALL, ...rest } = options;
    this.instanceId = instanceId;
    this.geometry = geometry;
    this.#options = { modelName: 'm', worldSize: 1, workerId: 0, engineType: 'vllm', ...rest };
    this.#names = Array.from({ length: geometry.layerCount }, () => {
      segmentCount += 1;
      return `lmcache_kv_${process.pid}_${segmentCount}`;
    });
    this.#files = this.#names.map((name) => {
      const file = fs.openSync(`/dev/shm/${name}`, 'wx+', 0o600);
      fs.ftruncateSync(file, this.#layerSizeBytes);
      return file;
    });
    this.client = KvdClient.connect(url);
  }

  get #blockPlaneBytes(): number {
    const { headCount, slotsPerBlock, headSize } = this.geometry;
    return headCount * slotsPerBlock * headSize * ITEM_SIZE_BYTES;
  }

  get #layerSizeBytes(): number {
    return 2 * this.geometry.blockCount * this.#blockPlaneBytes;
  }

  /** Bytes of one chunk of this worker. */
  get objectSizeBytes(): number {
    return objectSizeOf(this.geometry);
  }

  get wrappers(): CpuShmWrapper[] {
    const { blockCount, headCount, slotsPerBlock, headSize } = this.geometry;
    const shape = [2, blockCount, headCount, slotsPerBlock, headSize];
    const stride = shape.map((_, d) => shape.slice(d + 1).reduce((a, b) => a * b, 1));
    return this.#names.map((name) => ({
      kind: 'cpu-shm',
      shmName: `/${name}`,
      sizeBytes: this.#layerSizeBytes,
      dtype: 'float16',
      shape,
      stride,
      storageOffset: 0,
      deviceUuid: 'cpu',
    }));
  }

  /** Rejects when the server leaves the registration without an answer. */
  async register(deadlineMs = CALL_DEADLINE_MS): Promise<void> {
    const { modelName, worldSize, engineType } = this.#options;
    await this.client.call(
      'REGISTER_KV_CACHE',
      {
        instanceId: this.instanceId,
        wrappers: this.wrappers,
        modelName,
        worldSize,
        engineType,
        layoutHints: {},
        engineGroupInfos: [],
      },
      deadlineMs,
    );
  }

  async unregister(): Promise<void> {
    const { instanceId } = this;
    await this.client.call('UNREGISTER_KV_CACHE', { instanceId }, CALL_DEADLINE_MS);
  }

  async ping(deadlineMs = CALL_DEADLINE_MS): Promise<boolean> {
    const { instanceId } = this;
    return (await this.client.call('PING', { instanceId }, deadlineMs)).value as boolean;
  }

  /** Fills blocks of all layers with bytes that follow from `seed` and the block. */
  fill(blockIds: readonly number[], seed: number): void {
    const size = this.#blockPlaneBytes;
    for (const id of blockIds) {
      const bytes = randomBytesOf(`${seed}:${id}`, size * 2 * this.#files.length);
      for (const [plane, { file, position }] of this.#planesOf(id).entries()) {
        fs.writeSync(file, bytes, plane * size, size, position);
      }
    }
  }

  /** Overwrites the whole cache. */
  fillAll(value: number): void {
    const bytes = Buffer.alloc(this.#layerSizeBytes, value);
    for (const file of this.#files) fs.writeSync(file, bytes, 0, bytes.length, 0);
  }

  /** Keys and values of all layers of these blocks, block after block. */
  read(blockIds: readonly number[]): Buffer {
    const size = this.#blockPlaneBytes;
    const parts: Buffer[] = [];
    for (const id of blockIds) {
      for (const { file, position } of this.#planesOf(id)) {
        const part = Buffer.alloc(size);
        fs.readSync(file, part, 0, size, position);
        parts.push(part);
      }
    }
    return Buffer.concat(parts);
  }

  store(tokens: readonly number[], options: TransferOptions = {}): Promise<TransferReply> {
    return this.tryStore(tokens, options).then(({ value }) => value as TransferReply);
  }

  /** STORE with the error map behind a refusal. */
  tryStore(tokens: readonly number[], options: TransferOptions = {}): Promise<CallReply<'STORE'>> {
    const request = this.#transferOf(tokens, options);
    return this.client.call('STORE', request, options.deadlineMs ?? CALL_DEADLINE_MS);
  }

  retrieve(tokens: readonly number[], options: TransferOptions = {}): Promise<TransferReply> {
    return this.tryRetrieve(tokens, options).then(({ value }) => value as TransferReply);
  }

  /** RETRIEVE with the error map behind a refusal. */
  tryRetrieve(
    tokens: readonly number[],
    options: TransferOptions = {},
  ): Promise<CallReply<'RETRIEVE'>> {
    const { skipFirstTokens = 0 } = options;
    const request = { ...this.#transferOf(tokens, options), skipFirstTokens };
    return this.client.call('RETRIEVE', request, options.deadlineMs ?? CALL_DEADLINE_MS);
  }

  /** Cuts the memory of the tensors short, as a worker does that ends while it is asked. */
  shrink(): void {
    for (const file of this.#files) fs.ftruncateSync(file, 0);
  }

  /** Unlinks the tensors, as a worker does at its end. Safe to call twice. */
  close(): void {
    this.client.close();
    for (const [index, name] of this.#names.entries()) {
      if (!fs.existsSync(`/dev/shm/${name}`)) continue;
      fs.closeSync(this.#files[index] as number);
      fs.unlinkSync(`/dev/shm/${name}`);
    }
  }

  #transferOf(tokens: readonly number[], options: TransferOptions) {
    const { blockIds, skipFirstTokens: _, deadlineMs: __, ...rest } = options;
    const { modelName, worldSize, workerId } = this.#options;
    const key = keyOf(tokens, { modelName, worldSize, workerId, ...rest });
    const { slotsPerBlock, blockCount } = this.geometry;
    const count = Math.ceil((key.endToken - key.startToken) / slotsPerBlock);
    const ids = blockIds ?? Array.from({ length: Math.max(0, count) }, (_, i) => i % blockCount);
    return { key, instanceId: this.instanceId, blockIds: [[...ids]], event: EVENT };
  }

  /** Where the keys and the values of a block lie, layer after layer. */
  #planesOf(blockId: number): { file: number; position: number }[] {
    assert.ok(blockId < this.geometry.blockCount, `block ${blockId}`);
    const size = this.#blockPlaneBytes;
    return this.#files.flatMap((file) => [
      { file, position: blockId * size },
      { file, position: (this.geometry.blockCount + blockId) * size },
    ]);
  }
}

function randomBytesOf(seed: string, size: number): Buffer {
  const key = createHash('sha256').update(seed).digest();
  const cipher = createCipheriv('aes-256-ctr', key, Buffer.alloc(16));
  return cipher.update(Buffer.alloc(size));
}
