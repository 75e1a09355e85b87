/**
 * All subscribers that move instruments, in the order of the reference (spec observability 1). A
 * new one is a file beside this one and a line here.
 */
import type { Clock } from '../../clock.ts';
import type { EventBus } from '../event-bus.ts';
import { blendCounters } from './blend.ts';
import { departedWorkers } from './departed-workers.ts';
import { engineCounters } from './engine.ts';
import { evictionLoopCounters } from './eviction-loop.ts';
import { l1Failures, l2Failures, timeoutCounters } from './failures.ts';
import { kvdCounters } from './kvd-counters.ts';
import { l0L1Throughput } from './l0-l1-throughput.ts';
import { l0Lifecycle } from './l0-lifecycle.ts';
import { l1Counters } from './l1-counters.ts';
import { l1Lifecycle } from './l1-lifecycle.ts';
import { l2Counters } from './l2-counters.ts';
import { l2Throughput } from './l2-throughput.ts';
import { latencies } from './latencies.ts';
import { lookupCounters } from './lookup.ts';
import type { MetricRegistry } from './registry.ts';
import { smLifecycle } from './sm-lifecycle.ts';

export interface MetricSubscriberOptions {
  readonly registry: MetricRegistry;
  readonly clock: Clock;
  /** `--metrics-sample-rate`. */
  readonly sampleRate: number;
}

export function attachMetrics(bus: EventBus, options: MetricSubscriberOptions): void {
  const { registry, clock } = options;
  registry.settleWith(() => bus.drain());
  const subscribers = [
    l0Lifecycle(options),
    l1Counters(registry),
    l1Lifecycle(options),
    l1Failures(registry),
    evictionLoopCounters(registry),
    l0L1Throughput(registry),
    l2Counters(registry),
    l2Failures(registry),
    l2Throughput(registry),
    lookupCounters(registry),
    smLifecycle(options),
    blendCounters(registry),
    engineCounters(registry),
    timeoutCounters(registry),
    kvdCounters(registry),
    latencies(registry),
    departedWorkers(registry, clock),
  ];
  for (const subscriber of subscribers) bus.attach(subscriber);
}
