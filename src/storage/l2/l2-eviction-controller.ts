/**
 * Keeps one L2 adapter below its watermark, its tenants below their quotas, and makes room for a
 * store that finds none.
 *
 *   onChange ──▶ FamilyIndex + order          who holds what, who leaves first
 *   tick, store over a bound ──▶ run ──▶ cycles until nothing is over a bound
 *                                  └──▶ room for the stores that wait for it
 *
 * A cycle takes a part (`eviction_ratio`) of the objects concerned (eviction-bounds.ts), oldest
 * first, whole chunks only, so it may exceed the part by one chunk (spec storage 10.7, 18.19).
 *
 * Nothing here waits for the store: deletes go out in batches, some at a time, and the next victims
 * are looked for when one has come back. A chunk of which an object is promised to a lookup is
 * passed over; one that the store refuses to delete is left alone for a while (18.18). A cycle ends
 * when the store refuses a whole batch.
 *
 * How it fails: a run that throws is logged and counted, and the next tick starts afresh. While the
 * adapter finds out what an earlier server has left, nothing is evicted: the oldest is unknown.
 */
import { setImmediate } from 'node:timers/promises';
import type { Clock, Timer } from '../../clock.ts';
import { EvictionOrder } from '../../core/policy.ts';
import type { EvictionSettings } from '../../l2/adapter-spec.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import { EvictionBounds, type Part, type TenantQuotas } from './eviction-bounds.ts';
import { type Family, FamilyIndex, keysOf } from './family-index.ts';
import type { ManagedStore } from './managed-store.ts';
import { RoomQueue } from './room-queue.ts';

/** As in the reference; crossing a bound wakes the controller at once. */
const TICK_INTERVAL_MS = 1000;
/** One request to most stores; `DELETE_COUNT_MAX` of them in one turn take 2 to 3 ms. */
const BATCH_OBJECT_COUNT = 128;
/** Entries that one step of a walk looks at, where nearly all are locked or refused. */
const VISIT_COUNT_MAX = 2048;
/** Deletes of one adapter at the same time. */
const DELETE_COUNT_MAX = 4;
/** How long a chunk is left alone whose deletion was refused. */
const SKIP_MS = 30_000;
/** A loop without a tick for this long is stuck (http.md 10.1). */
const STALE_AFTER_MS = 30_000;
/** Ten times what a task of an adapter may take by default. */
const STUCK_AFTER_MS = 300_000;
/** Chunks in one adapter that can be put in order; further ones stay until others have left. */
const ENTRY_COUNT_MAX = 4 * 1024 * 1024;

export interface L2EvictionControllerOptions {
  readonly store: ManagedStore;
  readonly settings: EvictionSettings;
  readonly quotas: TenantQuotas;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

interface Victim {
  readonly family: Family;
  readonly keys: readonly ObjectKey[];
  readonly sizeBytes: number;
}

export class L2EvictionController {
  readonly #options: L2EvictionControllerOptions;
  readonly #order: EvictionOrder;
  readonly #index: FamilyIndex;
  readonly #bounds: EvictionBounds;
  readonly #timer: Timer;
  #wakeTimer: Timer | null = null;
  readonly #room = new RoomQueue();
  /** Until when a chunk is left alone. */
  readonly #skipUntilMs = new Map<Family, number>();
  /** Stored or used during a scan, latest last. */
  readonly #usedMeanwhile = new Set<Family>();
  #isRunning = false;
  #isClosed = false;
  #lastTickMs: number;
  #lastProgressMs: number;
  #failureCount = 0;
  /** The last run has ended with an error. */
  #isFailing = false;
  #refusedCount = 0;
  #evictedObjectCount = 0;
  #evictedBytes = 0;

