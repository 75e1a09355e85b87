/**
 * A transfer module with everything around it in plain JavaScript, and a worker to talk to it.
 *
 * Chunks have 4 tokens; a worker has 2 layers [2, 16 blocks, 1 head, 2 slots, 4 bytes], so a chunk
 * is 2 blocks and an object 64 bytes.
 */
import type { TensorWrapper } from '../../src/device/tensor-wrapper.ts';
import type {
  CacheKey,
  InstanceId,
  OperationName,
  RegisterKvCacheRequest,
  ReplyOf,
  RequestOf,
} from '../../src/engine/api.ts';
import type { RequestContext } from '../../src/engine/client-traits.ts';
import type { Attempt, Handler } from '../../src/engine/handlers.ts';
import { InstanceRegistry } from '../../src/engine/instances.ts';
import { LMCacheDrivenTransferModule } from '../../src/engine/transfer/lmcache-driven.ts';
import { EventBus } from '../../src/observability/event-bus.ts';
import { LIVE_ATTEMPT } from './attempts.ts';
import { OLD_CLIENT } from './client-traits.ts';
import { MemoryDevice } from './memory-device.ts';
import { MemoryHasher, MemoryStorage, RecordingSessions } from './memory-storage.ts';
import { RecordingLogger } from './recording-logger.ts';
import { VirtualClock } from './virtual-clock.ts';

export const CHUNK_TOKENS = 4;
export const BLOCKS_PER_CHUNK = 2;
export const OBJECT_SIZE_BYTES = 64;
export const VLLM_ID: InstanceId = 2n ** 62n + 1n;

export interface TransferHouseOptions {
  readonly strictRetrieve?: boolean;
  readonly hasSeparateObjects?: boolean;
  readonly nullBlockId?: number;
  readonly reapTimeoutSeconds?: number;
  readonly registrationGraceSeconds?: number;
  readonly capacityBytes?: number;
  readonly deviceKind?: 'cpu' | 'cuda';
}

export class TransferHouse {
  readonly clock = new VirtualClock(1000);
  readonly log = new RecordingLogger();
  readonly bus = new EventBus();
  readonly device: MemoryDevice;
  readonly storage: MemoryStorage;
  readonly sessions = new RecordingSessions();
  readonly hasher = new MemoryHasher(CHUNK_TOKENS);
  readonly instances: InstanceRegistry;
  readonly module: LMCacheDrivenTransferModule;
  #segmentCount = 0;

  constructor(options: TransferHouseOptions = {}) {
    const { clock, log, bus } = this;
    this.device = new MemoryDevice(64 * 1024, options.deviceKind);
    this.storage = new MemoryStorage(options.capacityBytes ?? 64 * 1024);
    this.instances = new InstanceRegistry({
      clock,
      log,
      bus,
      reapTimeoutSeconds: options.reapTimeoutSeconds ?? 120,
      registrationGraceSeconds: options.registrationGraceSeconds ?? 3600,
    });
    this.module = new LMCacheDrivenTransferModule({
      device: this.device,
      storage: this.storage,
      sessions: this.sessions,
      instances: this.instances,
      hasher: this.hasher,
      clock,
      bus,
      log,
      strictRetrieve: options.strictRetrieve ?? true,
      hasSeparateObjects: options.hasSeparateObjects ?? false,
      nullBlockId: options.nullBlockId ?? 0,
    });
  }

  /** Calls a handler as the dispatch does. */
  async call<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: Partial<RequestContext> = {},
    attempt: Attempt = LIVE_ATTEMPT,
  ): Promise<ReplyOf<N>> {
    const handler = this.module.handlers[name] as Handler<N>;
    return await handler(request, { connectionId: 1, client: OLD_CLIENT, ...context }, attempt);
  }

  /** Two layers in segments of their own, filled with a pattern of `seed`. */
  newTensors(seed: number, blockCount = 16): { wrappers: TensorWrapper[]; bytes: Uint8Array[] } {
    const bytes = [0, 1].map((layer) =>
      Uint8Array.from({ length: 2 * blockCount * 8 }, (_, i) => (seed * 31 + layer * 97 + i) % 251),
    );
    const wrappers = bytes.map((segment): TensorWrapper => {
      this.#segmentCount += 1;
      const shmName = `/lmcache_kv_test_${this.#segmentCount}`;
      this.device.segments.set(shmName, segment);
      return {
        kind: 'cpu-shm',
        shmName,
        sizeBytes: segment.length,
        dtype: 'uint8',
        shape: [2, blockCount, 1, 2, 4],
        stride: [blockCount * 8, 8, 8, 4, 1],
        storageOffset: 0,
        deviceUuid: 'cpu',
      };
    });
    return { wrappers, bytes };
  }

  async register(rest: Partial<RegisterKvCacheRequest> = {}): Promise<Uint8Array[]> {
    const { wrappers, bytes } = this.newTensors(1);
    await this.call('REGISTER_KV_CACHE', {
      instanceId: VLLM_ID,
      wrappers,
      modelName: 'model',
      worldSize: 1,
      engineType: 'vllm',
      layoutHints: {},
      engineGroupInfos: [],
      ...rest,
    });
    return bytes;
  }

  /** Lets everything that needs no gate run. */
  async settle(): Promise<void> {
    for (let turn = 0; turn < 3; turn += 1) {
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }

  status(): Record<string, unknown> {
    return this.module.status()['lmcache_driven_transfer'] as Record<string, unknown>;
  }
}

export function keyOf(tokenCount: number, rest: Partial<CacheKey> = {}): CacheKey {
  return {
    modelName: 'model',
    worldSize: 1,
    workerId: 0,
    tokens: MemoryHasher.spanOf(Array.from({ length: tokenCount }, (_, i) => i + 7)),
    startToken: 0,
    endToken: tokenCount,
    requestId: 'request',
    cacheSalt: '',
    readerCount: null,
    requestConfigs: null,
    ...rest,
  };
}

/** Keys and values of one block of all layers. */
export function blockOf(tensors: readonly Uint8Array[], id: number): number[] {
  return tensors.flatMap((bytes) => {
    const half = bytes.length / 2;
    const at = id * 8;
    return [...bytes.subarray(at, at + 8), ...bytes.subarray(half + at, half + at + 8)];
  });
}

/** What a client sends for the device's event; no device here looks at it. */
export const EVENT = Uint8Array.of(9, 9);

/** A STORE of the chunks of the prompt of `tokenCount` tokens, in these blocks. */
export function store(tokenCount: number, blockIds: number[], rest = {}) {
  return {
    key: keyOf(tokenCount, rest),
    instanceId: VLLM_ID,
    blockIds: [blockIds],
    event: EVENT,
  };
}

/** A RETRIEVE of the chunks of the prompt of `tokenCount` tokens, in these blocks. */
export function retrieve(tokenCount: number, blockIds: number[], rest = {}, skipFirstTokens = 0) {
  return { ...store(tokenCount, blockIds, rest), skipFirstTokens };
}
