/**
 * Spans for the OpenTelemetry SDK, which samples none away and sends them in batches. Loaded with
 * the exporters only (`../otlp.ts`).
 */
import {
  type Attributes,
  ROOT_CONTEXT,
  type Span,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api';
import type { TracerProvider } from '@opentelemetry/sdk-trace';
import { hrTimeOf } from '../otel-time.ts';
import type { OpenSpan, SpanSink, SpanStart } from './span-sink.ts';

class OtelSpan implements OpenSpan {
  readonly span: Span;

  constructor(span: Span) {
    this.span = span;
  }

  setAttributes(attributes: Attributes): void {
    this.span.setAttributes(attributes);
  }

  end(atSeconds: number, error?: string): void {
    if (error !== undefined) this.span.setStatus({ code: SpanStatusCode.ERROR, message: error });
    this.span.end(hrTimeOf(atSeconds));
  }
}

export class OtelSpanSink implements SpanSink {
  readonly #provider: TracerProvider;

  constructor(provider: TracerProvider) {
    this.#provider = provider;
  }

  startSpan({ scope, name, parent, startSeconds, attributes }: SpanStart): OpenSpan {
    const context =
      parent instanceof OtelSpan ? trace.setSpan(ROOT_CONTEXT, parent.span) : ROOT_CONTEXT;
    const options = { startTime: hrTimeOf(startSeconds), attributes: { ...attributes } };
    return new OtelSpan(this.#provider.getTracer(scope).startSpan(name, options, context));
  }
}
