/**
 * Prefetch tasks: "make the longest prefix of these keys readable, and hold it for me".
 *
 *   submit ──▶ L1 part: hold the resident prefix (one core call; under windows, what it needs)
 *                 │ whole prefix resident, or no slower tier configured
 *                 ├──────────────────────────────▶ done
 *                 │ a tier may have more
 *                 └──▶ loading ──(tier answers or its deadline passes)──▶ done
 *
 * A task is a plain object with a state that the engine reads; nobody polls it and nothing waits
 * on a worker for it. `SlowTier` is what L2 implements (l2/l2-prefetch.ts): it gets the keys of
 * which L1 does not hold all, and completes the task. Without a tier every task is done when
 * `submit` returns.
 */
import type { ObjectKeys } from '../core/object-table.ts';
import type { GroupRule, L1Manager } from './l1-manager.ts';

export interface PrefetchResult {
  /**
   * Slots of the prefix in key order, whole chunks only. `NO_SLOT` for objects that its readers do
   * not need; all others are held.
   */
  readonly slots: Uint32Array;
  /** `slots.length / (ranks * groups)`. */
  readonly chunkCount: number;
}

/** What L1 alone cannot answer. */
export interface SlowRequest {
  readonly keys: ObjectKeys;
  readonly holdCount: number;
  readonly rules: readonly GroupRule[];
  /** The resident prefix, held already; the tier hands it on or gives it back. */
  readonly held: Uint32Array;
  readonly task: PrefetchTask;
}

/** Makes objects resident that L1 lacks. */
export interface SlowTier {
  /** False: there is nobody to ask. */
  readonly isOpen: boolean;
  /** Completes the task, whatever happens. */
  prefetch(request: SlowRequest): void;
}

export class PrefetchTask {
  #result: PrefetchResult | null = null;
  #lookupHits: number | null = null;
  #waiters: ((result: PrefetchResult) => void)[] = [];

  /** Null while a slower tier is loading. */
  get result(): PrefetchResult | null {
    return this.#result;
  }

  /** Chunks that a slower tier has, or has had; null while it is being asked. */
  get lookupHits(): number | null {
    return this.#lookupHits ?? this.#result?.chunkCount ?? null;
  }

  noteLookupHits(chunkCount: number): void {
    this.#lookupHits = chunkCount;
  }

  /** Runs `listener` when the result is in; at once when it is in already. */
  onDone(listener: (result: PrefetchResult) => void): void {
    if (this.#result) listener(this.#result);
    else this.#waiters.push(listener);
  }

  /** Called once by the controller. */
  complete(result: PrefetchResult): void {
    if (this.#result) return;
    this.#result = result;
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const waiter of waiters) waiter(result);
  }
}

export class PrefetchController {
  readonly #l1: L1Manager;
  readonly #tier: SlowTier | null;

  constructor(l1: L1Manager, tier: SlowTier | null) {
    this.#l1 = l1;
    this.#tier = tier;
  }

  /** `rules`: see `L1Manager.hold`. */
  submit(keys: ObjectKeys, holdCount: number, rules: readonly GroupRule[]): PrefetchTask {
    const task = new PrefetchTask();
    const held = this.#l1.hold(keys, holdCount, rules);
    const chunkCount = held.length / keys.namespaceIds.length;
    if (chunkCount === keys.chunkCount || !this.#tier?.isOpen) {
      task.complete({ slots: held, chunkCount });
    } else {
      this.#tier.prefetch({ keys, holdCount, rules, held, task });
    }
    return task;
  }
}
