/** Counts what each worker has retrieved (spec observability 4.4). */
import type { Subscriber } from '../event-bus.ts';
import { ENGINE } from './catalogue/engine.ts';
import type { MetricRegistry } from './registry.ts';

export function engineCounters(registry: MetricRegistry): Subscriber {
  const chunksLoaded = registry.counter(ENGINE.chunksLoaded);
  return {
    name: 'EngineMetricsSubscriber',
    counts: {
      'mp.retrieve.end': ({ retrievedCount, engineId, modelName, cacheSalt }) => {
        if (retrievedCount > 0) chunksLoaded.add(retrievedCount, engineId, modelName, cacheSalt);
      },
    },
  };
}
