/**
 * `HttpBackend` over the rooms: gathers what they know, in the order and under the names that
 * readers of the reference's `/status` expect (spec http 7.1), with kvd's own keys behind.
 */
import type { Dispatcher } from '../engine/dispatch.ts';
import type { InstanceRegistry } from '../engine/instances.ts';
import type { LookupModule } from '../engine/lookup.ts';
import type { EngineDrivenTransferModule } from '../engine/transfer/engine-driven.ts';
import { blockAxesOf, countLayers } from '../engine/transfer/kv-layout.ts';
import type { LMCacheDrivenTransferModule } from '../engine/transfer/lmcache-driven.ts';
import type { WarmPrefetcher } from '../engine/warm-prefetch.ts';
import type { ObjectKey } from '../l2/object-key.ts';
import type { L1Deletion, L1DeletionResult } from '../storage/l1-deletion.ts';
import type { L2Eviction } from '../storage/l2/l2-eviction.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import type {
  AdapterBackend,
  BlockChecksums,
  ChecksumRequest,
  ChecksumTarget,
  ClearResult,
  HttpBackend,
  QuotaBackend,
  Readiness,
  RuntimeChanges,
  WarmPrefetch,
  WarmPrefetchOutcome,
} from './backend.ts';

const SELF_PING_MS = 2_000;

/** What the other door tells: `server.ts` hands it over, because doors do not know each other. */
export interface WireReport {
  statistics(): Record<string, unknown>;
  /** Null while the message loop answers. */
  problem(): string | null;
  selfPing(timeoutMs: number): Promise<number>;
}

export interface EngineBackendOptions {
  readonly storage: StorageManager;
  readonly l1Deletion: L1Deletion;
  readonly l2Eviction: L2Eviction;
  readonly adapters: AdapterBackend;
  readonly quotas: QuotaBackend;
  /** Null: not allowed. */
  readonly changes: RuntimeChanges | null;
  readonly instances: InstanceRegistry;
  readonly lookup: LookupModule;
  readonly warmPrefetcher: WarmPrefetcher;
  /** Null: not loaded; then it adds no keys. */
  readonly lmcacheDriven: LMCacheDrivenTransferModule | null;
  readonly engineDriven: EngineDrivenTransferModule | null;
  readonly dispatcher: Dispatcher;
  readonly wire: WireReport;
  readonly chunkSizeTokens: number;
  readonly hashAlgorithm: string;
  /** Parts of `/status` that belong to no room above: device, version, uptime. */
  readonly extraStatus: () => Record<string, unknown>;
  readonly metricsText: () => Promise<string>;
  readonly config: () => Record<string, unknown>;
}

export class EngineBackend implements HttpBackend {
  readonly #options: EngineBackendOptions;
  readonly adapters: AdapterBackend;
  readonly quotas: QuotaBackend;
  readonly changes: RuntimeChanges | null;
  isDraining = false;

  constructor(options: EngineBackendOptions) {
    this.#options = options;
    this.adapters = options.adapters;
    this.quotas = options.quotas;
    this.changes = options.changes;
  }

  status(): Record<string, unknown> {
    const { storage, instances, lookup, lmcacheDriven, engineDriven, dispatcher, wire } =
      this.#options;
    const { active_sessions, active_prefetch_jobs, ...lookupStatus } = lookup.status();
    return {
      is_healthy: this.unhealthyReason() === null,
      unhealthy_reason: this.unhealthyReason(),
      engine_type: 'MPCacheServer',
      chunk_size: this.#options.chunkSizeTokens,
      hash_algorithm: this.#options.hashAlgorithm,
      active_sessions,
      storage_manager: {
        ...storage.status(),
        l2_eviction_controller: this.#options.l2Eviction.status(),
      },
      active_prefetch_jobs,
      active_p2p_lookup_jobs: 0,
      p2p_enabled: false,
      p2p_state: 'unregistered',
      p2p_peer_count: 0,
      p2p_peers: [],
      worker_liveness: instances.livenessStatus(),
      ...lmcacheDriven?.status(),
      ...engineDriven?.status(),
      ...lookupStatus,
      requests: {
        in_flight: dispatcher.inFlightCount,
        by_operation: Object.fromEntries(
          [...dispatcher.counters].map(([name, { requestCount, failureCount }]) => [
            name,
            { count: requestCount, failures: failureCount },
          ]),
        ),
      },
      wire: wire.statistics(),
      ...this.#options.extraStatus(),
    };
  }

