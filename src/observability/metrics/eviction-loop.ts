/** Counts the turns of L1's eviction loop. */
import type { Subscriber } from '../event-bus.ts';
import { L1 } from './catalogue/l1.ts';
import type { MetricRegistry } from './registry.ts';

export function evictionLoopCounters(registry: MetricRegistry): Subscriber {
  const ticks = registry.counter(L1.evictionLoopTicks);
  const triggeredTicks = registry.counter(L1.evictionLoopTriggered);
  return {
    name: 'L1EvictionLoopSubscriber',
    counts: {
      'l1.eviction.loop_tick': ({ triggered }) => {
        ticks.add(1);
        if (triggered) triggeredTicks.add(1);
      },
    },
  };
}
