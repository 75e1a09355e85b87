/**
 * Which key is in which slot, and which slots may be written.
 *
 *     free ──reserve──▶ being written ──commit──▶ held ──retire──▶ ┬ no checkpoint names it ▶ free
 *      ▲                     │ cancel                              └ one does ▶ waiting
 *      └─────────────────────┘                                                    │
 *      ▲                                                                          │
 *      └────────────── a later checkpoint is on the device ◀──────────────────────┘
 *
 * Invariant: no slot that the newest checkpoint on the device names is ever written. So whatever a
 * crash interrupts, a checkpoint names whole values only; the header of a slot, by which an
 * overwritten one would betray itself, is a second line.
 *
 * A slot that is being read is not given on before the last reader has left.
 *
 * The text of the checkpoint has to fit its container: an object whose entry does not fit is
 * refused at once. The peer finds out when it writes the checkpoint, and then writes none.
 */
import { assert } from '../../assert.ts';
import { type DeviceLayout, offsetOfSlot } from './layout.ts';

export interface SlotEntry {
  readonly keyText: string;
  readonly slot: number;
  readonly sizeBytes: number;
  /** `"shape":…,"dtype":…,"fmt":…,"cached_positions":…`, ASCII; null = bytes without a shape. */
  readonly description: string | null;
  /** What it takes of a checkpoint. */
  readonly jsonBytes: number;
  /** A checkpoint on the device, or one that is being written, may name it. */
  isNamed: boolean;
  readerCount: number;
  isRetired: boolean;
}

export interface NewEntry {
  readonly keyText: string;
  readonly slot: number;
  readonly sizeBytes: number;
  readonly description: string | null;
}

/** Of the text around the entries, with all numbers at their longest. */
const FRAME_BYTES_MAX = 512;

export class SlotTable {
  readonly #layout: DeviceLayout;
  readonly #byKey = new Map<string, SlotEntry>();
  readonly #bySlot: (SlotEntry | null)[] = [];
  readonly #free: number[] = [];
  readonly #entryBytesMax: number;
  #waiting: number[] = [];
  #entryBytes = 0;
  #changeCount = 0;

  constructor(layout: DeviceLayout) {
    this.#layout = layout;
    const frameBytes = FRAME_BYTES_MAX + asciiJson(layout.devicePath).length;
    this.#entryBytesMax = layout.payloadBytesMax - frameBytes;
  }

  get keyCount(): number {
    return this.#byKey.size;
  }

  /** All slots from here on have never been used. */
  get nextSlot(): number {
    return this.#bySlot.length;
  }

  get freeCount(): number {
    return this.#free.length;
  }

  /** Slots that the next checkpoint sets free. */
  get waitingCount(): number {
    return this.#waiting.length;
  }

  get entryBytes(): number {
    return this.#entryBytes;
  }

  get entryBytesMax(): number {
    return this.#entryBytesMax;
  }

  /** Counts changes that a checkpoint has to tell. */
  get changeCount(): number {
    return this.#changeCount;
  }

  get(keyText: string): SlotEntry | undefined {
    return this.#byKey.get(keyText);
  }

  at(slot: number): SlotEntry | null {
    return this.#bySlot[slot] ?? null;
  }

  /** `no-slot`: none is free now; `no-metadata`: the checkpoint has no room for one more. */
  reserve(keyText: string, sizeBytes: number): SlotEntry | 'no-slot' | 'no-metadata' {
    const slot = this.#free.at(-1) ?? this.#bySlot.length;
    if (slot >= this.#layout.slotCount) return 'no-slot';
    const entry = makeEntry(this.#layout, { keyText, slot, sizeBytes, description: null });
    if (this.#entryBytes + entry.jsonBytes > this.#entryBytesMax) return 'no-metadata';
    if (this.#free.pop() === undefined) this.#bySlot.push(null);
    this.#entryBytes += entry.jsonBytes;
    return entry;
  }

  /** The value is on the device. */
  commit(entry: SlotEntry): void {
    this.retire(entry.keyText);
    this.#byKey.set(entry.keyText, entry);
    this.#bySlot[entry.slot] = entry;
    this.#changeCount += 1;
  }

  /** The value could not be written. */
  cancel(entry: SlotEntry): void {
    this.#entryBytes -= entry.jsonBytes;
    this.#free.push(entry.slot);
  }

  /** False when there is no such key. */
  retire(keyText: string): boolean {
    const entry = this.#byKey.get(keyText);
    if (!entry) return false;
    this.#byKey.delete(keyText);
    this.#bySlot[entry.slot] = null;
    this.#entryBytes -= entry.jsonBytes;
    this.#changeCount += 1;
    entry.isRetired = true;
    if (entry.readerCount === 0) this.#giveOn(entry);
    return true;
  }

  enter(entry: SlotEntry): void {
    entry.readerCount += 1;
  }

  leave(entry: SlotEntry): void {
    entry.readerCount -= 1;
    assert(entry.readerCount >= 0, 'a reader left a slot twice');
    if (entry.isRetired && entry.readerCount === 0) this.#giveOn(entry);
  }

  /** Slots that are set free when the checkpoint that begins now is on the device. */
  takeWaiting(): number[] {
    const slots = this.#waiting;
    this.#waiting = [];
    return slots;
  }

  putBackWaiting(slots: readonly number[]): void {
    for (const slot of slots) this.#waiting.push(slot);
  }

  addFree(slots: readonly number[]): void {
    for (const slot of slots) this.#free.push(slot);
  }

  /** What a checkpoint on the device names. Of two entries in one slot the first one counts. */
  restore(entries: Iterable<NewEntry>, nextSlot: number): void {
    assert(this.#bySlot.length === 0, 'a slot table is restored once, at first');
    while (this.#bySlot.length < nextSlot) this.#bySlot.push(null);
    for (const given of entries) {
      while (this.#bySlot.length <= given.slot) this.#bySlot.push(null);
      if (this.#bySlot[given.slot] !== null || this.#byKey.has(given.keyText)) continue;
      const entry = makeEntry(this.#layout, given);
      entry.isNamed = true;
      this.#byKey.set(entry.keyText, entry);
      this.#bySlot[entry.slot] = entry;
      this.#entryBytes += entry.jsonBytes;
    }
    // Low slots are taken first.
    for (let slot = this.#bySlot.length - 1; slot >= 0; slot -= 1) {
      if (this.#bySlot[slot] === null) this.#free.push(slot);
    }
  }

  #giveOn(entry: SlotEntry): void {
    if (entry.isNamed) this.#waiting.push(entry.slot);
    else this.#free.push(entry.slot);
  }
}

function makeEntry(layout: DeviceLayout, given: NewEntry): SlotEntry {
  const jsonBytes = entryJson(layout, given).length + ','.length;
  return { ...given, jsonBytes, isNamed: false, readerCount: 0, isRetired: false };
}

/** An entry of the checkpoint, ASCII: `"key":{…}`. */
export function entryJson(layout: DeviceLayout, entry: NewEntry): string {
  const { keyText, slot, sizeBytes } = entry;
  const description =
    entry.description ??
    `"shape":[${sizeBytes}],"dtype":"uint8","fmt":null,"cached_positions":null`;
  const place = `"offset":${offsetOfSlot(layout, slot)},"size":${sizeBytes}`;
  return `${asciiJson(keyText)}:{${place},${description}}`;
}

/** As the peer writes it: everything outside of ASCII is escaped. */
export function asciiJson(value: unknown): string {
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
