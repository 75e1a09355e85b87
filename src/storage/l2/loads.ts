/**
 * Loads that are running: each is one call of one adapter, into staged places of L1.
 *
 *   start ─▶ loading ──▶ loaded objects become readable, with the holds of all who wait for them
 *              │    └──▶ failed ones are abandoned
 *              └─deadline─▶ all are abandoned; what comes later is not looked at
 *
 * The places stay pinned, and the values locked in the adapter, until the adapter says that it has
 * let go of the buffers: a late answer cannot write into memory that is somebody else's by then.
 * Whoever wants an object that is being loaded joins its load; it is read once (spec storage 18.9).
 */
import type { Clock } from '../../clock.ts';
import { NO_SLOT } from '../../core/object-table.ts';
import { KvdError } from '../../errors.ts';
import type { L2Object, LoadResult } from '../../l2/backend.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import type { L2Task } from '../../l2/task.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import type { L1Exchange } from '../l1-exchange.ts';
import type { AttachedAdapter } from './adapter-table.ts';
import { reportFailure, reportTimeout } from './prefetch-room.ts';

/** Of one object. */
export interface LoadCell {
  /** Of the object, in this process: `Loads.find`. */
  readonly name: string;
  /** Staged and pinned. */
  readonly slot: number;
  readonly sizeBytes: number;
  readonly layoutTag: number;
  readonly layoutText: string;
  readonly key: ObjectKey;
}

export interface LoadWaiter {
  /** Of its events. */
  readonly requestId: number;
  readonly holdCount: number;
  /** Slots of the cells it waited for, held on its behalf; `NO_SLOT` for those that failed. */
  take(cells: readonly number[], slots: Uint32Array): void;
}

export interface LoadsOptions {
  readonly exchange: L1Exchange;
  readonly loadTimeoutMs: number;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

interface Part {
  readonly cells: number[];
  readonly places: number[];
}

class Load {
  readonly taskId: number;
  /** Of whoever began it; others have joined. */
  readonly requestId: number;
  readonly cells: readonly LoadCell[];
  readonly parts = new Map<LoadWaiter, Part>();

  constructor(taskId: number, requestId: number, cells: readonly LoadCell[]) {
    this.taskId = taskId;
    this.requestId = requestId;
    this.cells = cells;
  }
}

export class Loads {
  readonly #options: LoadsOptions;
  readonly #byName = new Map<string, { readonly load: Load; readonly place: number }>();
  /** Per adapter id: calls that have not ended, and their bytes. */
  readonly inFlight = new Map<number, { count: number; bytes: number }>();
  #latestTaskId = 0;

  constructor(options: LoadsOptions) {
    this.#options = options;
  }

  get cellCount(): number {
    return this.#byName.size;
  }

  /** The layout of an object that is being loaded. */
  layoutTagOf(name: string): number | undefined {
    const found = this.#byName.get(name);
    return found?.load.cells[found.place]?.layoutTag;
  }

  /** True when the waiter has to wait for that load, too, from now on; the object must be here. */
  join(name: string, waiter: LoadWaiter, cell: number): boolean {
    const found = this.#byName.get(name);
    return found !== undefined && addPart(found.load, waiter, cell, found.place);
  }

  /** `cells`: one number per object, for the waiter. The adapter's locks on them are given back. */
  start(
    adapter: AttachedAdapter,
    objects: readonly LoadCell[],
    owner: { readonly waiter: LoadWaiter; readonly cells: readonly number[] },
  ): void {
    const { exchange, clock, loadTimeoutMs } = this.#options;
    this.#latestTaskId += 1;
    const load = new Load(this.#latestTaskId, owner.waiter.requestId, objects);
    for (const [place, { name }] of objects.entries()) {
      this.#byName.set(name, { load, place });
      addPart(load, owner.waiter, owner.cells[place] as number, place);
    }
    const buffers = objects.map(({ key, slot, layoutText: layout }) => {
      return { key, bytes: exchange.bytesOf(slot), layout };
    });
    const bytes = objects.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
    this.#count(adapter, 1, bytes);
    this.#options.bus.publish('l2.load_task.submitted', {
      ...eventOf(adapter, load),
      keyCount: objects.length,
      totalBytes: bytes,
    });
    adapter.beginUse();
    const task = loadFrom(adapter, buffers, loadTimeoutMs);
    let isSettled = false;
    const settle = (results: readonly LoadResult[]) => {
      if (isSettled) return;
      isSettled = true;
      timer.cancel();
      this.#settle(adapter, load, results);
    };
    const late = new KvdError('ERR_L2_TIMEOUT', 'the load has taken too long');
    const timer = clock.after(loadTimeoutMs, () => settle(objects.map(() => late)));
    const end = () => {
      settle([]);
      exchange.unpin(Uint32Array.from(objects, ({ slot }) => slot));
      adapter.store.unlock(objects.map(({ key }) => key));
      this.#count(adapter, -1, -bytes);
      adapter.endUse();
    };
    void task.outcome.then(settle, () => settle([])).then(() => task.released.then(end, end));
  }

