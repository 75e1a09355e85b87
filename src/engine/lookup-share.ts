/**
 * The share of one LOOKUP in its session's ledger: the slots that it holds, and the readers that
 * each of them still has. A chunk has one cell per rank and object group; under a window some cells
 * of its early chunks are empty:
 *
 *   chunk 0                               chunk 1
 *   │ rank 0      │ rank 1      │ …       │ rank 0      │ …
 *   │ group 0 │ 1 │ group 0 │ 1 │         │ group 0 │ 1 │
 *
 *   open ──settle──▶ holding ──consume, release──▶ … ──▶ nothing left
 *    │ release: remembered until the slots are known
 *    └──end────────▶ ended: what comes later is given back at once
 */
import { NO_SLOT } from '../core/object-table.ts';
import type { PrefetchTask } from '../storage/prefetch-controller.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import type { InstanceId } from './api.ts';

/** Which objects belong to a chunk of a request. */
export interface ObjectScope {
  readonly modelName: string;
  readonly worldSize: number;
  readonly cacheSalt: string;
  /** Ascending. */
  readonly ranks: readonly number[];
  /** Ids of the object groups that each rank has. */
  readonly objectGroupIds: readonly number[];
}

/** What a LOOKUP asked for; fixed for the life of its job and share. */
export interface LookupScope extends ObjectScope {
  readonly connectionId: number;
  /** Whole chunks of the prompt. */
  readonly chunkCount: number;
  /** Readers per object. */
  readonly readerCount: number;
}

/** Chunks `[startChunk, endChunk)`, of one rank or (null) of all. */
export interface ReleaseRange {
  readonly startChunk: number;
  readonly endChunk: number;
  readonly rank: number | null;
}

/** What one reader of a rank had asked for and will not read. */
export interface GivenUpRead {
  readonly instanceId: InstanceId;
  readonly startChunk: number;
  readonly endChunk: number;
  readonly rank: number;
}

/** Remembered per share; the workers of a model are fewer, and each gives few ranges up. */
const GIVEN_UP_COUNT_MAX = 1024;

const EVERYTHING: ReleaseRange = {
  startChunk: 0,
  endChunk: Number.MAX_SAFE_INTEGER,
  rank: null,
};

/** The part of the storage room that a share needs. */
export type ShareStorage = Pick<StorageManager, 'releaseHolds' | 'freeHolds'>;

export class LookupShare {
  readonly scope: LookupScope;
  readonly task: PrefetchTask;
  /** Its result has been delivered. */
  isConsumed = false;
  /** From the LOOKUP until its result was in; null while it is not. */
  readySeconds: number | null = null;
  /** Hears of a result that nobody has fetched, and nobody will. */
  onAbandoned: (() => void) | null = null;
  readonly #storage: ShareStorage;
  #isEnded = false;
  #slots: Uint32Array = new Uint32Array(0);
  #remaining: Uint8Array = new Uint8Array(0);
  /** Releases that came before the slots were known. */
  #pending: ReleaseRange[] = [];
  /** Reads that were given up, so that each of them releases only once. */
  #givenUp: Set<string> | null = null;

  constructor(scope: LookupScope, task: PrefetchTask, storage: ShareStorage) {
    this.scope = scope;
    this.task = task;
    this.#storage = storage;
  }

  /** Whole chunks that were readable when the job ended; null while it runs. */
  get hitChunkCount(): number | null {
    return this.task.result?.chunkCount ?? null;
  }

  /** Chunks that are there or can be loaded; null while slower stores are asked. */
  get lookupHitCount(): number | null {
    return this.task.lookupHits;
  }

  get sizeBytes(): number {
    return this.#slots.byteLength + this.#remaining.byteLength;
  }

  /** Readers per held slot, for tests and status. */
  get remainingReaders(): readonly number[] {
    return [...this.#remaining];
  }

  /** The job is done and holds these slots, `readerCount` times each. */
  settle(slots: Uint32Array): void {
    this.#slots = slots;
    this.#remaining = new Uint8Array(slots.length).fill(this.scope.readerCount);
    for (let i = slots.indexOf(NO_SLOT); i >= 0; i = slots.indexOf(NO_SLOT, i + 1)) {
      this.#remaining[i] = 0;
    }
    const ranges = this.#isEnded ? [EVERYTHING] : this.#pending;
    this.#pending = [];
    for (const range of ranges) this.release(range);
  }

  /** Gives one reader back of every wanted slot that it holds, and takes these off the list. */
  consume(wanted: Set<number>): void {
    const released: number[] = [];
    for (let i = 0; i < this.#slots.length && wanted.size > 0; i += 1) {
      const slot = this.#slots[i] as number;
      if ((this.#remaining[i] as number) > 0 && wanted.delete(slot)) {
        this.#remaining[i] = (this.#remaining[i] as number) - 1;
        released.push(slot);
      }
    }
    if (released.length > 0) this.#storage.releaseHolds(Uint32Array.from(released), 1);
  }

  /** Gives all readers of a range back. Slots with equal counts go in one call. */
  release(range: ReleaseRange): void {
    if (this.task.result === null) {
      this.#pending.push(range);
      return;
    }
    const byCount = new Map<number, number[]>();
    this.#visit(range, (i) => {
      const count = this.#remaining[i] as number;
      this.#remaining[i] = 0;
      const list = byCount.get(count);
      if (list) list.push(this.#slots[i] as number);
      else byCount.set(count, [this.#slots[i] as number]);
    });
    for (const [count, slots] of byCount) {
      this.#storage.freeHolds(Uint32Array.from(slots), count);
    }
  }

  /** Gives one reader back of what a worker had asked for and will not read; once per read. */
  giveUp(read: GivenUpRead): void {
    const { instanceId, startChunk, endChunk, rank } = read;
    const name = `${instanceId} ${rank} ${startChunk} ${endChunk}`;
    this.#givenUp ??= new Set();
    if (this.#givenUp.has(name) || this.#givenUp.size >= GIVEN_UP_COUNT_MAX) return;
    this.#givenUp.add(name);
    const slots: number[] = [];
    this.#visit(read, (i) => {
      this.#remaining[i] = (this.#remaining[i] as number) - 1;
      slots.push(this.#slots[i] as number);
    });
    if (slots.length > 0) this.#storage.freeHolds(Uint32Array.from(slots), 1);
  }

  /** Runs `visit` for the cells of a range that still have a reader. */
  #visit({ startChunk, endChunk, rank }: ReleaseRange, visit: (index: number) => void): void {
    const { ranks, objectGroupIds } = this.scope;
    const groupCount = objectGroupIds.length;
    const width = ranks.length * groupCount;
    const rankIndex = rank === null ? -1 : ranks.indexOf(rank);
    if (rank !== null && rankIndex < 0) return;
    const end = Math.min(endChunk * width, this.#slots.length);
    for (let i = Math.max(0, startChunk * width); i < end; i += 1) {
      if (this.#remaining[i] === 0) continue;
      if (rankIndex < 0 || Math.floor((i % width) / groupCount) === rankIndex) visit(i);
    }
  }

  /** Gives everything back, also what comes later. */
  end(): void {
    if (!this.isConsumed && !this.#isEnded) this.onAbandoned?.();
    this.#isEnded = true;
    if (this.task.result !== null) this.release(EVERYTHING);
  }
}
