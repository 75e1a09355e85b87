/**
 * The L2 adapters that the storage room uses now, and what each is still needed for.
 *
 *   attach ─▶ active ──drain──▶ draining ──(nothing uses it any more)──▶ detach ─▶ gone
 *
 * Only active adapters get new work. What runs goes on: every use is counted, and `drain` answers
 * when the last one has ended, that is when no buffer of L1 is with the adapter and no lock of a
 * lookup is left in it (spec storage 12).
 */
import type { Clock } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import type { Logger } from '../../observability/log.ts';
import type { L2Store } from './l2-store.ts';
import { LayoutNames } from './layout-names.ts';

export class AttachedAdapter {
  readonly store: L2Store;
  readonly names: LayoutNames;
  isDraining = false;
  #useCount = 0;
  #waiters: (() => void)[] = [];

  constructor(store: L2Store, names: LayoutNames) {
    this.store = store;
    this.names = names;
  }

  /** Tasks and locks in it. */
  get useCount(): number {
    return this.#useCount;
  }

  beginUse(): void {
    this.#useCount += 1;
  }

  endUse(): void {
    this.#useCount -= 1;
    if (this.#useCount > 0) return;
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const waiter of waiters) waiter();
  }

  /** Resolves when nothing uses it; new uses may follow unless it is draining. */
  whenIdle(): Promise<void> {
    if (this.#useCount === 0) return Promise.resolve();
    return new Promise((resolve) => void this.#waiters.push(resolve));
  }
}

export interface AdapterListener {
  attached(adapter: AttachedAdapter): void;
  /** It gets no new work any more. */
  draining(adapter: AttachedAdapter): void;
}

export interface AdapterTableOptions {
  /** --cache-namespace; '' = none. */
  readonly cacheNamespace: string;
  readonly clock: Clock;
  readonly log: Logger;
}

export class AdapterTable {
  readonly #options: AdapterTableOptions;
  /** Ascending by id. */
  readonly #adapters: AttachedAdapter[] = [];
  readonly #listeners: AdapterListener[] = [];

  constructor(options: AdapterTableOptions) {
    this.#options = options;
  }

  get all(): readonly AttachedAdapter[] {
    return this.#adapters;
  }

  get active(): readonly AttachedAdapter[] {
    return this.#adapters.filter(({ isDraining }) => !isDraining);
  }

  get hasActive(): boolean {
    return this.#adapters.some(({ isDraining }) => !isDraining);
  }

  listen(listener: AdapterListener): void {
    this.#listeners.push(listener);
    for (const adapter of this.#adapters) listener.attached(adapter);
  }

  attach(store: L2Store): AttachedAdapter {
    const names = new LayoutNames({ ...this.#options, store });
    const adapter = new AttachedAdapter(store, names);
    this.#adapters.push(adapter);
    this.#adapters.sort((a, b) => a.store.id - b.store.id);
    for (const listener of this.#listeners) listener.attached(adapter);
    return adapter;
  }

  /** Throws `ERR_BAD_REQUEST` for an id that is not here. */
  get(id: number): AttachedAdapter {
    const adapter = this.#adapters.find(({ store }) => store.id === id);
    if (!adapter) throw new KvdError('ERR_BAD_REQUEST', `No L2 adapter with id ${id}`);
    return adapter;
  }

  /** False: something still uses it after `timeoutMs`; it stays draining, and one may ask again. */
  async drain(id: number, timeoutMs: number): Promise<boolean> {
    const adapter = this.get(id);
    if (!adapter.isDraining) {
      adapter.isDraining = true;
      for (const listener of this.#listeners) listener.draining(adapter);
    }
    return withinTime(this.#options.clock, timeoutMs, adapter.whenIdle());
  }

  /** After `drain`. Closing it is its owner's business. */
  detach(id: number): L2Store {
    const adapter = this.get(id);
    this.#adapters.splice(this.#adapters.indexOf(adapter), 1);
    return adapter.store;
  }

  /** `num_l2_adapters` and its parts, as several places of `GET /status` have them. */
  counts(): Record<string, number> {
    const activeCount = this.active.length;
    return {
      num_l2_adapters: this.#adapters.length,
      num_active_adapters: activeCount,
      num_draining_adapters: this.#adapters.length - activeCount,
    };
  }
}

/** False when `done` has not settled after `timeoutMs`. */
export function withinTime(
  clock: Clock,
  timeoutMs: number,
  done: Promise<unknown>,
): Promise<boolean> {
  return new Promise((resolve) => {
    const timer = clock.after(timeoutMs, () => resolve(false));
    void done.then(() => {
      timer.cancel();
      resolve(true);
    });
  });
}
