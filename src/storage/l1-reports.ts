/**
 * What L1 tells the bus about its objects: how many of each tenant, and which of them the lifecycle
 * histograms follow (spec observability 3, 5.1).
 *
 * Slots and namespace numbers are good for one turn, events live longer, so names are looked up
 * here. An object is followed when the first four bytes of its chunk hash, as a big-endian number,
 * are below a threshold; that takes the same chunks after a restart, and in every part of kvd.
 */
import type { Namespace, NamespaceTable } from '../core/namespaces.ts';
import { NO_SLOT, type ObjectKeys, type ObjectTable } from '../core/object-table.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { KeyReport, RemovalCause, SampledKey } from '../observability/events.ts';

export interface L1ReportsOptions {
  readonly table: ObjectTable;
  readonly namespaces: NamespaceTable;
  readonly bus: EventBus;
  /** Of the chunk hashes. */
  readonly hashSizeBytes: number;
  /** 0 follows nothing, 2^32 every object. */
  readonly sampleThreshold: number;
}

type WriteEvent = 'l1.write.finished' | 'l1.write_finished_and_read_reserved';

export class L1Reports {
  readonly #options: L1ReportsOptions;
  /** Objects that left and should have been followed, but were too many at once. */
  unfollowedCount = 0;

  constructor(options: L1ReportsOptions) {
    this.#options = options;
    options.table.departures.start(options.sampleThreshold);
  }

  /** Readers have let go of these objects, which are still there. */
  readFinished(slots: Uint32Array): void {
    const { bus } = this.#options;
    if (slots.length === 0 || !bus.hasListeners('l1.read.finished')) return;
    const report = this.#reportOf(slots, null);
    if (report.keyCount > 0) bus.publish('l1.read.finished', report);
  }

  /** Objects that have become readable; `codes` < 0 for those that have not. */
  written(event: WriteEvent, slots: Uint32Array, codes?: Int32Array): void {
    const { bus } = this.#options;
    if (!bus.hasListeners(event)) return;
    const report = this.#reportOf(slots, codes ?? null);
    if (report.keyCount > 0) bus.publish(event, report);
  }

  /** A reader has not found all of these: absent, or being written under that writer tag. */
  missing(keys: ObjectKeys, slots: Uint32Array, writerTag: number): void {
    const { table, namespaces, bus } = this.#options;
    if (!bus.hasListeners('l1.read.failed')) return;
    const staged = table.findStaged(keys, writerTag);
    const { modelName } = namespaces.describe(keys.namespaceIds[0] as number);
    const absentCount = slots.reduce((sum, slot) => sum + Number(slot === NO_SLOT), 0);
    const isLocked = (slot: number, i: number) => slot === NO_SLOT && staged[i] !== NO_SLOT;
    const lockedCount = slots.reduce((sum, slot, i) => sum + Number(isLocked(slot, i)), 0);
    const report = (reason: 'not_found' | 'write_locked', keyCount: number) => {
      if (keyCount === 0) return;
      const countByModel = new Map([[modelName, keyCount]]);
      bus.publish('l1.read.failed', { during: 'l1_retrieve', reason, countByModel });
    };
    report('write_locked', lockedCount);
    report('not_found', absentCount - lockedCount);
  }

  /** After a call that may have removed objects. */
  removed(cause: RemovalCause, isEverything: boolean = false): void {
    const { table, namespaces, bus, hashSizeBytes } = this.#options;
    const left = table.departures.take(hashSizeBytes);
    if (!left || !bus.hasListeners('l1.keys.evicted')) return;
    const countBySalt = new Map<string, number>();
    for (const { namespaceId, objectCount } of left.byNamespace) {
      add(countBySalt, namespaces.describe(namespaceId).cacheSalt, objectCount);
    }
    if (!isEverything) this.unfollowedCount += left.unnamedCount;
    bus.publish('l1.keys.evicted', {
      keyCount: left.objectCount,
      countBySalt,
      sampledKeys: isEverything
        ? []
        : left.named.map(({ namespaceId, chunkHash }) =>
            sampledKey(namespaces.describe(namespaceId), chunkHash),
          ),
      cause,
      bytes: left.bytes,
      isEverything,
    });
  }

  /** Of those slots that have one and whose code is no failure. */
  #reportOf(slots: Uint32Array, codes: Int32Array | null): KeyReport {
    const { table, namespaces, hashSizeBytes, sampleThreshold } = this.#options;
    const countBySalt: SaltCount[] = [];
    let sampledKeys: SampledKey[] | null = null;
    let keyCount = 0;
    let namespaceId = -1;
    let owner: Namespace | undefined;
    let latest: SaltCount = NO_SALT;
    // By index: this runs over all objects of every read and write, and iterators are dear.
    for (let i = 0; i < slots.length; i += 1) {
      const slot = slots[i] as number;
      if (slot === NO_SLOT || (codes && (codes[i] as number) < 0)) continue;
      const id = table.namespaceOf(slot);
      if (id !== namespaceId) {
        namespaceId = id;
        owner = namespaces.lookup(id);
        // Ranks and groups of a prompt have a namespace each, and one tenant.
        if (owner && (latest === NO_SALT || latest[0] !== owner.cacheSalt)) {
          latest = [owner.cacheSalt, 0];
          countBySalt.push(latest);
        }
      }
      // Of an object that was cleared while it was read, with the last of its tenant.
      if (!owner) continue;
      latest[1] += 1;
      keyCount += 1;
      if (table.hashWordOf(slot) >= sampleThreshold) continue;
      sampledKeys ??= [];
      sampledKeys.push(sampledKey(owner, table.hashTextOf(slot, hashSizeBytes)));
    }
    return { keyCount, countBySalt, sampledKeys: sampledKeys ?? NO_KEYS };
  }
}

type SaltCount = [cacheSalt: string, count: number];

const NO_SALT: SaltCount = ['', 0];
const NO_KEYS: readonly SampledKey[] = [];

function add(counts: Map<string, number>, salt: string, count: number): void {
  counts.set(salt, (counts.get(salt) ?? 0) + count);
}

function sampledKey(owner: Namespace, chunkHash: string): SampledKey {
  const { modelName, kvRank, objectGroupId, cacheSalt } = owner;
  return { chunkHash, modelName, kvRank, objectGroupId, cacheSalt };
}
