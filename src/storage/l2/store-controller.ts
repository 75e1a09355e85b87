/**
 * L1 → L2: everything that an engine has stored goes to every adapter, behind its back.
 *
 *   finishStore ─▶ noteStored ─┬─▶ lane of adapter 0 ─▶ …
 *                              └─▶ lane of adapter 1 ─▶ …     (store-lane.ts)
 *
 * A store pays for one push per adapter; all work is done in later turns. Objects that were loaded
 * from an adapter do not come back here.
 *
 * Policies. `default`: L1 keeps what it has. `skip_l1`: L1 is a buffer; an object leaves it when
 * all adapters have had their say and at least one has it. If none has, it stays and is tried again
 * later (spec storage 8, 18.12, 18.13).
 */
import type { Clock, Timer } from '../../clock.ts';
import { NO_SLOT } from '../../core/object-table.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import type { L1Exchange, ResidentObject } from '../l1-exchange.ts';
import { type AdapterTable, type AttachedAdapter, withinTime } from './adapter-table.ts';
import { type StoreAnswer, StoreLane } from './store-lane.ts';

export type StorePolicyName = 'default' | 'skip_l1';

/** Until what no adapter has taken is offered again. */
const SECOND_ROUND_MS = 60_000;
/** Objects that wait for their second round. */
const SECOND_ROUND_COUNT_MAX = 65_536;

export interface StoreControllerOptions {
  readonly adapters: AdapterTable;
  readonly exchange: L1Exchange;
  readonly hashSizeBytes: number;
  readonly policy: StorePolicyName;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
}

/** What the adapters have said about the objects of one store (`skip_l1`). */
class StoredBatch {
  readonly slots: Uint32Array;
  readonly #pendingAdapters: Uint8Array;
  readonly #isStored: Uint8Array;
  #openCount: number;
  /** Objects that no adapter has taken, although they are there. */
  readonly refused = new Set<number>();

  constructor(slots: Uint32Array, adapterCount: number) {
    this.slots = slots;
    this.#pendingAdapters = new Uint8Array(slots.length).fill(adapterCount);
    this.#isStored = new Uint8Array(slots.length);
    this.#openCount = slots.length;
  }

  get isComplete(): boolean {
    return this.#openCount === 0;
  }

  /** True when that was the last adapter, and one of them has the object. */
  answer(item: number, isGone: boolean, isStored: boolean): boolean {
    const slot = this.slots[item] as number;
    if (isStored) this.#isStored[item] = 1;
    else if (!isGone) this.refused.add(slot);
    this.#pendingAdapters[item] = (this.#pendingAdapters[item] as number) - 1;
    if (this.#pendingAdapters[item] !== 0) return false;
    this.#openCount -= 1;
    if (this.#isStored[item]) this.refused.delete(slot);
    return this.#isStored[item] === 1;
  }
}

export class StoreController {
  readonly #options: StoreControllerOptions;
  readonly #lanes: StoreLane[] = [];
  readonly #secondRounds = new Map<Timer, number>();
  #secondRoundCount = 0;
  #isClosed = false;

  constructor(options: StoreControllerOptions) {
    this.#options = options;
    options.adapters.listen({
      attached: (adapter) => this.#lanes.push(this.#makeLane(adapter)),
      draining: (adapter) => this.#endLane(adapter),
    });
  }

  /** Slots that have just become readable (others among them do no harm). Cheap. */
  noteStored(finished: Uint32Array): void {
    if (this.#isClosed || this.#lanes.length === 0) return;
    const slots = finished.includes(NO_SLOT)
      ? finished.filter((slot) => slot !== NO_SLOT)
      : finished;
    if (slots.length === 0) return;
    const isBuffer = this.#options.policy === 'skip_l1';
    const batch = isBuffer ? new StoredBatch(slots, this.#lanes.length) : null;
    for (const lane of this.#lanes) lane.push({ slots, items: null, batch, tryCount: 0 });
  }

  /** In flight, per adapter, for gauges. */
  get lanes(): readonly StoreLane[] {
    return this.#lanes;
  }

  /** `storage_manager.store_controller` of `GET /status`. */
  status(): Record<string, unknown> {
    const sum = (of: (lane: StoreLane) => number) => this.#lanes.reduce((n, l) => n + of(l), 0);
    return {
      is_healthy: true,
      thread_alive: true,
      pending_keys_count: sum((lane) => lane.queuedCount),
      in_flight_task_count: sum((lane) => lane.inFlightCount),
      ...this.#options.adapters.counts(),
      adapters: this.#lanes.map(
        ({ adapter, queuedCount, inFlightCount, inFlightBytes, counts }) => ({
          adapter_index: adapter.store.id,
          pending_keys_count: queuedCount,
          in_flight_task_count: inFlightCount,
          in_flight_bytes: inFlightBytes,
          stored_count: counts.stored,
          stored_bytes: counts.storedBytes,
          failed_count: counts.failed,
          dropped_count: counts.dropped,
          gone_count: counts.gone,
          retried_count: counts.retried,
        }),
      ),
    };
  }

  /** Stores what waits, for at most `deadlineMs`; what is in flight then stays so. */
  async close(deadlineMs: number): Promise<void> {
    this.#isClosed = true;
    for (const timer of this.#secondRounds.keys()) timer.cancel();
    this.#secondRounds.clear();
    const done = Promise.all(this.#lanes.map((lane) => lane.finish()));
    const isDone = await withinTime(this.#options.clock, deadlineMs, done);
    if (isDone) return;
    const lost = this.#lanes.reduce((count, lane) => count + lane.queuedCount, 0);
    this.#options.log.warn(`shutdown: ${lost} objects could not be stored in L2 in time`);
    for (const lane of this.#lanes) lane.clear();
  }

  #makeLane(adapter: AttachedAdapter): StoreLane {
    const onAnswer = (answers: readonly StoreAnswer[]) => this.#answer(answers);
    return new StoreLane({ ...this.#options, adapter, onAnswer });
  }

  #endLane(adapter: AttachedAdapter): void {
    const index = this.#lanes.findIndex((lane) => lane.adapter === adapter);
    const [lane] = index < 0 ? [] : this.#lanes.splice(index, 1);
    lane?.clear();
  }

  #answer(answers: readonly StoreAnswer[]): void {
    if (this.#options.policy !== 'skip_l1') return;
    const objects: ResidentObject[] = [];
    for (const { batch, item, object, isStored } of answers) {
      if (!(batch instanceof StoredBatch)) continue;
      const isGone = object === null;
      if (batch.answer(item, isGone, isStored) && object) objects.push(object);
      if (batch.isComplete) this.#startSecondRound(batch);
    }
    this.#options.exchange.dropIdle(objects);
  }

  #startSecondRound({ refused }: StoredBatch): void {
    const count = refused.size;
    if (count === 0 || this.#isClosed) return;
    if (this.#secondRoundCount + count > SECOND_ROUND_COUNT_MAX) return;
    this.#secondRoundCount += count;
    const timer = this.#options.clock.after(SECOND_ROUND_MS, () => {
      this.#secondRounds.delete(timer);
      this.#secondRoundCount -= count;
      this.noteStored(Uint32Array.from(refused));
    });
    this.#secondRounds.set(timer, count);
  }
}
