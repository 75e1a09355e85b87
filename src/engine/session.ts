/**
 * Sessions: what one request id has looked up, holds, and touched.
 *
 * Locks in the reference are anonymous counters; a release without a matching lookup takes
 * somebody else's lock. Here every LOOKUP leaves a *share* in its session's ledger: which slots it
 * holds and how many readers each still has. Whoever releases, releases from a share:
 *
 *   LOOKUP ──▶ share {slots, remaining readers} ──┬─ RETRIEVE: one reader per slot of its rank,
 *                                                 │  also when it fails
 *                                                 ├─ FREE_LOOKUP_LOCKS: all readers of a range
 *                                                 └─ END_SESSION, idle TTL, last worker gone: rest
 *
 * Request ids are not unique (SGLang ranks share one, offline engines count from 0 after every
 * restart), so a session never decides what a prompt's hashes are: they are computed per request.
 * Shares and lookup jobs belong to a connection; another connection's are only used when a request
 * has none of its own (a vLLM worker retrieves what its scheduler looked up).
 *
 * A session ends by END_SESSION, after its idle TTL, or when the table is at one of its bounds
 * (sessions, bytes) and it is the least recently used. Only a LOOKUP, a FREE or a transfer is a
 * use: polling for a result keeps nothing alive. Work over many sessions runs in slices of the
 * event loop (spec engine 1.3, 9.2, 9.3; field lessons 1.2 to 1.4, 11.1).
 */
import type { Clock, Timer } from '../clock.ts';
import type { ChunkHashes } from '../core/chunk-hasher.ts';
import { NO_SLOT } from '../core/object-table.ts';
import type { PrefetchTask } from '../storage/prefetch-controller.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import { findColumnNamespaces } from './column-namespaces.ts';
import {
  type GivenUpRead,
  type LookupScope,
  LookupShare,
  type ObjectScope,
  type ReleaseRange,
} from './lookup-share.ts';

const SESSION_COUNT_MAX = 65_536;
/** Hashes, slots and reader counts of all sessions: 10,000 sessions of 128k tokens. */
const SESSION_BYTES_MAX = 256 * 1024 * 1024;
/** The ranks of the largest tensor-parallel group look up under one id, each on its connection. */
const SHARE_COUNT_MAX = 128;
/**
 * A session moves to the end of the order at most once in this time: each move leaves a hole in the
 * Map, and thousands of them make it slow.
 */
const USE_PRECISION_MS = 1_000;
const SWEEP_INTERVAL_MS = 5_000;
/** One slice of a walk over the sessions: a request must not wait longer behind it. */
const SLICE_MS = 2;
const SLICE_PAUSE_MS = 1;

/** Chunks of which the end of the session tells the eviction policy. */
interface Touched {
  readonly hashes: ChunkHashes;
  readonly scope: ObjectScope;
  chunkCount: number;
  /** The first of them that were found or read; the others were stored by the session itself. */
  usedChunkCount: number;
}

export interface Session {
  readonly requestId: string;
  lastUsedMs: number;
  sizeBytes: number;
  /** Live shares, oldest first: at most one per connection. */
  shares: LookupShare[];
  touched: Touched | null;
}

/** The part of the storage room that a ledger needs. */
export type HoldKeeper = Pick<
  StorageManager,
  'releaseHolds' | 'freeHolds' | 'touch' | 'findNamespace'
>;

export interface SessionTableOptions {
  readonly storage: HoldKeeper;
  readonly clock: Clock;
  readonly idleTtlMs: number;
}

/** A walk over all sessions, in slices. */
interface Walk {
  readonly visit: (session: Session) => 'next' | 'stop';
  readonly sessions: Iterator<Session>;
  /** Sessions that are used meanwhile move behind; they are not visited again. */
  remainingCount: number;
}

export class SessionTable {
  readonly #storage: HoldKeeper;
  readonly #clock: Clock;
  readonly #idleTtlMs: number;
  readonly #sweepTimer: Timer;
  /** In order of last use: `#use` moves a session to the end. */
  readonly #sessions = new Map<string, Session>();
  readonly #walks: Walk[] = [];
  #walkTimer: Timer | null = null;
  #sizeBytes = 0;
  /** Sessions dropped because the table was at a bound. */
  overflowCount = 0;

  constructor(options: SessionTableOptions) {
    this.#storage = options.storage;
    this.#clock = options.clock;
    this.#idleTtlMs = options.idleTtlMs;
    this.#sweepTimer = options.clock.every(SWEEP_INTERVAL_MS, () => this.#sweep());
  }

  get sessionCount(): number {
    return this.#sessions.size;
  }

