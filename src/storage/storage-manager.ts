/**
 * The storage room's door: everything that the engine may ask of the tiers.
 *
 * It knows keys as hashes and namespaces, objects as sizes and places. It knows nothing of
 * requests, models or tokens. Copies are the engine's business: the manager hands out pinned
 * places and takes them back.
 */
import type { Clock, Timer } from '../clock.ts';
import type { NamespaceKey, NamespaceTable } from '../core/namespaces.ts';
import { type ClearOutcome, NO_SLOT, type ObjectKeys } from '../core/object-table.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import { alignUp } from '../units.ts';
import { EvictionController, type EvictionLimits } from './eviction-controller.ts';
import type { GroupRule, L1Manager, ObjectShape, Places, StoreReservation } from './l1-manager.ts';
import { type L2Settings, L2Tier } from './l2/l2-tier.ts';
import { PrefetchController, type PrefetchTask } from './prefetch-controller.ts';
import { CallTracer, type StorageTrace } from './trace-recording.ts';

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
  readonly namespaces: NamespaceTable;
  readonly l2: L2Settings;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  /** Absent: nobody records what is asked of the room. */
  readonly trace?: StorageTrace | null;
}

/** The objects of one object group that a store wants to place: one for each chunk of its range. */
export interface StoreGroup {
  /** Of one namespace; all groups of a store have the same chunks. */
  readonly keys: ObjectKeys;
  readonly shape: ObjectShape;
  /** Marks the chunks of which this group has no bytes; null = none. */
  readonly isLeftOut: Uint8Array | null;
}

export class StorageManager {
  readonly #options: StorageManagerOptions;
  readonly #l1: L1Manager;
  readonly #eviction: EvictionController;
  readonly #prefetch: PrefetchController;
  readonly #l2: L2Tier;
  readonly #sweepTimer: Timer;
  readonly #tracer: CallTracer | null;

