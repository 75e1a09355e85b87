/**
 * What the HTTP room asks of the server. `server.ts` implements it; tests fake it.
 *
 * Everything here is cheap, or a promise: nothing may hold the event loop (spec http 10.5).
 */

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

export interface HttpBackend {
  /** Keys of spec http 7.1, in their order. Instance ids may be bigints. */
  status(): Record<string, unknown>;
  /** Why the data path is dead or draining; null = healthy. */
  unhealthyReason(): string | null;
  readiness(): Promise<Readiness>;
  clear(options: { readonly isForced: boolean }): Promise<ClearResult>;
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
