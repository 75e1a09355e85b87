/**
 * Sessions: what one request id has looked up, holds, and touched.
 *
 * Locks in the reference are anonymous counters; a release without a matching lookup takes
 * somebody else's lock. Here every LOOKUP leaves a *share* in its session's ledger: which slots it
 * holds and how many readers each still has. Whoever releases, releases from a share:
 *
 *   LOOKUP ──▶ share {slots, remaining readers} ──┬─ RETRIEVE: one reader per slot of its rank
 *                                                 ├─ FREE_LOOKUP_LOCKS: all readers of a range
 *                                                 └─ END_SESSION, idle TTL, last worker gone: rest
 *
 * Request ids are not unique (SGLang ranks share one, offline engines count from 0 after every
 * restart), so a session never decides what a prompt's hashes are: they are computed per request.
 * Shares and lookup jobs belong to a connection; another connection's are only used when a request
 * has none of its own (a vLLM worker retrieves what its scheduler looked up).
 *
 * A session ends by END_SESSION, after its idle TTL, or when the table is at its bound and it is
 * the least recently used (spec engine 1.3, 9.2, 9.3; field lessons 1.2 to 1.4, 11.1).
 */
import type { Clock, Timer } from '../clock.ts';
import type { ChunkHashes } from '../core/chunk-hasher.ts';
import { NO_SLOT } from '../core/object-table.ts';
import type { EventBus } from '../observability/events.ts';
import type { PrefetchTask } from '../storage/prefetch-controller.ts';
import type { StorageManager } from '../storage/storage-manager.ts';

/** Bounds the memory of clients that never end their requests: about 100 MB at 128k tokens each. */
const SESSION_COUNT_MAX = 65_536;
const SWEEP_INTERVAL_MS = 5_000;
/** Ended sessions per sweep: releasing 512 chunks of 8 ranks takes about 0.5 ms. */
const SWEEP_BUDGET = 256;

/** What a LOOKUP asked for; fixed for the life of its job and share. */
export interface LookupScope {
  readonly connectionId: number;
  readonly modelName: string;
  readonly worldSize: number;
  readonly hashes: ChunkHashes;
  readonly namespaceIds: readonly number[];
  /** Readers per object. */
  readonly readerCount: number;
}

interface PendingFree {
  readonly startChunk: number;
  readonly endChunk: number;
  readonly rank: number | null;
}

/** One LOOKUP: its job, and once the job is done the holds that it left. */
export class LookupShare {
  readonly scope: LookupScope;
  readonly task: PrefetchTask;
  isConsumed = false;
  isReleased = false;
  /** Held slots, chunk-major and rank-minor, and the readers that each still has. */
  slots: Uint32Array = new Uint32Array(0);
  remaining: Uint8Array = new Uint8Array(0);
  /** FREE requests that came before the result. */
  readonly pendingFrees: PendingFree[] = [];

  constructor(scope: LookupScope, task: PrefetchTask) {
    this.scope = scope;
    this.task = task;
  }

  /** Whole chunks that were readable when the job ended; null while it runs. */
  get hitChunkCount(): number | null {
    return this.task.result?.chunkCount ?? null;
  }
}

export interface Session {
  readonly requestId: string;
  lastUsedMs: number;
  /** Live shares, oldest first: at most one per connection. */
  shares: LookupShare[];
  /** Longest run of chunk hashes that this request named, for the recency touch at its end. */
  touched: { hashes: ChunkHashes; namespaceIds: readonly number[] } | null;
}

/** The part of the storage room that a ledger needs. */
export type HoldKeeper = Pick<StorageManager, 'releaseHolds' | 'touch'>;

export interface SessionTableOptions {
  readonly storage: HoldKeeper;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly idleTtlMs: number;
}

export class SessionTable {
  readonly #storage: HoldKeeper;
  readonly #clock: Clock;
  readonly #bus: EventBus;
  readonly #idleTtlMs: number;
  readonly #sweepTimer: Timer;
  /** In order of last use: `#use` moves a session to the end. */
  readonly #sessions = new Map<string, Session>();
  /** Sessions dropped because the table was at its bound. */
  overflowCount = 0;

