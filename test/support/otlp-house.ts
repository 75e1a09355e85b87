/** An OTLP export with a small registry: one instrument of each kind, as the catalogue has them. */
import { systemClock } from '../../src/clock.ts';
import type {
  Counter,
  Histogram,
  InstrumentSpec,
} from '../../src/observability/metrics/instrument.ts';
import { MetricRegistry } from '../../src/observability/metrics/registry.ts';
import { OtlpExport, type OtlpOptions } from '../../src/observability/otlp.ts';
import { RecordingLogger } from './recording-logger.ts';

const READS: InstrumentSpec = {
  ...{ name: 'lmcache_mp.l1_read', scope: 'lmcache.l1', kind: 'counter', unit: 'chunks' },
  ...{ labels: ['cache_salt?'], help: 'Chunks read.', isInteger: true },
};
const RATE: InstrumentSpec = {
  ...{ name: 'lmcache_mp.l2_load_throughput', scope: 'lmcache_mp.perf', kind: 'histogram' },
  ...{ unit: 'GB/s', labels: ['l2_name'], help: 'Rate of loads.', buckets: [0.5, 1, 2] },
};
const USAGE: InstrumentSpec = {
  ...{ name: 'lmcache_mp.l1_usage_ratio', scope: 'lmcache.l1_manager', kind: 'gauge' },
  ...{ unit: '', labels: [], help: 'Share of L1 in use.' },
};

export interface OtlpHouse {
  readonly registry: MetricRegistry;
  readonly reads: Counter;
  readonly rate: Histogram;
}

/** With values: 5 reads, 2 of `tenant-a`, loads at 0.75 and 4 GB/s, L1 a quarter full. */
export function makeMetrics(): OtlpHouse {
  const registry = new MetricRegistry();
  const reads = registry.counter(READS);
  const rate = registry.histogram(RATE);
  registry.observe(USAGE, () => 0.25);
  reads.add(5, '');
  reads.add(2, 'tenant-a');
  rate.record(0.75, 'fs');
  rate.record(4, 'fs');
  return { registry, reads, rate };
}

export async function openExport(
  options: Partial<OtlpOptions> & Pick<OtlpOptions, 'endpoint'>,
): Promise<{ otlp: OtlpExport; log: RecordingLogger }> {
  const log = new RecordingLogger();
  const otlp = await OtlpExport.open({
    ...{ instanceId: 'here', registry: null, hasSpans: false, clock: systemClock, log },
    ...options,
  });
  return { otlp, log };
}
