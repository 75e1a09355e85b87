/**
 * Door to the object table of the core: which objects exist, where they lie, who holds them.
 *
 * Every method is one call into the core for a whole list (or a few, for lists longer than its
 * regions, batch-regions.ts), and what is returned is a copy.
 * The life of an object is drawn in assembly/lifecycle.ts, the codes are those of result.ts.
 *
 * Handles. A slot names an object as long as the caller holds it (lease, hold, pin or a live
 * reservation). Where time may pass, keep (slot, generation): a call that gets generations refuses
 * slots that have gone to somebody else meanwhile.
 *
 * Failing. What can come from a client is refused with a KvdError. A slot that its caller does not
 * own is a bug about memory that copies use, and ends the process through `onTrap`.
 *
 * Longer than other files: a table of the core's calls, one method each with its contract.
 */
import { KvdError } from '../errors.ts';
import {
  BatchRegions,
  concatenate,
  joinReservations,
  type ObjectKeys,
  type Reservations,
} from './batch-regions.ts';
import { DepartureWatch } from './departures.ts';
import { type CoreExports, REGION, type TrapHandler } from './instance.ts';
import { RemovalRecords } from './removal-records.ts';
import { RESULT, resultName } from './result.ts';
import {
  type ClearOutcome,
  type ClearSlice,
  type SliceOutcome,
  TableFigures,
  type TableStatistics,
} from './table-figures.ts';

export type { ClearOutcome, ClearSlice, ObjectKeys, Reservations, SliceOutcome, TableStatistics };

/** The slots that one slice of a clear looks at. */
export interface ClearRange {
  readonly isForced: boolean;
  /** 1 for the first slice, then `nextSlot` of the slice before. */
  readonly firstSlot: number;
  readonly slotCount: number;
}

export const NO_SLOT = 0xffff_ffff;

export interface FinishOptions {
  /** Refuses reservations that are not these any more. */
  readonly generations?: Uint32Array;
  /** Leases and holds on what is resident afterwards. */
  readonly leaseCount?: number;
  readonly holdCount?: number;
}

export interface TableLimits {
  readonly objectCountMax: number;
  /** Objects of one call into the core. */
  readonly batchCountMax: number;
  readonly alignBytes: number;
}

/** Words of a record of KEYS and PLACES, and the places of fields (assembly/object.ts). */
const RECORD_WORDS = 4;
const KEY_FAMILY = 0;
const KEY_NAMESPACE = 1;
const PLACE_SIZE = 0;
const PLACE_OFFSET = 1;
/** Of a record of HASHES (assembly/family.ts); hashes shorter than this end in zeros. */
const HASH_SIZE_BYTES = 32;

export const OBJECT_SIZE_MAX_BYTES = 2 ** 32 - 1;

/** The code of an object that found no room in a reservation. */
export function isOutOfMemory(code: number): boolean {
  return code === RESULT.OUT_OF_MEMORY || code === RESULT.TABLE_FULL;
}

export class ObjectTable {
  readonly limits: TableLimits;
  /** Who wants to know which announced chunks end listens here. */
  readonly removals: RemovalRecords;
  /** Who wants to know what leaves, and how much, watches here. */
  readonly departures: DepartureWatch;
  readonly #core: CoreExports;
  readonly #onTrap: TrapHandler;
  readonly #batch: BatchRegions;
  readonly #figures: TableFigures;
  readonly #keys: Uint32Array;
  readonly #places: Uint32Array;
  readonly #familyHashes: Buffer;
  readonly #hashView: DataView;

  /** `init` and `table_init` of the core must have been called. */
  constructor(core: CoreExports, limits: TableLimits, onTrap: TrapHandler) {
    const { buffer } = core.memory;
    const recordWords = RECORD_WORDS * (limits.objectCountMax + 1);
    this.limits = limits;
    this.#core = core;
    this.#onTrap = onTrap;
    this.#batch = new BatchRegions(core, limits.batchCountMax);
    this.#figures = new TableFigures(core);
    this.removals = new RemovalRecords(core);
    this.departures = new DepartureWatch(core);
    this.#keys = new Uint32Array(buffer, core.region_offset(REGION.objectKeys), recordWords);
    this.#places = new Uint32Array(buffer, core.region_offset(REGION.objectPlaces), recordWords);
    const familyHashes = core.region_offset(REGION.familyHashes);
    const hashBytes = HASH_SIZE_BYTES * (limits.objectCountMax + 1);
    this.#familyHashes = Buffer.from(buffer, familyHashes, hashBytes);
    this.#hashView = new DataView(buffer, familyHashes, hashBytes);
  }