  constructor(options: SessionTableOptions) {
    this.#storage = options.storage;
    this.#clock = options.clock;
    this.#bus = options.bus;
    this.#idleTtlMs = options.idleTtlMs;
    this.#sweepTimer = options.clock.every(SWEEP_INTERVAL_MS, () => this.#sweep());
  }

  get sessionCount(): number {
    return this.#sessions.size;
  }

  /** Jobs whose result nobody has taken yet. O(sessions): for `/status` only. */
  countOpenJobs(): number {
    let count = 0;
    for (const session of this.#sessions.values()) {
      for (const share of session.shares) if (!share.isConsumed) count += 1;
    }
    return count;
  }

  /** Adds a lookup to its session and ends the earlier one of the same connection. */
  addLookup(requestId: string, scope: LookupScope, task: PrefetchTask): LookupShare {
    const session = this.#use(requestId, true) as Session;
    const earlier = session.shares.find((s) => s.scope.connectionId === scope.connectionId);
    if (earlier) this.#dropShare(session, earlier);
    const share = new LookupShare(scope, task);
    session.shares.push(share);
    session.touched = { hashes: scope.hashes, namespaceIds: scope.namespaceIds };
    task.onDone(({ slots }) => this.#settle(share, slots, scope.readerCount));
    return share;
  }

  /** The lookup whose result a query of this connection means; undefined = unknown or taken. */
  findLookup(requestId: string, connectionId: number): LookupShare | undefined {
    const session = this.#use(requestId, false);
    if (!session) return undefined;
    const own = session.shares.find((s) => s.scope.connectionId === connectionId);
    const share = own ?? session.shares.findLast((s) => !s.isConsumed);
    return share && !share.isConsumed ? share : undefined;
  }

  /** Marks a result as delivered. A session that holds nothing more is forgotten. */
  consumeResult(requestId: string, share: LookupShare): void {
    share.isConsumed = true;
    const session = this.#sessions.get(requestId);
    if (!session || share.slots.length > 0 || session.shares.length > 1) return;
    if (share.scope.hashes.count === 0) this.#sessions.delete(requestId);
  }

  /** Remembers which chunks a transfer named, for the recency touch at the end of the session. */
  recordTransfer(requestId: string, hashes: ChunkHashes): void {
    const session = this.#use(requestId, true) as Session;
    if (session.touched && hashes.count > session.touched.hashes.count) {
      session.touched = { ...session.touched, hashes };
    }
  }

  /** Releases one reader per slot from the request's shares, the own connection's first. */
  consumeHolds(requestId: string, connectionId: number, slots: Uint32Array): void {
    const session = this.#use(requestId, false);
    if (!session || session.shares.length === 0) return;
    const wanted = new Set(slots);
    wanted.delete(NO_SLOT);
    const released: number[] = [];
    for (const share of ownFirst(session.shares, connectionId)) {
      for (let i = 0; i < share.slots.length && wanted.size > 0; i += 1) {
        const slot = share.slots[i] as number;
        if ((share.remaining[i] as number) > 0 && wanted.delete(slot)) {
          share.remaining[i] = (share.remaining[i] as number) - 1;
          released.push(slot);
        }
      }
    }
    this.#storage.releaseHolds(Uint32Array.from(released), 1);
  }

  /**
   * FREE_LOOKUP_LOCKS: releases all readers of the chunks `[startChunk, endChunk)`, of one rank or
   * of all. The lookup's own salt and model count, not those of the FREE.
   */
  freeHolds(
    requestId: string,
    connectionId: number,
    range: { startChunk: number; endChunk: number; rank: number | null },
  ): void {
    const session = this.#use(requestId, false);
    const share = session && ownFirst(session.shares, connectionId)[0];
    if (!share) return;
    if (share.task.result === null) share.pendingFrees.push(range);
    else this.#releaseRange(share, range);
  }

  /** END_SESSION. Returns false when the request id is unknown. */
  end(requestId: string): boolean {
    const session = this.#sessions.get(requestId);
    if (!session) return false;
    this.#sessions.delete(requestId);
    this.#release(session);
    if (session.touched && session.touched.hashes.count > 0) {
      const { hashes, namespaceIds } = session.touched;
      this.#storage.touch({ hashes, firstChunk: 0, chunkCount: hashes.count, namespaceIds });
    }
    this.#bus.publish('mp.session.end', { requestId });
    return true;
  }

  /** The last worker of a model is gone: nobody can retrieve what its lookups hold. */
  releaseModel(modelName: string, worldSize: number): void {
    for (const session of this.#sessions.values()) {
      for (const share of [...session.shares]) {
        const { scope } = share;
        if (scope.modelName === modelName && scope.worldSize === worldSize) {
          this.#dropShare(session, share);
        }
      }
    }
  }

  close(): void {
    this.#sweepTimer.cancel();
    for (const session of this.#sessions.values()) this.#release(session);
    this.#sessions.clear();
  }

  #use(requestId: string, create: boolean): Session | undefined {
    const known = this.#sessions.get(requestId);
    if (!known && !create) return undefined;
    if (known) this.#sessions.delete(requestId);
    const session = known ?? { requestId, lastUsedMs: 0, shares: [], touched: null };
    session.lastUsedMs = this.#clock.nowMs();
    this.#sessions.set(requestId, session);
    if (this.#sessions.size > SESSION_COUNT_MAX) this.#dropOldest();
    return session;
  }

  #settle(share: LookupShare, slots: Uint32Array, readerCount: number): void {
    share.slots = slots;
    share.remaining = new Uint8Array(slots.length).fill(readerCount);
    if (share.isReleased) this.#releaseAll(share);
    for (const range of share.pendingFrees.splice(0)) this.#releaseRange(share, range);
  }

  #dropShare(session: Session, share: LookupShare): void {
    session.shares = session.shares.filter((s) => s !== share);
    share.isReleased = true;
    this.#releaseAll(share);
  }

