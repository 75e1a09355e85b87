/**
 * What the HTTP room asks of the server. `server.ts` implements it; tests fake it.
 *
 * Everything here is cheap, or a promise: nothing may hold the event loop (spec http 10.5).
 */
import type { DeleteResult, ListPage } from '../l2/backend.ts';
import type { ObjectKey } from '../l2/object-key.ts';
import type { AdapterClearResult, AdapterSummary } from '../storage/l2/adapter-control.ts';

export interface Readiness {
  readonly state: 'ready' | 'degraded' | 'unready';
  /** Why not `ready`; one short text each. */
  readonly reasons: readonly string[];
}

export interface ClearResult {
  readonly removedObjectCount: number;
  /** Removed from the index, but their memory is freed only when their last user is done. */
  readonly deferredObjectCount: number;
  readonly freedBytes: number;
}

export interface ChecksumRequest {
  readonly blockIds: readonly number[];
  readonly chunkSizeBlocks: number;
  readonly isLayerwise: boolean;
}

/** MD5 of each chunk of blocks: of all layers together, or per `layer_<index>`. */
export type BlockChecksums = readonly string[] | Readonly<Record<string, readonly string[]>>;

/** The KV cache tensors of one registered instance, as far as checksums need them. */
export interface ChecksumTarget {
  readonly layerCount: number;
  /** Smallest number of blocks over the layers; null when the format has no block axis. */
  readonly blockCount: number | null;
  checksum(request: ChecksumRequest): Promise<BlockChecksums>;
}

export interface WarmPrefetch {
  readonly modelName: string;
  readonly worldSize: number;
  readonly tokenIds: readonly number[];
  readonly cacheSalt: string;
}

export interface WarmPrefetchOutcome {
  /** Objects that are in L1 now, from the start of the prompt on. */
  readonly foundKeyCount: number;
  readonly totalKeyCount: number;
}

export interface ObjectListRequest {
  /** Null: of all models. */
  readonly modelName: string | null;
  readonly pageSize: number;
  readonly token: string | null;
}

export interface L1Limits {
  readonly triggerWatermark: number;
  readonly evictionRatio: number;
}

/** Changes of a running server; each ends what is running before it takes something away. */
export interface RuntimeChanges {
  /** `spec` is the JSON of `--l2-adapter`. Rejects with `ERR_CONFIG` when it cannot work. */
  addAdapter(spec: unknown): Promise<AdapterSummary>;
  /** False: it is not idle after `timeoutMs`. It gets no new work either way. */
  drainAdapter(id: number, timeoutMs: number): Promise<boolean>;
  /** False: as with `drainAdapter`, and it is still there. */
  removeAdapter(id: number, timeoutMs: number): Promise<boolean>;
  /** Missing ones stay as they are. */
  changeL1(limits: Partial<L1Limits>): L1Limits;
}

export interface AdapterBackend {
  /** In the order of their ids. */
  list(): readonly AdapterSummary[];
  listObjects(id: number, request: ObjectListRequest): Promise<ListPage>;
  deleteObjects(id: number, keys: readonly ObjectKey[]): Promise<readonly DeleteResult[]>;
  /** Of all adapters. */
  clear(): Promise<readonly AdapterClearResult[]>;
}

export interface QuotaBackend {
  /** For salts without a quota; null = exempt. */
  readonly defaultLimitBytes: number | null;
  /** False while no adapter evicts by quota. */
  readonly isEffective: boolean;
  list(): readonly { readonly cacheSalt: string; readonly limitBytes: number }[];
  quotaOf(cacheSalt: string): number | null;
  set(cacheSalt: string, limitBytes: number): Promise<void>;
  delete(cacheSalt: string): Promise<boolean>;
  /** Bytes in all L2 adapters together, by salt. */
  usageBySalt(): ReadonlyMap<string, number>;
  usedL1BytesOf(cacheSalt: string): number;
}

export interface HttpBackend {
  readonly adapters: AdapterBackend;
  readonly quotas: QuotaBackend;
  /** Null: not allowed (`--enable-reconfigure-api`). */
  readonly changes: RuntimeChanges | null;
  /** Keys of spec http 7.1, in their order. Instance ids may be bigints. */
  status(): Record<string, unknown>;
  /** Why the data path is dead or draining; null = healthy. */
  unhealthyReason(): string | null;
  readiness(): Promise<Readiness>;
  /** L1 only. */
  clear(options: { readonly isForced: boolean }): Promise<ClearResult>;
  /** `isForced`: also what somebody still uses; its memory is freed when the last user is done. */
  deleteFromL1(
    keys: readonly ObjectKey[],
    isForced: boolean,
  ): { readonly deletedCount: number; readonly lockedCount: number };
  /** `not-enabled`: no module moves the bytes of instances itself. */
  checksumTarget(instanceId: bigint): ChecksumTarget | 'not-enabled' | 'unknown';
  /** False when no such instance is registered. */
  dropInstance(instanceId: bigint): Promise<boolean>;
  /** Some worker of this model and world size is registered. */
  hasLayout(modelName: string, worldSize: number): boolean;
  /** Null: the prompt is shorter than a chunk, or its model has just left. */
  startPrefetch(
    prefetch: WarmPrefetch,
  ): Promise<{ readonly requestId: string; readonly chunkCount: number } | null>;
  /** The outcome is handed out once; null: no such job. */
  takePrefetch(requestId: string): WarmPrefetchOutcome | 'pending' | null;
  metricsText(): Promise<string>;
  /** Everything that is configured, secrets masked. */
  config(): Record<string, unknown>;
}
