/**
 * The storage room's door: everything that the engine may ask of the tiers.
 *
 * It knows keys as hashes and namespaces, objects as sizes and places. It knows nothing of
 * requests, models or tokens. Copies are the engine's business: the manager hands out pinned
 * places and takes them back.
 */
import type { Clock, Timer } from '../clock.ts';
import type { NamespaceKey } from '../core/namespaces.ts';
import { type ClearOutcome, NO_SLOT, type ObjectKeys } from '../core/object-table.ts';
import type { EventBus } from '../observability/events.ts';
import type { Logger } from '../observability/log.ts';
import { alignUp } from '../units.ts';
import { EvictionController } from './eviction-controller.ts';
import type { L1Manager, LayoutTags, ObjectShape, Places, StoreReservation } from './l1-manager.ts';
import { PrefetchController, type PrefetchTask } from './prefetch-controller.ts';

/** Expired reservations are also reclaimed on demand; the sweep only bounds how long they stay. */
const SWEEP_INTERVAL_MS = 1000;
const SWEEP_BUDGET = 4096;
/** Objects of mixed sizes fragment L1; four rounds free 15 times the bytes that are needed. */
const MAKE_ROOM_ROUNDS_MAX = 4;

export interface StorageManagerOptions {
  readonly l1: L1Manager;
  readonly alignBytes: number;
  readonly evictionPolicy: string;
  readonly watermarkRatio: number;
  readonly evictionRatio: number;
  readonly writeTtlMs: number;
  readonly readTtlMs: number;
  readonly prefetchMaxInFlight: number;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

export class StorageManager {
  readonly #options: StorageManagerOptions;
  readonly #l1: L1Manager;
  readonly #eviction: EvictionController;
  readonly #prefetch: PrefetchController;
  readonly #sweepTimer: Timer;

  constructor(options: StorageManagerOptions) {
    this.#options = options;
    this.#l1 = options.l1;
    this.#eviction = new EvictionController({ ...options, policy: options.evictionPolicy });
    this.#prefetch = new PrefetchController(options.l1, null);
    this.#sweepTimer = options.clock.every(SWEEP_INTERVAL_MS, () => this.#sweep());
  }

  get l1(): L1Manager {
    return this.#l1;
  }

  internNamespace(key: NamespaceKey): number {
    return this.#l1.internNamespace(key);
  }

  findNamespace(key: NamespaceKey): number {
    return this.#l1.findNamespace(key);
  }

  /** Holds the longest prefix that the tiers can make readable. */
  submitPrefetch(keys: ObjectKeys, holdCount: number, layoutTags: LayoutTags): PrefetchTask {
    return this.#prefetch.submit(keys, holdCount, layoutTags);
  }

  releaseHolds(slots: Uint32Array, holdCount: number): void {
    this.#l1.releaseHolds(slots, holdCount);
  }

  /**
   * Places for the objects that must be written, pinned until `finishStore` or `discardStore`.
   * When L1 is full it evicts and tries again before it gives up. Of a prompt that is larger than
   * L1 the prefix that fits is stored: a later part is of no use without it.
   */
  reserveStore(keys: ObjectKeys, shape: ObjectShape): StoreReservation {
    const objectBytes = alignUp(shape.objectSizeBytes, this.#options.alignBytes);
    const objectCountMax = Math.floor(this.#l1.totalBytes / objectBytes);
    const chunkCount = Math.floor(objectCountMax / keys.namespaceIds.length);
    const fitting = keys.chunkCount <= chunkCount ? keys : { ...keys, chunkCount };
    const reservation = this.#reserveWithRoom(fitting, shape, objectBytes);
    if (reservation.outOfMemoryCount > 0) {
      this.#options.bus.publish('l1.allocation.failed', {
        during: 'l1_store',
        keyCount: reservation.outOfMemoryCount,
      });
    }
    this.#eviction.notifyUsage();
    return fitting === keys ? reservation : padReservation(reservation, keys);
  }

