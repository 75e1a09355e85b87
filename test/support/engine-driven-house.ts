/**
 * The engine-driven module over the real core, storage and sessions, with plain memory for L1, and
 * a worker that fills and reads its slots there as a real one does through shared memory.
 *
 * Chunks have 16 tokens; a worker has 1 layer of 8 float16, so a chunk is [2, 1, 16, 8] = 512 bytes
 * and takes 4096 of L1.
 */
import * as assert from 'uvu/assert';
import type {
  CacheKey,
  EngineDrivenContextRequest,
  HostTensor,
  InstanceId,
  OperationName,
  ReplyOf,
  RequestOf,
  TransferSlot,
} from '../../src/engine/api.ts';
import type { RequestContext } from '../../src/engine/client-traits.ts';
import type { Attempt, Handler } from '../../src/engine/handlers.ts';
import { InstanceRegistry } from '../../src/engine/instances.ts';
import { ChunkAnnouncer } from '../../src/engine/kv-events/chunk-announcer.ts';
import { LookupModule } from '../../src/engine/lookup.ts';
import { SessionTable } from '../../src/engine/session.ts';
import { EngineDrivenTransferModule } from '../../src/engine/transfer/engine-driven.ts';
import type { InlineWriter } from '../../src/engine/transfer/inline-writer.ts';
import { toKvdError } from '../../src/errors.ts';
import { LIVE_ATTEMPT } from './attempts.ts';
import { OLD_CLIENT } from './client-traits.ts';
import { ALIGN_BYTES, buildL1House, READ_TTL_MS, WRITE_TTL_MS } from './l1-house.ts';
import { MemoryDevice } from './memory-device.ts';
import { encodeTokens } from './token-arrays.ts';

export { ALIGN_BYTES, READ_TTL_MS, WRITE_TTL_MS };
export const CHUNK_TOKENS = 16;
export const CHUNK_SHAPE = [2, 1, 16, 8] as const;
export const CHUNK_BYTES = 512;
export const WORKER: InstanceId = 2n ** 62n + 5n;

export interface EngineDrivenHouseOptions {
  readonly units?: number;
  /** Size of the pool as the module is told; the quarantine is a share of it. */
  readonly poolBytes?: number;
  /** Null: no segment. */
  readonly shmName?: string | null;
  readonly strictRetrieve?: boolean;
  readonly reapTimeoutSeconds?: number;
  readonly sessionTtlMs?: number;
}

/** Four bytes of header before every tensor, and two behind the last one. */
const HEADER_BYTES = 4;

const gappedWriter: InlineWriter = {
  plan(tensors) {
    const dataOffsets: number[] = [];
    let end = 0;
    for (const { sizeBytes } of tensors) {
      dataOffsets.push(end + HEADER_BYTES);
      end += HEADER_BYTES + sizeBytes;
    }
    return { buffer: new Uint8Array(end + 2), dataOffsets };
  },
};

/** The tensors in a payload of `gappedWriter`. */
export function tensorsIn(data: Uint8Array): Uint8Array[] {
  const step = HEADER_BYTES + CHUNK_BYTES;
  const count = Math.floor(data.length / step);
  return Array.from({ length: count }, (_, i) =>
    data.subarray(i * step + HEADER_BYTES, (i + 1) * step),
  );
}

/** What a worker of this seed has in a chunk. */
export function chunkBytes(seed: number, chunk: number): Uint8Array {
  return Uint8Array.from({ length: CHUNK_BYTES }, (_, i) => (seed * 37 + chunk * 11 + i * 7) % 251);
}

/** A tensor as it comes out of a payload. */
export function tensorOf(bytes: Uint8Array, rest: Partial<HostTensor> = {}): HostTensor {
  return {
    dtype: 'float16',
    shape: CHUNK_SHAPE,
    stride: [128, 128, 8, 1],
    offsetBytes: 0,
    bytes,
    ...rest,
  };
}

type L1House = ReturnType<typeof buildL1House>;

export class EngineDrivenHouse {
  readonly clock: L1House['clock'];
  readonly bus: L1House['bus'];
  readonly log: L1House['log'];
  readonly core: L1House['core'];
  readonly l1: L1House['l1'];
  readonly storage: L1House['storage'];
  readonly device: MemoryDevice;
  readonly sessions: SessionTable;
  readonly instances: InstanceRegistry;
  readonly lookup: LookupModule;
  readonly module: EngineDrivenTransferModule;

  constructor(options: EngineDrivenHouseOptions = {}) {
    const sizeBytes = (options.units ?? 64) * ALIGN_BYTES;
    const { clock, bus, log, core, l1, storage } = buildL1House({ sizeBytes, watermarkRatio: 1 });
    this.clock = clock;
    this.bus = bus;
    this.log = log;
    this.core = core;
    this.l1 = l1;
    this.storage = storage;
    this.device = new MemoryDevice(sizeBytes);
    const idleTtlMs = options.sessionTtlMs ?? 3_600_000;
    this.sessions = new SessionTable({ storage, clock, idleTtlMs });
    const reapTimeoutSeconds = options.reapTimeoutSeconds ?? 0;
    this.instances = new InstanceRegistry({
      clock,
      bus,
      log,
      reapTimeoutSeconds,
      registrationGraceSeconds: 3600,
    });
    this.instances.onLastInstance((model, size) => this.sessions.releaseModel(model, size));
    const { instances, sessions, device } = this;
    const rooms = { storage, sessions, instances, hasher: core.hasher, clock, bus, log };
    this.lookup = new LookupModule({ ...rooms, announcer: new ChunkAnnouncer(rooms) });
    const shmName = options.shmName === undefined ? 'pool' : options.shmName;
    this.module = new EngineDrivenTransferModule({
      ...rooms,
      device,
      writer: gappedWriter,
      pool: { shmName, sizeBytes: options.poolBytes ?? sizeBytes },
      writeTtlMs: WRITE_TTL_MS,
      readTtlMs: READ_TTL_MS,
      strictRetrieve: options.strictRetrieve ?? false,
    });
  }

