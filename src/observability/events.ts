/**
 * The catalogue of events: what happens in the rooms, in the words of the reference (spec
 * observability 3). Rooms publish on the `EventBus` (event-bus.ts); metrics, logs, traces and KV
 * events listen. A publisher never learns who listens and never waits.
 *
 * An event is plain data that nobody changes after it was published: listeners may look at it much
 * later. What names a place that can be reused (a slot, a namespace number) has no business here.
 */

/** What chunks belong to, beside their tokens. */
export interface ChunkScope {
  readonly modelName: string;
  readonly worldSize: number;
  /** The tenant. */
  readonly cacheSalt: string;
}

/**
 * Consecutive chunks of one prompt. `tokenIds` has the tokens of all of them, the same number for
 * each; `parentHash` is the hash of the chunk before the first, null at the start of a prompt.
 */
export interface StoredChunks extends ChunkScope {
  readonly hashes: readonly Uint8Array[];
  readonly parentHash: Uint8Array | null;
  readonly tokenIds: Uint32Array;
}

export interface RemovedChunks extends ChunkScope {
  readonly hashes: readonly Uint8Array[];
}

/**
 * Number of objects by cache salt; an empty salt is a salt like any other. A salt may come more
 * than once, so that nobody needs a Map for the usual case, which is one tenant.
 */
export type CountBySalt = Iterable<readonly [cacheSalt: string, count: number]>;

/** An object that the lifecycle histograms follow. */
export interface SampledKey {
  /** As text, a character for each byte (Latin-1): it is a key of maps and nothing else. */
  readonly chunkHash: string;
  readonly modelName: string;
  readonly kvRank: number;
  readonly objectGroupId: number;
  readonly cacheSalt: string;
}

/** Objects of one call: all of them counted, and those named that `--metrics-sample-rate` takes. */
export interface KeyReport {
  readonly keyCount: number;
  readonly countBySalt: CountBySalt;
  readonly sampledKeys: readonly SampledKey[];
}

/** Consecutive chunks of a prompt, by reference to the hashes of all of them. */
export interface ChunkRange {
  readonly modelName: string;
  readonly cacheSalt: string;
  /** `hashSizeBytes` for each chunk of the prompt. */
  readonly hashes: {
    readonly bytes: Uint8Array;
    readonly count: number;
    readonly hashSizeBytes: number;
  };
  readonly firstChunk: number;
  readonly chunkCount: number;
}

/** Why an object left L1. */
export type RemovalCause =
  | 'eviction'
  | 'clear'
  | 'delete'
  | 'temporary'
  | 'failed_prefetch'
  | 'other_layout'
  | 'skip_l1';

interface L1Events {
  /**
   * Chunks of which L1 now holds every object. These four follow the content of L1 exactly: for
   * each chunk stored and removed alternate, in the order in which it happens.
   */
  'l1.chunks.stored': StoredChunks;
  /** Chunks of which L1 does not hold every object any more. */
  'l1.chunks.removed': RemovedChunks;
  /** None of the chunks that were stored is left. */
  'l1.chunks.cleared': Record<string, never>;
  /** Some chunks are gone and it is not known which: none may be relied on. */
  'l1.chunks.lost': Record<string, never>;
  'l1.read.reserved': { readonly keyCount: number };
  /** Objects that a reader has let go: a transfer, a freed lookup, a store to L2. */
  'l1.read.finished': KeyReport;
  'l1.write.reserved': { readonly keyCount: number };
  /** Objects that became readable. */
  'l1.write.finished': KeyReport;
  /** The same of objects that were loaded from L2, and are held for their lookup. */
  'l1.write_finished_and_read_reserved': KeyReport;
  /** Objects that have left L1, for whatever reason. `isEverything`: nothing sampled is left. */
  'l1.keys.evicted': KeyReport & {
    readonly cause: RemovalCause;
    readonly bytes: number;
    readonly isEverything: boolean;
  };
  'l1.eviction.loop_tick': {
    /** 0 to 1. */
    readonly usage: number;
    readonly watermark: number;
    readonly triggered: boolean;
  };
  'l1.allocation.failed': {
    readonly during: 'l1_store' | 'l2_prefetch';
    readonly countByModel: ReadonlyMap<string, number>;
  };
  /** Objects that a reader expected and did not find. */
  'l1.read.failed': {
    readonly during: 'l1_retrieve' | 'l2_store';
    readonly reason: 'not_found' | 'write_locked';
    readonly countByModel: ReadonlyMap<string, number>;
  };
  /** Reservations whose time was over. */
  'l1.lock.expired': { readonly mode: 'read' | 'write'; readonly keyCount: number };
}

