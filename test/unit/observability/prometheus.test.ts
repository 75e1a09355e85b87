import * as assert from 'uvu/assert';
import { EventBus } from '../../../src/observability/events.ts';
import { EventCounters } from '../../../src/observability/metrics/event-counters.ts';
import { INSTRUMENTS } from '../../../src/observability/metrics/instruments.ts';
import { prometheusName } from '../../../src/observability/metrics/prometheus-name.ts';
import {
  BoundedCounts,
  type MetricsSnapshot,
  OTHER_LABEL,
} from '../../../src/observability/metrics/source.ts';
import { PrometheusText } from '../../../src/observability/prometheus.ts';
import { suite } from '../../support/suite.ts';

const SNAPSHOT: MetricsSnapshot = {
  l1UsedBytes: 256,
  l1TotalBytes: 1024,
  objectCount: 4,
  stagingObjectCount: 1,
  sessionCount: 2,
  instanceCount: 1,
  isEngineDrivenShm: true,
  quarantinedBytes: 4096,
  kvEventLogDepth: 7,
  prefetchJobCount: 3,
  inFlightRequestCount: 0,
  requestCounts: new Map([
    ['LOOKUP', 7],
    ['PING', 9],
  ]),
  requestCountsByDialect: new Map([['C', 16]]),
  clientCounts: new Map([
    ['C', 2],
    ['undetermined', 1],
  ]),
  failedRequestCounts: new Map(),
};

function house(snapshot: Partial<MetricsSnapshot> = {}, isOn = true) {
  const bus = new EventBus();
  const counters = isOn ? new EventCounters(bus) : null;
  const current = { ...SNAPSHOT, ...snapshot };
  const source = { snapshot: () => current };
  return { bus, current, text: new PrometheusText({ instanceId: 'here', source, counters }) };
}

/** Sample lines, `name{labels}` → value. */
function parse(text: string): Map<string, number> {
  const samples = new Map<string, number>();
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#')) continue;
    const at = line.lastIndexOf(' ');
    const series = line.slice(0, at);
    assert.not.ok(samples.has(series), `${series} appears twice`);
    samples.set(series, Number(line.slice(at + 1)));
  }
  return samples;
}

suite('metrics text', (test) => {
  test('gauges of the reference keep their names, ours have their labels', async () => {
    const samples = parse(await house().text.text());
    assert.is(samples.get('lmcache_mp_l1_memory_usage_bytes'), 256);
    assert.is(samples.get('lmcache_mp_l1_usage_ratio'), 0.25);
    assert.is(samples.get('lmcache_mp_active_prefetch_jobs'), 3);
    assert.is(samples.get('kvd_clients{dialect="undetermined"}'), 1);
    assert.is(samples.get('kvd_requests_by_dialect_total{dialect="C"}'), 16);
    const empty = parse(await house({ l1TotalBytes: 0, l1UsedBytes: 0 }).text.text());
    assert.is(empty.get('lmcache_mp_l1_usage_ratio'), 0);
  });

  test('events are counted without loss', async () => {
    const { bus, text } = house();
    for (let i = 0; i < 1000; i += 1) bus.publish('wire.bad_message', { reason: 'frame count' });
    bus.publish('wire.reply.lost', { reason: 'gone' });
    bus.publish('l1.keys.evicted', { objectCount: 2, bytes: 512 });
    bus.publish('l1.keys.evicted', { objectCount: 1, bytes: 256 });
    bus.publish('l1.eviction.loop_tick', { usageRatio: 0.9, isTriggered: true });
    bus.publish('l1.eviction.loop_tick', { usageRatio: 0.1, isTriggered: false });
    bus.publish('mp.session.end', { requestId: 'r' });
    const samples = parse(await text.text());
    assert.is(samples.get('kvd_bad_messages_total{reason="frame count"}'), 1000);
    assert.is(samples.get('kvd_lost_replies_total{reason="gone"}'), 1);
    assert.is(samples.get('kvd_evicted_objects_total'), 3);
    assert.is(samples.get('kvd_evicted_bytes_total'), 768);
    assert.is(samples.get('lmcache_mp_l1_eviction_loop_ticks_total'), 2);
    assert.is(samples.get('lmcache_mp_l1_eviction_loop_triggered_total'), 1);
    assert.is(samples.get('kvd_sessions_ended_total'), 1);
    assert.is(samples.get('kvd_requests_total{operation="LOOKUP"}'), 7);
  });

  test('a second scrape shows the new numbers', async () => {
    const { current, text } = house();
    await text.text();
    (current as { l1UsedBytes: number }).l1UsedBytes = 512;
    assert.is(parse(await text.text()).get('lmcache_mp_l1_memory_usage_bytes'), 512);
  });

  test('neither scope labels nor UNIT lines, and one target_info', async () => {
    const text = await house().text.text();
    assert.not.match(text, /otel_scope/);
    assert.not.match(text, /# UNIT/);
    assert.match(text, /^target_info\{service_instance_id="here",service_name="unknown_service",/m);
    for (const name of ['process_resident_memory_bytes', 'process_start_time_seconds']) {
      assert.ok(parse(text).get(name)! > 0, name);
    }
  });

  test('with metrics off only the process is shown', async () => {
    const text = await house({}, false).text.text();
    assert.not.match(text, /lmcache_mp|kvd_/);
    assert.match(text, /^process_resident_memory_bytes \d+$/m);
  });
});

suite('metric names', (test) => {
  test('follow the rules of the reference', () => {
    const expected: [string, 'gauge' | 'counter', string, string][] = [
      ['lmcache_mp.l1_read', 'counter', 'chunks', 'lmcache_mp_l1_read_chunks_total'],
      ['lmcache_mp.l1_memory_usage_bytes', 'gauge', '', 'lmcache_mp_l1_memory_usage_bytes'],
      ['lmcache_mp.l1_chunk_lifetime', 'gauge', 's', 'lmcache_mp_l1_chunk_lifetime_seconds'],
      ['a.b_total', 'counter', 'By', 'a_b_bytes_total'],
      ['a.b_bytes', 'counter', 'By', 'a_b_bytes_total'],
      ['a__b._c', 'gauge', '{chunks}', 'a_b_c'],
      ['1a', 'gauge', '1', '_a'],
    ];
    for (const [name, kind, unit, result] of expected) {
      assert.is(prometheusName(name, kind, unit), result);
    }
  });

  test('are unique', () => {
    const names = INSTRUMENTS.map((row) => prometheusName(row.name, row.kind, row.unit));
    assert.is(new Set(names).size, names.length);
  });
});

suite('bounded counts', (test) => {
  test('a peer cannot invent labels without end', () => {
    const counts = new BoundedCounts();
    for (let i = 0; i < 1000; i += 1) counts.add(`reason ${i}`);
    counts.add('reason 5');
    assert.is(counts.counts.size, 101);
    assert.is(counts.counts.get(OTHER_LABEL), 900);
    assert.is(counts.counts.get('reason 5'), 2);
  });
});
