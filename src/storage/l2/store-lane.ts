/**
 * The stores to one L2 adapter: a queue of slots, and as many bytes in flight as the adapter bears.
 *
 *   queue ─(slice: resolve, pin, group)─▶ in flight ──▶ stored
 *     ▲                                       └──▶ failed ─▶ wait ─▶ queue   at most three tries
 *     └─ oldest dropped at the bound
 *
 * Queued objects are not pinned: eviction may take them, and then they are not stored. What is in
 * flight is pinned until the adapter has let go of its buffer, however long that takes; between two
 * tries nothing is (field lessons 1.6). A lane never waits for another one. While the adapter is
 * left alone after failures, its lane waits; what it refuses for that reason is no try.
 */
import type { Clock, Timer } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import type { StoreResult } from '../../l2/backend.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import type { L1Exchange, ResidentObject } from '../l1-exchange.ts';
import type { AttachedAdapter } from './adapter-table.ts';
import { nameObject } from './layout-names.ts';
import { objectKeyOf } from './object-names.ts';
import { StoreReports } from './store-reports.ts';

/** Of one slice of the event loop, about 0.2 ms; and of one call of the adapter. */
const SLICE_OBJECT_COUNT = 64;
/** Objects that wait for a slow adapter; a slot number each. */
const QUEUED_OBJECT_COUNT_MAX = 262_144;
/** Before the second and the third try. */
const RETRY_DELAYS_MS = [1_000, 4_000];
/** An adapter that is left alone may be asked again after 5 s at the earliest (l2/breaker.ts). */
const CLOSED_PAUSE_MS = 1_000;

const FINAL_CODES: readonly string[] = ['ERR_L2_FULL', 'ERR_L2_REFUSED', 'ERR_UNSUPPORTED'];

/** Slots of one finished store, or what is left of them. */
export interface StoreEntry {
  readonly slots: Uint32Array;
  /** Where these slots are in what `onAnswer` counts; null = slot i is item i. */
  readonly items: Uint32Array | null;
  readonly batch: unknown;
  readonly tryCount: number;
}

export interface StoreAnswer {
  readonly batch: unknown;
  readonly item: number;
  /** Null: it is not in L1 any more, or was dropped from the queue. */
  readonly object: ResidentObject | null;
  readonly isStored: boolean;
}

export interface StoreLaneOptions {
  readonly adapter: AttachedAdapter;
  readonly exchange: L1Exchange;
  readonly hashSizeBytes: number;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  /** The last word about objects, when nothing of them is pinned by this lane any more. */
  readonly onAnswer: (answers: readonly StoreAnswer[]) => void;
}

/** An object on its way, and where it came from. */
interface Item {
  readonly object: ResidentObject;
  readonly entry: StoreEntry;
  readonly index: number;
}

export class StoreLane {
  readonly adapter: AttachedAdapter;
  readonly counts = { stored: 0, storedBytes: 0, failed: 0, dropped: 0, gone: 0, retried: 0 };
  readonly #options: StoreLaneOptions;
  readonly #reports: StoreReports;
  /** Entries from `#head` on wait; the places before are empty. */
  #queue: StoreEntry[] = [];
  #head = 0;
  #queuedCount = 0;
  readonly #retryTimers = new Map<Timer, StoreEntry>();
  #sliceTimer: Timer | null = null;
  #inFlightBytes = 0;
  #inFlightCount = 0;
  /** Nothing is tried again, and an adapter that is out of order gets nothing more. */
  #isEnding = false;
  /** The next object waits for what is in flight. */
  #isFull = false;
  #idleWaiters: (() => void)[] = [];

  constructor(options: StoreLaneOptions) {
    this.adapter = options.adapter;
    this.#options = options;
    this.#reports = new StoreReports(options.adapter.store, options.bus);
  }

  get queuedCount(): number {
    return this.#queuedCount;
  }

  get inFlightCount(): number {
    return this.#inFlightCount;
  }

  get inFlightBytes(): number {
    return this.#inFlightBytes;
  }