  constructor(options: L2EvictionControllerOptions) {
    this.#options = options;
    const { clock, store, settings } = options;
    const { policy } = settings;
    this.#order = EvictionOrder.open({ policy, entryCountMax: ENTRY_COUNT_MAX });
    this.#index = new FamilyIndex(this.#order);
    this.#bounds = new EvictionBounds({
      ...options,
      index: this.#index,
      usage: () => store.usage(),
    });
    this.#lastTickMs = clock.nowMs();
    this.#lastProgressMs = clock.nowMs();
    this.#timer = clock.every(TICK_INTERVAL_MS, () => this.#tick());
    store.onFull((neededBytes) => this.makeRoom(neededBytes));
    store.onChange({
      stored: (keys, sizes) => this.#noteStored(keys, sizes),
      found: (keys, sizes) => this.#noteFound(keys, sizes),
      accessed: (keys) => this.#noteAccessed(keys),
      deleted: (keys) => this.#noteDeleted(keys),
    });
  }

  get store(): ManagedStore {
    return this.#options.store;
  }

  /** It evicts by tenant. */
  get isIsolated(): boolean {
    return this.#options.settings.policy === 'IsolatedLRU';
  }

  /** Resolves when at least `sizeBytes` have been deleted, or nothing more can be. */
  makeRoom(sizeBytes: number): Promise<void> {
    if (this.store.isScanning || this.#isClosed) return Promise.resolve();
    const room = this.#room.wait(sizeBytes);
    this.wake();
    return room;
  }

  /** Looks soon whether something is over a bound. */
  wake(): void {
    if (this.#wakeTimer || this.#isRunning || this.#isClosed) return;
    this.#wakeTimer = this.#options.clock.after(0, () => {
      this.#wakeTimer = null;
      this.#start();
    });
  }

  /** One cycle. False when nothing was deleted. */
  async runCycle(): Promise<boolean> {
    const parts = this.#bounds.findParts();
    if (parts.length === 0) return false;
    return (await this.#evict(parts)) > 0;
  }

  get isFailing(): boolean {
    return this.#isFailing;
  }

  get isAlive(): boolean {
    const nowMs = this.#options.clock.nowMs();
    if (this.#isRunning && nowMs - this.#lastProgressMs >= STUCK_AFTER_MS) return false;
    return nowMs - this.#lastTickMs < STALE_AFTER_MS;
  }

  /** One entry of `l2_eviction_controller.adapters` (spec storage 14), kvd's own keys behind. */
  status(): Record<string, unknown> {
    const { store, settings } = this.#options;
    const { usedBytes, capacityBytes, bytesBySalt } = store.usage();
    return {
      eviction_policy: settings.policy,
      trigger_watermark: settings.triggerWatermark,
      eviction_ratio: settings.evictionRatio,
      current_usage: capacityBytes > 0 ? usedBytes / capacityBytes : -1,
      total_bytes_used: usedBytes,
      total_capacity_bytes: capacityBytes,
      num_cache_salt_buckets: bytesBySalt.size,
      adapter_id: store.id,
      type: store.typeName,
      is_healthy: this.isAlive,
      is_scanning: store.isScanning,
      is_evicting: this.#isRunning,
      tracked_object_count: this.#index.objectCount,
      untracked_object_count: this.#index.untrackedCount,
      evicted_object_count: this.#evictedObjectCount,
      evicted_bytes: this.#evictedBytes,
      refused_object_count: this.#refusedCount,
      failure_count: this.#failureCount,
    };
  }

  close(): void {
    this.#isClosed = true;
    this.#timer.cancel();
    this.#wakeTimer?.cancel();
    this.#room.giveUp();
  }

  // ------------------------------------------------------------ what the adapter tells

  #noteStored(keys: readonly ObjectKey[], sizesBytes: ArrayLike<number>): void {
    // From the last to the first: the end of a prompt goes before its beginning.
    for (let i = keys.length - 1; i >= 0; i -= 1) {
      this.#noteUse(this.#index.store(keys[i] as ObjectKey, sizesBytes[i] as number));
    }
    const salts = new Set(keys.map(({ cacheSalt }) => cacheSalt));
    if ([...salts].some((cacheSalt) => this.#bounds.isOver(cacheSalt))) this.wake();
  }

  #noteAccessed(keys: readonly ObjectKey[]): void {
    for (let i = keys.length - 1; i >= 0; i -= 1) {
      this.#noteUse(this.#index.touch(keys[i] as ObjectKey));
    }
  }

  #noteFound(keys: readonly ObjectKey[], sizesBytes: ArrayLike<number>): void {
    for (const [i, key] of keys.entries()) this.#index.find(key, sizesBytes[i] as number);
  }

  /** What a scan finds later is older all the same. */
  #noteUse(family: Family | undefined): void {
    if (!family || !this.store.isScanning) return;
    this.#usedMeanwhile.delete(family);
    this.#usedMeanwhile.add(family);
  }

  #settleOrder(): void {
    if (this.#usedMeanwhile.size === 0 || this.store.isScanning) return;
    for (const family of this.#usedMeanwhile) this.#index.enter(family);
    this.#usedMeanwhile.clear();
  }

  #noteDeleted(keys: readonly ObjectKey[]): void {
    for (const key of keys) this.#index.remove(key);
  }

  // ------------------------------------------------------------ when and how much

  #tick(): void {
    const nowMs = this.#options.clock.nowMs();
    this.#lastTickMs = nowMs;
    for (const [family, untilMs] of this.#skipUntilMs) {
      if (untilMs <= nowMs) this.#skipUntilMs.delete(family);
    }
    this.#settleOrder();
    this.#start();
  }

  #start(): void {
    if (this.#isRunning || this.#isClosed || this.store.isScanning) return;
    if (this.#room.neededBytes === 0 && this.#bounds.findParts().length === 0) return;
    this.#isRunning = true;
    this.#lastProgressMs = this.#options.clock.nowMs();
    this.#run()
      .catch((error: unknown) => {
        this.#failureCount += 1;
        this.#isFailing = true;
        this.#room.giveUp();
        const { log, store } = this.#options;
        const text = `eviction from L2 adapter ${store.id} (${store.typeName}) failed`;
        log.limited('error', `l2-eviction-${store.id}`, `${text}: ${String(error)}`);
      })
      .finally(() => {
        this.#isRunning = false;
        // A store may have begun to wait after the last look.
        if (this.#room.neededBytes > 0) this.wake();
      });
  }

  async #run(): Promise<void> {
    this.#settleOrder();
    for (;;) {
      await this.#serveRoom();
      if (this.#isClosed || this.store.isScanning || !(await this.runCycle())) break;
    }
    this.#isFailing = false;
  }

  /** Victims for the stores that wait, until they have their bytes or none is left. */
  async #serveRoom(): Promise<void> {
    while (this.#room.neededBytes > 0 && !this.#isClosed) {
      const part = { cacheSalt: this.#bounds.tenantForRoom(), objectCount: BATCH_OBJECT_COUNT };
      if ((await this.#evict([part], () => this.#room.neededBytes)) === 0) break;
    }
    this.#room.giveUp();
  }

  // ------------------------------------------------------------ taking away

  /**
   * Deletes the victims of `parts`, and no more than `bytesWanted` asks for. Returns the number of
   * objects that are gone.
   */
  async #evict(parts: readonly Part[], bytesWanted = () => Number.POSITIVE_INFINITY) {
    const candidates = this.#walk(parts);
    let goneCount = 0;
    let inFlightBytes = 0;
    let isOver = false;
    const work = async (): Promise<void> => {
      for (;;) {
        const missingBytes = bytesWanted() - inFlightBytes;
        if (isOver || this.#isClosed || missingBytes <= 0) return;
        const batch = takeBatch(candidates, missingBytes);
        isOver ||= batch.isOver;
        inFlightBytes += batch.sizeBytes;
        // Not `+= await`: others add to it meanwhile.
        const batchCount = batch.victims.length > 0 ? await this.#delete(batch.victims) : 0;
        if (batch.victims.length === 0 && !isOver) await setImmediate();
        // A store that is out of order is asked again in the next cycle.
        isOver ||= batchCount === 0 && batch.objectCount >= BATCH_OBJECT_COUNT;
        goneCount += batchCount;
        inFlightBytes -= batch.sizeBytes;
      }
    };
    await Promise.all(Array.from({ length: DELETE_COUNT_MAX }, work));
    return goneCount;
  }

  /** Null now and then among many that have to stay, so that a walk over them can pause. */
  *#walk(parts: readonly Part[]): Generator<Victim | null> {
    for (const { cacheSalt, objectCount } of parts) {
      let count = 0;
      let visits = 0;
      const isEligible = (entry: number): boolean => {
        visits += 1;
        return visits % VISIT_COUNT_MAX === 0 || this.#mayGo(this.#index.byEntry(entry));
      };
      const walk = { isEligible, ...(cacheSalt === null ? {} : { cacheSalt }) };
      for (const entry of this.#order.victims(walk)) {
        const family = this.#index.byEntry(entry);
        const victim = family && this.#mayGo(family) ? victimOf(family) : null;
        yield victim;
        count += victim?.keys.length ?? 0;
        if (count >= objectCount) break;
      }
    }
  }

  #mayGo(family: Family | undefined): boolean {
    if (!family || this.#skipUntilMs.has(family)) return false;
    return !keysOf(family).some((key) => this.store.isLocked(key));
  }

  async #delete(victims: readonly Victim[]): Promise<number> {
    this.#report(victims);
    const results = await this.store.delete(victims.flatMap(({ keys }) => keys));
    this.#lastProgressMs = this.#options.clock.nowMs();
    let first = 0;
    let [goneCount, goneBytes] = [0, 0];
    for (const { family, keys, sizeBytes } of victims) {
      const isRefused = keys.map((_, i) => results[first + i] instanceof Error);
      first += keys.length;
      const gone = keys.filter((_, i) => !isRefused[i]);
      goneCount += gone.length;
      goneBytes += sizeBytes * (gone.length / keys.length);
      if (gone.length < keys.length) this.#skip(family, keys.length - gone.length);
    }
    this.#evictedObjectCount += goneCount;
    this.#evictedBytes += goneBytes;
    this.#room.free(goneBytes);
    return goneCount;
  }

  #skip(family: Family, refusedCount: number): void {
    this.#refusedCount += refusedCount;
    this.#skipUntilMs.set(family, this.#options.clock.nowMs() + SKIP_MS);
  }

  /** As the reference does it: what is asked for, by tenant. */
  #report(victims: readonly Victim[]): void {
    const { bus, store } = this.#options;
    if (!bus.hasListeners('l2.keys.evicted')) return;
    const countBySalt = new Map<string, number>();
    for (const { family, keys } of victims) {
      const { cacheSalt } = family.scope.tenant;
      countBySalt.set(cacheSalt, (countBySalt.get(cacheSalt) ?? 0) + keys.length);
    }
    const { id: adapterIndex, typeName: l2Name } = store;
    const keyCount = [...countBySalt.values()].reduce((sum, count) => sum + count, 0);
    if (keyCount === 0) return;
    bus.publish('l2.keys.evicted', { adapterIndex, l2Name, keyCount, countBySalt });
  }
}

function victimOf(family: Family): Victim {
  return { family, keys: keysOf(family), sizeBytes: family.sizeBytes };
}

interface Batch {
  readonly victims: readonly Victim[];
  readonly objectCount: number;
  readonly sizeBytes: number;
  /** There are no more. */
  readonly isOver: boolean;
}

function takeBatch(candidates: Iterator<Victim | null>, bytesWanted: number): Batch {
  const victims: Victim[] = [];
  let [objectCount, sizeBytes] = [0, 0];
  while (objectCount < BATCH_OBJECT_COUNT && sizeBytes < bytesWanted) {
    const { value, done } = candidates.next();
    if (done) return { victims, objectCount, sizeBytes, isOver: true };
    if (!value) break;
    victims.push(value);
    objectCount += value.keys.length;
    sizeBytes += value.sizeBytes;
  }
  return { victims, objectCount, sizeBytes, isOver: false };
}
