/**
 * The server-driven path over the real core, storage and sessions, with plain memory for L1 and
 * for the workers: two ranks of a model whose first layer needs whole prefixes and whose second one
 * looks back two chunks. Chunks have 16 tokens, blocks 8.
 */
import * as assert from 'uvu/assert';
import type { CacheKey, OperationName, ReplyOf, RequestOf } from '../../src/engine/api.ts';
import type { ClientTraits } from '../../src/engine/client-traits.ts';
import type { Handler } from '../../src/engine/handlers.ts';
import { InstanceRegistry } from '../../src/engine/instances.ts';
import { ChunkAnnouncer } from '../../src/engine/kv-events/chunk-announcer.ts';
import { LookupModule } from '../../src/engine/lookup.ts';
import { SessionTable } from '../../src/engine/session.ts';
import { LMCacheDrivenTransferModule } from '../../src/engine/transfer/lmcache-driven.ts';
import { MsgpackWriter } from '../../src/wire/msgpack.ts';
import { LIVE_ATTEMPT } from './attempts.ts';
import { info } from './kv-tensors.ts';
import { ALIGN_BYTES, buildL1House } from './l1-house.ts';
import { MemoryDevice } from './memory-device.ts';

export const WORLD_SIZE = 2;
export const WINDOW_CHUNKS = 2;
export const CHUNK_TOKENS = 16;
const BLOCKS_PER_CHUNK = 2;
const BLOCK_COUNT = 16;
/** Keys, or values, of one block of one layer: 8 slots of one head of 4 bytes. */
const BLOCK_BYTES = 32;

type L1House = ReturnType<typeof buildL1House>;

export class ServerDrivenHouse {
  readonly l1House: L1House;
  readonly device: MemoryDevice;
  readonly sessions: SessionTable;
  readonly instances: InstanceRegistry;
  readonly #handlers: LMCacheDrivenTransferModule['handlers'];

  constructor(units: number) {
    const sizeBytes = units * ALIGN_BYTES;
    this.l1House = buildL1House({ sizeBytes, watermarkRatio: 1 });
    const { clock, bus, log, core, storage } = this.l1House;
    this.device = new MemoryDevice(sizeBytes);
    this.sessions = new SessionTable({ storage, clock, idleTtlMs: 3_600_000 });
    this.instances = new InstanceRegistry({
      clock,
      bus,
      log,
      reapTimeoutSeconds: 0,
      registrationGraceSeconds: 0,
    });
    this.instances.onLastInstance((model, size) => this.sessions.releaseModel(model, size));
    const { device, sessions, instances } = this;
    const rooms = { storage, sessions, instances, hasher: core.hasher, clock, bus, log };
    const lookup = new LookupModule({ ...rooms, announcer: new ChunkAnnouncer(rooms) });
    const transfers = new LMCacheDrivenTransferModule({
      ...rooms,
      device,
      strictRetrieve: false,
      hasSeparateObjects: true,
      nullBlockId: 0,
    });
    this.#handlers = { ...lookup.handlers, ...transfers.handlers };
  }

