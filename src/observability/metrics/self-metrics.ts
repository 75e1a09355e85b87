/** Whether the metrics are whole: what the live bus and the registry say of themselves. */
import type { EventBus } from '../event-bus.ts';
import { BUS } from './catalogue/health.ts';
import { KVD } from './catalogue/kvd.ts';
import { byLabel, type MetricRegistry } from './registry.ts';

export function observeSelf(registry: MetricRegistry, bus: EventBus): void {
  registry.observe(BUS.queueDepth, () => bus.queueDepth);
  registry.observe(BUS.drainLagSeconds, () => bus.oldestEventLagSeconds);
  registry.observe(BUS.droppedEvents, () => bus.droppedEventsCount);
  registry.observe(BUS.subscriberExceptions, () => byLabel(bus.subscriberExceptionCounts));
  registry.observe(KVD.lostEvents, () => byLabel(bus.lostCounts));
  registry.observe(KVD.foldedLabelValues, () => byLabel(registry.bounds.foldedCounts));
}
