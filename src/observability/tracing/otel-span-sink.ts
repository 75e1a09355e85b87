/**
 * Spans for the OpenTelemetry SDK: every one is kept, and its processors send them on. Loaded with
 * the exporters only (`../otlp.ts`).
 *
 * A first span may say what its trace's id is made of, so that others can find the trace. The SDK
 * asks its generator for the id in the middle of `startSpan`: the seed waits there.
 */
import { createHash } from 'node:crypto';
import {
  type Attributes,
  ROOT_CONTEXT,
  type Span,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';
import type { Resource } from '@opentelemetry/resources';
import {
  type IdGenerator,
  RandomIdGenerator,
  type SpanProcessor,
  TracerProvider,
} from '@opentelemetry/sdk-trace';
import { hrTimeOf } from '../otel-time.ts';
import type { OpenSpan, SpanAttributes, SpanSink, SpanStart } from './span-sink.ts';

const TRACE_ID_DIGITS = 32;

class TraceIds implements IdGenerator {
  readonly #random = new RandomIdGenerator();
  /** Of the trace that is about to start; undefined = a random id. */
  seed: string | undefined;

  generateTraceId(): string {
    if (this.seed === undefined) return this.#random.generateTraceId();
    return createHash('sha256').update(this.seed).digest('hex').slice(0, TRACE_ID_DIGITS);
  }

  generateSpanId(): string {
    return this.#random.generateSpanId();
  }
}

class OtelSpan implements OpenSpan {
  readonly span: Span;

  constructor(span: Span) {
    this.span = span;
  }

  setAttributes(attributes: SpanAttributes): void {
    this.span.setAttributes(attributes as Attributes);
  }

  end(atSeconds: number, error?: string): void {
    if (error !== undefined) this.span.setStatus({ code: SpanStatusCode.ERROR, message: error });
    this.span.end(hrTimeOf(atSeconds));
  }
}

export interface OtelSpanSinkOptions {
  readonly resource: Resource;
  readonly processor: SpanProcessor;
}

export class OtelSpanSink implements SpanSink {
  readonly #ids = new TraceIds();
  readonly #provider: TracerProvider;

  constructor({ resource, processor }: OtelSpanSinkOptions) {
    const options = { resource, spanProcessors: [processor], idGenerator: this.#ids };
    this.#provider = new TracerProvider(options);
  }

  startSpan(start: SpanStart): OpenSpan {
    const { scope, name, parent, startSeconds, attributes } = start;
    const context =
      parent instanceof OtelSpan ? trace.setSpan(ROOT_CONTEXT, parent.span) : ROOT_CONTEXT;
    const options = { startTime: hrTimeOf(startSeconds), attributes: { ...attributes } };
    this.#ids.seed = start.traceSeed;
    return new OtelSpan(this.#provider.getTracer(scope).startSpan(name, options, context));
  }

  /** Hands over what has ended, and waits until it is sent or has failed. */
  shutdown(): Promise<void> {
    return this.#provider.shutdown();
  }
}