  push(entry: StoreEntry): void {
    this.#queue.push(entry);
    this.#queuedCount += entry.slots.length;
    if (this.#queuedCount > QUEUED_OBJECT_COUNT_MAX) this.#dropOldest();
    this.#schedule(0);
  }

  /** Forgets what waits; what is in flight goes on. */
  clear(): void {
    this.#sliceTimer?.cancel();
    this.#sliceTimer = null;
    for (const [timer, entry] of this.#retryTimers) {
      timer.cancel();
      this.#giveUp(entry);
    }
    this.#retryTimers.clear();
    for (const entry of this.#queue.splice(0).slice(this.#head)) this.#drop(entry);
    this.#head = 0;
    this.#noteIdle();
  }

  /** Stores what waits, once more; resolves when nothing waits and nothing is in flight. */
  finish(): Promise<void> {
    this.#isEnding = true;
    for (const [timer, entry] of this.#retryTimers) {
      timer.cancel();
      this.push(entry);
    }
    this.#retryTimers.clear();
    this.#schedule(0);
    return new Promise((resolve) => {
      this.#idleWaiters.push(resolve);
      this.#noteIdle();
    });
  }

  #schedule(delayMs: number): void {
    if (this.#sliceTimer || this.#queuedCount === 0) return;
    this.#sliceTimer = this.#options.clock.after(delayMs, () => this.#runSlice());
  }

  #runSlice(): void {
    this.#sliceTimer = null;
    const { store } = this.adapter;
    if (!store.canStore) {
      if (this.#isEnding) this.clear();
      else this.#schedule(CLOSED_PAUSE_MS);
      return;
    }
    this.#isFull = false;
    try {
      for (const group of groupItems(this.#take())) void this.#store(group);
    } catch (error) {
      const reason = `stores to L2 adapter ${store.id} (${store.typeName}): ${String(error)}`;
      this.#options.log.limited('error', 'l2-store-slice', reason);
    }
    // Otherwise what is in flight schedules the next slice when it ends.
    if (!this.#isFull) this.#schedule(0);
    this.#noteIdle();
  }

  /** The next objects that are still in L1 and fit into what the adapter bears. */
  #take(): Item[] {
    const items: Item[] = [];
    const taken = new Set<number>();
    const gone: StoreAnswer[] = [];
    let lookCount = 0;
    let bytes = this.#inFlightBytes;
    while (lookCount < SLICE_OBJECT_COUNT && this.#queuedCount > 0) {
      const entry = this.#takeEntry(SLICE_OBJECT_COUNT - lookCount);
      lookCount += entry.slots.length;
      const found = this.#resolve(entry.slots);
      for (const [index, slot] of entry.slots.entries()) {
        const object = found.get(slot);
        // A slot that has changed hands is named twice.
        if (!object || taken.has(slot)) {
          gone.push({
            batch: entry.batch,
            item: itemOf(entry, index),
            object: null,
            isStored: false,
          });
          continue;
        }
        const isAlone = bytes === 0;
        if (!isAlone && bytes + object.sizeBytes > this.adapter.store.settings.inFlightMaxBytes) {
          this.#putBack(entryFrom(entry, index));
          this.#isFull = true;
          lookCount = SLICE_OBJECT_COUNT;
          break;
        }
        bytes += object.sizeBytes;
        taken.add(slot);
        items.push({ object, entry, index });
      }
    }
    this.counts.gone += gone.length;
    this.#reports.gone(gone.length);
    if (gone.length > 0) this.#options.onAnswer(gone);
    return items;
  }

  #resolve(slots: Uint32Array): Map<number, ResidentObject> {
    const { exchange, hashSizeBytes } = this.#options;
    return new Map(exchange.resolve(slots, hashSizeBytes).map((object) => [object.slot, object]));
  }

  /** Pins before anything else can run, and unpins when the adapter has let go. */
  async #store(items: readonly Item[]): Promise<void> {
    const { exchange } = this.#options;
    const slots = Uint32Array.from(items, ({ object }) => object.slot);
    const bytes = items.reduce((sum, { object }) => sum + object.sizeBytes, 0);
    exchange.pin(slots);
    this.adapter.beginUse();
    this.#inFlightBytes += bytes;
    this.#inFlightCount += 1;
    const taskId = this.#reports.submitted(items.map(({ object }) => object));
    const results = await this.#run(items).catch((error: unknown) => toError(error));
    exchange.endRead(slots);
    this.#inFlightBytes -= bytes;
    this.#inFlightCount -= 1;
    this.adapter.endUse();
    this.#judge(taskId, items, results);
    this.#schedule(0);
    this.#noteIdle();
  }

  async #run(items: readonly Item[]): Promise<readonly StoreResult[]> {
    const { exchange } = this.#options;
    const { store, names } = this.adapter;
    const objects = [];
    for (const { object } of items) {
      const key = objectKeyOf(object.namespace, object.chunkHash);
      const layoutText = exchange.layoutTextOf(object.layoutTag);
      if (layoutText === undefined) throw new Error('the layout of the objects is not known');
      const naming = names.forStore(key, layoutText);
      const name = nameObject(key, naming instanceof Promise ? await naming : naming);
      objects.push({ key: name, bytes: exchange.bytesOf(object.slot), layout: layoutText });
    }
    const { outcome, released } = store.store(objects);
    const results = await outcome;
    await released;
    return results;
  }

  #judge(taskId: number, items: readonly Item[], results: readonly StoreResult[] | Error): void {
    const answers: StoreAnswer[] = [];
    const failed = new Map<StoreEntry, number[]>();
    const untried = new Map<StoreEntry, number[]>();
    const stored: ResidentObject[] = [];
    let failedCount = 0;
    for (const [i, { object, entry, index }] of items.entries()) {
      const result = results instanceof Error ? results : results[i];
      const isStored = result !== undefined && !(result instanceof Error);
      if (!isStored && this.#mayTryAgain(entry, result)) {
        const list = isUntried(result) ? untried : failed;
        const indexes = list.get(entry);
        if (indexes) indexes.push(index);
        else list.set(entry, [index]);
        continue;
      }
      if (isStored) stored.push(object);
      else failedCount += 1;
      answers.push({ batch: entry.batch, item: itemOf(entry, index), object, isStored });
    }
    for (const [entry, indexes] of failed) this.#tryAgain(entry, indexes, entry.tryCount + 1);
    for (const [entry, indexes] of untried) this.#tryAgain(entry, indexes, entry.tryCount);
    this.counts.stored += stored.length;
    this.counts.storedBytes += stored.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
    this.counts.failed += failedCount;
    this.#reports.completed(taskId, stored, failedCount);
    if (answers.length > 0) this.#options.onAnswer(answers);
  }

