/**
 * Metrics and spans pushed to a collector by OTLP (`--otlp-endpoint`).
 *
 *   registry ─▶ RegistryProducer ─▶ periodic reader, every 10 s ─┐
 *                                                                ├─▶ exporter: gRPC or HTTP
 *   span subscribers ─▶ OtelSpanSink ─▶ batches of 512, 5 s ─────┘
 *
 * The SDK and its exporters are loaded here and nowhere else, and only when there is an endpoint.
 * The exporters read OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT, _COMPRESSION and _CERTIFICATE by
 * themselves.
 *
 * A collector that is down costs a warning a minute and nothing else: metrics are cumulative and
 * come with the next success; the spans of a failed batch are lost, and counted, and at most 2048
 * wait. `close` sends what is left, and does not wait longer than 5 s for anybody.
 */
import type { Resource } from '@opentelemetry/resources';
import type { PushMetricExporter } from '@opentelemetry/sdk-metrics';
import type { SpanExporter } from '@opentelemetry/sdk-trace';
import type { Clock } from '../clock.ts';
import type { Logger } from './log.ts';
import type { ConstantLabels } from './metrics/prometheus-text.ts';
import type { MetricRegistry } from './metrics/registry.ts';
import { createResource } from './resource.ts';
import type { SpanSink } from './tracing/span-sink.ts';

export const OTLP_PROTOCOLS = ['grpc', 'http/protobuf'] as const;
export type OtlpProtocol = (typeof OTLP_PROTOCOLS)[number];
export type OtlpSignal = 'metrics' | 'traces';

export interface OtlpOptions {
  /** `http://` or no scheme: plaintext; `https://`: TLS. */
  readonly endpoint: string;
  readonly protocol?: OtlpProtocol;
  readonly instanceId: string;
  /** null = no metrics are pushed. */
  readonly registry: MetricRegistry | null;
  /** On every point. */
  readonly constantLabels?: ConstantLabels;
  readonly hasSpans: boolean;
  readonly log: Logger;
  readonly clock: Clock;
  readonly metricsIntervalMs?: number;
}

const METRICS_INTERVAL_MS = 10_000;
const EXPORT_TIMEOUT_MS = 10_000;
const SPAN_DELAY_MS = 5_000;
const SPAN_QUEUE_SIZE = 2048;
const SPAN_BATCH_SIZE = 512;
/** Half of what a supervisor usually leaves between SIGTERM and SIGKILL. */
const CLOSE_TIMEOUT_MS = 5_000;

