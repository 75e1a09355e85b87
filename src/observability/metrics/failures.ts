/** Counts what went wrong (spec observability 4.4): one subscriber for each tier, one for time. */
import type { Subscriber } from '../event-bus.ts';
import { HEALTH } from './catalogue/health.ts';
import type { MetricRegistry } from './registry.ts';

export function l1Failures(registry: MetricRegistry): Subscriber {
  const allocationFailure = registry.counter(HEALTH.l1AllocationFailure);
  const readFailure = registry.counter(HEALTH.l1ReadFailure);
  return {
    name: 'L1FailureMetricsSubscriber',
    counts: {
      'l1.allocation.failed': ({ during, countByModel }) => {
        for (const [model, count] of countByModel) allocationFailure.add(count, during, model);
      },
      'l1.read.failed': ({ during, reason, countByModel }) => {
        for (const [model, count] of countByModel) readFailure.add(count, during, reason, model);
      },
    },
  };
}

export function l2Failures(registry: MetricRegistry): Subscriber {
  const prefetchFailure = registry.counter(HEALTH.l2PrefetchFailure);
  return {
    name: 'L2FailureMetricsSubscriber',
    counts: {
      'l2.prefetch.failed': ({ reason, countByModel }) => {
        for (const [model, count] of countByModel) prefetchFailure.add(count, reason, model);
      },
    },
  };
}

export function timeoutCounters(registry: MetricRegistry): Subscriber {
  const timeouts = registry.counter(HEALTH.timeouts);
  return {
    name: 'TimeoutMetricsSubscriber',
    counts: { 'timeout.raised': ({ exceptionType }) => timeouts.add(1, exceptionType) },
  };
}