  unhealthyReason(): string | null {
    if (this.isDraining) return 'the server is shutting down';
    const { wire, storage, l2Eviction } = this.#options;
    return (
      wire.problem() ?? [...storage.healthProblems(), ...l2Eviction.healthProblems()][0] ?? null
    );
  }

  async readiness(): Promise<Readiness> {
    const reason = this.unhealthyReason();
    if (reason !== null) return { state: 'unready', reasons: [reason] };
    try {
      await this.#options.wire.selfPing(SELF_PING_MS);
    } catch (error) {
      return { state: 'unready', reasons: [(error as Error).message] };
    }
    const reasons = [...this.#adapterTroubles(), ...this.#options.l2Eviction.troubles()];
    return { state: reasons.length > 0 ? 'degraded' : 'ready', reasons };
  }

  /** A store that is down costs hits; a restart would not bring it back. */
  #adapterTroubles(): string[] {
    const down = this.adapters.list().filter(({ isHealthy }) => !isHealthy);
    return down.map(({ id, typeName }) => `L2 adapter ${id} (${typeName}): its store fails`);
  }

  async clear(options: { readonly isForced: boolean }): Promise<ClearResult> {
    const { removedCount, deferredCount, freedBytes } = await this.#options.storage.clear(
      options.isForced,
    );
    return {
      removedObjectCount: removedCount,
      deferredObjectCount: deferredCount,
      freedBytes,
    };
  }

  deleteFromL1(keys: readonly ObjectKey[], isForced: boolean): L1DeletionResult {
    return this.#options.l1Deletion.delete(keys, isForced);
  }

  checksumTarget(instanceId: bigint): ChecksumTarget | 'not-enabled' | 'unknown' {
    const { instances, lmcacheDriven } = this.#options;
    if (!lmcacheDriven) return 'not-enabled';
    const instance = instances.lookup(instanceId);
    if (!instance) return 'unknown';
    const { layout, handle } = instance;
    const blockCounts = layout.groups.map((group) => group.blockCount);
    return {
      layerCount: countLayers(layout),
      blockCount: blockAxesOf(layout, handle.tensors.length) ? Math.min(...blockCounts) : null,
      checksum: (request) => checksumOf(lmcacheDriven, instanceId, request),
    };
  }

  dropInstance(instanceId: bigint): Promise<boolean> {
    return this.#options.instances.drop(instanceId, 'dropped');
  }

  hasLayout(modelName: string, worldSize: number): boolean {
    return this.#options.warmPrefetcher.hasLayout(modelName, worldSize);
  }

  startPrefetch(prefetch: WarmPrefetch): ReturnType<WarmPrefetcher['start']> {
    return this.#options.warmPrefetcher.start(prefetch);
  }

  takePrefetch(requestId: string): WarmPrefetchOutcome | 'pending' | null {
    return this.#options.warmPrefetcher.take(requestId);
  }

  metricsText(): Promise<string> {
    return this.#options.metricsText();
  }

  config(): Record<string, unknown> {
    return this.#options.config();
  }
}

async function checksumOf(
  transfer: LMCacheDrivenTransferModule,
  instanceId: bigint,
  request: ChecksumRequest,
): Promise<BlockChecksums> {
  const lists = await transfer.checksumBlocks({
    instanceId,
    blockIds: request.blockIds,
    blocksPerChecksum: request.chunkSizeBlocks,
    isLayerwise: request.isLayerwise,
  });
  if (!request.isLayerwise) return lists[0] ?? [];
  return Object.fromEntries(lists.map((list, layer) => [`layer_${layer}`, list]));
}
