import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import type {
  InstrumentKind,
  InstrumentSpec,
} from '../../../src/observability/metrics/instrument.ts';
import {
  prometheusPieces,
  prometheusText,
} from '../../../src/observability/metrics/prometheus-text.ts';
import { type Family, MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import {
  type ParsedFamily,
  parsePrometheusText,
  samplesOf,
} from '../../support/prometheus-parser.ts';
import { suite } from '../../support/suite.ts';

const VECTORS = path.resolve(import.meta.dirname, '../../vectors/metrics');
const readVector = (name: string): string => fs.readFileSync(path.join(VECTORS, name), 'utf8');

function spec(name: string, parts: Partial<InstrumentSpec> = {}): InstrumentSpec {
  return { name, scope: 's', kind: 'counter', unit: '', labels: [], help: 'Help.', ...parts };
}

/** Series as they stand in the text, without values. */
async function seriesOf(registry: MetricRegistry): Promise<string[]> {
  return [...samplesOf(await prometheusText(registry.collect())).keys()];
}

interface VectorInstrument {
  readonly scope: string;
  readonly name: string;
  readonly kind: string;
  readonly unit: string;
  readonly buckets: readonly number[] | null;
  readonly prometheus_name: string;
  readonly attributes: readonly string[];
}

/** The family of the reference's text that an instrument of ours would have to give again. */
function familyOf(instrument: VectorInstrument, { samples }: ParsedFamily): Family {
  const { scope, name, unit, attributes: labels } = instrument;
  const kind = instrument.kind.replace(/^observable_/, '') as InstrumentKind;
  const valuesOf = (own: ReadonlyMap<string, string>): string[] =>
    labels.map((label) => own.get(label.replace('?', '')) ?? '');
  const row = { name, scope, kind, unit, labels, help: '' };
  if (kind !== 'histogram') {
    const points = samples.map((sample) => ({
      labelValues: valuesOf(sample.labels),
      value: sample.value,
    }));
    return { spec: row, points };
  }
  const groups = Map.groupBy(samples, (sample) => JSON.stringify(valuesOf(sample.labels)));
  const histograms = Array.from(groups, ([key, own]) => {
    const cumulated = own.slice(0, -2).map(({ value }) => value);
    const bucketCounts = cumulated.map((value, i) => value - (cumulated[i - 1] ?? 0));
    const [count, sum] = own.slice(-2).map(({ value }) => value) as [number, number];
    const value = { bucketCounts, count, sum, min: 0, max: 0 };
    return { labelValues: JSON.parse(key) as string[], value };
  });
  return { spec: { ...row, buckets: instrument.buckets ?? [] }, histograms };
}

suite('Prometheus text, beside the reference', (test) => {
  test('every event-driven instrument gives the same series in the same order', async () => {
    const expected = readVector('exposition_all_event_instruments.prom');
    const parsed = parsePrometheusText(expected);
    const rows = JSON.parse(readVector('instruments_0.5.0.json')) as VectorInstrument[];
    const byName = new Map(rows.map((row) => [row.prometheus_name, row]));
    const families = Array.from(parsed, ([name, family]) =>
      familyOf(byName.get(name) as VectorInstrument, family),
    );
    const text = await prometheusText(families);
    assert.equal([...samplesOf(text)], [...samplesOf(expected)]);
    const types = (from: Map<string, ParsedFamily>) =>
      Array.from(from, ([name, { type }]) => `${name} ${type}`);
    assert.equal(types(parsePrometheusText(text)), types(parsed));
    assert.ok(parsed.size > 40, `${parsed.size} families`);
  });
});

suite('Prometheus text', (test) => {
  test('a family is HELP, TYPE and its samples', async () => {
    const registry = new MetricRegistry();
    registry.counter(spec('a.b', { unit: 'chunks', labels: ['x'] })).add(3, 'one');
    registry.observe(spec('a.ratio', { kind: 'gauge', help: 'Ratio.' }), () => 0.25);
    assert.is(
      await prometheusText(registry.collect()),
      '# HELP a_b_chunks_total Help.\n# TYPE a_b_chunks_total counter\n' +
        'a_b_chunks_total{x="one"} 3\n' +
        '# HELP a_ratio Ratio.\n# TYPE a_ratio gauge\na_ratio 0.25\n',
    );
  });

  test('an optional label appears with the first point that has it, then everywhere', async () => {
    const registry = new MetricRegistry();
    const counter = registry.counter(spec('reads', { labels: ['cache_salt?'] }));
    counter.add(8, '');
    assert.equal(await seriesOf(registry), ['reads_total']);
    counter.add(1, 'a');
    assert.equal(await seriesOf(registry), [
      'reads_total{cache_salt=""}',
      'reads_total{cache_salt="a"}',
    ]);
  });

  test('a label that is always there is written when it is empty', async () => {
    const registry = new MetricRegistry();
    registry.counter(spec('reads', { labels: ['cache_salt'] })).add(1, '');
    assert.equal(await seriesOf(registry), ['reads_total{cache_salt=""}']);
  });

  test('labels are sorted, le among them, and bounds keep the form of floats', async () => {
    const registry = new MetricRegistry();
    const labels = ['model_name', 'device'];
    const row = spec('rate', { kind: 'histogram', unit: 'GB/s', labels, buckets: [0, 0.01, 5] });
    const histogram = registry.histogram(row);
    for (const value of [0, 0.01, 3, 7]) histogram.record(value, 'm', 'cpu');
    const name = 'rate_GB_per_second';
    assert.equal(
      [...samplesOf(await prometheusText(registry.collect()))],
      [
        [`${name}_bucket{device="cpu",le="0.0",model_name="m"}`, 1],
        [`${name}_bucket{device="cpu",le="0.01",model_name="m"}`, 2],
        [`${name}_bucket{device="cpu",le="5.0",model_name="m"}`, 3],
        [`${name}_bucket{device="cpu",le="+Inf",model_name="m"}`, 4],
        [`${name}_count{device="cpu",model_name="m"}`, 4],
        [`${name}_sum{device="cpu",model_name="m"}`, 10.01],
      ],
    );
  });

  test('two instruments of one name are one family with the labels of both', async () => {
    const registry = new MetricRegistry();
    registry.counter(spec('a.b', { labels: ['x'] })).add(1, 'one');
    registry.counter(spec('a_b', { labels: ['y'] })).add(2, 'two');
    assert.equal(
      [...samplesOf(await prometheusText(registry.collect()))],
      [
        ['a_b_total{x="one",y=""}', 1],
        ['a_b_total{x="",y="two"}', 2],
      ],
    );
  });

  test('of two equal series the first one stands', async () => {
    const registry = new MetricRegistry();
    registry.observe(spec('g', { kind: 'gauge', labels: ['x'] }), () => [
      [['one'], 1],
      [['one'], 2],
    ]);
    assert.equal([...samplesOf(await prometheusText(registry.collect()))], [['g{x="one"}', 1]]);
  });

  test('what another family has named so already is left out', async () => {
    const registry = new MetricRegistry();
    registry.observe(spec('g', { kind: 'gauge' }), () => 1);
    const histogram = { ...spec('g', { kind: 'histogram' }), buckets: [1] };
    const value = { bucketCounts: [1, 0], count: 1, sum: 1, min: 1, max: 1 };
    const families: Family[] = [
      ...registry.collect(),
      { spec: histogram, histograms: [{ labelValues: [], value }] },
    ];
    assert.equal([...samplesOf(await prometheusText(families))], [['g', 1]]);
  });

  test('what a label and a help text may not hold is escaped', async () => {
    const registry = new MetricRegistry();
    const value = 'back\\slash, "quotes",\nline';
    const help = 'A \\ and a\nline, and "quotes".';
    registry.counter(spec('c', { labels: ['x', 'y'], help })).add(1, value, 'plain');
    const text = await prometheusText(registry.collect());
    assert.match(text, '# HELP c_total A \\\\ and a\\nline, and "quotes".\n');
    assert.match(text, 'c_total{x="back\\\\slash, \\"quotes\\",\\nline",y="plain"} 1\n');
    const family = parsePrometheusText(text).get('c_total');
    assert.is(family?.samples[0]?.labels.get('x'), value);
    assert.is(family?.help, help);
  });

  test('values that are not finite are written as Prometheus reads them', async () => {
    const registry = new MetricRegistry();
    registry.observe(spec('up', { kind: 'gauge' }), () => Number.POSITIVE_INFINITY);
    registry.observe(spec('down', { kind: 'gauge' }), () => Number.NEGATIVE_INFINITY);
    registry.observe(spec('large', { kind: 'gauge' }), () => 4.74e30);
    const text = await prometheusText(registry.collect());
    for (const line of ['up +Inf\n', 'down -Inf\n', 'large 4.74e+30\n']) assert.match(text, line);
  });

  test('a constant label is on every series, in its place', async () => {
    const registry = new MetricRegistry();
    registry.counter(spec('c', { labels: ['z', 'a'] })).add(1, 'z', 'a');
    const row = spec('h', { kind: 'histogram', buckets: [1] });
    registry.histogram(row).record(1);
    const text = await prometheusText(registry.collect(), { lmcache_instance_id: 'here' });
    const series = [...samplesOf(text).keys()];
    assert.ok(series.includes('c_total{a="a",lmcache_instance_id="here",z="z"}'), series.join());
    assert.ok(series.includes('h_bucket{le="1.0",lmcache_instance_id="here"}'), series.join());
    assert.ok(series.includes('h_sum{lmcache_instance_id="here"}'), series.join());
  });

  test('no family gives no text', async () => {
    assert.is(await prometheusText([]), '');
  });

  test('2000 series leave the event loop its turns, and no histogram is cut', async () => {
    const registry = new MetricRegistry({ saltCountMax: 5000 });
    const labels = ['cache_salt'];
    const counter = registry.counter(spec('c', { labels }));
    const histogram = registry.histogram(spec('h', { kind: 'histogram', labels, buckets: [1, 2] }));
    for (let i = 0; i < 1000; i += 1) {
      counter.add(i, `salt ${i}`);
      histogram.record(i % 3, `salt ${i}`);
    }
    const pieces = [...prometheusPieces(registry.collect())];
    assert.ok(pieces.length >= 10, `${pieces.length} pieces`);
    for (const piece of pieces) {
      assert.ok(piece.split('\n').length < 520);
      assert.match(piece, /(_sum\{.*|c_total\{.*|counter|histogram)\n$/);
    }
    let turnCount = 0;
    let isDone = false;
    const turn = (): void => {
      turnCount += 1;
      // Recorded in the middle of a scrape: its histogram must belong together all the same.
      histogram.record(1, 'salt 999');
      if (!isDone) setImmediate(turn);
    };
    setImmediate(turn);
    const text = await prometheusText(registry.collect());
    isDone = true;
    assert.ok(turnCount >= pieces.length - 2, `${turnCount} turns, ${pieces.length} pieces`);
    assert.is(parsePrometheusText(text).get('h')?.samples.length, 5000);
  });
});
