/**
 * The catalogue of events. Rooms publish; subscribers (metrics, logs, traces, KV events) listen.
 * A publisher never learns who listens and never waits: `publish` runs the listeners of that
 * event at once, isolates their errors, and costs one array check when nobody listens.
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

export interface EventCatalogue {
  /**
   * Chunks of which L1 now holds every object. The next four follow the content of L1 exactly: for
   * each chunk stored and removed alternate, in the order in which it happens.
   */
  'l1.chunks.stored': StoredChunks;
  /** Chunks of which L1 does not hold every object any more. */
  'l1.chunks.removed': RemovedChunks;
  /** None of the chunks that were stored is left. */
  'l1.chunks.cleared': Record<string, never>;
  /** Some chunks are gone and it is not known which: none may be relied on. */
  'l1.chunks.lost': Record<string, never>;
  'l1.read.reserved': { keyCount: number };
  'l1.write.reserved': { keyCount: number };
  'l1.write.finished': { slots: Uint32Array };
  'l1.keys.evicted': { objectCount: number; bytes: number };
  'l1.allocation.failed': { during: 'l1_store' | 'l2_prefetch'; keyCount: number };
  'l1.eviction.loop_tick': { usageRatio: number; isTriggered: boolean };
  /** The end of one call of an adapter; bytes are those of the objects that it has now. */
  'l2.store.completed': {
    adapterIndex: number;
    l2Name: string;
    bytes: number;
    succeededCount: number;
    failedCount: number;
  };
  /** All adapters that count have said what they have. */
  'l2.prefetch.lookup.completed': { keyCount: number; adapterCount: number; hitChunkCount: number };
  'l2.load_task.completed': {
    adapterIndex: number;
    l2Name: string;
    bytes: number;
    loadedCount: number;
    failedCount: number;
  };
  'l2.prefetch.failed': {
    reason: 'l1_oom' | 'not_found' | 'lookup_timeout' | 'load_timeout' | 'overload';
    keyCount: number;
  };
  /** Asked to be deleted, by tenant. */
  'l2.keys.evicted': {
    adapterId: number;
    typeName: string;
    countBySalt: ReadonlyMap<string, number>;
  };
  /** A LOOKUP of whole chunks of a model that somebody serves; its result is not in yet. */
  'mp.lookup': {
    requestId: string;
    modelName: string;
    worldSize: number;
    cacheSalt: string;
    chunkSizeTokens: number;
    /** Of the prompt, whole chunks or not. */
    tokenCount: number;
    hashes: { readonly bytes: Uint8Array; readonly count: number; readonly hashSizeBytes: number };
    /** What one rank stores of a chunk. */
    layouts: readonly {
      readonly shapes: readonly (readonly number[])[];
      readonly dtypes: readonly string[];
    }[];
  };
  'mp.lookup.end': {
    requestId: string;
    modelName: string;
    requestedTokens: number;
    hitTokens: number;
  };
  'mp.store.end': { requestId: string; tokenCount: number; bytes: number; seconds: number };
  'mp.retrieve.end': { requestId: string; tokenCount: number; bytes: number; seconds: number };
  'mp.session.end': { requestId: string };
  'mp.block.allocation': { instanceId: bigint; modelName: string; recordCount: number };
  'wire.bad_message': { reason: string };
  'wire.reply.lost': { reason: 'gone' | 'full' };
  'instance.registered': { instanceId: bigint; modelName: string; layerCount: number };
  'instance.dropped': { instanceId: bigint; reason: string };
}

export type EventName = keyof EventCatalogue;
type Listener<N extends EventName> = (event: EventCatalogue[N]) => void;

export class EventBus {
  readonly #listeners = new Map<EventName, ((event: never) => void)[]>();
  /** Listeners that threw; shown in `/status`. */
  listenerErrorCount = 0;

  subscribe<N extends EventName>(name: N, listener: Listener<N>): void {
    const list = this.#listeners.get(name);
    if (list) list.push(listener as (event: never) => void);
    else this.#listeners.set(name, [listener as (event: never) => void]);
  }

  /** True when an event is worth building. */
  hasListeners(name: EventName): boolean {
    return this.#listeners.has(name);
  }

  publish<N extends EventName>(name: N, event: EventCatalogue[N]): void {
    const list = this.#listeners.get(name);
    if (!list) return;
    for (const listener of list) {
      try {
        (listener as Listener<N>)(event);
      } catch {
        // A broken observer must not fail the request that it observes; the count shows it.
        this.listenerErrorCount += 1;
      }
    }
  }
}
