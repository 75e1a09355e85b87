/**
 * The tier behind L1: adapters, what is stored to them, what is loaded from them.
 *
 *   AdapterTable ◀── StoreController (L1 → L2, behind every store)
 *        ▲     ◀──── L2Prefetch      (L2 → L1, before a lookup is answered)
 *        └────────── whoever adds, drains and removes adapters while the server runs
 *
 * It is there also without adapters, and then costs nothing.
 */
import type { Clock } from '../../clock.ts';
import type { NamespaceTable } from '../../core/namespaces.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import type { L1Exchange } from '../l1-exchange.ts';
import type { ObjectShape } from '../l1-manager.ts';
import { AdapterTable, withinTime } from './adapter-table.ts';
import { ColumnShapes } from './column-shapes.ts';
import { L2Prefetch } from './l2-prefetch.ts';
import { Loads } from './loads.ts';
import { StoreController, type StorePolicyName } from './store-controller.ts';

export interface L2Settings {
  readonly storePolicy: StorePolicyName;
  readonly prefetchPolicy: 'default' | 'retain';
  readonly prefetchMaxInFlight: number;
  readonly lookupTimeoutMs: number;
  readonly loadTimeoutMs: number;
  /** --cache-namespace; '' = none. */
  readonly cacheNamespace: string;
  readonly hashSizeBytes: number;
}

export interface L2TierOptions extends L2Settings {
  readonly exchange: L1Exchange;
  readonly namespaces: NamespaceTable;
  readonly alignBytes: number;
  /** See `PrefetchRoom.makeRoom`. */
  readonly makeRoom: (bytes: number) => number;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

export class L2Tier {
  readonly adapters: AdapterTable;
  readonly stores: StoreController;
  readonly prefetch: L2Prefetch;
  readonly loads: Loads;
  readonly #options: L2TierOptions;
  readonly #shapes: ColumnShapes;

  constructor(options: L2TierOptions) {
    this.#options = options;
    this.#shapes = new ColumnShapes(options.namespaces);
    this.adapters = new AdapterTable(options);
    this.loads = new Loads(options);
    const { adapters, loads } = this;
    this.stores = new StoreController({ ...options, adapters, policy: options.storePolicy });
    const keepsLoaded = options.prefetchPolicy === 'retain';
    const room = { ...options, adapters, loads, shapes: this.#shapes, keepsLoaded };
    this.prefetch = new L2Prefetch(room, options.prefetchMaxInFlight);
  }

  /** An engine stores or reads objects of this shape there. */
  noteShape(namespaceIds: readonly number[], shape: ObjectShape): void {
    if (!this.adapters.hasActive) return;
    for (const namespaceId of namespaceIds) this.#shapes.learn(namespaceId, shape);
  }

  /** No adapter uses L1. */
  get isIdle(): boolean {
    return this.adapters.all.every(({ useCount }) => useCount === 0);
  }

  /**
   * Stores what waits, and waits until no adapter uses L1 any more, for at most `deadlineMs`
   * altogether. False: one still does, and L1 must not be freed under it.
   */
  async close(deadlineMs: number): Promise<boolean> {
    const { clock } = this.#options;
    const endMs = clock.nowMs() + deadlineMs;
    this.prefetch.close();
    await this.stores.close(deadlineMs);
    const idle = Promise.all(this.adapters.all.map((adapter) => adapter.whenIdle()));
    return withinTime(clock, Math.max(0, endMs - clock.nowMs()), idle);
  }
}
