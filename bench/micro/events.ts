/**
 * The event bus: what `publish` costs a request, and what subscribers cost later, per event.
 * Targets: publish below 1 µs; `/metrics` with 2,000 series below 20 ms.
 */

import { systemClock } from '../../src/clock.ts';
import { EventBus } from '../../src/observability/event-bus.ts';
import type { EventCatalogue, EventName } from '../../src/observability/events.ts';
import { attachMetrics } from '../../src/observability/metrics/metric-subscribers.ts';
import { prometheusText } from '../../src/observability/metrics/prometheus-text.ts';
import { MetricRegistry } from '../../src/observability/metrics/registry.ts';
import { percentile } from '../../test/support/waiting.ts';

const BATCH = 5_000;
const ROUNDS = 40;

const salts = new Map([['', 32]]);
const EVENTS: { readonly [N in EventName]?: EventCatalogue[N] } = {
  'request.finished': { operation: 'LOOKUP', queueSeconds: 0, seconds: 1e-4, error: null },
  'l1.read.finished': { keyCount: 32, countBySalt: salts, sampledKeys: [] },
  'mp.lookup_prefetch.end': {
    ...{ sessionId: 's', modelName: 'm', cacheSalt: '', foundCount: 32, requestedTokens: 8192 },
    ...{ hitTokens: 8192, readySeconds: 1e-4, error: null },
  },
};

function nanosecondsOf(run: () => void): number {
  const startMs = performance.now();
  run();
  return ((performance.now() - startMs) * 1e6) / BATCH;
}

const rows: Record<string, unknown>[] = [];
for (const [name, event] of Object.entries(EVENTS)) {
  const bus = new EventBus();
  attachMetrics(bus, { registry: new MetricRegistry(), clock: systemClock, sampleRate: 0.01 });
  const [publishing, draining]: [number[], number[]] = [[], []];
  for (let round = 0; round < ROUNDS; round += 1) {
    const publish = () => bus.publish(name as EventName, event as never);
    publishing.push(
      nanosecondsOf(() => {
        for (let i = 0; i < BATCH; i += 1) publish();
      }),
    );
    draining.push(nanosecondsOf(() => bus.drain()));
  }
  await bus.close();
  rows.push({
    event: name,
    'publish ns': Math.round(percentile(publishing, 0.5)),
    'subscribers ns': Math.round(percentile(draining, 0.5)),
  });
}
console.table(rows);

const registry = new MetricRegistry({ saltCountMax: 2_000 });
const counter = registry.counter({
  ...{ name: 'bench.series', scope: 'bench', kind: 'counter', unit: '', help: 'Series.' },
  labels: ['cache_salt'],
});
for (let i = 0; i < 2_000; i += 1) counter.add(1, `tenant-${i}`);
const times: number[] = [];
for (let round = 0; round < ROUNDS; round += 1) {
  const startMs = performance.now();
  await prometheusText(registry.collect());
  times.push(performance.now() - startMs);
}
console.log(`/metrics text of 2000 series: ${percentile(times, 0.5).toFixed(2)} ms`);
process.exit(0);
