/**
 * L1: which objects are in host memory, who holds them, and where their bytes are.
 *
 * The bookkeeping lives in the core (`core/object-table.ts`); this class adds what the core must
 * not know: the clock, the memory behind the offsets, and the events. One call here is one call
 * into the core for a whole list of keys, so every operation is atomic against every other one.
 *
 *            reserveStore            finishStore               holdPrefix / acquireForRead
 *   absent ───────────────▶ staging ─────────────▶ resident ◀──────────────▶ resident + holders
 *      ▲                       │                      │
 *      └── discardStore, TTL ──┘        eviction, clear, delete
 *
 * A staging object is invisible to readers until `finishStore`. While a copy writes to it, it is
 * pinned: its memory cannot be reused even if its reservation expires meanwhile, and an expired
 * reservation is never admitted (spec storage 6.1, 18.2, 18.3).
 *
 * Three kinds of holders keep bytes in place: leases (TTL, for clients), holds (owned by a
 * session's ledger, no TTL of their own), pins (a copy that is running now).
 *
 * (Longer than other files: a table of operations, one method each with its contract.)
 */
import type { Clock } from '../clock.ts';
import type { NamespaceKey, NamespaceTable } from '../core/namespaces.ts';
import {
  type ClearOutcome,
  type ClearSlice,
  isOutOfMemory,
  NO_SLOT,
  type ObjectKeys,
  type ObjectTable,
  type SliceOutcome,
  type TableStatistics,
} from '../core/object-table.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import { L1Exchange } from './l1-exchange.ts';
import type { L1Memory } from './l1-memory/l1-memory.ts';
import { PreparedAhead } from './l1-memory/prepared-ahead.ts';
import { L1Reports } from './l1-reports.ts';
import { publishRemovals } from './removed-chunks.ts';
import { countServableChunks, firstNeededChunk, NO_WINDOW } from './window-fold.ts';

/** Writer tag of objects that engines store; concurrent stores of one key exclude each other. */
const WRITER_TAG_STORE = 1;
/** Up to 1 ms. */
const CLEAR_SLICE_SLOT_COUNT = 4096;

/** Slots in key order (`NO_SLOT` = none) and their byte offsets in L1 (−1 = none). */
export interface Places {
  readonly slots: Uint32Array;
  readonly offsets: Float64Array;
}

export interface StoreReservation extends Places {
  /** Objects that could not be placed because L1 is full. */
  readonly outOfMemoryCount: number;
  /** Which ones these are; null = none. */
  readonly lacksRoom: Uint8Array | null;
}

/** What the bytes of an object are. Readers of another shape must not see them. */
export interface ObjectShape {
  readonly objectSizeBytes: number;
  /** Equal tags mean that the same bytes mean the same. */
  readonly layoutTag: number;
  /** What the tag stands for, to be kept where it outlives the process. */
  readonly layoutText: string;
}

export type LayoutTags = Pick<ReadonlyMap<number, unknown>, 'has'>;

/** What readers ask of the objects of one object group. */
export interface GroupRule {
  /** Layouts that they understand; an object of another one is not there for them. */
  readonly layoutTags: LayoutTags;
  /** Chunks at the end of a prefix that must be there; `NO_WINDOW` = all of it. */
  readonly windowChunks: number;
  /** Of objects that come from slower stores; absent: readers have no use for these. */
  readonly shape?: ObjectShape;
}

export interface L1ManagerOptions {
  readonly table: ObjectTable;
  readonly namespaces: NamespaceTable;
  readonly memory: L1Memory;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  /** Of the chunk hashes. */
  readonly hashSizeBytes: number;
  /** Objects that lifecycle metrics follow: 0 to 2^32, see `L1Reports`. Absent: none. */
  readonly sampleThreshold?: number;
}

export class L1Manager {
  readonly #table: ObjectTable;
  readonly #namespaces: NamespaceTable;
  readonly #memory: L1Memory;
  readonly #clock: Clock;
  readonly #bus: EventBus;
  readonly #prepared: PreparedAhead;
  /** Layout tag per slot; written when the slot is reserved. Untouched pages cost nothing. */
  readonly #layoutTags: Uint32Array;
  /** For those who move objects to and from slower stores. */
  readonly exchange: L1Exchange;
  /** What the bus hears of L1's objects; for others who remove some. */
  readonly reports: L1Reports;

