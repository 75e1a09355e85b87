/** Reads single series of a registry by OpenTelemetry name and label values. */
import type { HistogramValue } from '../../src/observability/metrics/instrument.ts';
import type { MetricRegistry } from '../../src/observability/metrics/registry.ts';

type Value = number | Pick<HistogramValue, 'count' | 'sum'>;

/** Label values → number, or count and sum of a histogram; empty when there is no series. */
export function readMetric(registry: MetricRegistry, name: string): Record<string, Value> {
  const family = registry.collect().find(({ spec }) => spec.name === name);
  if (!family) return {};
  const readings =
    'points' in family
      ? family.points.map(({ labelValues, value }) => [labelValues.join(), value] as const)
      : family.histograms.map(
          ({ labelValues, value: { count, sum } }) => [labelValues.join(), { count, sum }] as const,
        );
  return Object.fromEntries(readings);
}
