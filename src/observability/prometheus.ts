/**
 * The text of `GET /metrics`.
 *
 * The OpenTelemetry SDK keeps the instruments and its Prometheus package writes the text; both are
 * loaded at the first scrape, because they cost memory and start time that a server without a
 * Prometheus does not need. Instruments are observable: the numbers live in the rooms and are read
 * when the SDK collects. Names and units are mapped before (`metrics/prometheus-name.ts`): the
 * serializer knows the rules of the reference neither for units nor for `# UNIT` lines.
 */
import { readFileSync } from 'node:fs';
import type { MetricReader } from '@opentelemetry/sdk-metrics';
import type { EventCounters } from './metrics/event-counters.ts';
import { INSTRUMENTS } from './metrics/instruments.ts';
import { prometheusName } from './metrics/prometheus-name.ts';
import type { Counts, MetricsSource } from './metrics/source.ts';

export interface PrometheusOptions {
  readonly instanceId: string;
  readonly source: MetricsSource;
  /** null = metrics are off: only the families of the process appear. */
  readonly counters: EventCounters | null;
}

interface Pipeline {
  readonly reader: MetricReader;
  readonly serialize: (result: Awaited<ReturnType<MetricReader['collect']>>) => string;
}

async function buildPipeline(options: PrometheusOptions): Promise<Pipeline> {
  const [sdk, resources, exporter] = await Promise.all([
    import('@opentelemetry/sdk-metrics'),
    import('@opentelemetry/resources'),
    import('@opentelemetry/exporter-prometheus'),
  ]);
  class PullReader extends sdk.MetricReader {
    protected override async onShutdown(): Promise<void> {}
    protected override async onForceFlush(): Promise<void> {}
  }
  const reader = new PullReader();
  // As the reference: the SDK's own attributes, then OTEL_SERVICE_NAME and
  // OTEL_RESOURCE_ATTRIBUTES, and the instance id above all.
  const resource = resources
    .defaultResource()
    .merge(resources.resourceFromAttributes({ 'service.name': 'unknown_service' }))
    .merge(resources.detectResources({ detectors: [resources.envDetector] }))
    .merge(resources.resourceFromAttributes({ 'service.instance.id': options.instanceId }));
  const provider = new sdk.MeterProvider({ resource, readers: [reader] });
  const meter = provider.getMeter('kvd');
  const { counters, source } = options;
  if (counters) {
    const instruments = INSTRUMENTS.map((row) => {
      const name = prometheusName(row.name, row.kind, row.unit);
      const metadata = { description: row.help };
      const observable =
        row.kind === 'counter'
          ? meter.createObservableCounter(name, metadata)
          : meter.createObservableGauge(name, metadata);
      return { row, observable };
    });
    meter.addBatchObservableCallback(
      (result) => {
        const snapshot = source.snapshot();
        for (const { row, observable } of instruments) {
          const value = row.read(snapshot, counters);
          if (typeof value === 'number') result.observe(observable, value);
          else
            observeCounts(value, row.label ?? 'kind', (n, labels) => {
              result.observe(observable, n, labels);
            });
        }
      },
      instruments.map(({ observable }) => observable),
    );
  }
  const serializer = new exporter.PrometheusSerializer(undefined, false, undefined, false, true);
  return { reader, serialize: (result) => serializer.serialize(result.resourceMetrics) };
}

function observeCounts(
  counts: Counts,
  label: string,
  observe: (value: number, labels: Record<string, string>) => void,
): void {
  for (const [value, count] of counts) observe(count, { [label]: value });
}

function family(name: string, type: 'gauge' | 'counter', value: number): string {
  return `# TYPE ${name} ${type}\n${name} ${value}\n`;
}

/** Linux counts processor time in ticks of 10 ms (USER_HZ is 100 on every supported machine). */
const TICKS_PER_SECOND = 100;

function processStartSeconds(): number {
  const stat = readFileSync('/proc/self/stat', 'utf8');
  const startTicks = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]);
  const boot = /^btime (\d+)$/m.exec(readFileSync('/proc/stat', 'utf8'));
  return Number(boot?.[1] ?? 0) + startTicks / TICKS_PER_SECOND;
}

/** The process families of the reference's answer, from the kernel. */
function processText(): string {
  const { rss } = process.memoryUsage();
  const { user, system } = process.cpuUsage();
  const pages = Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[0]);
  return (
    family('process_virtual_memory_bytes', 'gauge', pages * 4096) +
    family('process_resident_memory_bytes', 'gauge', rss) +
    family('process_start_time_seconds', 'gauge', processStartSeconds()) +
    family('process_cpu_seconds_total', 'counter', (user + system) / 1e6)
  );
}

export class PrometheusText {
  readonly #options: PrometheusOptions;
  #pipeline: Promise<Pipeline> | null = null;

  constructor(options: PrometheusOptions) {
    this.#options = options;
  }

  async text(): Promise<string> {
    this.#pipeline ??= buildPipeline(this.#options);
    const { reader, serialize } = await this.#pipeline;
    const result = await reader.collect();
    const [error] = result.errors;
    if (error) throw new Error('an instrument failed', { cause: error });
    return processText() + serialize(result);
  }
}