  #reserveWithRoom(keys: ObjectKeys, shape: ObjectShape, objectBytes: number): StoreReservation {
    let reservation = this.#l1.reserveStore(keys, shape);
    let bytesToFree = reservation.outOfMemoryCount * objectBytes;
    for (let round = 0; round < MAKE_ROOM_ROUNDS_MAX && bytesToFree > 0; round += 1) {
      if (this.#eviction.makeRoom(bytesToFree) === 0) break;
      // The failed attempt may have taken over reservations of its own writer.
      this.#l1.discardStore(reservation.slots);
      reservation = this.#l1.reserveStore(keys, shape);
      // Freed bytes may lie in holes that are too small; each round asks for twice as much.
      bytesToFree = reservation.outOfMemoryCount === 0 ? 0 : bytesToFree * 2;
    }
    return reservation;
  }

  finishStore(slots: Uint32Array): number {
    return this.#l1.finishStore(slots);
  }

  discardStore(slots: Uint32Array): void {
    this.#l1.discardStore(slots);
  }

  extendStore(slots: Uint32Array): void {
    this.#l1.extendStore(slots);
  }

  abandonStore(slots: Uint32Array): void {
    this.#l1.abandonStore(slots);
  }

  releaseAbandoned(slots: Uint32Array): void {
    this.#l1.releaseAbandoned(slots);
  }

  acquireForRead(keys: ObjectKeys, shape: ObjectShape): Places | null {
    return this.#l1.acquireForRead(keys, shape);
  }

  releaseRead(slots: Uint32Array): void {
    this.#l1.releaseRead(slots);
  }

  touch(keys: ObjectKeys): void {
    this.#l1.touch(keys);
  }

  /** See `L1Manager.clearAll` (forced) and `clearIdle`. */
  clear(isForced: boolean): ClearOutcome | Promise<ClearOutcome> {
    return isForced ? this.#l1.clearAll() : this.#l1.clearIdle();
  }

  /** Why the storage room is not fit for traffic; empty when it is. */
  healthProblems(): string[] {
    return this.#eviction.isAlive ? [] : ['the L1 eviction loop is stuck'];
  }

  /** `storage_manager` of `GET /status` (spec storage 14). */
  status(): Record<string, unknown> {
    const eviction = this.#eviction.status();
    const isHealthy = this.healthProblems().length === 0;
    return {
      is_healthy: isHealthy,
      l1_manager: this.#l1.status(this.#options),
      store_controller: {
        is_healthy: true,
        thread_alive: true,
        pending_keys_count: 0,
        in_flight_task_count: 0,
        num_l2_adapters: 0,
        num_active_adapters: 0,
        num_draining_adapters: 0,
      },
      prefetch_controller: this.#prefetch.status(this.#options.prefetchMaxInFlight),
      l1_eviction_controller: eviction,
      // The reference's CLI reads this name, which the reference itself does not serve.
      eviction_controller: eviction,
      l2_eviction_controller: { is_healthy: true, thread_alive: true, adapters: [] },
      l2_adapters: [],
      num_l2_adapters: 0,
    };
  }

  close(): void {
    this.#sweepTimer.cancel();
    this.#eviction.close();
  }

  #sweep(): void {
    try {
      this.#l1.sweepExpired(SWEEP_BUDGET);
    } catch (error) {
      this.#options.log.limited('error', 'l1-sweep', `L1 sweep failed: ${String(error)}`);
    }
  }
}

/** The reservation of a prefix as one of all keys: nothing is written behind the prefix. */
function padReservation(prefix: StoreReservation, keys: ObjectKeys): StoreReservation {
  const objectCount = keys.chunkCount * keys.namespaceIds.length;
  const slots = new Uint32Array(objectCount).fill(NO_SLOT);
  const offsets = new Float64Array(objectCount).fill(-1);
  slots.set(prefix.slots);
  offsets.set(prefix.offsets);
  return { ...prefix, slots, offsets };
}
