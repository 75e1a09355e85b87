/**
 * The share of one LOOKUP in its session's ledger: the slots that it holds, chunk-major and
 * rank-minor, and the readers that each of them still has.
 *
 *   open ──settle──▶ holding ──consume, release──▶ … ──▶ nothing left
 *    │ release: remembered until the slots are known
 *    └──end────────▶ ended: what comes later is given back at once
 */
import type { PrefetchTask } from '../storage/prefetch-controller.ts';
import type { StorageManager } from '../storage/storage-manager.ts';

/** What a LOOKUP asked for; fixed for the life of its job and share. */
export interface LookupScope {
  readonly connectionId: number;
  readonly modelName: string;
  readonly worldSize: number;
  readonly cacheSalt: string;
  /** Whole chunks of the prompt. */
  readonly chunkCount: number;
  /** Ranks whose objects belong to a chunk, ascending. */
  readonly ranks: readonly number[];
  /** Readers per object. */
  readonly readerCount: number;
}

/** Chunks `[startChunk, endChunk)`, of one rank or (null) of all. */
export interface ReleaseRange {
  readonly startChunk: number;
  readonly endChunk: number;
  readonly rank: number | null;
}

const EVERYTHING: ReleaseRange = {
  startChunk: 0,
  endChunk: Number.MAX_SAFE_INTEGER,
  rank: null,
};

export class LookupShare {
  readonly scope: LookupScope;
  readonly task: PrefetchTask;
  /** Its result has been delivered. */
  isConsumed = false;
  readonly #storage: Pick<StorageManager, 'releaseHolds'>;
  #isEnded = false;
  #slots: Uint32Array = new Uint32Array(0);
  #remaining: Uint8Array = new Uint8Array(0);
  /** Releases that came before the slots were known. */
  #pending: ReleaseRange[] = [];

  constructor(
    scope: LookupScope,
    task: PrefetchTask,
    storage: Pick<StorageManager, 'releaseHolds'>,
  ) {
    this.scope = scope;
    this.task = task;
    this.#storage = storage;
  }

  /** Whole chunks that were readable when the job ended; null while it runs. */
  get hitChunkCount(): number | null {
    return this.task.result?.chunkCount ?? null;
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
    const rankCount = this.scope.ranks.length;
    const rankIndex = range.rank === null ? -1 : this.scope.ranks.indexOf(range.rank);
    if (range.rank !== null && rankIndex < 0) return;
    const end = Math.min(range.endChunk * rankCount, this.#slots.length);
    const byCount = new Map<number, number[]>();
    for (let i = Math.max(0, range.startChunk * rankCount); i < end; i += 1) {
      const count = this.#remaining[i] as number;
      if (count === 0 || (rankIndex >= 0 && i % rankCount !== rankIndex)) continue;
      this.#remaining[i] = 0;
      const list = byCount.get(count);
      if (list) list.push(this.#slots[i] as number);
      else byCount.set(count, [this.#slots[i] as number]);
    }
    for (const [count, slots] of byCount) {
      this.#storage.releaseHolds(Uint32Array.from(slots), count);
    }
  }

  /** Gives everything back, also what comes later. */
  end(): void {
    this.#isEnded = true;
    if (this.task.result !== null) this.release(EVERYTHING);
  }
}