  // Readers

  /** Resident objects; NO_SLOT where there is none. Takes nothing. */
  find(keys: ObjectKeys): Uint32Array {
    return this.#find(keys, 0);
  }

  /** What one writer has staged, whether its reservation is still live or not. */
  findStaged(keys: ObjectKeys, writerTag: number): Uint32Array {
    return this.#find(keys, writerTag);
  }

  /**
   * The longest prefix of chunks of which every object is resident; takes `holdCount` holds on
   * each. Returns the slots of the prefix.
   */
  holdPrefix(keys: ObjectKeys, holdCount: number): Uint32Array {
    const width = keys.namespaceIds.length;
    const parts: Uint32Array[] = [];
    for (const part of this.#batch.split(keys)) {
      this.#batch.loadKeys(part);
      const hitCount = this.#call(
        'table_hold_prefix',
        this.#core.table_hold_prefix(part.chunkCount, width, holdCount),
      );
      parts.push(this.#batch.slots.slice(0, hitCount * width));
      if (hitCount < part.chunkCount) break;
    }
    return concatenate(parts);
  }

  /** Takes `holdCount` holds on each of these resident objects, found in the same turn. */
  hold(slots: Uint32Array, holdCount: number): void {
    this.#forSlots(slots, 'table_hold', (count) => this.#core.table_hold(count, holdCount));
  }

