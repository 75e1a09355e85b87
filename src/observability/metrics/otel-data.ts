/**
 * The registry as the OpenTelemetry SDK sees it: one more producer of metric data, beside its own
 * instruments, of which we have none (instrument.ts says why).
 *
 *   scope (a meter's name) ─▶ metrics (a spec) ─▶ points (label values)
 *
 * Everything is cumulative since the server started. An empty value of an optional label is left
 * out, as is an instrument without points. Loaded with the exporters only (`../otlp.ts`).
 */
import { type Attributes, ValueType } from '@opentelemetry/api';
import { emptyResource } from '@opentelemetry/resources';
import {
  AggregationTemporality,
  type CollectionResult,
  type DataPoint,
  DataPointType,
  type Histogram,
  type MetricData,
  type MetricProducer,
} from '@opentelemetry/sdk-metrics';
import type { Clock } from '../../clock.ts';
import { hrTimeOf } from '../otel-time.ts';
import type { HistogramValue, InstrumentSpec, Point } from './instrument.ts';
import type { ConstantLabels } from './prometheus-text.ts';
import type { Family, MetricRegistry } from './registry.ts';

export interface RegistryProducerOptions {
  readonly registry: MetricRegistry;
  /** On every point. */
  readonly constantLabels?: ConstantLabels;
  readonly clock: Clock;
}

type Times = Pick<DataPoint<unknown>, 'startTime' | 'endTime'>;

export class RegistryProducer implements MetricProducer {
  readonly #registry: MetricRegistry;
  readonly #constantLabels: ConstantLabels;
  readonly #clock: Clock;
  readonly #startTime: DataPoint<unknown>['startTime'];

  constructor({ registry, constantLabels = {}, clock }: RegistryProducerOptions) {
    this.#registry = registry;
    this.#constantLabels = constantLabels;
    this.#clock = clock;
    this.#startTime = hrTimeOf(clock.wallMs() / 1000);
  }

  async collect(): Promise<CollectionResult> {
    const times = { startTime: this.#startTime, endTime: hrTimeOf(this.#clock.wallMs() / 1000) };
    const scopes = new Map<string, MetricData[]>();
    for (const family of this.#registry.collect()) {
      const { scope } = family.spec;
      const metrics = scopes.get(scope) ?? [];
      scopes.set(scope, metrics);
      metrics.push(this.#metricOf(family, times));
    }
    const scopeMetrics = Array.from(scopes, ([name, metrics]) => ({ scope: { name }, metrics }));
    // The reader takes the resource of its provider.
    return { resourceMetrics: { resource: emptyResource(), scopeMetrics }, errors: [] };
  }

  #metricOf(family: Family, times: Times): MetricData {
    const { spec } = family;
    const dataPoint = <V, T>({ labelValues, value }: Point<V>, convert: (value: V) => T) => ({
      ...times,
      attributes: this.#attributesOf(spec, labelValues),
      value: convert(value),
    });
    const base = {
      descriptor: {
        name: spec.name,
        description: spec.help,
        unit: spec.unit,
        valueType: isWhole(family) ? ValueType.INT : ValueType.DOUBLE,
      },
      aggregationTemporality: AggregationTemporality.CUMULATIVE,
    };
    if ('histograms' in family) {
      const convert = (value: HistogramValue) => histogramOf(spec, value);
      const dataPoints = family.histograms.map((point) => dataPoint(point, convert));
      return { ...base, dataPointType: DataPointType.HISTOGRAM, dataPoints };
    }
    const dataPoints = family.points.map((point) => dataPoint(point, (value) => value));
    return spec.kind === 'counter'
      ? { ...base, dataPointType: DataPointType.SUM, isMonotonic: true, dataPoints }
      : { ...base, dataPointType: DataPointType.GAUGE, dataPoints };
  }

  #attributesOf(spec: InstrumentSpec, labelValues: readonly string[]): Attributes {
    const attributes: Attributes = {};
    for (const [i, label] of spec.labels.entries()) {
      const value = labelValues[i] as string;
      if (!label.endsWith('?')) attributes[label] = value;
      else if (value !== '') attributes[label.slice(0, -1)] = value;
    }
    return Object.assign(attributes, this.#constantLabels);
  }
}

/** The encoder takes a fraction for an integer without a word, and sends something else. */
function isWhole(family: Family): boolean {
  const isInteger = family.spec.isInteger === true && 'points' in family;
  return isInteger && family.points.every(({ value }) => Number.isSafeInteger(value));
}

function histogramOf(spec: InstrumentSpec, value: HistogramValue): Histogram {
  const { count, sum, min, max } = value;
  const buckets = { boundaries: [...(spec.buckets ?? [])], counts: [...value.bucketCounts] };
  return { buckets, count, sum, min, max };
}