  /** Memory of all sessions, as far as clients decide it. */
  get sizeBytes(): number {
    return this.#sizeBytes;
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
  addLookup(
    requestId: string,
    lookup: { scope: LookupScope; hashes: ChunkHashes | null; task: PrefetchTask },
  ): LookupShare {
    const { scope, hashes, task } = lookup;
    const session = this.#use(requestId);
    const earlier = session.shares.find((s) => s.scope.connectionId === scope.connectionId);
    if (earlier) this.#dropShare(session, earlier);
    if (session.shares.length >= SHARE_COUNT_MAX) {
      this.#dropShare(session, session.shares[0] as LookupShare);
    }
    const share = new LookupShare(scope, task, this.#storage);
    session.shares.push(share);
    if (hashes) session.touched = { hashes, scope, chunkCount: 0, usedChunkCount: 0 };
    task.onDone(({ slots, chunkCount }) => {
      share.settle(slots);
      if (session.touched?.scope === scope) {
        session.touched.chunkCount = chunkCount;
        session.touched.usedChunkCount = chunkCount;
      }
      this.#weigh(session);
    });
    this.#weigh(session);
    this.#keepBounds();
    return share;
  }

  /** The lookup whose result a query of this connection means; undefined = unknown or taken. */
  findLookup(requestId: string, connectionId: number): LookupShare | undefined {
    const session = this.#sessions.get(requestId);
    if (!session) return undefined;
    const own = session.shares.find((s) => s.scope.connectionId === connectionId);
    const share = own ?? session.shares.findLast((s) => !s.isConsumed);
    return share && !share.isConsumed ? share : undefined;
  }

  /** This connection has been told of hits in this session. */
  hasDeliveredHits(requestId: string, connectionId: number): boolean {
    const shares = this.#sessions.get(requestId)?.shares ?? [];
    const own = shares.find((s) => s.scope.connectionId === connectionId);
    return own?.isConsumed === true && own.hitChunkCount !== 0;
  }

  /** Marks a result as delivered. A session that holds nothing more is forgotten. */
  consumeResult(requestId: string, share: LookupShare): void {
    share.isConsumed = true;
    const session = this.#sessions.get(requestId);
    const isEmpty = share.scope.chunkCount === 0 && session?.shares.length === 1;
    if (session && isEmpty && !session.touched) this.#forget(session);
  }

  /** Remembers which chunks a store named, for the recency touch at the end of the session. */
  recordTransfer(requestId: string, hashes: ChunkHashes): void {
    // A worker's transfer may come after its scheduler's END_SESSION: that begins nothing new.
    if (!this.#sessions.has(requestId)) return;
    const session = this.#use(requestId);
    const { touched } = session;
    if (touched) this.#noteTouched(session, touched.scope, hashes, touched.usedChunkCount);
    this.#keepBounds();
  }

  /** The same for a transfer that reads: it counts also when its request looked nothing up. */
  recordRetrieve(requestId: string, hashes: ChunkHashes, scopeOf: () => ObjectScope): void {
    const session = this.#use(requestId);
    this.#noteTouched(session, session.touched?.scope ?? scopeOf(), hashes, hashes.count);
    this.#keepBounds();
  }

  #noteTouched(
    session: Session,
    scope: ObjectScope,
    hashes: ChunkHashes,
    usedChunkCount: number,
  ): void {
    const { touched } = session;
    const used = Math.max(usedChunkCount, touched?.usedChunkCount ?? 0);
    if (touched && hashes.count < touched.chunkCount) {
      touched.usedChunkCount = used;
      return;
    }
    session.touched = { scope, hashes, chunkCount: hashes.count, usedChunkCount: used };
    this.#weigh(session);
  }

  /** Releases one reader per slot from the request's shares, the own connection's first. */
  consumeHolds(requestId: string, connectionId: number, slots: Uint32Array): void {
    if (!this.#sessions.has(requestId)) return;
    const session = this.#use(requestId);
    if (session.shares.length === 0) return;
    const wanted = new Set(slots);
    wanted.delete(NO_SLOT);
    for (const share of ownFirst(session.shares, connectionId)) share.consume(wanted);
  }

  /**
   * FREE_LOOKUP_LOCKS: releases all readers of the chunks of a range, of one rank or of all. The
   * lookup's own salt and model count, not those of the FREE.
   */
  freeHolds(requestId: string, connectionId: number, range: ReleaseRange): void {
    if (!this.#sessions.has(requestId)) return;
    const [share] = ownFirst(this.#use(requestId).shares, connectionId);
    share?.release(range);
  }

  /** A worker will not read what it has asked for: its share of the lookup goes back. */
  giveUpRead(
    requestId: string,
    connectionId: number,
    of: { readonly modelName: string; readonly worldSize: number; readonly read: GivenUpRead },
  ): void {
    const { modelName, worldSize, read } = of;
    const shares = this.#sessions.get(requestId)?.shares ?? [];
    const share = ownFirst(shares, connectionId).find(
      ({ scope }) => scope.modelName === modelName && scope.worldSize === worldSize,
    );
    if (share && share.hitChunkCount !== null) share.giveUp(read);
  }

  /** END_SESSION. Returns false when the request id is unknown. */
  end(requestId: string): boolean {
    const session = this.#sessions.get(requestId);
    if (!session) return false;
    this.#forget(session);
    if (session.touched) this.#touch(session.touched);
    return true;
  }

  /** The last worker of a model is gone: nobody can retrieve what its lookups hold. */
  releaseModel(modelName: string, worldSize: number): void {
    this.#walk((session) => {
      for (const share of session.shares) {
        const { scope } = share;
        if (scope.modelName === modelName && scope.worldSize === worldSize) {
          this.#dropShare(session, share);
        }
      }
      return 'next';
    });
  }

  close(): void {
    this.#sweepTimer.cancel();
    this.#walkTimer?.cancel();
    for (const session of this.#sessions.values()) this.#forget(session);
  }

  /** The session, made if needed, as the most recently used one. */
  #use(requestId: string): Session {
    const nowMs = this.#clock.nowMs();
    const known = this.#sessions.get(requestId);
    if (known && nowMs - known.lastUsedMs < USE_PRECISION_MS) return known;
    if (known) this.#sessions.delete(requestId);
    const session = known ?? {
      requestId,
      lastUsedMs: 0,
      sizeBytes: 0,
      shares: [],
      touched: null,
    };
    session.lastUsedMs = nowMs;
    this.#sessions.set(requestId, session);
    return session;
  }

  #weigh(session: Session): void {
    if (this.#sessions.get(session.requestId) !== session) return;
    const shareBytes = session.shares.reduce((sum, share) => sum + share.sizeBytes, 0);
    const sizeBytes = shareBytes + (session.touched?.hashes.bytes.byteLength ?? 0);
    this.#sizeBytes += sizeBytes - session.sizeBytes;
    session.sizeBytes = sizeBytes;
  }

  #keepBounds(): void {
    while (this.#sessions.size > SESSION_COUNT_MAX || this.#sizeBytes > SESSION_BYTES_MAX) {
      const oldest = this.#sessions.values().next().value;
      if (!oldest) return;
      this.overflowCount += 1;
      this.#forget(oldest);
    }
  }

  #dropShare(session: Session, share: LookupShare): void {
    session.shares = session.shares.filter((s) => s !== share);
    share.end();
    this.#weigh(session);
  }

  #forget(session: Session): void {
    this.#sessions.delete(session.requestId);
    this.#sizeBytes -= session.sizeBytes;
    session.sizeBytes = 0;
    for (const share of session.shares) share.end();
    session.shares = [];
  }