  #settle(adapter: AttachedAdapter, load: Load, results: readonly LoadResult[]): void {
    const { exchange, bus, log } = this.#options;
    const { cells } = load;
    for (const { name } of cells) this.#byName.delete(name);
    const places = [...cells.keys()];
    const loaded = places.filter((place) => results[place] === 'loaded');
    const failed = places.filter((place) => results[place] !== 'loaded');
    const cellsAt = (some: readonly number[]) => some.map((place) => cells[place] as LoadCell);
    const layoutTags = cellsAt(loaded).map(({ layoutTag }) => layoutTag);
    const resident = exchange.admit(slotsOf(cellsAt(loaded)), layoutTags);
    exchange.abandon(slotsOf(cellsAt(failed)));
    const slots = new Uint32Array(cells.length).fill(NO_SLOT);
    for (const [i, place] of loaded.entries()) slots[place] = resident[i] as number;
    const taken = [...load.parts].map(([waiter, part]) => {
      const own = Uint32Array.from(part.places, (place) => slots[place] as number);
      exchange.hold(heldOf(own), Math.max(1, waiter.holdCount));
      return { waiter, cells: part.cells, own };
    });
    const counts = { loadedCount: loaded.length, failedCount: failed.length };
    bus.publish('l2.load_task.completed', { ...eventOf(adapter, load), ...counts });
    this.#reportFailures(load, failed, results);
    for (const { waiter, cells: wanted, own } of taken) {
      try {
        waiter.take(wanted, own);
      } catch (error) {
        // Those who listen to a lookup; the others and the buffers must not suffer from it.
        log.limited('error', 'l2-prefetch', `the end of a prefetch: ${String(error)}`);
      }
    }
  }

  #reportFailures(
    { cells }: Load,
    failed: readonly number[],
    results: readonly LoadResult[],
  ): void {
    const countOf = new Map<FailureReason, number>();
    for (const place of failed) {
      const reason = reasonOf(results[place]);
      countOf.set(reason, (countOf.get(reason) ?? 0) + 1);
    }
    // What is loaded together was looked up together, and is of one model.
    const modelName = cells[0]?.key.modelName ?? '';
    for (const [reason, keyCount] of countOf) {
      reportFailure(this.#options, reason, { modelName, keyCount });
      if (reason !== 'load_timeout') continue;
      reportTimeout(this.#options, 'L2LoadTimeout', `a load of ${keyCount} objects from L2`);
    }
  }

  #count({ store }: AttachedAdapter, count: number, bytes: number): void {
    const known = this.inFlight.get(store.id) ?? { count: 0, bytes: 0 };
    known.count += count;
    known.bytes += bytes;
    if (known.count === 0) this.inFlight.delete(store.id);
    else this.inFlight.set(store.id, known);
  }
}

/** An adapter that throws has not begun. */
function loadFrom(
  { store }: AttachedAdapter,
  objects: readonly L2Object[],
  timeoutMs: number,
): L2Task<readonly LoadResult[]> {
  try {
    return store.load(objects, timeoutMs);
  } catch {
    return { outcome: Promise.resolve([]), released: Promise.resolve() };
  }
}

function addPart(load: Load, waiter: LoadWaiter, cell: number, place: number): boolean {
  const known = load.parts.get(waiter);
  if (!known) load.parts.set(waiter, { cells: [cell], places: [place] });
  else {
    known.cells.push(cell);
    known.places.push(place);
  }
  return !known;
}

type FailureReason = 'load_timeout' | 'serde_failure' | 'not_found';

function reasonOf(result: LoadResult | undefined): FailureReason {
  if (!(result instanceof KvdError)) return 'not_found';
  if (result.code === 'ERR_L2_TIMEOUT') return 'load_timeout';
  return result.code === 'ERR_L2_CORRUPT' ? 'serde_failure' : 'not_found';
}

function eventOf({ store }: AttachedAdapter, { requestId, taskId }: Load) {
  return { requestId, taskId, adapterIndex: store.id, l2Name: store.typeName };
}

function slotsOf(cells: readonly LoadCell[]): Uint32Array {
  return Uint32Array.from(cells, ({ slot }) => slot);
}

function heldOf(slots: Uint32Array): Uint32Array {
  return slots.filter((slot) => slot !== NO_SLOT);
}
