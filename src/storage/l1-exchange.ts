/**
 * How objects move between L1 and slower stores.
 *
 *   out   finished slots ─▶ resolve (still the same object?) ─▶ pin ─▶ read ─▶ unpin
 *   in    findReadable, hold ─▶ reserve (staging, pinned) ─▶ write ─▶ admit or abandon ─▶ unpin
 *
 * Whoever follows the stores of L1 keeps slot numbers only, and looks at them later. By then a slot
 * may be somebody else's, or nobody's; `resolve` answers what is there now, so the worst that an
 * old number does is to name an object twice.
 *
 * What is loaded is staged under a writer tag of its own, invisible until all of its bytes are
 * there. A load that fails, or is late, is abandoned: its key is free at once, its memory when
 * nothing writes to it any more (spec storage 18.1 to 18.3).
 */
import type { Clock } from '../clock.ts';
import type { ChunkHashes } from '../core/chunk-hasher.ts';
import type { Namespace, NamespaceKey, NamespaceTable } from '../core/namespaces.ts';
import { NO_SLOT, type ObjectKeys, type ObjectTable } from '../core/object-table.ts';
import type { GroupRule, LayoutTags, ObjectShape } from './l1-manager.ts';
import type { L1Memory } from './l1-memory/l1-memory.ts';
import type { PreparedAhead } from './l1-memory/prepared-ahead.ts';
import type { L1Reports } from './l1-reports.ts';

/** Writer tag of what is loaded; stores have another one (l1-manager.ts). */
const WRITER_TAG_LOAD = 2;
/** Texts of layouts that are kept; workers of so many kinds do not meet on one server. */
const LAYOUT_COUNT_MAX = 4096;

/** Hashes of some chunks in one namespace, `hashSizeBytes` each. */
export interface Column {
  readonly namespace: NamespaceKey;
  readonly hashes: ChunkHashes;
}

export interface ResidentObject {
  readonly slot: number;
  readonly namespace: Namespace;
  readonly chunkHash: Uint8Array;
  readonly sizeBytes: number;
  readonly layoutTag: number;
}

export interface L1ExchangeOptions {
  readonly table: ObjectTable;
  readonly namespaces: NamespaceTable;
  readonly memory: L1Memory;
  readonly prepared: PreparedAhead;
  readonly clock: Clock;
  readonly reports: L1Reports;
  /** Per slot; L1Manager's own. */
  readonly layoutTags: Uint32Array;
}

export class L1Exchange {
  readonly #options: L1ExchangeOptions;
  readonly #table: ObjectTable;
  /** What the layout tags of stored objects stand for. */
  readonly #layoutTexts = new Map<number, string>();

  constructor(options: L1ExchangeOptions) {
    this.#options = options;
    this.#table = options.table;
  }