  constructor(options: L1ManagerOptions) {
    this.#table = options.table;
    this.#layoutTags = new Uint32Array(options.table.limits.objectCountMax + 1);
    this.#namespaces = options.namespaces;
    this.#memory = options.memory;
    this.#clock = options.clock;
    this.#bus = options.bus;
    this.#prepared = new PreparedAhead(options.memory, options.log);
    this.reports = new L1Reports({ sampleThreshold: 0, ...options });
    const { reports } = this;
    const own = { prepared: this.#prepared, layoutTags: this.#layoutTags, reports };
    this.exchange = new L1Exchange({ ...options, ...own });
    publishRemovals(options);
  }

  get memory(): L1Memory {
    return this.#memory;
  }

  internNamespace(key: NamespaceKey): number {
    return this.#namespaces.intern(key);
  }

  /** As `internNamespace`, but a namespace that nobody has stored to gets no entry. */
  findNamespace(key: NamespaceKey): number {
    return this.#namespaces.find(key);
  }

  /**
   * Takes `holdCount` holds on what readers of the longest servable prefix need. The object groups
   * of a chunk follow each other in `keys.namespaceIds`, rank by rank, as `rules` lists them.
   * Returns the slots of the prefix in key order, with `NO_SLOT` before a group's window.
   */
  hold(keys: ObjectKeys, holdCount: number, rules: readonly GroupRule[]): Uint32Array {
    const hasWindow = rules.some(({ windowChunks }) => windowChunks > NO_WINDOW);
    const slots = hasWindow
      ? this.#holdUnderWindows(keys, holdCount, rules)
      : this.#holdPrefix(keys, holdCount, rules);
    if (this.#bus.hasListeners('l1.read.reserved')) {
      const keyCount = hasWindow ? heldOf(slots).length : slots.length;
      this.#bus.publish('l1.read.reserved', { keyCount });
    }
    return slots;
  }

  /** Of readers that have read, or had nothing to read. */
  releaseHolds(slots: Uint32Array, holdCount: number): void {
    if (slots.length === 0) return;
    this.#table.releaseHolds(slots, holdCount);
    this.reports.removed('temporary');
  }

  /** Of readers that will not read what they had looked up. */
  freeHolds(slots: Uint32Array, holdCount: number): void {
    this.reports.readFinished(slots);
    this.releaseHolds(slots, holdCount);
  }

  /** One call into the core. A chunk with an object of a foreign layout ends the prefix. */
  #holdPrefix(keys: ObjectKeys, holdCount: number, rules: readonly GroupRule[]): Uint32Array {
    const held = this.#table.holdPrefix(keys, holdCount);
    const stranger = held.findIndex((slot, i) => !this.#isReadable(slot, ruleOf(rules, i)));
    const columnCount = keys.namespaceIds.length;
    const end = stranger < 0 ? held.length : stranger - (stranger % columnCount);
    this.releaseHolds(held.subarray(end), holdCount);
    return held.subarray(0, end);
  }

  #holdUnderWindows(keys: ObjectKeys, holdCount: number, rules: readonly GroupRule[]): Uint32Array {
    const found = this.#table.find(keys);
    const columnCount = keys.namespaceIds.length;
    const isPresent = Uint8Array.from(found, (slot, i) =>
      slot !== NO_SLOT && this.#isReadable(slot, ruleOf(rules, i)) ? 1 : 0,
    );
    const windows = keys.namespaceIds.map((_, column) => ruleOf(rules, column).windowChunks);
    const chunkCount = countServableChunks(isPresent, windows);
    const slots = found.slice(0, chunkCount * columnCount);
    for (const [column, window] of windows.entries()) {
      const firstKept = firstNeededChunk(chunkCount, window);
      for (let chunk = 0; chunk < firstKept; chunk += 1) {
        slots[chunk * columnCount + column] = NO_SLOT;
      }
    }
    this.#table.hold(heldOf(slots), holdCount);
    return slots;
  }

  #isReadable(slot: number, { layoutTags }: GroupRule): boolean {
    return layoutTags.has(this.#layoutTags[slot] as number);
  }

