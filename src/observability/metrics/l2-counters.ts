/** Counts what L2 is asked for and does (spec observability 4.4). */
import type { Subscriber } from '../event-bus.ts';
import { L2 } from './catalogue/l2.ts';
import { addBySalt } from './l1-counters.ts';
import type { MetricRegistry } from './registry.ts';

export function l2Counters(registry: MetricRegistry): Subscriber {
  const storeSubmitted = registry.counter(L2.storeSubmitted);
  const storeSubmittedObjects = registry.counter(L2.storeSubmittedObjects);
  const storeCompleted = registry.counter(L2.storeCompleted);
  const storeCompletedObjects = registry.counter(L2.storeCompletedObjects);
  const storeFailed = registry.counter(L2.storeFailed);
  const loadCompleted = registry.counter(L2.loadCompleted);
  const prefetchLookup = registry.counter(L2.prefetchLookup);
  const prefetchLookupObjects = registry.counter(L2.prefetchLookupObjects);
  const prefetchHit = registry.counter(L2.prefetchHit);
  const prefetchLoadSubmitted = registry.counter(L2.prefetchLoadSubmitted);
  const prefetchLoadSubmittedObjects = registry.counter(L2.prefetchLoadSubmittedObjects);
  const prefetchLoadCompleted = registry.counter(L2.prefetchLoadCompleted);
  const evictedObjects = registry.counter(L2.evictedObjects);
  return {
    name: 'L2MetricsSubscriber',
    counts: {
      'l2.store.submitted': ({ countBySalt }) => {
        storeSubmitted.add(1);
        addBySalt(storeSubmittedObjects, countBySalt);
      },
      'l2.store.completed': ({ l2Name, failedCount, countBySalt }) => {
        storeCompleted.add(1, l2Name);
        addBySalt(storeCompletedObjects, countBySalt);
        if (failedCount > 0) storeFailed.add(failedCount, l2Name);
      },
      'l2.load_task.completed': ({ l2Name }) => loadCompleted.add(1, l2Name),
      'l2.prefetch.lookup.submitted': ({ countBySalt }) => {
        prefetchLookup.add(1);
        addBySalt(prefetchLookupObjects, countBySalt);
      },
      'l2.prefetch.lookup.completed': ({ prefixHitCount }) => prefetchHit.add(prefixHitCount),
      'l2.prefetch.load.submitted': ({ adapterCount, countBySalt }) => {
        prefetchLoadSubmitted.add(adapterCount);
        addBySalt(prefetchLoadSubmittedObjects, countBySalt);
      },
      'l2.prefetch.load.completed': ({ countBySalt }) =>
        addBySalt(prefetchLoadCompleted, countBySalt),
      'l2.keys.evicted': ({ countBySalt }) => addBySalt(evictedObjects, countBySalt),
    },
  };
}
