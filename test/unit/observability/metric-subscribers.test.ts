import * as assert from 'uvu/assert';
import type { Subscriber } from '../../../src/observability/event-bus.ts';
import { blendCounters } from '../../../src/observability/metrics/blend.ts';
import { BUS } from '../../../src/observability/metrics/catalogue/health.ts';
import { legacyBuckets } from '../../../src/observability/metrics/catalogue/rows.ts';
import { engineCounters } from '../../../src/observability/metrics/engine.ts';
import { evictionLoopCounters } from '../../../src/observability/metrics/eviction-loop.ts';
import { l1Failures, l2Failures } from '../../../src/observability/metrics/failures.ts';
import { l0L1Throughput } from '../../../src/observability/metrics/l0-l1-throughput.ts';
import { l0Lifecycle } from '../../../src/observability/metrics/l0-lifecycle.ts';
import { l1Counters } from '../../../src/observability/metrics/l1-counters.ts';
import { l1Lifecycle } from '../../../src/observability/metrics/l1-lifecycle.ts';
import { l2Counters } from '../../../src/observability/metrics/l2-counters.ts';
import { l2Throughput } from '../../../src/observability/metrics/l2-throughput.ts';
import { lookupCounters } from '../../../src/observability/metrics/lookup.ts';
import { prometheusText } from '../../../src/observability/metrics/prometheus-text.ts';
import { MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import { smLifecycle } from '../../../src/observability/metrics/sm-lifecycle.ts';
import { samplesOf } from '../../support/prometheus-parser.ts';
import {
  deliver,
  readScenarios,
  type Scenario,
  ScenarioConverter,
} from '../../support/scenario-events.ts';
import { suite } from '../../support/suite.ts';

type Make = (registry: MetricRegistry, sampleRate: number) => Subscriber;

const SUBSCRIBERS: readonly Make[] = [
  (registry, sampleRate) => l0Lifecycle({ registry, sampleRate }),
  l1Counters,
  (registry) => l1Lifecycle({ registry }),
  l1Failures,
  evictionLoopCounters,
  l0L1Throughput,
  l2Counters,
  l2Failures,
  l2Throughput,
  lookupCounters,
  (registry, sampleRate) => smLifecycle({ registry, sampleRate }),
  blendCounters,
  engineCounters,
];
/** Not a subscriber of ours: `observeSelf` reads the bus. Spans are for another test. */
const OTHERS = /^EventBusSelfMetricsSubscriber$|TracingSubscriber$/;

/** What our improvements add to a scenario; everything of the reference is expected as it is. */
const ADDITIONS: readonly RegExp[] = [
  /^kvd_/,
  /^lmcache_mp_l1_removed_chunks_total\{/, // 14.10
  /^lmcache_mp_l2_store_failed_chunks_total\{/, // 14.12
];

/** The samples after all events, by the subscribers that a scenario names. */
async function replay(scenario: Scenario): Promise<Map<string, number>> {
  const registry = new MetricRegistry({ adapt: legacyBuckets });
  const subscribers = SUBSCRIBERS.map((make) => make(registry, scenario.sample_rate)).filter(
    ({ name }) => scenario.subscribers.includes(name),
  );
  const wanted = scenario.subscribers.filter((name) => !OTHERS.test(name));
  assert.equal(subscribers.map(({ name }) => name).toSorted(), wanted.toSorted());
  const exceptions = new Map<string, number>();
  const converter = new ScenarioConverter();
  for (const event of scenario.events.map((one) => converter.convert(one))) {
    for (const subscriber of subscribers) {
      try {
        deliver(subscriber, event);
      } catch {
        exceptions.set(subscriber.name, (exceptions.get(subscriber.name) ?? 0) + 1);
      }
    }
  }
  registry.observe(BUS.subscriberExceptions, () =>
    Array.from(exceptions, ([name, count]) => [[name], count] as const),
  );
  return samplesOf(await prometheusText(registry.collect()));
}

function expectedSamples({ expected_samples: lines }: Scenario): Map<string, number> {
  return new Map(
    lines.map((line) => {
      const at = line.lastIndexOf(' ');
      return [line.slice(0, at), Number(line.slice(at + 1))];
    }),
  );
}

suite('metric subscribers against the reference', (test) => {
  const scenarios = readScenarios().filter(({ expected_samples }) => expected_samples.length > 0);

  test('there is a scenario for each of them', () => {
    const registry = new MetricRegistry();
    const tested = new Set(scenarios.flatMap(({ subscribers }) => subscribers));
    for (const make of SUBSCRIBERS) assert.ok(tested.has(make(registry, 1).name));
    assert.is(scenarios.length, 11);
  });

  for (const scenario of scenarios) {
    test(`${scenario.name}: the samples are those of the reference`, async () => {
      const samples = await replay(scenario);
      for (const [series, value] of expectedSamples(scenario)) {
        assert.is(samples.get(series), value, `${series} is ${samples.get(series)}`);
        samples.delete(series);
      }
      const surplus = [...samples.keys()].filter(
        (series) => !ADDITIONS.some((addition) => addition.test(series)),
      );
      assert.equal(surplus, []);
    });
  }
});