  constructor(options: StorageManagerOptions) {
    this.#options = options;
    this.#tracer = options.trace ? new CallTracer(options.trace, options.namespaces) : null;
    this.#l1 = options.l1;
    this.#eviction = new EvictionController({ ...options, policy: options.evictionPolicy });
    this.#l2 = new L2Tier({
      ...options,
      ...options.l2,
      exchange: options.l1.exchange,
      makeRoom: (bytes) => this.#makeRoomForLoads(bytes),
    });
    this.#prefetch = new PrefetchController(options.l1, this.#l2.prefetch);
    this.#sweepTimer = options.clock.every(SWEEP_INTERVAL_MS, () => this.#sweep());
  }

  get l1(): L1Manager {
    return this.#l1;
  }

  /** The tier behind L1, for those who manage it. */
  get l2(): L2Tier {
    return this.#l2;
  }

  internNamespace(key: NamespaceKey): number {
    return this.#l1.internNamespace(key);
  }

  /**
   * As `internNamespace`, but a namespace that nobody has stored to gets no entry, unless a slower
   * tier may have objects in it, or a trace must name it.
   */
  findNamespace(key: NamespaceKey): number {
    if (!this.#l2.prefetch.isOpen && !this.#tracer) return this.#l1.findNamespace(key);
    try {
      return this.#l1.internNamespace(key);
    } catch {
      // No room for one more name: what L1 has must do.
      return this.#l1.findNamespace(key);
    }
  }

  /** Holds the longest prefix that the tiers can make readable. `rules`: `L1Manager.hold`. */
  submitPrefetch(keys: ObjectKeys, holdCount: number, rules: readonly GroupRule[]): PrefetchTask {
    const task = this.#prefetch.submit(keys, holdCount, rules);
    this.#tracer?.lookup({ keys, holdCount }, rules, task);
    return task;
  }

  releaseHolds(slots: Uint32Array, holdCount: number): void {
    this.#tracer?.holdsReleased(slots, holdCount);
    this.#l1.releaseHolds(slots, holdCount);
  }

  /** See `L1Manager.freeHolds`. */
  freeHolds(slots: Uint32Array, holdCount: number): void {
    this.#tracer?.holdsReleased(slots, holdCount);
    this.#l1.freeHolds(slots, holdCount);
  }

  /**
   * Places for the objects that must be written, pinned until `finishStore` or `discardStore`.
   * When L1 is full it evicts and tries again before it gives up. Of a prompt that is larger than
   * L1 the prefix that fits is stored: a later part is of no use without it.
   */
  reserveStore(keys: ObjectKeys, shape: ObjectShape): StoreReservation {
    this.#l2.noteShape(keys.namespaceIds, shape);
    const objectBytes = alignUp(shape.objectSizeBytes, this.#options.alignBytes);
    const objectCountMax = Math.floor(this.#l1.totalBytes / objectBytes);
    const chunkCount = Math.floor(objectCountMax / keys.namespaceIds.length);
    const fitting = keys.chunkCount <= chunkCount ? keys : { ...keys, chunkCount };
    const reservation = this.#reserveWithRoom(fitting, shape, objectBytes);
    this.#reportStore(keys, reservation.outOfMemoryCount);
    this.#tracer?.reserved({ keys, shape, isLeftOut: null }, reservation.slots);
    return fitting === keys ? reservation : padReservation(reservation, keys);
  }

  /**
   * The same for the object groups of a chunk range together: a chunk for which one of them finds
   * no room is stored by none, because the others would be of no use without it.
   */
  reserveStoreGroups(groups: readonly StoreGroup[]): Places[] {
    for (const { keys, shape } of groups) this.#l2.noteShape(keys.namespaceIds, shape);
    const chunkCountMax = this.#countFittingChunks(groups);
    const reservations = groups.map((group) => this.#reserveRuns(group, chunkCountMax));
    const outOfMemoryCount = reservations.reduce((sum, one) => sum + one.outOfMemoryCount, 0);
    if (outOfMemoryCount > 0) this.#discardIncomplete(reservations);
    if (groups[0]) this.#reportStore(groups[0].keys, outOfMemoryCount);
    for (const [i, { slots }] of reservations.entries()) {
      this.#tracer?.reserved(groups[i] as StoreGroup, slots);
    }
    return reservations;
  }

  /** The chunks of the longest prefix that an empty L1 could hold. */
  #countFittingChunks(groups: readonly StoreGroup[]): number {
    const { alignBytes } = this.#options;
    const sizes = groups.map(({ shape }) => alignUp(shape.objectSizeBytes, alignBytes));
    const chunkCount = groups[0]?.keys.chunkCount ?? 0;
    let freeBytes = this.#l1.totalBytes;
    for (let chunk = 0; chunk < chunkCount; chunk += 1) {
      for (const [g, { isLeftOut }] of groups.entries()) {
        if (!isLeftOut?.[chunk]) freeBytes -= sizes[g] as number;
      }
      if (freeBytes < 0) return chunk;
    }
    return chunkCount;
  }

  #reportStore({ namespaceIds }: ObjectKeys, outOfMemoryCount: number): void {
    if (outOfMemoryCount > 0) {
      const { modelName } = this.#options.namespaces.describe(namespaceIds[0] as number);
      const countByModel = new Map([[modelName, outOfMemoryCount]]);
      this.#options.bus.publish('l1.allocation.failed', { during: 'l1_store', countByModel });
    }
    this.#eviction.notifyUsage();
  }

  /** One reservation per run of chunks that are not left out. */
  #reserveRuns({ keys, shape, isLeftOut }: StoreGroup, chunkCountMax: number): StoreReservation {
    const { firstChunk, chunkCount } = keys;
    const objectBytes = alignUp(shape.objectSizeBytes, this.#options.alignBytes);
    const endMax = Math.min(chunkCount, chunkCountMax);
    const whole = emptyReservation(chunkCount);
    let outOfMemoryCount = 0;
    for (let start = 0; start < endMax; start += 1) {
      if (isLeftOut?.[start]) continue;
      let end = start + 1;
      while (end < endMax && !isLeftOut?.[end]) end += 1;
      const run = { ...keys, firstChunk: firstChunk + start, chunkCount: end - start };
      const part = this.#reserveWithRoom(run, shape, objectBytes);
      whole.slots.set(part.slots, start);
      whole.offsets.set(part.offsets, start);
      if (part.lacksRoom) whole.lacksRoom.set(part.lacksRoom, start);
      outOfMemoryCount += part.outOfMemoryCount;
      start = end;
    }
    return { ...whole, outOfMemoryCount };
  }

  #discardIncomplete(reservations: readonly StoreReservation[]): void {
    for (const { slots, offsets } of reservations) {
      const useless: number[] = [];
      for (const [chunk, slot] of slots.entries()) {
        if (slot === NO_SLOT || !reservations.some((one) => one.lacksRoom?.[chunk])) continue;
        useless.push(slot);
        slots[chunk] = NO_SLOT;
        offsets[chunk] = -1;
      }
      this.#l1.discardStore(Uint32Array.from(useless));
    }
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
    this.#tracer?.stored(slots);
    const admittedCount = this.#l1.finishStore(slots);
    this.#l2.stores.noteStored(slots);
    return admittedCount;
  }

  discardStore(slots: Uint32Array): void {
    this.#tracer?.discarded(slots);
    this.#l1.discardStore(slots);
  }

  extendStore(slots: Uint32Array): void {
    this.#l1.extendStore(slots);
  }

  abandonStore(slots: Uint32Array): void {
    this.#l1.abandonStore(slots);
  }

  releaseAbandoned(slots: Uint32Array): void {
    this.#tracer?.discarded(slots);
    this.#l1.releaseAbandoned(slots);
  }

  acquireForRead(keys: ObjectKeys, shape: ObjectShape): Places | null {
    this.#l2.noteShape(keys.namespaceIds, shape);
    const places = this.#l1.acquireForRead(keys, shape);
    this.#tracer?.acquired(keys, places);
    return places;
  }

  releaseRead(slots: Uint32Array): void {
    this.#tracer?.readReleased(slots);
    this.#l1.releaseRead(slots);
  }

  announce(keys: ObjectKeys): Int32Array {
    return this.#l1.announce(keys);
  }

  touch(keys: ObjectKeys, usedChunkCount?: number): void {
    this.#l1.touch(keys, usedChunkCount);
  }

  /** Of L1; missing ones stay as they are. */
  changeEviction(limits: Partial<EvictionLimits>): EvictionLimits {
    return this.#eviction.changeLimits(limits);
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
      store_controller: this.#l2.stores.status(),
      prefetch_controller: this.#l2.prefetch.status(),
      l1_eviction_controller: eviction,
      // The reference's CLI reads this name, which the reference itself does not serve.
      eviction_controller: eviction,
      l2_eviction_controller: { is_healthy: true, thread_alive: true, adapters: [] },
      l2_adapters: this.#l2.adapters.all.map(({ store }) => store.status()),
      num_l2_adapters: this.#l2.adapters.all.length,
    };
  }

  /** False: an adapter still uses L1 after `deadlineMs`; its memory must not be freed. */
  async close(deadlineMs: number): Promise<boolean> {
    this.#sweepTimer.cancel();
    this.#eviction.close();
    return this.#l2.close(deadlineMs);
  }

  #makeRoomForLoads(bytes: number): number {
    const countFree = () => this.#l1.totalBytes - this.#l1.usedBytes;
    const missingBytes = bytes - countFree();
    // What is free lies in holes that are too small when nothing is missing.
    this.#eviction.makeRoom(missingBytes > 0 ? missingBytes : bytes);
    this.#eviction.notifyUsage();
    return countFree();
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
  const { slots, offsets, lacksRoom } = emptyReservation(objectCount);
  slots.set(prefix.slots);
  offsets.set(prefix.offsets);
  if (prefix.lacksRoom) lacksRoom.set(prefix.lacksRoom);
  return { ...prefix, slots, offsets, lacksRoom };
}

function emptyReservation(objectCount: number) {
  return {
    slots: new Uint32Array(objectCount).fill(NO_SLOT),
    offsets: new Float64Array(objectCount).fill(-1),
    lacksRoom: new Uint8Array(objectCount),
  };
}
