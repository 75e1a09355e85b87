/** What the bus hears of the stores to one L2 adapter: begin and end of each of its calls. */
import type { EventBus } from '../../observability/event-bus.ts';
import type { CountBySalt } from '../../observability/events.ts';
import type { ResidentObject } from '../l1-exchange.ts';
import type { L2Store } from './l2-store.ts';

export class StoreReports {
  readonly #store: Pick<L2Store, 'id' | 'typeName'>;
  readonly #bus: EventBus;
  #latestTaskId = 0;

  constructor(store: Pick<L2Store, 'id' | 'typeName'>, bus: EventBus) {
    this.#store = store;
    this.#bus = bus;
  }

  /** Objects that left L1 before their store began. */
  gone(count: number): void {
    if (count === 0) return;
    // Their slots are others' by now, so nobody knows any more which model they were of.
    const countByModel = new Map([['', count]]);
    this.#bus.publish('l1.read.failed', { during: 'l2_store', reason: 'not_found', countByModel });
  }

  /** Returns the number of the call, for `completed`. */
  submitted(objects: readonly ResidentObject[]): number {
    const { id: adapterIndex, typeName: l2Name } = this.#store;
    this.#latestTaskId += 1;
    this.#bus.publish('l2.store.submitted', {
      ...{ adapterIndex, l2Name, taskId: this.#latestTaskId },
      keyCount: objects.length,
      totalBytes: bytesOf(objects),
      countBySalt: countSalts(objects),
    });
    return this.#latestTaskId;
  }

  completed(taskId: number, stored: readonly ResidentObject[], failedCount: number): void {
    const { id: adapterIndex, typeName: l2Name } = this.#store;
    this.#bus.publish('l2.store.completed', {
      ...{ adapterIndex, l2Name, taskId, failedCount },
      succeededCount: stored.length,
      bytesTransferred: bytesOf(stored),
      countBySalt: countSalts(stored),
    });
  }
}

function bytesOf(objects: readonly ResidentObject[]): number {
  return objects.reduce((sum, { sizeBytes }) => sum + sizeBytes, 0);
}

function countSalts(objects: readonly ResidentObject[]): CountBySalt {
  const counts = new Map<string, number>();
  for (const { namespace } of objects) {
    counts.set(namespace.cacheSalt, (counts.get(namespace.cacheSalt) ?? 0) + 1);
  }
  return counts;
}
