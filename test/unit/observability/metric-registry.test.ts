import * as assert from 'uvu/assert';
import { withAliases } from '../../../src/observability/metrics/aliases.ts';
import {
  LEGACY_BUCKETS,
  legacyBuckets,
} from '../../../src/observability/metrics/catalogue/rows.ts';
import { CATALOGUE } from '../../../src/observability/metrics/catalogue.ts';
import type { InstrumentSpec } from '../../../src/observability/metrics/instrument.ts';
import { OTHER_LABEL } from '../../../src/observability/metrics/label-bounds.ts';
import { prometheusName } from '../../../src/observability/metrics/prometheus-name.ts';
import { type Family, MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import { readMetricVector } from '../../support/scenario-events.ts';
import { suite } from '../../support/suite.ts';

interface ReferenceInstrument {
  readonly scope: string;
  readonly name: string;
  readonly kind: string;
  readonly unit: string;
  readonly buckets: readonly number[] | null;
  readonly attributes: readonly string[];
  readonly prometheus_name: string;
}

const readInstruments = (version: string) =>
  readMetricVector<readonly ReferenceInstrument[]>(`instruments_${version}.json`);
const kindOf = ({ kind }: ReferenceInstrument) =>
  kind.replace('observable_', '') as InstrumentSpec['kind'];
const nameOf = ({ name, kind, unit }: InstrumentSpec) => prometheusName(name, kind, unit);

const COUNTER: InstrumentSpec = {
  ...{ name: 'kvd.test', scope: 'kvd', kind: 'counter', unit: '', help: 'For the test.' },
  labels: ['worker_id', 'cache_salt'],
};
const HISTOGRAM: InstrumentSpec = {
  ...COUNTER,
  ...{ name: 'kvd.test_seconds', kind: 'histogram', labels: ['instance_id'], buckets: [1, 10] },
};

/** Label values and value of each point of the first family. */
function pointsOf([family]: readonly Family[]): (readonly [string, number])[] {
  if (!family || !('points' in family)) return [];
  return family.points.map(({ labelValues, value }) => [labelValues.join(), value] as const);
}

suite('metric names', (test) => {
  for (const version of ['0.5.0', '0.5.6']) {
    test(`every instrument of ${version} gets its Prometheus name`, () => {
      const instruments = readInstruments(version);
      assert.ok(instruments.length > 70);
      for (const instrument of instruments) {
        const name = prometheusName(instrument.name, kindOf(instrument), instrument.unit);
        assert.is(name, instrument.prometheus_name);
      }
    });
  }

  test('units become words, and a unit that the name has already is not repeated', () => {
    assert.is(prometheusName('a.b', 'gauge', 'GB/s'), 'a_b_GB_per_second');
    assert.is(prometheusName('a.b', 'gauge', 'By/h'), 'a_b_bytes_per_hour');
    assert.is(prometheusName('a.b', 'histogram', '{x}/s'), 'a_b_per_second');
    assert.is(prometheusName('a__b.', 'gauge', '%'), 'a_b__percent');
    assert.is(prometheusName('9a', 'gauge', '1'), '_a');
    assert.is(prometheusName('a_seconds', 'histogram', 's'), 'a_seconds');
    assert.is(prometheusName('a_seconds_total', 'counter', 's'), 'a_seconds_total');
    assert.is(prometheusName('a', 'counter', 'two words'), 'a_two_words_total');
  });
});

suite('metric catalogue', (test) => {
  test('no two instruments share a name, here or in Prometheus', () => {
    assert.is(new Set(CATALOGUE.map(({ name }) => name)).size, CATALOGUE.length);
    assert.is(new Set(CATALOGUE.map(nameOf)).size, CATALOGUE.length);
  });

  test('it has every instrument of 0.5.0: meter, kind, unit, labels, default buckets', () => {
    const specs = new Map(CATALOGUE.map((spec) => [spec.name, spec]));
    const instruments = readInstruments('0.5.0');
    const scopes = Map.groupBy(instruments, ({ name }) => name);
    for (const instrument of instruments) {
      const spec = specs.get(instrument.name);
      assert.ok(spec, instrument.name);
      const { scope, kind, unit, labels } = spec;
      assert.ok(
        scopes.get(spec.name)?.some((row) => row.scope === scope),
        `${spec.name}: scope`,
      );
      assert.is(kind, kindOf(instrument), spec.name);
      assert.is(unit, instrument.unit, spec.name);
      // The adapter's index keeps two adapters of one type apart (field lesson 13.2).
      const added = spec.name === 'lmcache_mp.l2_usage_bytes' ? ['adapter_index'] : [];
      assert.equal(labels, [...instrument.attributes, ...added], spec.name);
      const buckets = instrument.buckets ?? undefined;
      assert.equal(legacyBuckets(spec).buckets, buckets, `${spec.name}: buckets`);
    }
  });

  test('a histogram has rising buckets that tell its values apart, and others have none', () => {
    for (const { name, kind, buckets = [] } of CATALOGUE) {
      assert.is(buckets.length > 0, kind === 'histogram', name);
      assert.equal(
        buckets,
        [...new Set(buckets)].toSorted((a, b) => a - b),
        name,
      );
      assert.not.equal(buckets, LEGACY_BUCKETS, name);
    }
  });

  test('legacy buckets are for the instruments of the reference', () => {
    const ofKvd = CATALOGUE.filter(({ name }) => name.startsWith('kvd.'));
    assert.ok(ofKvd.some(({ kind }) => kind === 'histogram'));
    for (const spec of ofKvd) assert.is(legacyBuckets(spec), spec);
  });

  test('help is a sentence in one line', () => {
    for (const { name, help } of CATALOGUE) assert.match(help, /^[^a-z][^\n|]*\.$/, name);
  });
});

suite('metric aliases', (test) => {
  test('each old name is a copy beside the real one', () => {
    const families = CATALOGUE.map((spec): Family => ({ spec, points: [] }));
    const all = withAliases(families);
    assert.equal(all.slice(0, families.length), families);
    assert.equal(
      all.slice(families.length).map(({ spec }) => nameOf(spec)),
      [
        'lmcache_mp_l0_l1_store_throughput_GBs',
        'lmcache_mp_l0_l1_store_throughput_gbs',
        'lmcache_mp_l0_l1_load_throughput_GBs',
        'lmcache_mp_l0_l1_load_throughput_gbs',
        'lmcache_mp_real_reuse_gap_objects_chunks',
        'lmcache_mp_l2_evicted_chunks_total',
        'lmcache_mp_l2_store_throughput_GBs',
        'lmcache_mp_l2_store_throughput_gbs',
        'lmcache_mp_l2_load_throughput_GBs',
        'lmcache_mp_l2_load_throughput_gbs',
        'lmcache_mp_l1_allocation_failure_total',
      ],
    );
    assert.is(new Set(all.map(({ spec }) => nameOf(spec))).size, all.length);
  });

  test('values go with the copy', () => {
    const registry = new MetricRegistry();
    const spec = CATALOGUE.find(({ name }) => name === 'lmcache_mp.l2_evicted_objects');
    registry.counter(spec as InstrumentSpec).add(3, 'tenant');
    const [original, copy] = withAliases(registry.collect());
    assert.equal(pointsOf([copy as Family]), [['tenant', 3]]);
    assert.equal(pointsOf([original as Family]), [['tenant', 3]]);
  });
});

suite('metric registry', (test) => {
  test('an instrument without a point is left out, and one of 0 is not', () => {
    const registry = new MetricRegistry();
    const counter = registry.counter(COUNTER);
    registry.histogram(HISTOGRAM);
    assert.equal(registry.collect(), []);
    counter.add(0, '1', 'a');
    assert.equal(pointsOf(registry.collect()), [['1,a', 0]]);
    assert.is(registry.counter(COUNTER), counter);
  });

  test('what is not a number is refused and makes no series', () => {
    const registry = new MetricRegistry();
    const counter = registry.counter(COUNTER);
    const histogram = registry.histogram(HISTOGRAM);
    const missing = undefined as unknown as number;
    for (const wrong of [missing, Number.NaN]) {
      assert.throws(() => counter.add(wrong, '1', 'a'), /cannot add/);
      assert.throws(() => histogram.record(wrong, '1'), /cannot record/);
    }
    assert.throws(() => counter.add(-1, '1', 'a'), /cannot add/);
    assert.equal(registry.collect(), []);
  });

  test('a value on a bound is in the bucket below it', () => {
    const registry = new MetricRegistry();
    const histogram = registry.histogram(HISTOGRAM);
    for (const value of [0, 1, 1.5, 10, 11]) histogram.record(value, 'i');
    const [point] = histogram.collect();
    const expected = { bucketCounts: [2, 2, 1], count: 5, sum: 23.5, min: 0, max: 11 };
    assert.equal(point?.value, expected);
  });

  test('salts beyond the bound share one series, and are counted', () => {
    const registry = new MetricRegistry({ saltCountMax: 2 });
    const counter = registry.counter(COUNTER);
    for (const salt of ['a', 'b', 'c', 'd', 'a', 'c', '']) counter.add(1, 'w', salt);
    const expected = [
      ['w,a', 2],
      ['w,b', 1],
      [`w,${OTHER_LABEL}`, 3],
      ['w,', 1],
    ] as const;
    assert.equal(pointsOf(registry.collect()), expected);
    assert.is(registry.bounds.foldedCounts.get('cache_salt'), 3);
  });

  test('a label value that is forgotten takes its series with it and makes room', () => {
    const registry = new MetricRegistry({ saltCountMax: 1 });
    const counter = registry.counter(COUNTER);
    counter.add(1, 'gone', 'a');
    counter.add(1, 'here', 'a');
    registry.histogram(HISTOGRAM).record(1, 'gone');
    registry.forget(['worker_id', 'instance_id'], 'gone');
    const families = registry.collect();
    assert.is(families.length, 1);
    assert.equal(pointsOf(families), [['here,a', 1]]);
    registry.forget(['cache_salt'], 'a');
    counter.add(1, 'here', 'b');
    assert.equal(pointsOf(registry.collect()), [['here,b', 1]]);
  });

  test('what is observed is read when somebody collects; what throws hides nothing else', () => {
    const registry = new MetricRegistry();
    let depth = 1;
    const gauge: InstrumentSpec = { ...COUNTER, name: 'kvd.depth', kind: 'gauge', labels: [] };
    registry.observe({ ...gauge, name: 'kvd.broken' }, () => {
      throw new Error('not yet');
    });
    registry.observe(gauge, () => depth);
    assert.equal(pointsOf(registry.collect()), [['', 1]]);
    depth = 2;
    assert.equal(pointsOf(registry.collect()), [['', 2]]);
  });
});