  #touch({ hashes, scope, chunkCount, usedChunkCount }: Touched): void {
    if (chunkCount === 0) return;
    const namespaceIds = findColumnNamespaces(this.#storage, scope);
    this.#storage.touch({ hashes, firstChunk: 0, chunkCount, namespaceIds }, usedChunkCount);
  }

  #sweep(): void {
    const limitMs = this.#clock.nowMs() - this.#idleTtlMs;
    this.#walk((session) => {
      if (session.lastUsedMs > limitMs) return 'stop';
      this.#forget(session);
      return 'next';
    });
  }

  #walk(visit: Walk['visit']): void {
    const sessions = this.#sessions.values();
    this.#walks.push({ visit, sessions, remainingCount: this.#sessions.size });
    if (!this.#walkTimer) this.#runWalks();
  }

  #runWalks(): void {
    this.#walkTimer = null;
    const endMs = this.#clock.preciseMs() + SLICE_MS;
    for (let walk = this.#walks[0]; walk; walk = this.#walks[0]) {
      const next = walk.remainingCount > 0 ? walk.sessions.next() : null;
      walk.remainingCount -= 1;
      const isOver = !next || next.done || walk.visit(next.value) === 'stop';
      if (isOver) this.#walks.shift();
      if (this.#clock.preciseMs() >= endMs) {
        this.#walkTimer = this.#clock.after(SLICE_PAUSE_MS, () => this.#runWalks());
        return;
      }
    }
  }
}

function ownFirst(shares: readonly LookupShare[], connectionId: number): LookupShare[] {
  const own = shares.filter((s) => s.scope.connectionId === connectionId);
  return [...own, ...shares.filter((s) => s.scope.connectionId !== connectionId)];
}