  /** Calls a handler as the dispatch does. */
  async call<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    from: { readonly connectionId: number; readonly client: ClientTraits },
  ): Promise<ReplyOf<N>> {
    const handler = this.#handlers[name] as Handler<N>;
    return await handler(request, from, LIVE_ATTEMPT);
  }

  /** Two layers in segments of this worker's own. */
  async register(rank: number, client: ClientTraits): Promise<void> {
    const shape = [2, BLOCK_COUNT, 1, 8, 4];
    const wrappers = [0, 1].map((layer) => {
      const shmName = segmentOf(rank, layer);
      const sizeBytes = 2 * BLOCK_COUNT * BLOCK_BYTES;
      if (!this.device.segments.has(shmName)) {
        this.device.segments.set(shmName, new Uint8Array(sizeBytes));
      }
      return {
        kind: 'cpu-shm' as const,
        shmName,
        sizeBytes,
        dtype: 'uint8' as const,
        shape,
        stride: [BLOCK_COUNT * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES, 4, 1],
        storageOffset: 0,
        deviceUuid: 'cpu',
      };
    });
    const request: RequestOf<'REGISTER_KV_CACHE'> = {
      instanceId: BigInt(rank + 1),
      wrappers,
      modelName: 'm',
      worldSize: WORLD_SIZE,
      engineType: 'vllm',
      layoutHints: { kvLayout: 'HND' },
      engineGroupInfos: [
        info([0], { engineGroupId: 0 }),
        info([1], { engineGroupId: 1, slidingWindowTokens: WINDOW_CHUNKS * CHUNK_TOKENS }),
      ],
    };
    await this.call('REGISTER_KV_CACHE', request, { connectionId: rank + 1, client });
  }

  key(prompt: number, rest: Partial<CacheKey> & { readonly chunkCount: number }): CacheKey {
    const { chunkCount, ...part } = rest;
    const writer = new MsgpackWriter();
    writer.writeArrayHeader(chunkCount * CHUNK_TOKENS);
    for (let i = 0; i < chunkCount * CHUNK_TOKENS; i += 1) writer.writeInteger(prompt * 1000 + i);
    return {
      modelName: 'm',
      worldSize: WORLD_SIZE,
      workerId: null,
      tokens: this.l1House.core.hasher.readTokens(writer.take(), 0).span,
      startToken: 0,
      endToken: chunkCount * CHUNK_TOKENS,
      requestId: `p${prompt}`,
      cacheSalt: '',
      readerCount: null,
      requestConfigs: null,
      ...part,
    };
  }

  /** Per chunk: whether each of (rank 0 full, rank 0 windowed, rank 1 full, rank 1 windowed) is. */
  presence(prompt: number, chunkCount: number): boolean[][] {
    const { core, storage } = this.l1House;
    const key = this.key(prompt, { chunkCount });
    const namespaceIds = [0, 1].flatMap((workerId) =>
      [0, 1].map((objectGroupId) => {
        const name = { modelName: 'm', worldSize: WORLD_SIZE, workerId, objectGroupId };
        return storage.findNamespace({ ...name, cacheSalt: '' });
      }),
    );
    const hashes = core.hasher.hashChunks(key.tokens);
    const found = core.table.find({ hashes, firstChunk: 0, chunkCount, namespaceIds });
    return Array.from({ length: chunkCount }, (_, chunk) =>
      [0, 1, 2, 3].map((column) => found[chunk * 4 + column] !== 0xffff_ffff),
    );
  }

  /** Fills the blocks of one chunk of one layer with these bytes. */
  fill(rank: number, layer: number, firstBlock: number, byte: number): void {
    const segment = this.#segment(rank, layer);
    for (let kv = 0; kv < 2; kv += 1) {
      const at = (kv * BLOCK_COUNT + firstBlock) * BLOCK_BYTES;
      segment.fill(byte, at, at + BLOCKS_PER_CHUNK * BLOCK_BYTES);
    }
  }

  /** The bytes that the blocks of one chunk consist of. */
  read(rank: number, layer: number, firstBlock: number): number[] {
    const segment = this.#segment(rank, layer);
    const bytes = new Set<number>();
    for (let kv = 0; kv < 2; kv += 1) {
      const at = (kv * BLOCK_COUNT + firstBlock) * BLOCK_BYTES;
      for (const byte of segment.subarray(at, at + BLOCKS_PER_CHUNK * BLOCK_BYTES)) bytes.add(byte);
    }
    return [...bytes];
  }

  /** Nothing is reserved, pinned or held: L1 holds whole objects only. */
  assertClean(): void {
    const { core, clock } = this.l1House;
    const table = core.table.statistics(clock.nowMs());
    const { stagingCount, deferredCount, readLockedCount, pinnedCount, usedBytes } = table;
    assert.equal([stagingCount, deferredCount, readLockedCount, pinnedCount], [0, 0, 0, 0]);
    assert.is(usedBytes, table.objectCount * ALIGN_BYTES);
    core.table.checkConsistency();
  }

  #segment(rank: number, layer: number): Uint8Array {
    return this.device.segments.get(segmentOf(rank, layer)) as Uint8Array;
  }
}

const segmentOf = (rank: number, layer: number) => `/lmcache_kv_rank${rank}_layer${layer}`;

/** Blocks of consecutive chunks in a worker's cache, from block 2 on; block 0 is the null block. */
export function blockIdsOf(chunkCount: number): number[] {
  return Array.from({ length: chunkCount * BLOCKS_PER_CHUNK }, (_, i) => BLOCKS_PER_CHUNK + i);
}