  /**
   * Pins every object of `keys`, or none: null when one of them is not readable. An object of
   * another shape is not: its bytes mean something else, and copying them could overrun.
   */
  acquireForRead(keys: ObjectKeys, shape: ObjectShape): Places | null {
    const slots = this.#table.find(keys);
    if (slots.includes(NO_SLOT) || this.#dropStrangers(keys, slots, shape)) {
      this.reports.missing(keys, slots, WRITER_TAG_STORE);
      return null;
    }
    this.#table.pin(slots);
    return { slots, offsets: this.#offsetsOf(slots) };
  }

  releaseRead(slots: Uint32Array): void {
    this.reports.readFinished(slots);
    this.#table.unpin(slots);
  }

  /**
   * Reserves room for the objects of `keys` that nobody has stored or is storing. Objects that
   * exist in this shape keep their place and come back as `NO_SLOT`; those of another shape, left
   * by an engine with another dtype or layout, make way. All missing objects are placed, or none.
   */
  reserveStore(keys: ObjectKeys, shape: ObjectShape): StoreReservation {
    this.#dropStrangers(keys, this.#table.find(keys), shape);
    const { slots, codes } = this.#table.reserveWrite(
      keys,
      shape.objectSizeBytes,
      WRITER_TAG_STORE,
      this.#clock.nowMs(),
    );
    const reserved = slots.filter((slot) => slot !== NO_SLOT);
    this.exchange.noteLayout(shape);
    for (const slot of reserved) this.#layoutTags[slot] = shape.layoutTag;
    if (reserved.length > 0) this.#table.pin(reserved);
    const offsets = this.#offsetsOf(slots);
    this.#prepared.note(offsets, shape.objectSizeBytes);
    if (this.#bus.hasListeners('l1.write.reserved')) {
      this.#bus.publish('l1.write.reserved', { keyCount: reserved.length });
    }
    const outOfMemoryCount = this.#table.countOutOfMemory(codes);
    const lacksRoom =
      outOfMemoryCount > 0 ? Uint8Array.from(codes, (code) => Number(isOutOfMemory(code))) : null;
    return { slots, offsets, outOfMemoryCount, lacksRoom };
  }

  /** Makes written objects readable. Returns how many were admitted (others had expired). */
  finishStore(slots: Uint32Array): number {
    const reserved = slots.filter((slot) => slot !== NO_SLOT);
    if (reserved.length === 0) return 0;
    const codes = this.#table.finishWrite(reserved, this.#clock.nowMs());
    this.#table.unpin(reserved);
    this.reports.written('l1.write.finished', reserved, codes);
    return codes.reduce((count, code) => (code >= 0 ? count + 1 : count), 0);
  }

  /** Gives reservations back without ever making their bytes visible. */
  discardStore(slots: Uint32Array): void {
    const reserved = slots.filter((slot) => slot !== NO_SLOT);
    if (reserved.length === 0) return;
    this.#table.discardWrite(reserved);
    this.#table.unpin(reserved);
  }

  /**
   * Renews the time of reservations whose writer, outside of this process, is known to live. They
   * are pinned, so also expired ones are still the writer's.
   */
  extendStore(slots: Uint32Array): void {
    this.#table.extendWrite(slots, this.#clock.nowMs());
  }

  /**
   * Takes the keys of reservations away, so that others can store them. The memory stays pinned:
   * their writer may still write. `releaseAbandoned` gives it back.
   */
  abandonStore(slots: Uint32Array): void {
    this.#table.abandonWrite(slots, this.#clock.nowMs());
  }

  releaseAbandoned(slots: Uint32Array): void {
    this.#table.unpin(slots);
  }

  /** See `ObjectTable.announce`. The end of what is announced goes to the bus. */
  announce(keys: ObjectKeys): Int32Array {
    return this.#table.announce(keys);
  }

  /** Tells the eviction policy which chunks of a prompt were used and which placed again. */
  touch(keys: ObjectKeys, usedChunkCount?: number): void {
    this.#table.touch(keys, usedChunkCount);
  }

  /**
   * Takes every object out of the index at once. The memory of those that are held or pinned is
   * freed when their last holder lets go (`deferredCount`).
   */
  clearAll(): ClearOutcome {
    const outcome = this.#table.clear(true, this.#clock.nowMs());
    this.reports.removed('clear', true);
    return outcome;
  }