interface StorageManagerEvents {
  'sm.read.prefetched': { readonly succeededCount: number; readonly failedCount: number };
  'sm.read.prefetched_finished': {
    /** What was read; each chunk once, however many ranks and groups it has. */
    readonly succeeded: readonly ChunkRange[];
    readonly failedCount: number;
  };
  'sm.write.reserved': { readonly succeededCount: number; readonly failedCount: number };
  'sm.write.finished': {
    readonly succeeded: readonly ChunkRange[];
    readonly failedCount: number;
  };
}

interface L2Events {
  /** One call of an adapter begins; `taskId` counts the calls of an adapter. */
  'l2.store.submitted': {
    readonly adapterIndex: number;
    readonly taskId: number;
    readonly l2Name: string;
    readonly keyCount: number;
    readonly totalBytes: number;
    readonly countBySalt: CountBySalt;
  };
  /** It has ended; bytes are those of the objects that the adapter has now. */
  'l2.store.completed': {
    readonly adapterIndex: number;
    readonly taskId: number;
    readonly l2Name: string;
    readonly bytesTransferred: number;
    readonly succeededCount: number;
    readonly failedCount: number;
    /** Of the objects that it has now. */
    readonly countBySalt: CountBySalt;
  };
  'l2.prefetch.lookup.submitted': {
    readonly requestId: number;
    readonly keyCount: number;
    readonly adapterCount: number;
    readonly countBySalt: CountBySalt;
  };
  /** All adapters that count have said what they have. */
  'l2.prefetch.lookup.completed': { readonly requestId: number; readonly prefixHitCount: number };
  /** Per lookup and adapter that loads something for it. */
  'l2.load_task.submitted': {
    readonly requestId: number;
    readonly adapterIndex: number;
    readonly taskId: number;
    readonly l2Name: string;
    readonly keyCount: number;
    readonly totalBytes: number;
  };
  'l2.load_task.completed': {
    readonly requestId: number;
    readonly adapterIndex: number;
    readonly taskId: number;
    readonly l2Name: string;
    readonly loadedCount: number;
    readonly failedCount: number;
  };
  /** Once per lookup, when all of its load tasks are on their way. */
  'l2.prefetch.load.submitted': {
    readonly requestId: number;
    readonly keyCount: number;
    readonly adapterCount: number;
    readonly countBySalt: CountBySalt;
  };
  'l2.prefetch.load.completed': {
    readonly requestId: number;
    readonly loadedCount: number;
    readonly failedCount: number;
    /** Of what was loaded. */
    readonly countBySalt: CountBySalt;
  };
  'l2.prefetch.failed': {
    readonly reason:
      | 'l1_oom'
      | 'not_found'
      | 'serde_failure'
      | 'lookup_timeout'
      | 'load_timeout'
      | 'overload';
    readonly countByModel: ReadonlyMap<string, number>;
  };
  /** Asked to be deleted, by tenant. */
  'l2.keys.evicted': {
    readonly adapterIndex: number;
    readonly l2Name: string;
    readonly keyCount: number;
    readonly countBySalt: CountBySalt;
  };
}

/** `sessionId` is the request id of the engine. */
interface OfSession {
  readonly sessionId: string;
}

/** `transferId` pairs the events of one transfer; requests of one session may overlap. */
interface OfTransfer extends OfSession {
  readonly transferId: number;
  /** `cpu`, `cuda:0`, … */
  readonly device: string;
}

interface TransferStart extends OfTransfer {
  /** Decimal text of the instance id. */
  readonly engineId: string;
  readonly modelName: string;
}

interface TransferEnd extends TransferStart {
  readonly cacheSalt: string;
  readonly totalBytes: number;
  readonly tokenCount: number;
  /** From the request's arrival. */
  readonly seconds: number;
  /** Code of the error that ended it (docs/errors.md); null: it did what it was asked. */
  readonly error: string | null;
}