/** Throws with a line for the user when this is no address. */
export function parseOtlpEndpoint(endpoint: string): URL {
  const text = endpoint.trim();
  try {
    const url = new URL(/^\w+:\/\//.test(text) ? text : `http://${text}`);
    if (/^https?:$/.test(url.protocol) && url.hostname !== '') return url;
  } catch {
    // The same message for whatever is wrong with it.
  }
  throw new Error(
    `expected http://HOST:PORT, https://HOST:PORT or HOST:PORT for OTLP, got "${endpoint}"`,
  );
}

/** Where the exporter of a signal sends to: gRPC has services, HTTP has paths. */
function urlOf(endpoint: URL, protocol: OtlpProtocol, signal: OtlpSignal): string {
  if (protocol === 'grpc') return `${endpoint.protocol}//${endpoint.host}`;
  return `${endpoint.origin}${endpoint.pathname.replace(/\/+$/, '')}/v1/${signal}`;
}

async function createMetricExporter(protocol: OtlpProtocol, url: string) {
  const { OTLPMetricExporter } = await (protocol === 'grpc'
    ? import('@opentelemetry/exporter-metrics-otlp-grpc')
    : import('@opentelemetry/exporter-metrics-otlp-proto'));
  return new OTLPMetricExporter({ url });
}

async function createSpanExporter(protocol: OtlpProtocol, url: string) {
  const { OTLPTraceExporter } = await (protocol === 'grpc'
    ? import('@opentelemetry/exporter-trace-otlp-grpc')
    : import('@opentelemetry/exporter-trace-otlp-proto'));
  return new OTLPTraceExporter({ url });
}

/** What the two kinds of exporters have in common. */
interface Exporter<T> {
  export(items: T, done: (result: ExportResult) => void): void;
  shutdown(): Promise<void>;
  forceFlush(): Promise<void>;
}
type ExportResult = Parameters<Parameters<SpanExporter['export']>[1]>[0];

/** The same exporter, whose failures are seen. */
function watched<T>(exporter: Exporter<T>, onFailure: (error: Error) => void): Exporter<T> {
  return {
    export: (items, done) =>
      exporter.export(items, (result) => {
        if (result.error) onFailure(result.error);
        done(result);
      }),
    shutdown: () => exporter.shutdown(),
    forceFlush: () => exporter.forceFlush(),
  };
}

export class OtlpExport {
  readonly #log: Logger;
  readonly #clock: Clock;
  readonly #host: string;
  readonly #failureCounts = new Map<OtlpSignal, number>();
  readonly #closers: (() => Promise<void>)[] = [];
  #spans: SpanSink | null = null;
  #closing: Promise<void> | null = null;

  private constructor({ log, clock }: OtlpOptions, host: string) {
    this.#log = log;
    this.#clock = clock;
    this.#host = host;
  }

  static async open(options: OtlpOptions): Promise<OtlpExport> {
    const endpoint = parseOtlpEndpoint(options.endpoint);
    const self = new OtlpExport(options, endpoint.host);
    await self.#listenToSdk();
    const { protocol = 'grpc', instanceId, registry } = options;
    const resource = await createResource(instanceId);
    const url = (signal: OtlpSignal): string => urlOf(endpoint, protocol, signal);
    if (registry) {
      const exporter = await createMetricExporter(protocol, url('metrics'));
      await self.#pushMetrics({ ...options, registry }, self.#watch('metrics', exporter), resource);
    }
    if (options.hasSpans) {
      const exporter = await createSpanExporter(protocol, url('traces'));
      await self.#pushSpans(self.#watch('traces', exporter), resource);
    }
    return self;
  }

  /** null = no spans are wanted. */
  get spans(): SpanSink | null {
    return this.#spans;
  }

  /** Exports that failed, by signal. */
  get failureCounts(): ReadonlyMap<OtlpSignal, number> {
    return this.#failureCounts;
  }

  /** Sends what is left, within 5 s. */
  close(): Promise<void> {
    this.#closing ??= this.#flush();
    return this.#closing;
  }

  async #flush(): Promise<void> {
    const late = Symbol('late');
    const flushed = Promise.allSettled(this.#closers.map((close) => close()));
    const { promise, resolve } = Promise.withResolvers<typeof late>();
    const timer = this.#clock.after(CLOSE_TIMEOUT_MS, () => resolve(late));
    const outcome = await Promise.race([flushed, promise]);
    timer.cancel();
    const { diag } = await import('@opentelemetry/api');
    diag.disable();
    if (outcome !== late) return;
    const seconds = CLOSE_TIMEOUT_MS / 1000;
    this.#log.warn(`${this.#host} did not take the last metrics and spans within ${seconds} s`);
  }

  async #pushMetrics(
    options: OtlpOptions & { readonly registry: MetricRegistry },
    exporter: PushMetricExporter,
    resource: Resource,
  ): Promise<void> {
    const [sdk, { RegistryProducer }] = await Promise.all([
      import('@opentelemetry/sdk-metrics'),
      import('./metrics/otel-data.ts'),
    ]);
    const intervalMs = options.metricsIntervalMs ?? METRICS_INTERVAL_MS;
    const reader = new sdk.PeriodicExportingMetricReader({
      exporter,
      exportIntervalMillis: intervalMs,
      exportTimeoutMillis: Math.min(intervalMs, EXPORT_TIMEOUT_MS),
      metricProducers: [new RegistryProducer(options)],
    });
    const provider = new sdk.MeterProvider({ resource, readers: [reader] });
    this.#closers.push(() => provider.shutdown());
  }

  async #pushSpans(exporter: SpanExporter, resource: Resource): Promise<void> {
    const [sdk, { OtelSpanSink }] = await Promise.all([
      import('@opentelemetry/sdk-trace'),
      import('./tracing/otel-span-sink.ts'),
    ]);
    const processor = new sdk.BatchSpanProcessor({
      exporter,
      scheduledDelayMillis: SPAN_DELAY_MS,
      maxQueueSize: SPAN_QUEUE_SIZE,
      maxExportBatchSize: SPAN_BATCH_SIZE,
      exportTimeoutMillis: EXPORT_TIMEOUT_MS,
    });
    const sink = new OtelSpanSink({ resource, processor });
    this.#spans = sink;
    this.#closers.push(() => sink.shutdown());
  }

  #watch<T>(signal: OtlpSignal, exporter: Exporter<T>): Exporter<T> {
    return watched(exporter, (error) => {
      const count = (this.#failureCounts.get(signal) ?? 0) + 1;
      this.#failureCounts.set(signal, count);
      this.#log.limited(
        'warn',
        'otlp-export',
        `cannot send ${signal} to ${this.#host}: ${error.message || error.name}; ` +
          `${count} exports failed so far`,
      );
    });
  }

  /**
   * What the SDK has to say. Its warnings are about settings and about spans that it dropped. Its
   * errors are failed exports, which the exporters' watch has counted and reported already.
   */
  async #listenToSdk(): Promise<void> {
    const { diag, DiagLogLevel } = await import('@opentelemetry/api');
    const log = this.#log;
    const text = (message: string, rest: readonly unknown[]): string =>
      [message, ...rest.map(String)].join(' ');
    const logger = {
      error: (message: string, ...rest: unknown[]) => log.debug(text(message, rest)),
      warn: (message: string, ...rest: unknown[]) => {
        const key = `otlp-sdk:${message.replaceAll(/\d+/g, '')}`;
        log.limited('warn', key, text(message, rest));
      },
      info() {},
      debug() {},
      verbose() {},
    };
    const logLevel = DiagLogLevel.WARN;
    diag.setLogger(logger, { logLevel, suppressOverrideMessage: true });
  }
}
