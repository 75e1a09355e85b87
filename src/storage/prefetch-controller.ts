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
 * on a worker for it. `SlowTier` is what the L2 controller implements: it gets the keys behind the
 * resident prefix and answers with the slots that it loaded and held. Without a tier every task is
 * done when `submit` returns.
 */
import type { ObjectKeys } from '../core/object-table.ts';
import type { GroupRule, L1Manager } from './l1-manager.ts';
import { NO_WINDOW } from './window-fold.ts';

export interface PrefetchResult {
  /**
   * Slots of the prefix in key order, whole chunks only. `NO_SLOT` for objects that its readers do
   * not need; all others are held.
   */
  readonly slots: Uint32Array;
  /** `slots.length / (ranks * groups)`. */
  readonly chunkCount: number;
}

/** Loads keys that L1 lacks. `slots` are held `holdCount` times on behalf of the caller. */
export interface SlowTier {
  load(
    keys: ObjectKeys,
    holdCount: number,
    rules: readonly GroupRule[],
  ): Promise<{ slots: Uint32Array }>;
}

export class PrefetchTask {
  #result: PrefetchResult | null = null;
  #waiters: ((result: PrefetchResult) => void)[] = [];

  /** Null while a slower tier is loading. */
  get result(): PrefetchResult | null {
    return this.#result;
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
  #inFlightCount = 0;

  constructor(l1: L1Manager, tier: SlowTier | null) {
    this.#l1 = l1;
    this.#tier = tier;
  }

  /** `rules`: see `L1Manager.hold`. Under windows the slower tier has nothing to add. */
  submit(keys: ObjectKeys, holdCount: number, rules: readonly GroupRule[]): PrefetchTask {
    const task = new PrefetchTask();
    const columnCount = keys.namespaceIds.length;
    const held = this.#l1.hold(keys, holdCount, rules);
    const chunkCount = held.length / columnCount;
    const hasWindow = rules.some(({ windowChunks }) => windowChunks > NO_WINDOW);
    if (!this.#tier || hasWindow || chunkCount === keys.chunkCount) {
      task.complete({ slots: held, chunkCount });
      return task;
    }
    const rest = {
      ...keys,
      firstChunk: keys.firstChunk + chunkCount,
      chunkCount: keys.chunkCount - chunkCount,
    };
    this.#inFlightCount += 1;
    this.#tier
      .load(rest, holdCount, rules)
      .then(
        ({ slots }) => joinSlots(held, slots),
        () => held, // a tier that fails is a miss: the resident prefix is still good
      )
      .then((slots) => {
        this.#inFlightCount -= 1;
        task.complete({ slots, chunkCount: slots.length / columnCount });
      });
    return task;
  }

  /** `storage_manager.prefetch_controller` of `GET /status`. */
  status(maxInFlight: number): Record<string, unknown> {
    return {
      is_healthy: true,
      thread_alive: true,
      max_in_flight: maxInFlight,
      submission_queue_size: 0,
      pending_queue_size: 0,
      in_flight_request_count: this.#inFlightCount,
      lookup_phase_count: 0,
      load_phase_count: this.#inFlightCount,
      completed_results_count: 0,
      num_l2_adapters: 0,
      num_active_adapters: 0,
      num_draining_adapters: 0,
    };
  }
}

function joinSlots(first: Uint32Array, second: Uint32Array): Uint32Array {
  const slots = new Uint32Array(first.length + second.length);
  slots.set(first);
  slots.set(second, first.length);
  return slots;
}
