/**
 * Eviction from all L2 adapters: one controller for each that has an `eviction` key, and what they
 * have in common, the quotas of the tenants (spec storage 10.7, 10.8, field lessons 3.3).
 */
import type { Clock } from '../../clock.ts';
import type { EvictionSettings } from '../../l2/adapter-spec.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import type { TenantQuotas } from './eviction-bounds.ts';
import { L2EvictionController } from './l2-eviction-controller.ts';
import type { ManagedStore } from './managed-store.ts';
import type { QuotaTable } from './quota.ts';

export interface L2EvictionOptions {
  readonly quotas: QuotaTable;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

export class L2Eviction implements TenantQuotas {
  readonly #options: L2EvictionOptions;
  readonly #stores = new Map<number, ManagedStore>();
  readonly #controllers = new Map<number, L2EvictionController>();

  constructor(options: L2EvictionOptions) {
    this.#options = options;
  }

  /** Before the adapter is started, so that nothing of what it finds is missed. */
  add(store: ManagedStore, settings: EvictionSettings | null): void {
    this.#stores.set(store.id, store);
    if (!this.#isUseful(store, settings)) return;
    const controller = new L2EvictionController({
      ...this.#options,
      store,
      settings,
      quotas: this,
    });
    this.#controllers.set(store.id, controller);
  }

  /** Undefined: nothing is evicted from it. */
  controllerOf(id: number): L2EvictionController | undefined {
    return this.#controllers.get(id);
  }

  remove(id: number): void {
    this.#stores.delete(id);
    this.#controllers.get(id)?.close();
    this.#controllers.delete(id);
  }

  limitBytesOf(cacheSalt: string): number | null {
    return this.#options.quotas.limitBytesOf(cacheSalt);
  }

  /** In the adapters that evict. */
  usedBytesOf(cacheSalt: string): number {
    let bytes = 0;
    for (const { store } of this.#controllers.values()) {
      bytes += store.usage().bytesBySalt.get(cacheSalt) ?? 0;
    }
    return bytes;
  }

  /** In all adapters; each copy counts. */
  usageBySalt(): Map<string, number> {
    const sums = new Map<string, number>();
    for (const store of this.#stores.values()) {
      for (const [cacheSalt, bytes] of store.usage().bytesBySalt) {
        sums.set(cacheSalt, (sums.get(cacheSalt) ?? 0) + bytes);
      }
    }
    return sums;
  }

  /** Some adapter evicts by tenant; otherwise quotas are only numbers. */
  get enforcesQuotas(): boolean {
    return [...this.#controllers.values()].some(({ isIsolated }) => isIsolated);
  }

  /** A quota has changed. */
  wake(): void {
    for (const controller of this.#controllers.values()) controller.wake();
  }

  /** Why it is not fit for work; empty when it is. */
  healthProblems(): string[] {
    return [...this.#controllers.values()]
      .filter(({ isAlive }) => !isAlive)
      .map(({ store }) => `the eviction loop of L2 adapter ${store.id} is stuck`);
  }

  /** What does not work, though a restart would not help. */
  troubles(): string[] {
    return [...this.#controllers.values()]
      .filter(({ isFailing }) => isFailing)
      .map(({ store }) => `eviction from L2 adapter ${store.id} (${store.typeName}) fails`);
  }

  /** `storage_manager.l2_eviction_controller` of `GET /status` (spec storage 14). */
  status(): Record<string, unknown> {
    const isAlive = this.healthProblems().length === 0;
    return {
      is_healthy: isAlive,
      thread_alive: isAlive,
      adapters: [...this.#controllers.values()].map((controller) => controller.status()),
      quotas_enforced: this.enforcesQuotas,
    };
  }

  #isUseful(store: ManagedStore, settings: EvictionSettings | null): settings is EvictionSettings {
    const { log } = this.#options;
    const name = `L2 adapter ${store.id} (${store.typeName})`;
    const { capacityBytes } = store.usage();
    if (capacityBytes === 0 && settings?.policy !== 'IsolatedLRU') {
      const what = settings
        ? `eviction (${settings.policy}) does nothing without`
        : 'grows without';
      log.warn(`${name}: ${what} a capacity; set one in its JSON to bound it`);
      return false;
    }
    if (!settings) log.warn(`${name}: stores are refused when its capacity is used: no "eviction"`);
    return settings !== null && settings.policy !== 'noop';
  }
}
