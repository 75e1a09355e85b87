/**
 * LookupModule: how much of a prompt is cached, and who may read it.
 *
 *   LOOKUP(key) ─▶ hash whole chunks ─▶ storage holds the longest prefix ─▶ share in the session
 *   QUERY / WAIT ─▶ number of leading chunks, delivered once per lookup
 *   FREE, END_SESSION ─▶ the holds go back
 *
 * LOOKUP only acknowledges that the job exists. Whatever is wrong with its key (no worker of that
 * model, a nonsense range, fewer tokens than a chunk) ends as a job with 0 hits: that is what
 * clients can bear (spec engine 3, 9.1; field lessons 10.4, 17.3).
 *
 * vLLM looks a request up once. If it asks again after hits, the load has failed for it and the
 * request is scheduled anew. Its connector (0.5.0 to 0.5.4) asks no worker to load twice, so it
 * would wait for ever on another hit: the answer is 0, and vLLM computes. Connectors that are told
 * of failed loads (from 0.5.5 on) leave the cache out by themselves then; what they look up again
 * is a request that was preempted, and that one may load.
 *
 * Newer clients say with the key how many workers will read each object, and where the prompt ends
 * that they mean. The reference refuses them when they do not say the first; here the number is
 * then derived as for older ones. Settings of the request (`requestConfigs`) change nothing here:
 * those that exist are for the connectors, and the reference's server reads none of them.
 */
import type { Clock } from '../clock.ts';
import type { ChunkHasher, ChunkHashes } from '../core/chunk-hasher.ts';
import { KvdError } from '../errors.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import { PrefetchTask } from '../storage/prefetch-controller.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import type { CacheKey, RequestOf } from './api.ts';
import type { RequestContext } from './client-traits.ts';
import { allRanks, findColumnNamespaces } from './column-namespaces.ts';
import type { EngineModule, HandlerTable } from './handlers.ts';
import type { InstanceRegistry } from './instances.ts';
import type { ChunkAnnouncer } from './kv-events/chunk-announcer.ts';
import type { RegisteredLayout } from './layout-registry.ts';
import type { LookupShare } from './lookup-share.ts';
import { onFailure } from './on-failure.ts';
import type { SessionTable } from './session.ts';

/** WAIT_PREFETCH_STATUS: the longest wait a client may ask for (spec wire 12.10). */
const WAIT_SECONDS_MAX = 600;
/** Readers beyond this are clamped, as in the reference (1 + 127 extra). */
const READER_COUNT_MAX = 128;

export interface LookupModuleOptions {
  readonly storage: StorageManager;
  readonly sessions: SessionTable;
  readonly instances: InstanceRegistry;
  readonly hasher: ChunkHasher;
  readonly announcer: Pick<ChunkAnnouncer, 'isFollowed' | 'announce'>;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

export class LookupModule implements EngineModule {
  readonly name = 'lookup';
  readonly handlers: HandlerTable;
  readonly #options: LookupModuleOptions;

  constructor(options: LookupModuleOptions) {
    this.#options = options;
    this.handlers = {
      LOOKUP: (request, context) => this.#lookup(request, context),
      QUERY_PREFETCH_STATUS: (request, context) => this.#query(request.requestId, context),
      WAIT_PREFETCH_STATUS: (request, context) => this.#wait(request, context),
      QUERY_PREFETCH_LOOKUP_HITS: (request, context) => this.#hits(request.requestId, context),
      FREE_LOOKUP_LOCKS: (request, context) => this.#free(request.key, context),
      END_SESSION: ({ requestId }) => this.#endSession(requestId),
    };
  }

  status(): Record<string, unknown> {
    const { sessions } = this.#options;
    return {
      active_sessions: sessions.sessionCount,
      active_prefetch_jobs: sessions.countOpenJobs(),
      session_bytes: sessions.sizeBytes,
      session_overflow_count: sessions.overflowCount,
    };
  }

  async close(): Promise<void> {
    this.#options.sessions.close();
  }

  #lookup(request: RequestOf<'LOOKUP'>, context: RequestContext): void | Promise<void> {
    const { key } = request;
    const { bus } = this.#options;
    const sessionId = key.requestId;
    bus.publish('mp.request.start', { sessionId });
    bus.publish('mp.lookup_prefetch.start', { sessionId });
    return onFailure(
      () => this.#hashAndSubmit(request, context),
      (error) => {
        // Whatever an earlier lookup of this id has found is not the answer to this one.
        this.#addEmptyJob(key, context);
        throw error;
      },
    );
  }