  /** Calls a handler as the dispatch does. */
  async call<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: Partial<RequestContext> = {},
    attempt: Attempt = LIVE_ATTEMPT,
  ): Promise<ReplyOf<N>> {
    const handler = (this.module.handlers[name] ?? this.lookup.handlers[name]) as Handler<N>;
    return await handler(request, { connectionId: 1, client: OLD_CLIENT, ...context }, attempt);
  }

  /** The reply, or the code of the error in place of one. */
  async answer<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
  ): Promise<ReplyOf<N> | string> {
    try {
      return await this.call(name, request);
    } catch (error) {
      return toKvdError(error).code;
    }
  }

  register(rest: Partial<EngineDrivenContextRequest> = {}) {
    return this.call('REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', {
      instanceId: WORKER,
      modelName: 'm',
      worldSize: 1,
      blockSize: 16,
      layerCount: 1,
      hiddenSize: 8,
      dtype: 'float16',
      usesMla: false,
      physicalSlotCount: null,
      ...rest,
    });
  }

  unregister(instanceId = WORKER) {
    return this.call('UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', { instanceId });
  }

  /** The key of the first `chunkCount` chunks of a prompt that only this number names. */
  key(prompt: number, chunkCount: number, rest: Partial<CacheKey> = {}): CacheKey {
    const tokens = Array.from({ length: chunkCount * CHUNK_TOKENS }, (_, i) => prompt * 1000 + i);
    return {
      modelName: 'm',
      worldSize: 1,
      workerId: 0,
      tokens: this.core.hasher.readTokens(encodeTokens(tokens), 0).span,
      startToken: 0,
      endToken: chunkCount * CHUNK_TOKENS,
      requestId: `r${prompt}`,
      cacheSalt: '',
      readerCount: null,
      requestConfigs: null,
      ...rest,
    };
  }

  prepareStore(key: CacheKey, instanceId = WORKER) {
    return this.call('PREPARE_STORE', { key, instanceId });
  }

  /** Commits slots, or these tensors. */
  commitStore(key: CacheKey, tensors?: readonly HostTensor[], instanceId = WORKER) {
    const data = tensors ? ({ kind: 'tensors', tensors } as const) : ({ kind: 'none' } as const);
    return this.call('COMMIT_STORE', { key, instanceId, data });
  }

  prepareRetrieve(key: CacheKey, instanceId = WORKER) {
    return this.call('PREPARE_RETRIEVE', { key, instanceId });
  }

  commitRetrieve(key: CacheKey, instanceId = WORKER) {
    return this.call('COMMIT_RETRIEVE', { key, instanceId });
  }

  /** The worker writes what it has into the slots that it was given. */
  fill(context: ReplyOf<'PREPARE_STORE'>['context'], seed: number): void {
    for (const [i, slot] of (context.slots ?? []).entries()) {
      this.device.l1.set(chunkBytes(seed, context.chunk_indices?.[i] as number), slot.offset);
    }
  }

  read(slots: readonly TransferSlot[] | undefined): Uint8Array[] {
    return (slots ?? []).map(({ offset, length }) => this.device.l1.slice(offset, offset + length));
  }

  /** A whole store through slots. */
  async store(key: CacheKey, seed: number, instanceId = WORKER): Promise<boolean> {
    const { context } = await this.prepareStore(key, instanceId);
    this.fill(context, seed);
    if (context.slots?.length === 0) return true;
    return await this.commitStore(key, undefined, instanceId);
  }

  /** Hits of a LOOKUP that leaves nothing behind. */
  async hits(key: CacheKey, requestId = `look-${key.requestId}`): Promise<number> {
    const asked = { ...key, requestId, workerId: null };
    await this.call('LOOKUP', { key: asked, tpSize: 1 }, { connectionId: 99 });
    const count = await this.call('QUERY_PREFETCH_STATUS', { requestId }, { connectionId: 99 });
    await this.call('END_SESSION', { requestId }, { connectionId: 99 });
    return count ?? -1;
  }

  get status(): Record<string, unknown> {
    return this.module.status()['engine_driven_transfer'] as Record<string, unknown>;
  }

  /** Lets everything that only waits for turns of the event loop run. */
  async settle(): Promise<void> {
    for (let turn = 0; turn < 3; turn += 1) {
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }

  /** Nothing is reserved, pinned, held, leased or set aside: L1 holds whole objects only. */
  assertClean(): void {
    const table = this.core.table.statistics(this.clock.nowMs());
    const left = {
      staging: table.stagingCount,
      deferred: table.deferredCount,
      writeLocked: table.writeLockedCount,
      readLocked: table.readLockedCount,
      pinned: table.pinnedCount,
      usedBytes: table.usedBytes,
    };
    const usedBytes = table.objectCount * ALIGN_BYTES;
    const none = { staging: 0, deferred: 0, writeLocked: 0, readLocked: 0, pinned: 0, usedBytes };
    assert.equal(left, none);
    const { pending_write_count, pending_read_count, quarantined_transfer_count } = this.status;
    assert.equal([pending_write_count, pending_read_count, quarantined_transfer_count], [0, 0, 0]);
    this.core.table.checkConsistency();
  }
}