  noteLayout({ layoutTag, layoutText }: ObjectShape): void {
    if (this.#layoutTexts.has(layoutTag)) return;
    this.#layoutTexts.set(layoutTag, layoutText);
    if (this.#layoutTexts.size <= LAYOUT_COUNT_MAX) return;
    for (const oldest of this.#layoutTexts.keys()) {
      this.#layoutTexts.delete(oldest);
      return;
    }
  }

  /** Undefined when it has been forgotten. */
  layoutTextOf(layoutTag: number): string | undefined {
    return this.#layoutTexts.get(layoutTag);
  }

  // Out

  /** The resident objects among these slots, grouped by namespace. */
  resolve(slots: Uint32Array, hashSizeBytes: number): ResidentObject[] {
    const byNamespace = new Map<number, number[]>();
    for (const slot of slots) {
      const namespaceId = this.#table.namespaceOf(slot);
      const known = byNamespace.get(namespaceId);
      if (known) known.push(slot);
      else byNamespace.set(namespaceId, [slot]);
    }
    const objects: ResidentObject[] = [];
    for (const [namespaceId, members] of byNamespace) {
      const bytes = new Uint8Array(members.length * hashSizeBytes);
      const hashAt = (i: number) => bytes.subarray(i * hashSizeBytes, (i + 1) * hashSizeBytes);
      for (const [i, slot] of members.entries()) this.#table.copyHash(slot, hashAt(i));
      const hashes = { bytes, count: members.length, hashSizeBytes };
      const found = this.#table.find(oneColumn(namespaceId, hashes));
      for (const [i, slot] of members.entries()) {
        if (found[i] !== slot) continue;
        objects.push({
          slot,
          namespace: this.#options.namespaces.describe(namespaceId),
          chunkHash: hashAt(i),
          sizeBytes: this.#table.sizeOf(slot),
          layoutTag: this.#options.layoutTags[slot] as number,
        });
      }
    }
    return objects;
  }

  bytesOf(slot: number): Uint8Array {
    return this.#options.memory.view(this.#table.offsetOf(slot), this.#table.sizeOf(slot));
  }

  pin(slots: Uint32Array): void {
    if (slots.length > 0) this.#table.pin(slots);
  }

  unpin(slots: Uint32Array): void {
    if (slots.length > 0) this.#table.unpin(slots);
  }

  /** Of objects that have been stored elsewhere. */
  endRead(slots: Uint32Array): void {
    this.#options.reports.readFinished(slots);
    this.unpin(slots);
  }

  /** Takes objects out of L1 that nobody holds, as far as they are still what they were. */
  dropIdle(objects: readonly ResidentObject[]): void {
    for (const { slot, namespace, chunkHash } of objects) {
      const hashes = { bytes: chunkHash, count: 1, hashSizeBytes: chunkHash.length };
      const keys = oneColumn(this.#options.namespaces.find(namespace), hashes);
      if (this.#table.find(keys)[0] !== slot) continue;
      this.#table.deleteObjects(keys, false, this.#options.clock.nowMs());
    }
    this.#options.reports.removed('skip_l1');
  }

  // In

  /** Slots of the objects that readers may have, in key order; takes nothing. */
  findReadable(keys: ObjectKeys, rules: readonly GroupRule[]): Uint32Array {
    const found = this.#table.find(keys);
    for (const [i, slot] of found.entries()) {
      const { layoutTags } = rules[i % rules.length] as GroupRule;
      if (slot !== NO_SLOT && !this.#hasLayout(slot, layoutTags)) found[i] = NO_SLOT;
    }
    return found;
  }

  /** Of resident objects that were found in this turn. */
  hold(slots: Uint32Array, holdCount: number): void {
    if (slots.length > 0) this.#table.hold(slots, holdCount);
  }

  releaseHolds(slots: Uint32Array, holdCount: number): void {
    if (slots.length === 0) return;
    this.#table.releaseHolds(slots, holdCount);
    this.#options.reports.removed('temporary');
  }

  /**
   * Deletes what is resident there, as far as nobody holds it: objects of foreign layouts, in the
   * place of which others are going to be loaded. Marks those that stay.
   */
  removeStrangers({ namespace, hashes }: Column): Uint8Array {
    const keys = oneColumn(this.#options.namespaces.intern(namespace), hashes);
    const isLeft = (slots: Uint32Array) =>
      Uint8Array.from(slots, (slot) => Number(slot !== NO_SLOT));
    const found = this.#table.find(keys);
    if (found.every((slot) => slot === NO_SLOT)) return isLeft(found);
    this.#table.deleteObjects(keys, false, this.#options.clock.nowMs());
    this.#options.reports.removed('other_layout');
    return isLeft(this.#table.find(keys));
  }

  /** Staged and pinned places for all of them; null when one finds no room. */
  reserve(
    { namespace, hashes }: Column,
    shape: ObjectShape,
    isTemporary: boolean,
  ): Uint32Array | null {
    const { namespaces, clock, layoutTags, prepared } = this.#options;
    const keys = oneColumn(namespaces.intern(namespace), hashes);
    const { objectSizeBytes, layoutTag } = shape;
    const { slots } = this.#table.reserveWrite(
      keys,
      objectSizeBytes,
      WRITER_TAG_LOAD,
      clock.nowMs(),
      isTemporary,
    );
    const reserved = slots.filter((slot) => slot !== NO_SLOT);
    this.pin(reserved);
    if (reserved.length < slots.length) {
      this.abandon(reserved);
      this.unpin(reserved);
      return null;
    }
    for (const slot of slots) layoutTags[slot] = layoutTag;
    prepared.note(
      Float64Array.from(slots, (slot) => this.#table.offsetOf(slot)),
      objectSizeBytes,
    );
    return slots;
  }

  /**
   * Makes loaded objects readable. Answers the resident slot of each, or `NO_SLOT`: the key was
   * cleared meanwhile, or somebody has stored it in another layout. The pins stay.
   */
  admit(slots: Uint32Array, layoutTags: readonly number[]): Uint32Array {
    if (slots.length === 0) return slots;
    const nowMs = this.#options.clock.nowMs();
    // The writer is this process and still here, however long the load has taken.
    this.#table.extendWrite(slots, nowMs);
    const { slots: resident, codes } = this.#table.finishWriteAndHold(slots, nowMs);
    this.#options.reports.written('l1.write_finished_and_read_reserved', slots, codes);
    return resident.map((slot, i) => {
      const isIn = (codes[i] as number) >= 0;
      return isIn && this.#options.layoutTags[slot] === layoutTags[i] ? slot : NO_SLOT;
    });
  }

  /** Gives the keys of reservations up. Their memory stays until `unpin`. */
  abandon(slots: Uint32Array): void {
    if (slots.length > 0) this.#table.abandonWrite(slots, this.#options.clock.nowMs());
  }

  #hasLayout(slot: number, layoutTags: LayoutTags): boolean {
    return layoutTags.has(this.#options.layoutTags[slot] as number);
  }
}

function oneColumn(namespaceId: number, hashes: ChunkHashes): ObjectKeys {
  return { hashes, firstChunk: 0, chunkCount: hashes.count, namespaceIds: [namespaceId] };
}
