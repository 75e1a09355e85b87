/**
 * Rows of the catalogue in short form, and the boundaries of its histograms.
 *
 * The reference gives every histogram the default boundaries of its SDK, which put all rates and
 * all short times into one bucket (spec observability 14.6). Ours are the ones below;
 * `--metrics-buckets legacy` brings the others back for the instruments of the reference.
 */
import type { InstrumentSpec } from '../instrument.ts';

export const LEGACY_BUCKETS: readonly number[] = [
  0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000,
];

/** How long something lives: seconds to hours, those of the reference's later versions. */
export const LIFE_BUCKETS: readonly number[] = [
  1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400,
];
/** Longer gaps than five minutes are not told apart. */
export const EVICT_REUSE_BUCKETS: readonly number[] = [1, 5, 15, 30, 60, 120, 300];
/** GB/s: from a slow disk to the fastest memory. */
export const RATE_BUCKETS: readonly number[] = [
  0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256,
];
/** Every second power of two: with a series for each tenant, every line is one too many. */
export const OBJECT_GAP_BUCKETS: readonly number[] = [
  1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576,
];
/** Latencies: a request that touches nothing takes 0.1 ms, one that waits for L2 seconds. */
export const LATENCY_BUCKETS: readonly number[] = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
  30,
];

type Labels = readonly string[];

/** Makes rows of one meter. Counters count whole things unless a row says otherwise. */
export function rowsOf(scope: string) {
  return {
    counter: (name: string, unit: string, labels: Labels, help: string): InstrumentSpec => ({
      ...{ name, scope, kind: 'counter', unit, labels, help, isInteger: true },
    }),
    gauge: (name: string, unit: string, labels: Labels, help: string): InstrumentSpec => ({
      ...{ name, scope, kind: 'gauge', unit, labels, help, isInteger: true },
    }),
    /** A gauge of which values are fractions. */
    fraction: (name: string, unit: string, labels: Labels, help: string): InstrumentSpec => ({
      ...{ name, scope, kind: 'gauge', unit, labels, help },
    }),
    histogram: (
      name: string,
      unit: string,
      labels: Labels,
      buckets: readonly number[],
      help: string,
    ): InstrumentSpec => ({ name, scope, kind: 'histogram', unit, labels, help, buckets }),
  };
}

/** `--metrics-buckets legacy`: the boundaries that the reference gives to its histograms. */
export function legacyBuckets(spec: InstrumentSpec): InstrumentSpec {
  const isOurs = spec.name.startsWith('kvd.');
  return spec.kind === 'histogram' && !isOurs ? { ...spec, buckets: LEGACY_BUCKETS } : spec;
}
