/**
 * One prefetch: from "L1 does not have all of it" to a prefix that is held for its readers.
 *
 *   queued ─▶ asking ─(all adapters have answered, or the deadline)─▶ planning ─▶ loading ─▶ done
 *      └─────────(deadline)──────────────────────────────────────────────────────────────────▶ done
 *
 * What L1 has is held from the start, also behind a gap, so that it is still there when the gap is
 * closed. Planning is one turn of the event loop: look again at L1 and at the loads that run,
 * choose the longest prefix for which there is room (prefetch-fit.ts), and start to load. What
 * comes in is held for this request as it comes; at the end the longest prefix that is there
 * counts, and all that it does not need is given back.
 *
 * A request that nobody wants any more goes on: its holds are given back when it is done, and its
 * readers see to that (engine/lookup-share.ts). Every path ends in `#finish`, which runs once.
 */
import type { Timer } from '../../clock.ts';
import type { Namespace } from '../../core/namespaces.ts';
import { NO_SLOT } from '../../core/object-table.ts';
import type { CountBySalt } from '../../observability/events.ts';
import type { GroupRule } from '../l1-manager.ts';
import type { SlowRequest } from '../prefetch-controller.ts';
import { countServableChunks, firstNeededChunk } from '../window-fold.ts';
import type { LoadCell, LoadWaiter } from './loads.ts';
import { objectKeyOf } from './object-names.ts';
import {
  type FittingPlan,
  FittingPlanner,
  type MissingCell,
  type PrefetchColumn,
} from './prefetch-fit.ts';
import { PrefetchLookup } from './prefetch-lookup.ts';
import type { PrefetchPlan } from './prefetch-plan.ts';
import { type PrefetchRoom, reportFailure, reportTimeout } from './prefetch-room.ts';

/** One call of an adapter: others who join a load wait for all of it. */
const LOAD_OBJECT_COUNT_MAX = 256;
const LOAD_BYTES_MAX = 256 * 1024 * 1024;

type Phase = 'queued' | 'asking' | 'loading' | 'done';

export class PrefetchRequest implements LoadWaiter {
  static #latestId = 0;
  /** Of its events. */
  readonly requestId: number;
  readonly #room: PrefetchRoom;
  readonly #request: SlowRequest;
  readonly #onDone: () => void;
  readonly #columns: readonly PrefetchColumn[];
  readonly #windows: readonly number[];
  /** Per cell: what L1 has of it, held for this request. */
  readonly #slots: Uint32Array;
  /** What L1 lacks, in key order. */
  #missing: MissingCell[] = [];
  #lookups: PrefetchLookup[] = [];
  #phase: Phase = 'queued';
  #timer: Timer | null = null;
  #openLoadCount = 0;
  /** Objects that adapters load for it, and how many of them have come. */
  readonly #loadingCells = new Set<number>();

