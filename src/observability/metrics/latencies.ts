/** How long clients wait (spec observability 14.16). Of adapters see `l2-throughput.ts`. */
import type { Subscriber } from '../event-bus.ts';
import { KVD } from './catalogue/kvd.ts';
import type { MetricRegistry } from './registry.ts';

export function latencies(registry: MetricRegistry): Subscriber {
  const request = registry.histogram(KVD.requestSeconds);
  const queue = registry.histogram(KVD.requestQueueSeconds);
  const lookupReady = registry.histogram(KVD.lookupReadySeconds);
  return {
    name: 'LatencyMetricsSubscriber',
    subscriptions: {
      'request.finished': ({ operation, seconds, queueSeconds }) => {
        request.record(seconds, operation);
        queue.record(queueSeconds, operation);
      },
      'mp.lookup_prefetch.end': ({ readySeconds }) => {
        if (readySeconds !== null) lookupReady.record(readySeconds);
      },
    },
  };
}
