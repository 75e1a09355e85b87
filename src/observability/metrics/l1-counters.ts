/** Counts objects in L1 by tenant (spec observability 4.4). */
import type { Subscriber } from '../event-bus.ts';
import type { CountBySalt, KeyReport } from '../events.ts';
import { L1 } from './catalogue/l1.ts';
import type { Counter } from './instrument.ts';
import type { MetricRegistry } from './registry.ts';

/** Adds each tenant's part to its series. */
export function addBySalt(counter: Counter, countBySalt: CountBySalt): void {
  for (const [salt, count] of countBySalt) counter.add(count, salt);
}

export function l1Counters(registry: MetricRegistry): Subscriber {
  const read = registry.counter(L1.read);
  const clientRead = registry.counter(L1.clientRead);
  const write = registry.counter(L1.write);
  const evicted = registry.counter(L1.evicted);
  const removed = registry.counter(L1.removed);
  const ttlLockExpire = registry.counter(L1.ttlLockExpire);
  const countWritten = ({ countBySalt }: KeyReport) => addBySalt(write, countBySalt);
  return {
    name: 'L1MetricsSubscriber',
    counts: {
      'l1.read.finished': ({ countBySalt }) => addBySalt(read, countBySalt),
      'l1.write.finished': countWritten,
      'l1.write_finished_and_read_reserved': countWritten,
      'l1.keys.evicted': ({ keyCount, countBySalt, cause }) => {
        if (keyCount === 0) return;
        addBySalt(evicted, countBySalt);
        removed.add(keyCount, cause);
      },
      'l1.lock.expired': ({ mode, keyCount }) => ttlLockExpire.add(keyCount, mode),
      'mp.retrieve.end': ({ retrievedCount, cacheSalt }) => {
        if (retrievedCount > 0) clientRead.add(retrievedCount, cacheSalt);
      },
    },
  };
}
