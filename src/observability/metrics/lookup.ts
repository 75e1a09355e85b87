/** The hit rate: tokens asked for and found, by model and tenant (spec observability 4.4). */
import type { Subscriber } from '../event-bus.ts';
import { ENGINE } from './catalogue/engine.ts';
import type { MetricRegistry } from './registry.ts';

export function lookupCounters(registry: MetricRegistry): Subscriber {
  const requested = registry.counter(ENGINE.lookupRequested);
  const hit = registry.counter(ENGINE.lookupHit);
  return {
    name: 'LookupMetricsSubscriber',
    counts: {
      // Also when it was 0 tokens: the series is there from the first lookup on.
      'mp.lookup_prefetch.end': ({ requestedTokens, hitTokens, modelName, cacheSalt }) => {
        requested.add(requestedTokens, modelName, cacheSalt);
        hit.add(hitTokens, modelName, cacheSalt);
      },
    },
  };
}