  /** Takes the objects away that nobody holds, in slices between other work. */
  async clearIdle(): Promise<ClearOutcome> {
    const total = { removedCount: 0, deferredCount: 0, freedBytes: 0 };
    for (let firstSlot: number | null = 1; firstSlot !== null; ) {
      const range = { isForced: false, firstSlot, slotCount: CLEAR_SLICE_SLOT_COUNT };
      const slice: ClearSlice = this.#table.clearSlice(range, this.#clock.nowMs());
      total.removedCount += slice.removedCount;
      total.freedBytes += slice.freedBytes;
      this.reports.removed('clear');
      firstSlot = slice.nextSlot;
      if (firstSlot !== null) await new Promise((resolve) => setImmediate(resolve));
    }
    return total;
  }

  /** One slice of eviction: see `ObjectTable.evict`. */
  evict(bytesToFree: number, familyBudget: number, isContinued: boolean): SliceOutcome {
    const nowMs = this.#clock.nowMs();
    const result = this.#table.evict(bytesToFree, familyBudget, nowMs, isContinued);
    this.reports.removed('eviction');
    return result;
  }

  /** One slice of the sweep that frees reservations whose writer did not finish in time. */
  sweepExpired(budget: number): SliceOutcome {
    const outcome = this.#table.sweepExpired(budget, this.#clock.nowMs());
    const keyCount = outcome.objectCount;
    if (keyCount > 0) this.#bus.publish('l1.lock.expired', { mode: 'write', keyCount });
    return outcome;
  }

  get usedBytes(): number {
    return this.#table.usedBytes;
  }

  /** Counters of the table, as of now. */
  statistics(): TableStatistics {
    return this.#table.statistics(this.#clock.nowMs());
  }

  get totalBytes(): number {
    return this.#memory.sizeBytes;
  }

  /** `storage_manager.l1_manager` of `GET /status` (spec storage 14); counters only. */
  status(config: { writeTtlMs: number; readTtlMs: number }): Record<string, unknown> {
    const statistics = this.statistics();
    return {
      is_healthy: true,
      total_object_count: statistics.objectCount + statistics.stagingCount,
      write_locked_count: statistics.writeLockedCount,
      read_locked_count: statistics.readLockedCount,
      temporary_count: statistics.temporaryCount,
      memory_used_bytes: statistics.usedBytes,
      memory_total_bytes: this.totalBytes,
      memory_usage_ratio: this.totalBytes > 0 ? statistics.usedBytes / this.totalBytes : 0,
      write_ttl_seconds: config.writeTtlMs / 1000,
      read_ttl_seconds: config.readTtlMs / 1000,
      staging_object_count: statistics.stagingCount,
      staging_bytes: statistics.stagingBytes,
      memory_deferred_bytes: statistics.deferredBytes,
      memory_prepared_bytes: this.#memory.preparedBytes,
      memory_shm_name: this.#memory.shmName,
    };
  }

  /** Deletes objects of another shape, unless somebody holds them. True when there was one. */
  #dropStrangers(keys: ObjectKeys, slots: Uint32Array, shape: ObjectShape): boolean {
    const rankCount = keys.namespaceIds.length;
    let hasStranger = false;
    for (let i = 0; i < slots.length; i += 1) {
      const slot = slots[i] as number;
      if (slot === NO_SLOT || this.#hasShape(slot, shape)) continue;
      hasStranger = true;
      const firstChunk = keys.firstChunk + Math.floor(i / rankCount);
      const namespaceIds = [keys.namespaceIds[i % rankCount] as number];
      const one = { hashes: keys.hashes, firstChunk, chunkCount: 1, namespaceIds };
      this.#table.deleteObjects(one, false, this.#clock.nowMs());
    }
    if (hasStranger) this.reports.removed('other_layout');
    return hasStranger;
  }

  #hasShape(slot: number, { objectSizeBytes, layoutTag }: ObjectShape): boolean {
    return this.#layoutTags[slot] === layoutTag && this.#table.sizeOf(slot) === objectSizeBytes;
  }

  #offsetsOf(slots: Uint32Array): Float64Array {
    const offsets = new Float64Array(slots.length);
    for (let i = 0; i < slots.length; i += 1) {
      const slot = slots[i] as number;
      offsets[i] = slot === NO_SLOT ? -1 : this.#table.offsetOf(slot);
    }
    return offsets;
  }
}

/** Of the object at an index of a key list; see `L1Manager.hold`. */
function ruleOf(rules: readonly GroupRule[], index: number): GroupRule {
  return rules[index % rules.length] as GroupRule;
}

function heldOf(slots: Uint32Array): Uint32Array {
  return slots.filter((slot) => slot !== NO_SLOT);
}