interface EngineEvents {
  'mp.request.start': OfSession;
  'mp.lookup_prefetch.start': OfSession;
  /** A LOOKUP of whole chunks of a model that somebody serves; its result is not in yet. */
  'mp.lookup': {
    readonly requestId: string;
    readonly modelName: string;
    readonly worldSize: number;
    readonly cacheSalt: string;
    readonly chunkSizeTokens: number;
    /** Of the prompt, whole chunks or not. */
    readonly tokenCount: number;
    readonly hashes: ChunkRange['hashes'];
    /** What one rank stores of a chunk. */
    readonly layouts: readonly {
      readonly shapes: readonly (readonly number[])[];
      readonly dtypes: readonly string[];
    }[];
  };
  /** A client has got the result of its lookup, or nobody will (`error`). */
  'mp.lookup_prefetch.end': OfSession & {
    readonly modelName: string;
    readonly cacheSalt: string;
    readonly foundCount: number;
    /** Of whole chunks; 0 for an unknown model or a short prompt. */
    readonly requestedTokens: number;
    readonly hitTokens: number;
    /** From the LOOKUP until its result was there; null: it never was. */
    readonly readySeconds: number | null;
    /** Null: the result was fetched. Of others no token was requested, as the reference has it. */
    readonly error: 'abandoned' | null;
  };
  'mp.store.submitted': OfTransfer;
  'mp.store.start': TransferStart;
  'mp.store.end': TransferEnd & { readonly storedCount: number };
  'mp.retrieve.submitted': OfTransfer;
  'mp.retrieve.start': TransferStart;
  'mp.retrieve.end': TransferEnd & { readonly retrievedCount: number };
  /** END_SESSION, for any id; `mp.request.end` follows. */
  'mp.vllm.end_session': { readonly requestId: string };
  'mp.request.end': OfSession;
  'mp.vllm.block_allocation': {
    /** Decimal text. */
    readonly instanceId: string;
    readonly modelName: string;
    readonly records: readonly {
      readonly requestId: string;
      readonly newBlockIds: ArrayLike<number>;
      readonly newTokenIds: ArrayLike<number>;
    }[];
  };
  /** A request has been answered. */
  'request.finished': {
    readonly operation: string;
    /** Until a handler took it. */
    readonly queueSeconds: number;
    /** From its arrival to its answer. */
    readonly seconds: number;
    /** Code of the error that it was answered with; null = none. */
    readonly error: string | null;
  };
  /** Something took longer than it may; `exceptionType` says what (few kinds). */
  'timeout.raised': OfSession & {
    readonly exceptionType: string;
    readonly message: string;
  };
  'wire.bad_message': { readonly reason: string };
  'wire.reply.lost': { readonly reason: 'gone' | 'full' };
  'instance.registered': {
    readonly instanceId: bigint;
    readonly modelName: string;
    readonly layerCount: number;
  };
  'instance.dropped': { readonly instanceId: bigint; readonly reason: string };
}

/** CacheBlend (spec blend): published by the blend module. */
interface BlendEvents {
  'cb.request.start': OfSession;
  'cb.request.end': OfSession;
  'cb.lookup.start': OfSession & { readonly numTokens: number };
  'cb.lookup.end': OfSession & {
    readonly numTokens: number;
    readonly fingerprintHits: number;
    readonly prefixHits: number;
    readonly storageHits: number;
    readonly staleChunks: number;
    readonly noGpuContext: boolean;
    readonly hitTokens: number;
    readonly requestedTokens: number;
    readonly prefixChunks?: number;
    readonly prefixHitTokens?: number;
    readonly segmentedPrefixHitTokens?: number;
    readonly nonPrefixHitTokens?: number;
  };
  'cb.fingerprint_match.start': OfSession;
  'cb.fingerprint_match.end': OfSession & { readonly matches: number };
  'cb.prefix_lookup.start': OfSession;
  'cb.prefix_lookup.end': OfSession & { readonly prefixChunks: number };
  'cb.coordinator_match.start': OfSession;
  'cb.coordinator_match.end': OfSession & { readonly matches: number; readonly timedOut: boolean };
  'cb.sparse_prefetch.start': OfSession & {
    readonly nChunks: number;
    readonly worldSize: number;
    readonly nKeys: number;
    readonly l2Keys: number;
  };
  'cb.sparse_prefetch.end': OfSession & { readonly foundKeys: number; readonly l2Keys: number };
  'cb.retrieve.submitted': OfSession & { readonly instanceId: string };
  'cb.retrieve.start': OfSession & {
    readonly numChunks: number;
    readonly instanceId?: string;
    readonly modelName?: string;
  };
  'cb.retrieve.end': OfSession & { readonly success: boolean };
  'cb.scatter.start': OfSession & {
    readonly scatteredTokens: number;
    readonly nPrefix: number;
    readonly nShifted: number;
    readonly dropped: number;
  };
  'cb.scatter.end': OfSession;
  'cb.store_pre_computed.submitted': OfSession & { readonly instanceId: string };
  'cb.store_pre_computed.start': OfSession & {
    readonly numTokens: number;
    readonly instanceId?: string;
  };
  'cb.store_pre_computed.end': OfSession & {
    readonly storedChunks: number;
    readonly success: boolean;
  };
  'cb.store_final.submitted': OfSession & { readonly instanceId: string };
  'cb.store_final.start': OfSession & { readonly numTokens: number; readonly instanceId?: string };
  'cb.store_final.end': OfSession & { readonly storedChunks: number; readonly success: boolean };
  'cb.fingerprints.registered': OfSession & {
    readonly numChunks: number;
    readonly numTokens: number;
  };
  'cb.chunks.evicted': OfSession & { readonly numChunks: number };
}

export interface EventCatalogue
  extends L1Events,
    StorageManagerEvents,
    L2Events,
    EngineEvents,
    BlendEvents {}

export type EventName = keyof EventCatalogue;