  #mayTryAgain({ tryCount }: StoreEntry, result: StoreResult | undefined): boolean {
    if (this.#isEnding || this.adapter.isDraining) return false;
    return isUntried(result) || (tryCount < RETRY_DELAYS_MS.length && !isFinal(result));
  }

  /** Nothing of it is pinned meanwhile. */
  #tryAgain(entry: StoreEntry, indexes: readonly number[], tryCount: number): void {
    const slots = Uint32Array.from(indexes, (index) => entry.slots[index] as number);
    const items = Uint32Array.from(indexes, (index) => itemOf(entry, index));
    const next = { slots, items, batch: entry.batch, tryCount };
    this.counts.retried += slots.length;
    const delayMs = RETRY_DELAYS_MS[entry.tryCount] ?? CLOSED_PAUSE_MS;
    const timer = this.#options.clock.after(delayMs, () => {
      this.#retryTimers.delete(timer);
      this.push(next);
    });
    this.#retryTimers.set(timer, next);
  }

  #takeEntry(countMax: number): StoreEntry {
    const entry = this.#queue[this.#head] as StoreEntry;
    this.#queuedCount -= Math.min(entry.slots.length, countMax);
    if (entry.slots.length > countMax) {
      this.#queue[this.#head] = entryFrom(entry, countMax);
      return { ...entry, slots: entry.slots.subarray(0, countMax) };
    }
    this.#skipHead();
    return entry;
  }

  #skipHead(): void {
    this.#head += 1;
    if (this.#head < 1024 && this.#head < this.#queue.length) return;
    this.#queue = this.#queue.slice(this.#head);
    this.#head = 0;
  }

  #putBack(entry: StoreEntry): void {
    this.#queuedCount += entry.slots.length;
    if (this.#head > 0) {
      this.#head -= 1;
      this.#queue[this.#head] = entry;
    } else this.#queue.unshift(entry);
  }

  #dropOldest(): void {
    while (this.#queuedCount > QUEUED_OBJECT_COUNT_MAX) {
      const entry = this.#queue[this.#head] as StoreEntry;
      this.#skipHead();
      this.#drop(entry);
    }
  }

  #drop(entry: StoreEntry): void {
    this.#queuedCount -= entry.slots.length;
    this.#giveUp(entry);
  }

  #giveUp(entry: StoreEntry): void {
    this.counts.dropped += entry.slots.length;
    const { batch } = entry;
    const answers = Array.from(entry.slots, (_, index) => {
      return { batch, item: itemOf(entry, index), object: null, isStored: false };
    });
    this.#options.onAnswer(answers);
  }

  #noteIdle(): void {
    if (this.#queuedCount > 0 || this.#inFlightCount > 0 || this.#retryTimers.size > 0) return;
    const waiters = this.#idleWaiters;
    this.#idleWaiters = [];
    for (const waiter of waiters) waiter();
  }
}

function itemOf(entry: StoreEntry, index: number): number {
  return entry.items ? (entry.items[index] as number) : index;
}

/** The part of an entry from an index on. */
function entryFrom(entry: StoreEntry, first: number): StoreEntry {
  const items = Uint32Array.from(entry.slots.subarray(first), (_, i) => itemOf(entry, first + i));
  return { ...entry, slots: entry.slots.subarray(first), items };
}

/** By model, rank and object group, as adapters lay values out (spec storage 18.14). */
function groupItems(items: readonly Item[]): Item[][] {
  const groups = new Map<string, Item[]>();
  for (const item of items) {
    const { modelName, kvRank, objectGroupId } = item.object.namespace;
    const name = `${kvRank}/${objectGroupId}/${modelName}`;
    const group = groups.get(name);
    if (group) group.push(item);
    else groups.set(name, [item]);
  }
  return [...groups.values()];
}

/** Trying again cannot help. */
function isFinal(result: StoreResult | undefined): boolean {
  return result instanceof KvdError && FINAL_CODES.includes(result.code);
}

function isUntried(result: StoreResult | undefined): boolean {
  return result instanceof KvdError && result.code === 'ERR_L2_UNAVAILABLE';
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
