/**
 * What a Prometheus that scrapes kvd can be asked for: the catalogue under its Prometheus names,
 * the families of the process as a server writes them, and `up`, which Prometheus adds itself.
 */
import { CATALOGUE } from '../../src/observability/metrics/catalogue.ts';
import { prometheusName } from '../../src/observability/metrics/prometheus-name.ts';
import { MetricRegistry } from '../../src/observability/metrics/registry.ts';
import { PrometheusText } from '../../src/observability/prometheus.ts';
import { parsePrometheusText } from './prometheus-parser.ts';
import type { Metric } from './promql.ts';

const HISTOGRAM_PARTS = ['_bucket', '_count', '_sum'];

/** Series name → what it is. */
export async function servedMetrics(): Promise<Map<string, Metric>> {
  const metrics = new Map<string, Metric>([['up', { isCounter: false, labels: new Set() }]]);
  for (const { name, kind, unit, labels } of CATALOGUE) {
    const served = prometheusName(name, kind, unit);
    const names = new Set(labels.map((label) => label.replace(/\?$/, '')));
    if (kind !== 'histogram') metrics.set(served, { isCounter: kind === 'counter', labels: names });
    else {
      for (const part of HISTOGRAM_PARTS) {
        const isBucket = part === '_bucket';
        const partLabels = isBucket ? names.union(new Set(['le'])) : names;
        metrics.set(`${served}${part}`, { isCounter: true, labels: partLabels });
      }
    }
  }
  const text = await new PrometheusText({ instanceId: 'i', registry: new MetricRegistry() }).text();
  for (const { name, type, samples } of parsePrometheusText(text).values()) {
    const labels = new Set(samples.flatMap((sample) => [...sample.labels.keys()]));
    metrics.set(name, { isCounter: type === 'counter', labels });
  }
  return metrics;
}
