/** The collector of test/otlp/otlp_receiver.py, in the environment that `.ci/setup otlp` makes. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { deadline, until } from './waiting.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const SCRIPT = path.join(ROOT, 'test/otlp/otlp_receiver.py');
const START_DEADLINE_MS = 20_000;

interface AnyValue {
  readonly stringValue?: string;
  readonly intValue?: string;
  readonly boolValue?: boolean;
  readonly doubleValue?: number;
}
export interface KeyValue {
  readonly key: string;
  readonly value: AnyValue;
}

/** Protobuf's JSON: 64-bit integers are texts, enumerations their names, zeros absent. */
export interface NumberPoint {
  readonly attributes?: readonly KeyValue[];
  readonly startTimeUnixNano?: string;
  readonly timeUnixNano: string;
  readonly asInt?: string;
  readonly asDouble?: number;
}
export interface HistogramPoint extends Omit<NumberPoint, 'asInt' | 'asDouble'> {
  readonly count: string;
  readonly sum: number;
  readonly min: number;
  readonly max: number;
  readonly bucketCounts: readonly string[];
  readonly explicitBounds: readonly number[];
}
export interface Metric {
  readonly name: string;
  readonly unit?: string;
  readonly description?: string;
  readonly sum?: {
    readonly dataPoints: readonly NumberPoint[];
    readonly aggregationTemporality: string;
    readonly isMonotonic: boolean;
  };
  readonly gauge?: { readonly dataPoints: readonly NumberPoint[] };
  readonly histogram?: {
    readonly dataPoints: readonly HistogramPoint[];
    readonly aggregationTemporality: string;
  };
}
export interface SpanData {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes?: readonly KeyValue[];
  readonly status?: { readonly code?: string; readonly message?: string };
}
interface Scope {
  readonly name: string;
}
interface Resource {
  readonly attributes: readonly KeyValue[];
}

export interface OtlpRequest {
  readonly transport: 'grpc' | 'http';
  readonly signal: 'metrics' | 'traces';
  readonly headers: Readonly<Record<string, string>>;
  readonly body: {
    readonly resourceMetrics?: readonly {
      readonly resource: Resource;
      readonly scopeMetrics: readonly {
        readonly scope: Scope;
        readonly metrics: readonly Metric[];
      }[];
    }[];
    readonly resourceSpans?: readonly {
      readonly resource: Resource;
      readonly scopeSpans: readonly {
        readonly scope: Scope;
        readonly spans: readonly SpanData[];
      }[];
    }[];
  };
}

let python: string | null = null;

function findPython(): string {
  if (python === null) {
    const setup = spawnSync('bash', [path.join(ROOT, '.ci/setup'), 'otlp'], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    if (setup.status !== 0) throw new Error(`.ci/setup otlp: exit code ${setup.status}`);
    python = path.join(setup.stdout.trim(), 'bin/python');
  }
  return python;
}

export interface ReceiverOptions {
  /** It takes requests and never answers. */
  readonly isHanging?: boolean;
  /** That of an earlier one. */
  readonly grpcPort?: number;
}

export class OtlpReceiver {
  readonly requests: OtlpRequest[] = [];
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  #ports = { grpcPort: 0, httpPort: 0 };

  private constructor(child: ChildProcess) {
    this.#child = child;
    this.#ended = once(child, 'close');
  }

  static async start(options: ReceiverOptions = {}): Promise<OtlpReceiver> {
    const { isHanging = false, grpcPort = 0 } = options;
    const args = ['--grpc-port', String(grpcPort), ...(isHanging ? ['--hang'] : [])];
    const child = spawn(findPython(), ['-u', SCRIPT, ...args], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const receiver = new OtlpReceiver(child);
    const lines = createInterface({ input: child.stdout });
    const [first] = await deadline(once(lines, 'line'), START_DEADLINE_MS, 'no collector');
    receiver.#ports = JSON.parse(String(first));
    lines.on('line', (line) => receiver.requests.push(JSON.parse(line)));
    return receiver;
  }

  /** By protocol. */
  get endpoints(): Readonly<Record<'grpc' | 'http/protobuf', string>> {
    const { grpcPort, httpPort } = this.#ports;
    return {
      grpc: `http://127.0.0.1:${grpcPort}`,
      'http/protobuf': `http://127.0.0.1:${httpPort}`,
    };
  }

  of(signal: OtlpRequest['signal']): readonly OtlpRequest[] {
    return this.requests.filter((request) => request.signal === signal);
  }

  /** Waits until so many requests of this kind have come. */
  async received(signal: OtlpRequest['signal'], count: number, deadlineMs: number): Promise<void> {
    await until(() => this.of(signal).length >= count, deadlineMs, `${count} times ${signal}`);
  }

  async stop(): Promise<void> {
    this.#child.stdin?.end();
    await this.#ended;
  }
}

/** Metrics of a request by `scope/name`. */
export function metricsOf(request: OtlpRequest | undefined): Map<string, Metric> {
  const metrics = new Map<string, Metric>();
  for (const { scopeMetrics } of request?.body.resourceMetrics ?? []) {
    for (const { scope, metrics: own } of scopeMetrics) {
      for (const metric of own) metrics.set(`${scope.name}/${metric.name}`, metric);
    }
  }
  return metrics;
}

/** Spans of some requests, with their scopes. */
export function spansOf(requests: readonly OtlpRequest[]): (SpanData & { scope: string })[] {
  return requests
    .flatMap(({ body }) => body.resourceSpans ?? [])
    .flatMap(({ scopeSpans }) => scopeSpans)
    .flatMap(({ scope, spans }) => spans.map((span) => ({ ...span, scope: scope.name })));
}

export function attributesOf(pairs: readonly KeyValue[] = []): Record<string, unknown> {
  return Object.fromEntries(pairs.map(({ key, value }) => [key, Object.values(value)[0]]));
}

export function resourceOf({ body }: OtlpRequest): Record<string, unknown> {
  const [first] = body.resourceMetrics ?? body.resourceSpans ?? [];
  return attributesOf(first?.resource.attributes);
}