  /** Takes its holds in place of those of the resident prefix, in one turn. */
  constructor(room: PrefetchRoom, request: SlowRequest, onDone: () => void) {
    const { keys, rules, held } = request;
    const { exchange, clock, lookupTimeoutMs } = room;
    PrefetchRequest.#latestId += 1;
    this.requestId = PrefetchRequest.#latestId;
    this.#room = room;
    this.#request = request;
    this.#onDone = onDone;
    this.#windows = keys.namespaceIds.map((_, c) => ruleOf(rules, c).windowChunks);
    this.#columns = keys.namespaceIds.map((id, c) => {
      const namespace = room.namespaces.describe(id);
      const shape = room.shapes.shapeOf(namespace, ruleOf(rules, c));
      return { namespace, prefix: prefixOf(namespace), shape };
    });
    this.#slots = exchange.findReadable(keys, rules);
    exchange.hold(heldOf(this.#slots), this.holdCount);
    exchange.releaseHolds(heldOf(held), request.holdCount);
    this.#timer = clock.after(lookupTimeoutMs, () => this.#endLookup('lookup_timeout'));
  }

  /** Also a request without readers holds what it has until it is done. */
  get holdCount(): number {
    return Math.max(1, this.#request.holdCount);
  }

  get phase(): Phase {
    return this.#phase;
  }

  /** Asks all adapters at once. */
  start(): void {
    if (this.#phase !== 'queued') return;
    this.#phase = 'asking';
    this.#missing = this.#findMissing();
    const wanted = this.#missing.map((cell) => cell.wanted);
    this.#lookups = this.#room.adapters.active.map((adapter) => new PrefetchLookup(adapter));
    this.#report('l2.prefetch.lookup.submitted', this.#missing.length, this.#lookups.length);
    const asked = this.#lookups.map((lookup) => lookup.run(wanted, this.#room.lookupTimeoutMs));
    void Promise.all(asked).then(() => this.#endLookup(null));
  }

  /** Done with what L1 has. */
  giveUp(reason: 'overload' | 'lookup_timeout'): void {
    if (this.#phase !== 'queued') return;
    this.#reportFailure(reason, this.#slots.length);
    this.#finish();
  }

  take(cells: readonly number[], slots: Uint32Array): void {
    for (const [i, cell] of cells.entries()) this.#slots[cell] = slots[i] as number;
    this.#openLoadCount -= 1;
    if (this.#openLoadCount === 0) this.#finish();
  }

  #findMissing(): MissingCell[] {
    const { hashes, firstChunk } = this.#request.keys;
    const { bytes, hashSizeBytes } = hashes;
    const missing: MissingCell[] = [];
    for (const [index, slot] of this.#slots.entries()) {
      const column = this.#columns[index % this.#columns.length] as PrefetchColumn;
      if (slot !== NO_SLOT || !column.shape) continue;
      const chunk = firstChunk + Math.floor(index / this.#columns.length);
      const chunkHash = bytes.subarray(chunk * hashSizeBytes, (chunk + 1) * hashSizeBytes);
      const key = objectKeyOf(column.namespace, chunkHash);
      const { objectSizeBytes: sizeBytes, layoutText, layoutTag } = column.shape;
      const name = column.prefix + Buffer.from(chunkHash).toString('latin1');
      missing.push({ index, name, wanted: { key, sizeBytes, layoutText }, layoutTag });
    }
    return missing;
  }

  /** The answers that have not come by now are misses. */
  #endLookup(reason: 'lookup_timeout' | null): void {
    if (this.#phase === 'queued' && reason) this.giveUp(reason);
    if (this.#phase !== 'asking') return;
    this.#phase = 'loading';
    this.#timer?.cancel();
    if (reason) {
      const lateCount = this.#lookups.filter(({ found }) => !found).length;
      if (lateCount > 0) this.#reportFailure(reason, this.#missing.length);
    }
    /** Cells of which a load has taken the adapter's lock over. */
    const taken = new Map<number, PrefetchLookup>();
    try {
      this.#planAndLoad(taken);
    } catch (error) {
      this.#room.log.limited('error', 'l2-prefetch', `prefetch from L2: ${String(error)}`);
    }
    for (const lookup of this.#lookups) {
      lookup.close((i) => taken.get((this.#missing[i] as MissingCell).index) === lookup);
    }
    if (this.#openLoadCount === 0) this.#finish();
  }

  #planAndLoad(taken: Map<number, PrefetchLookup>): void {
    this.#lookAtL1Again();
    const { task } = this.#request;
    const usable = this.#lookups.filter(({ adapter, found }) => found && !adapter.isDraining);
    const running = this.#findRunning();
    const input = {
      isResident: Uint8Array.from(this.#slots, (slot) => Number(slot !== NO_SLOT)),
      sources: [running, ...usable.map((lookup) => this.#cellsOf(lookup))],
      windows: this.#windows,
    };
    const isTemporary = !this.#room.keepsLoaded && this.#request.holdCount > 0;
    const missing = this.#missing;
    const planner = new FittingPlanner({
      ...this.#room,
      columns: this.#columns,
      missing,
      isTemporary,
    });
    const fitting = planner.plan(input, this.#request.keys.chunkCount);
    const chunkCount = fitting.plan.chunkCount;
    task.noteLookupHits(chunkCount);
    const hits = { requestId: this.requestId, prefixHitCount: chunkCount };
    this.#room.bus.publish('l2.prefetch.lookup.completed', hits);
    this.#joinRunning(fitting.plan);
    let adapterCount = 0;
    for (const [i, lookup] of usable.entries()) {
      const countBefore = this.#loadingCells.size;
      this.#startLoads(lookup, i + 1, fitting, taken);
      if (this.#loadingCells.size > countBefore) adapterCount += 1;
    }
    if (adapterCount === 0) return;
    this.#report('l2.prefetch.load.submitted', this.#loadingCells.size, adapterCount);
  }

  get #modelName(): string {
    return this.#columns[0]?.namespace.modelName ?? '';
  }

  /** All columns are of one tenant. */
  #countBySalt(keyCount: number): CountBySalt {
    const cacheSalt = this.#columns[0]?.namespace.cacheSalt ?? '';
    return new Map(keyCount > 0 ? [[cacheSalt, keyCount]] : []);
  }

  #report(
    event: 'l2.prefetch.lookup.submitted' | 'l2.prefetch.load.submitted',
    keyCount: number,
    adapterCount: number,
  ): void {
    const { requestId } = this;
    const countBySalt = this.#countBySalt(keyCount);
    this.#room.bus.publish(event, { requestId, keyCount, adapterCount, countBySalt });
  }

  #reportFailure(reason: 'overload' | 'lookup_timeout', keyCount: number): void {
    reportFailure(this.#room, reason, { modelName: this.#modelName, keyCount });
    if (reason !== 'lookup_timeout') return;
    reportTimeout(this.#room, 'L2LookupTimeout', `a lookup of ${keyCount} objects in L2`);
  }

  #reportLoaded(): void {
    const keyCount = this.#loadingCells.size;
    if (keyCount === 0) return;
    const cells = [...this.#loadingCells];
    const loadedCount = cells.filter((cell) => this.#slots[cell] !== NO_SLOT).length;
    this.#room.bus.publish('l2.prefetch.load.completed', {
      requestId: this.requestId,
      loadedCount,
      failedCount: keyCount - loadedCount,
      countBySalt: this.#countBySalt(loadedCount),
    });
  }

  /** Engines may have stored some of it while the adapters were asked. */
  #lookAtL1Again(): void {
    const { exchange } = this.#room;
    const { rules } = this.#request;
    const found = exchange.findReadable(this.#currentKeys(), rules);
    const isNew = found.map((slot, i) => (this.#slots[i] === NO_SLOT ? slot : NO_SLOT));
    exchange.hold(heldOf(isNew), this.holdCount);
    for (const [i, slot] of isNew.entries()) if (slot !== NO_SLOT) this.#slots[i] = slot;
  }

  /** Numbers of namespaces are good for one turn only. */
  #currentKeys() {
    const { namespaces } = this.#room;
    const namespaceIds = this.#columns.map(({ namespace }) => namespaces.intern(namespace));
    return { ...this.#request.keys, namespaceIds };
  }

  #findRunning(): Uint8Array {
    const { loads } = this.#room;
    const isRunning = new Uint8Array(this.#slots.length);
    if (loads.cellCount === 0) return isRunning;
    for (const { index, name } of this.#missing) {
      const layoutTag = loads.layoutTagOf(name);
      const { layoutTags } = ruleOf(this.#request.rules, index);
      if (layoutTag !== undefined && layoutTags.has(layoutTag)) isRunning[index] = 1;
    }
    return isRunning;
  }

  #cellsOf({ found }: PrefetchLookup): Uint8Array {
    const isFound = new Uint8Array(this.#slots.length);
    for (const [i, { index, name }] of this.#missing.entries()) {
      // One that is being loaded in another layout has no room of its own until that is over.
      const isFree = this.#room.loads.layoutTagOf(name) === undefined;
      if (found?.[i] && isFree) isFound[index] = 1;
    }
    return isFound;
  }

  #joinRunning({ sourceOf }: PrefetchPlan): void {
    const { loads } = this.#room;
    for (const { index, name } of this.#missing) {
      if (sourceOf[index] === 0 && loads.join(name, this, index)) this.#openLoadCount += 1;
    }
  }

  #startLoads(
    lookup: PrefetchLookup,
    source: number,
    fitting: FittingPlan,
    taken: Map<number, PrefetchLookup>,
  ): void {
    let objects: LoadCell[] = [];
    let cells: number[] = [];
    let bytes = 0;
    const flush = () => {
      if (objects.length === 0) return;
      this.#openLoadCount += 1;
      this.#room.loads.start(lookup.adapter, objects, { waiter: this, cells });
      objects = [];
      cells = [];
      bytes = 0;
    };
    for (const [i, { index, name, wanted, layoutTag }] of this.#missing.entries()) {
      if (fitting.plan.sourceOf[index] !== source) continue;
      const { sizeBytes, layoutText } = wanted;
      const isFull = objects.length >= LOAD_OBJECT_COUNT_MAX || bytes + sizeBytes > LOAD_BYTES_MAX;
      if (isFull) flush();
      const slot = fitting.slotOf.get(index) as number;
      const key = lookup.names[i] as LoadCell['key'];
      objects.push({ name, slot, sizeBytes, layoutTag, layoutText, key });
      cells.push(index);
      this.#loadingCells.add(index);
      bytes += sizeBytes;
      taken.set(index, lookup);
    }
    flush();
  }

  #finish(): void {
    if (this.#phase === 'done') return;
    this.#phase = 'done';
    this.#timer?.cancel();
    this.#reportLoaded();
    const { exchange } = this.#room;
    const { holdCount, task } = this.#request;
    const width = this.#columns.length;
    const isThere = Uint8Array.from(this.#slots, (slot) => Number(slot !== NO_SLOT));
    const chunkCount = countServableChunks(isThere, this.#windows);
    const result = this.#slots.slice(0, chunkCount * width);
    for (const [column, window] of this.#windows.entries()) {
      const firstKept = firstNeededChunk(chunkCount, window);
      for (let chunk = 0; chunk < firstKept; chunk += 1) result[chunk * width + column] = NO_SLOT;
    }
    const isSurplus = (slot: number, i: number) => slot !== NO_SLOT && result[i] !== slot;
    const surplus = holdCount === 0 ? heldOf(this.#slots) : this.#slots.filter(isSurplus);
    exchange.releaseHolds(surplus, this.holdCount);
    this.#onDone();
    task.complete({ slots: result, chunkCount });
  }
}

function ruleOf(rules: readonly GroupRule[], cell: number): GroupRule {
  return rules[cell % rules.length] as GroupRule;
}

/** The part of `MissingCell.name` that all objects of a namespace have. */
function prefixOf({ modelName, worldSize, workerId, objectGroupId, cacheSalt }: Namespace): string {
  return `${worldSize}/${workerId}/${objectGroupId}/${cacheSalt}/${modelName}/`;
}

function heldOf(slots: Uint32Array): Uint32Array {
  return slots.filter((slot) => slot !== NO_SLOT);
}
