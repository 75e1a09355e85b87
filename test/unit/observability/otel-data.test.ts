import { ValueType } from '@opentelemetry/api';
import { AggregationTemporality, DataPointType } from '@opentelemetry/sdk-metrics';
import * as assert from 'uvu/assert';
import { RegistryProducer } from '../../../src/observability/metrics/otel-data.ts';
import { makeMetrics } from '../../support/otlp-house.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

async function collect(constantLabels: Readonly<Record<string, string>> = {}) {
  const clock = new VirtualClock();
  const metrics = makeMetrics();
  const producer = new RegistryProducer({ registry: metrics.registry, constantLabels, clock });
  clock.advance(2500);
  const { resourceMetrics, errors } = await producer.collect();
  assert.equal(errors, []);
  return { ...metrics, producer, scopes: resourceMetrics.scopeMetrics };
}

suite('registry as OpenTelemetry data', (test) => {
  test('each instrument is a metric of its scope', async () => {
    const { scopes } = await collect();
    const names = scopes.map(({ scope, metrics }) => [
      scope.name,
      ...metrics.map(({ descriptor }) => descriptor.name),
    ]);
    assert.equal(names, [
      ['lmcache.l1', 'lmcache_mp.l1_read'],
      ['lmcache_mp.perf', 'lmcache_mp.l2_load_throughput'],
      ['lmcache.l1_manager', 'lmcache_mp.l1_usage_ratio'],
    ]);
  });

  test('a counter is a cumulative sum of integers since the start', async () => {
    const { scopes } = await collect();
    const metric = scopes[0]?.metrics[0];
    const times = { startTime: [1_700_000_000, 0], endTime: [1_700_000_002, 500_000_000] };
    assert.equal(metric, {
      descriptor: {
        name: 'lmcache_mp.l1_read',
        description: 'Chunks read.',
        unit: 'chunks',
        valueType: ValueType.INT,
      },
      aggregationTemporality: AggregationTemporality.CUMULATIVE,
      dataPointType: DataPointType.SUM,
      isMonotonic: true,
      dataPoints: [
        { ...times, attributes: {}, value: 5 },
        { ...times, attributes: { cache_salt: 'tenant-a' }, value: 2 },
      ],
    });
  });

  test('a histogram has its bounds, and its values do not change afterwards', async () => {
    const { scopes, rate } = await collect();
    const metric = scopes[1]?.metrics[0];
    rate.record(0.1, 'fs');
    assert.is(metric?.dataPointType, DataPointType.HISTOGRAM);
    assert.equal(metric?.dataPoints[0]?.attributes, { l2_name: 'fs' });
    assert.equal(metric?.dataPoints[0]?.value, {
      buckets: { boundaries: [0.5, 1, 2], counts: [0, 1, 0, 1] },
      ...{ count: 2, sum: 4.75, min: 0.75, max: 4 },
    });
  });

  test('a gauge is a gauge of floats', async () => {
    const metric = (await collect()).scopes[2]?.metrics[0];
    assert.is(metric?.dataPointType, DataPointType.GAUGE);
    assert.is(metric?.descriptor.valueType, ValueType.DOUBLE);
    assert.is(metric?.dataPoints[0]?.value, 0.25);
  });

  test('an integer that is none is sent as a float, and not as another number', async () => {
    const { reads, producer } = await collect();
    reads.add(0.5, '');
    const { resourceMetrics } = await producer.collect();
    const metric = resourceMetrics.scopeMetrics[0]?.metrics[0];
    assert.is(metric?.descriptor.valueType, ValueType.DOUBLE);
  });

  test('a constant label is on every point', async () => {
    const { scopes } = await collect({ lmcache_instance_id: 'here' });
    for (const { metrics } of scopes) {
      for (const point of metrics.flatMap(({ dataPoints }) => [...dataPoints])) {
        assert.is(point.attributes['lmcache_instance_id'], 'here');
      }
    }
  });
});