  #release(session: Session): void {
    for (const share of session.shares) {
      share.isReleased = true;
      this.#releaseAll(share);
    }
    session.shares = [];
  }

  #releaseAll(share: LookupShare): void {
    const chunkCount = share.hitChunkCount ?? 0;
    this.#releaseRange(share, { startChunk: 0, endChunk: chunkCount, rank: null });
  }

  /** Slots that still have the same number of readers are released in one core call. */
  #releaseRange(share: LookupShare, range: PendingFree): void {
    const rankCount = share.scope.namespaceIds.length;
    const end = Math.min(range.endChunk * rankCount, share.slots.length);
    const byCount = new Map<number, number[]>();
    for (let i = Math.max(0, range.startChunk * rankCount); i < end; i += 1) {
      const count = share.remaining[i] as number;
      if (count === 0 || (range.rank !== null && i % rankCount !== range.rank)) continue;
      share.remaining[i] = 0;
      const list = byCount.get(count);
      if (list) list.push(share.slots[i] as number);
      else byCount.set(count, [share.slots[i] as number]);
    }
    for (const [count, slots] of byCount) {
      this.#storage.releaseHolds(Uint32Array.from(slots), count);
    }
  }

  #dropOldest(): void {
    const oldest = this.#sessions.values().next().value;
    if (!oldest) return;
    this.overflowCount += 1;
    this.#sessions.delete(oldest.requestId);
    this.#release(oldest);
  }

  #sweep(): void {
    const limitMs = this.#clock.nowMs() - this.#idleTtlMs;
    let budget = SWEEP_BUDGET;
    for (const session of this.#sessions.values()) {
      if (session.lastUsedMs > limitMs || budget === 0) return;
      budget -= 1;
      this.#sessions.delete(session.requestId);
      this.#release(session);
    }
  }
}

function ownFirst(shares: readonly LookupShare[], connectionId: number): LookupShare[] {
  const own = shares.filter((s) => s.scope.connectionId === connectionId);
  return [...own, ...shares.filter((s) => s.scope.connectionId !== connectionId)];
}