  #hashAndSubmit(request: RequestOf<'LOOKUP'>, context: RequestContext): void | Promise<void> {
    const { key } = request;
    if (!this.#isServable(key)) return this.#addEmptyJob(key, context);
    const endToken = context.client.looksUpToEnd ? key.endToken : key.tokens.count;
    const hashes = this.#options.hasher.hashPrompt(key.tokens, endToken);
    if (!(hashes instanceof Promise)) return this.#submit(request, hashes, context);
    return hashes.then((late) => this.#submit(request, late, context));
  }

  #isServable(key: CacheKey): boolean {
    const layout = this.#options.instances.findLayout(key.modelName, key.worldSize);
    return layout !== undefined && isSensibleRange(key);
  }

  /** Looks the model up again: its last worker may have left while a long prompt was hashed. */
  #submit(request: RequestOf<'LOOKUP'>, hashes: ChunkHashes, context: RequestContext): void {
    const { key, tpSize } = request;
    const { storage, sessions, instances, log } = this.#options;
    const { layoutRules } = context.client;
    const layout = instances.findLayout(key.modelName, key.worldSize, layoutRules);
    if (hashes.count === 0) {
      log.limited(
        'info',
        'short-prompt',
        `LOOKUP of ${key.tokens.count} tokens is shorter than one chunk; nothing is cached`,
        { requestId: key.requestId },
      );
    }
    const isFailedLoad =
      layout?.isVllm === true &&
      !context.client.reportsFailedRetrieve &&
      sessions.hasDeliveredHits(key.requestId, context.connectionId);
    if (!layout || hashes.count === 0 || isFailedLoad) {
      this.#addEmptyJob(key, context);
      return;
    }
    this.#publishLookup(key, hashes, layout);
    const readerCount = countReaders(key, tpSize, layout.isVllmMla);
    const ranks = key.workerId === null ? allRanks(key.worldSize) : [key.workerId];
    const chunkCount = hashes.count;
    const { objectGroupIds, groupRules } = layout;
    const namespaceIds = findColumnNamespaces(storage, { ...key, ranks, objectGroupIds });
    const keys = { hashes, firstChunk: 0, chunkCount, namespaceIds };
    const task = storage.submitPrefetch(keys, readerCount, groupRules);
    const scope = { ...scopeOf(key, context), chunkCount, ranks, objectGroupIds, readerCount };
    this.#follow(sessions.addLookup(key.requestId, { scope, hashes, task }), key);
    if (!task.result) this.#announceLater(key, hashes, task);
  }

  /** What a slower tier makes resident is news for those who follow L1, like what is stored. */
  #announceLater(key: CacheKey, hashes: ChunkHashes, task: PrefetchTask): void {
    const { announcer } = this.#options;
    if (!announcer.isFollowed) return;
    // The frame that the tokens lie in belongs to its request.
    const tokens = { ...key.tokens, bytes: Uint8Array.from(key.tokens.bytes) };
    task.onDone(({ chunkCount }) =>
      announcer.announce({ key: { ...key, tokens }, hashes, firstChunk: 0, chunkCount }),
    );
  }

  #publishLookup(key: CacheKey, hashes: ChunkHashes, layout: RegisteredLayout): void {
    const { bus, hasher } = this.#options;
    if (!bus.hasListeners('mp.lookup')) return;
    const { requestId, modelName, worldSize, cacheSalt } = key;
    bus.publish('mp.lookup', {
      ...{ requestId, modelName, worldSize, cacheSalt, hashes },
      chunkSizeTokens: hasher.chunkSizeTokens,
      tokenCount: key.tokens.count,
      layouts: layout.objectGroups.map(({ memoryLayout }) => memoryLayout),
    });
  }

  #addEmptyJob(key: CacheKey, context: RequestContext): void {
    const task = new PrefetchTask();
    task.complete({ slots: new Uint32Array(0), chunkCount: 0 });
    const nothing = { chunkCount: 0, ranks: [], objectGroupIds: [], readerCount: 1 };
    const scope = { ...scopeOf(key, context), ...nothing };
    const lookup = { scope, hashes: null, task };
    this.#follow(this.#options.sessions.addLookup(key.requestId, lookup), key);
  }

  /** For the event of its end, which comes when its result is fetched or abandoned. */
  #follow(share: LookupShare, { requestId }: CacheKey): void {
    const { clock, bus } = this.#options;
    if (!bus.hasListeners('mp.lookup_prefetch.end')) return;
    share.onAbandoned = () => this.#reportEnd(requestId, share, 'abandoned');
    if (share.task.result) {
      share.readySeconds = 0;
      return;
    }
    const startMs = clock.preciseMs();
    share.task.onDone(() => {
      share.readySeconds = (clock.preciseMs() - startMs) / 1000;
    });
  }

  #reportEnd(sessionId: string, share: LookupShare, error: 'abandoned' | null): void {
    const { bus, hasher } = this.#options;
    if (!bus.hasListeners('mp.lookup_prefetch.end')) return;
    const { modelName, cacheSalt, chunkCount } = share.scope;
    const foundCount = error === null ? (share.hitChunkCount ?? 0) : 0;
    bus.publish('mp.lookup_prefetch.end', {
      ...{ sessionId, modelName, cacheSalt, foundCount, error },
      requestedTokens: error === null ? chunkCount * hasher.chunkSizeTokens : 0,
      hitTokens: foundCount * hasher.chunkSizeTokens,
      readySeconds: share.readySeconds,
    });
  }

  #endSession(requestId: string): void {
    const { sessions, bus } = this.#options;
    sessions.end(requestId);
    bus.publish('mp.vllm.end_session', { requestId });
    bus.publish('mp.request.end', { sessionId: requestId });
  }

  #query(requestId: string, context: RequestContext): number | null {
    const share = this.#options.sessions.findLookup(requestId, context.connectionId);
    if (!share) return 0;
    return this.#deliver(requestId, share);
  }

  /** Hands out the result of a lookup, once. Null while it is not in. */
  #deliver(requestId: string, share: LookupShare): number | null {
    const chunkCount = share.hitChunkCount;
    if (chunkCount === null || share.isConsumed) return chunkCount === null ? null : 0;
    this.#options.sessions.consumeResult(requestId, share);
    this.#reportEnd(requestId, share, null);
    return chunkCount;
  }

  #wait(
    request: RequestOf<'WAIT_PREFETCH_STATUS'>,
    context: RequestContext,
  ): number | null | Promise<number | null> {
    const { requestId, timeoutSeconds } = request;
    if (Number.isNaN(timeoutSeconds)) {
      throw new KvdError('ERR_BAD_REQUEST', 'expected a timeout in seconds, got NaN');
    }
    const share = this.#options.sessions.findLookup(requestId, context.connectionId);
    if (!share) return 0;
    if (share.hitChunkCount !== null) return this.#deliver(requestId, share);
    const waitMs = Math.min(Math.max(timeoutSeconds, 0), WAIT_SECONDS_MAX) * 1000;
    return new Promise((resolve) => {
      let isOver = false;
      const timer = this.#options.clock.after(waitMs, () => {
        isOver = true;
        resolve(null);
      });
      share.task.onDone(() => {
        // After a timeout the result waits for the next query.
        if (isOver) return;
        timer.cancel();
        resolve(this.#deliver(requestId, share));
      });
    });
  }

  #hits(requestId: string, context: RequestContext): number | null {
    const share = this.#options.sessions.findLookup(requestId, context.connectionId);
    return share ? share.lookupHitCount : 0;
  }

  /**
   * Only the request id and the range count: an unaligned start drops its chunk. While the load
   * runs the range is remembered.
   */
  #free(key: CacheKey, context: RequestContext): void {
    const { sessions, hasher } = this.#options;
    const startChunk = Math.ceil(Math.max(0, key.startToken) / hasher.chunkSizeTokens);
    const endToken = Math.min(key.endToken, key.tokens.count);
    const endChunk = Math.floor(endToken / hasher.chunkSizeTokens);
    if (key.startToken >= key.endToken) return;
    if (context.client.freeTakesResult) this.#query(key.requestId, context);
    if (endChunk <= startChunk) return;
    const rank = key.workerId;
    sessions.freeHolds(key.requestId, context.connectionId, { startChunk, endChunk, rank });
  }
}

function scopeOf(key: CacheKey, context: RequestContext) {
  const { modelName, worldSize, cacheSalt } = key;
  return { connectionId: context.connectionId, modelName, worldSize, cacheSalt };
}

function isSensibleRange(key: CacheKey): boolean {
  const isRange = key.startToken >= 0 && key.startToken <= key.endToken;
  const isRank = key.workerId === null || (key.workerId >= 0 && key.workerId < key.worldSize);
  return isRange && key.endToken <= key.tokens.count && isRank;
}

/**
 * Readers per object. The reference derives them from `tpSize > worldSize` alone, which misses MLA
 * models with pipeline stages; for a vLLM MLA layout every tensor-parallel rank reads.
 */
export function countReaders(key: CacheKey, tpSize: number, isVllmMla: boolean): number {
  if (key.readerCount !== null && key.readerCount >= 1) {
    return Math.min(key.readerCount, READER_COUNT_MAX);
  }
  if (isVllmMla) return Math.min(Math.max(tpSize, 1), READER_COUNT_MAX);
  const readers = tpSize > 1 ? tpSize : key.worldSize;
  return Math.min(readers > key.worldSize ? readers : 1, READER_COUNT_MAX);
}
