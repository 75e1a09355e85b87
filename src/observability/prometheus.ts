/**
 * The text of `GET /metrics`: the process, who it is, and what it counts.
 *
 *   process_*, nodejs_*         always
 *   target_info{…} 1            with metrics on: the resource
 *   lmcache_*, kvd_*            with metrics on: the registry
 */
import { type Clock, systemClock } from '../clock.ts';
import { type ConstantLabels, prometheusText } from './metrics/prometheus-text.ts';
import type { Family, MetricRegistry } from './metrics/registry.ts';
import { processFamilies } from './process-metrics.ts';
import { resourceAttributes } from './resource.ts';

export interface PrometheusOptions {
  readonly instanceId: string;
  /** null = metrics are off: only the families of the process appear. */
  readonly registry: MetricRegistry | null;
  /** On every series of the registry. */
  readonly constantLabels?: ConstantLabels;
  readonly clock?: Clock;
  /** OTEL_RESOURCE_ATTRIBUTES or OTEL_SERVICE_NAME is set. */
  readonly hasResourceVariables?: boolean;
}

async function targetFamily(options: PrometheusOptions): Promise<Family> {
  const { instanceId, hasResourceVariables = false } = options;
  const entries = Object.entries(await resourceAttributes(instanceId, hasResourceVariables));
  const labelValues = entries.map(([, value]) =>
    typeof value === 'string' ? value : JSON.stringify(value),
  );
  const labels = entries.map(([key]) => key);
  const help = 'The server whose metrics these are.';
  const spec = { name: 'target_info', scope: '', kind: 'gauge', unit: '', labels, help } as const;
  return { spec, points: [{ labelValues, value: 1 }] };
}

export class PrometheusText {
  readonly #options: PrometheusOptions;
  readonly #clock: Clock;
  #target: Promise<Family> | null = null;

  constructor(options: PrometheusOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    // Now and not when requests are waiting.
    if (options.registry && options.hasResourceVariables) this.#target = targetFamily(options);
  }

  async text(): Promise<string> {
    const { registry, constantLabels } = this.#options;
    const families = await processFamilies(this.#clock);
    if (!registry) return prometheusText(families);
    this.#target ??= targetFamily(this.#options);
    families.push(await this.#target);
    return (
      (await prometheusText(families)) + (await prometheusText(registry.collect(), constantLabels))
    );
  }
}