  /** Gives `holdCount` holds of each slot back; a temporary object goes with its last holder. */
  releaseHolds(slots: Uint32Array, holdCount: number): void {
    this.#forSlots(slots, 'table_release_holds', (count) => {
      const result = this.#core.table_release_holds(count, holdCount);
      this.removals.pass();
      return result;
    });
  }

  /** Keeps the memory of each slot until `unpin`, whatever happens to its key. */
  pin(slots: Uint32Array): void {
    this.#forSlots(slots, 'table_pin', (count) => this.#core.table_pin(count));
  }

  unpin(slots: Uint32Array): void {
    this.#forSlots(slots, 'table_unpin', (count) => this.#core.table_unpin(count));
  }

  /** Leases (with TTL) on every resident object; KEY_NOT_EXIST for the others. */
  reserveRead(keys: ObjectKeys, leaseCount: number, nowMs: number): Reservations {
    const width = keys.namespaceIds.length;
    const parts: Reservations[] = [];
    for (const part of this.#batch.split(keys)) {
      this.#batch.loadKeys(part);
      const { chunkCount } = part;
      this.#call(
        'table_reserve_read',
        this.#core.table_reserve_read(chunkCount, width, leaseCount, nowMs),
      );
      parts.push(this.#batch.takeReservations(chunkCount * width));
    }
    return joinReservations(parts);
  }

  /**
   * Gives leases back. Of an absent object: KEY_NOT_EXIST; of an expired lease, or one whose
   * generation is over: KEY_IN_WRONG_STATE, and nothing is released.
   */
  finishRead(
    slots: Uint32Array,
    leaseCount: number,
    nowMs: number,
    generations?: Uint32Array,
  ): Int32Array {
    const codes = new Int32Array(slots.length);
    for (const first of this.#batch.starts(slots.length)) {
      const count = this.#batch.loadSlots(slots, first, generations);
      const isChecked = generations ? 1 : 0;
      this.#call(
        'table_finish_read',
        this.#core.table_finish_read(count, leaseCount, isChecked, nowMs),
      );
      codes.set(this.#batch.codes.subarray(0, count), first);
      this.removals.pass();
    }
    return codes;
  }

  /**
   * Tells the eviction policy, from the last chunk to the first, that the first `usedChunkCount`
   * chunks of the keys were used, and that the others were only placed (LRU makes both the
   * youngest; the others give their place in the order to what was used).
   */
  touch(keys: ObjectKeys, usedChunkCount: number = keys.chunkCount): void {
    this.touchSlots(this.find(keys), usedChunkCount * keys.namespaceIds.length);
  }

  touchSlots(slots: Uint32Array, usedCount: number = slots.length): void {
    for (const first of this.#batch.starts(slots.length).reverse()) {
      const count = this.#batch.loadSlots(slots, first);
      const used = Math.min(count, Math.max(0, usedCount - first));
      this.#call('table_touch', this.#core.table_touch(count, used));
    }
  }

  // Writers

  /**
   * Reserves the objects for one writer (`writerTag` > 0). Resident, or staged by this writer:
   * KEY_NOT_WRITABLE. All missing ones get memory, or none (OUT_OF_MEMORY, TABLE_FULL). A key that
   * is named twice is reserved once, and both places name its slot. An expired reservation of this
   * writer is handed over, memory included, if its size is the same.
   */
  reserveWrite(
    keys: ObjectKeys,
    sizeBytes: number,
    writerTag: number,
    nowMs: number,
    isTemporary: boolean | readonly boolean[] = false,
  ): Reservations {
    const width = keys.namespaceIds.length;
    const count = keys.chunkCount * width;
    if (count > this.#batch.countMax) {
      throw new KvdError(
        'ERR_BAD_REQUEST',
        `expected at most ${this.#batch.countMax} objects in one store, got ${count}`,
      );
    }
    if (!(sizeBytes >= 1 && sizeBytes <= OBJECT_SIZE_MAX_BYTES)) {
      throw new KvdError(
        'ERR_UNSUPPORTED',
        `expected an object of 1 to ${OBJECT_SIZE_MAX_BYTES} bytes, got ${sizeBytes}`,
      );
    }
    const [batch] = this.#batch.split(keys);
    this.#batch.loadKeys(batch!);
    if (typeof isTemporary === 'boolean') this.#batch.codes.fill(isTemporary ? 1 : 0, 0, count);
    else for (let i = 0; i < count; i += 1) this.#batch.codes[i] = isTemporary[i] ? 1 : 0;
    const { chunkCount } = keys;
    this.#call(
      'table_reserve_write',
      this.#core.table_reserve_write(chunkCount, width, sizeBytes, writerTag, nowMs),
    );
    return this.#batch.takeReservations(count);
  }

  /** How many objects of a reservation found no room. */
  countOutOfMemory(codes: Int32Array): number {
    let count = 0;
    for (const code of codes) if (isOutOfMemory(code)) count += 1;
    return count;
  }

  /**
   * Makes reservations readable. SUCCESS: admitted. ALREADY_RESIDENT: somebody else was faster and
   * the copy is dropped. KEY_IN_WRONG_STATE: expired. KEY_NOT_EXIST: nothing is reserved there.
   */
  finishWrite(slots: Uint32Array, nowMs: number, options: FinishOptions = {}): Int32Array {
    return this.finishWriteAndHold(slots, nowMs, options).codes;
  }

  /** As `finishWrite`; returns the resident slots and the generations of the leases too. */
  finishWriteAndHold(slots: Uint32Array, nowMs: number, options: FinishOptions = {}): Reservations {
    const { generations, leaseCount = 0, holdCount = 0 } = options;
    const parts: Reservations[] = [];
    const starts = this.#batch.starts(slots.length);
    // Last to first also across parts, so that the first chunk is the youngest in the end.
    for (const first of starts.reverse()) {
      const count = this.#batch.loadSlots(slots, first, generations);
      const isChecked = generations ? 1 : 0;
      this.#call(
        'table_finish_write',
        this.#core.table_finish_write(count, leaseCount, holdCount, isChecked, nowMs),
      );
      parts.unshift(this.#batch.takeReservations(count));
    }
    return joinReservations(parts);
  }

  /** Drops reservations without making them visible; expired ones are left to the sweep. */
  discardWrite(slots: Uint32Array, generations?: Uint32Array): Int32Array {
    const codes = new Int32Array(slots.length);
    for (const first of this.#batch.starts(slots.length)) {
      const count = this.#batch.loadSlots(slots, first, generations);
      const isChecked = generations ? 1 : 0;
      this.#call('table_discard_write', this.#core.table_discard_write(count, isChecked, 0));
      codes.set(this.#batch.codes.subarray(0, count), first);
    }
    return codes;
  }

  /** Renews the time of reservations, also of expired ones that the caller pins. */
  extendWrite(slots: Uint32Array, nowMs: number): void {
    this.#forSlots(slots, 'table_extend_write', (count) =>
      this.#core.table_extend_write(count, nowMs),
    );
  }

  /** Takes the keys of pinned reservations away, live or expired; `unpin` frees the memory. */
  abandonWrite(slots: Uint32Array, nowMs: number): void {
    this.#forSlots(slots, 'table_abandon_write', (count) =>
      this.#core.table_abandon_write(count, nowMs),
    );
  }

  /**
   * Announces the chunks of which every object is resident; `namespaceIds` must be all that make a
   * chunk whole, of one scope. Per chunk: SUCCESS for one that has become whole, ALREADY_ANNOUNCED,
   * KEY_NOT_EXIST for one that is not whole. The end of an announced chunk goes to `removals`.
   */
  announce(keys: ObjectKeys): Int32Array {
    const codes = new Int32Array(keys.chunkCount);
    const width = keys.namespaceIds.length;
    let done = 0;
    this.removals.noteAnnounced(keys.hashes.hashSizeBytes);
    for (const part of this.#batch.split(keys)) {
      this.#batch.loadKeys(part);
      this.#call('table_announce', this.#core.table_announce(part.chunkCount, width));
      codes.set(this.#batch.codes.subarray(0, part.chunkCount), done);
      done += part.chunkCount;
    }
    return codes;
  }

  // Reclaiming

  /** Deletes keys and their expired reservations; forced: also those with holders. */
  deleteObjects(keys: ObjectKeys, isForced: boolean, nowMs: number): Int32Array {
    const width = keys.namespaceIds.length;
    const codes = new Int32Array(keys.chunkCount * width);
    let done = 0;
    for (const part of this.#batch.split(keys)) {
      this.#batch.loadKeys(part);
      const { chunkCount } = part;
      this.#call(
        'table_delete',
        this.#core.table_delete(chunkCount, width, isForced ? 1 : 0, nowMs),
      );
      codes.set(this.#batch.codes.subarray(0, chunkCount * width), done);
      done += chunkCount * width;
      this.removals.pass();
    }
    return codes;
  }

  /** Takes every key away that has no holder; forced: every key, memory follows its holders. */
  clear(isForced: boolean, nowMs: number): ClearOutcome {
    this.#call('table_clear', this.#core.table_clear(isForced ? 1 : 0, nowMs));
    const outcome = this.#figures.clearOutcome();
    if (isForced) this.removals.passCleared();
    else this.removals.pass();
    return outcome;
  }

  /**
   * The same in slices, for tables whose walk would take too long (up to 0.3 µs a slot). Objects
   * that were there before the first slice are all met; those that are stored meanwhile may stay.
   */
  clearSlice({ isForced, firstSlot, slotCount }: ClearRange, nowMs: number): ClearSlice {
    const forced = isForced ? 1 : 0;
    const result = this.#core.table_clear_slice(forced, firstSlot, slotCount, nowMs);
    const nextSlot = this.#call('table_clear_slice', result);
    const outcome = this.#figures.clearOutcome();
    this.removals.pass();
    return { ...outcome, nextSlot: nextSlot === 0 ? null : nextSlot };
  }

  /**
   * One slice of eviction: expired reservations, then whole families, oldest first, until
   * `bytesToFree` are free ('done') or `familyBudget` families were looked at ('more').
   * 'nothing-to-do': there is no further candidate, although something may have been freed.
   * With `isContinued` the walk goes on where the slice before stopped.
   */
  evict(
    bytesToFree: number,
    familyBudget: number,
    nowMs: number,
    isContinued: boolean = false,
  ): SliceOutcome {
    const continued = isContinued ? 1 : 0;
    const result = this.#core.table_evict(bytesToFree, familyBudget, continued, nowMs);
    const outcome = this.#figures.sliceOutcome(this.#call('table_evict', result));
    this.removals.pass();
    return outcome;
  }

  /** One slice of the sweep: reclaims up to `budget` expired reservations without pins. */
  sweepExpired(budget: number, nowMs: number): SliceOutcome {
    const result = this.#core.table_sweep_expired(budget, nowMs);
    return this.#figures.sliceOutcome(this.#call('table_sweep_expired', result));
  }

  /** Appends bytes at the end of the arena. */
  growArena(sizeBytes: number): void {
    this.#call('table_grow_arena', this.#core.table_grow_arena(sizeBytes));
  }

  // Questions about one slot that the caller holds

  offsetOf(slot: number): number {
    return this.#places[slot * RECORD_WORDS + PLACE_OFFSET]! * this.limits.alignBytes;
  }

  sizeOf(slot: number): number {
    return this.#places[slot * RECORD_WORDS + PLACE_SIZE]!;
  }

  namespaceOf(slot: number): number {
    return this.#keys[slot * RECORD_WORDS + KEY_NAMESPACE]!;
  }

  /** The first four bytes of the chunk hash of a slot, as a big-endian number. */
  hashWordOf(slot: number): number {
    const at = this.#keys[slot * RECORD_WORDS + KEY_FAMILY]! * HASH_SIZE_BYTES;
    return this.#hashView.getUint32(at);
  }

  /** Copies the first bytes of the chunk hash of a slot to `target`, as many as fit there. */
  copyHash(slot: number, target: Uint8Array): void {
    const start = this.#keys[slot * RECORD_WORDS + KEY_FAMILY]! * HASH_SIZE_BYTES;
    target.set(this.#familyHashes.subarray(start, start + target.length));
  }

  /** The first bytes of the chunk hash of a slot as text, a character for each (Latin-1). */
  hashTextOf(slot: number, sizeBytes: number): string {
    const start = this.#keys[slot * RECORD_WORDS + KEY_FAMILY]! * HASH_SIZE_BYTES;
    return this.#familyHashes.toString('latin1', start, start + sizeBytes);
  }

  // Figures

  /** Bytes of the arena that are not free, those of detached objects included. */
  get usedBytes(): number {
    this.#call('table_statistics', this.#core.table_statistics(0));
    return this.#figures.usedBytes;
  }

  /** O(1). Lock counts are as of the latest time that any call has named. */
  statistics(nowMs: number = 0): TableStatistics {
    this.#call('table_statistics', this.#core.table_statistics(nowMs));
    return this.#figures.read();
  }

  /** Walks the whole table; throws when a rule of assembly/check.ts is broken. */
  checkConsistency(): void {
    const rule = this.#call('table_check', this.#core.table_check());
    if (rule !== 0) throw new Error(`the object table breaks rule ${rule} of assembly/check.ts`);
  }

  #find(keys: ObjectKeys, writerTag: number): Uint32Array {
    const width = keys.namespaceIds.length;
    const parts: Uint32Array[] = [];
    for (const part of this.#batch.split(keys)) {
      this.#batch.loadKeys(part);
      this.#call('table_find', this.#core.table_find(part.chunkCount, width, writerTag));
      parts.push(this.#batch.slots.slice(0, part.chunkCount * width));
    }
    return concatenate(parts);
  }

  #forSlots(slots: Uint32Array, name: string, run: (count: number) => number): void {
    for (const first of this.#batch.starts(slots.length)) {
      this.#call(name, run(this.#batch.loadSlots(slots, first)));
    }
  }

  /** Passes a result >= 0 on. A code here means that the caller broke the contract of the call. */
  #call(name: string, result: number): number {
    if (result >= 0) return result;
    return this.#onTrap(new Error(`${name} answers ${resultName(result)}`));
  }
}
