/**
 * What waits for a second event that may never come: bounded in time and number (spec observability
 * 14.5).
 *
 *   put ─▶ [ oldest … newest ] ─▶ take          the event has come
 *             └─ too old, or one too many ─▶ expired, counted by kind
 *
 * Entries are in the order in which they were put, which is the order of their times; so expiry
 * looks at the front only and costs nothing while nothing is old. It happens when something is put:
 * without that nothing grows.
 */
import { KVD } from './catalogue/kvd.ts';
import type { MetricRegistry } from './registry.ts';

export const PENDING_TTL_SECONDS = 600;
export const PENDING_COUNT_MAX = 10_000;

export interface PendingMapOptions<K, V> {
  /** For `kvd.expired_pending`. */
  readonly kind: string;
  readonly registry: MetricRegistry;
  readonly ttlSeconds?: number;
  readonly countMax?: number;
  /** Gets what nobody will take any more. */
  readonly onExpired?: (key: K, value: V) => void;
}

interface Entry<V> {
  readonly value: V;
  readonly atSeconds: number;
}

export class PendingMap<K, V> {
  readonly #entries = new Map<K, Entry<V>>();
  readonly #ttlSeconds: number;
  readonly #countMax: number;
  readonly #onExpired: ((key: K, value: V) => void) | undefined;
  readonly #countExpired: () => void;

  constructor({ kind, registry, ttlSeconds, countMax, onExpired }: PendingMapOptions<K, V>) {
    this.#ttlSeconds = ttlSeconds ?? PENDING_TTL_SECONDS;
    this.#countMax = countMax ?? PENDING_COUNT_MAX;
    this.#onExpired = onExpired;
    const expired = registry.counter(KVD.expiredPending);
    this.#countExpired = () => expired.add(1, kind);
  }

  get size(): number {
    return this.#entries.size;
  }

  get(key: K): V | undefined {
    return this.#entries.get(key)?.value;
  }

  /** In place of what this key had before; it is the newest now. */
  put(key: K, value: V, atSeconds: number): void {
    this.#entries.delete(key);
    this.#expire(atSeconds);
    this.#entries.set(key, { value, atSeconds });
  }

  take(key: K): { readonly value: V; readonly atSeconds: number } | undefined {
    const entry = this.#entries.get(key);
    if (entry) this.#entries.delete(key);
    return entry;
  }

  #expire(nowSeconds: number): void {
    for (const [key, { value, atSeconds }] of this.#entries) {
      const isOld = nowSeconds - atSeconds >= this.#ttlSeconds;
      if (!isOld && this.#entries.size < this.#countMax) return;
      this.#entries.delete(key);
      this.#countExpired();
      this.#onExpired?.(key, value);
    }
  }
}
