/** Where spans go: the part of a tracer that the span subscribers need (`otel-span-sink.ts`). */

export type SpanAttributes = Readonly<Record<string, string | number | boolean>>;

export interface SpanStart {
  /** Name of the tracer. */
  readonly scope: string;
  readonly name: string;
  /** Null: the first span of a trace. */
  readonly parent: OpenSpan | null;
  /** Wall clock. */
  readonly startSeconds: number;
  readonly attributes: SpanAttributes;
  /** Decides the id of the trace; absent: a random one. */
  readonly traceSeed?: string;
}

export interface OpenSpan {
  /** Later values replace earlier ones. */
  setAttributes(attributes: SpanAttributes): void;
  /** Once. `error` makes it a failed one. */
  end(atSeconds: number, error?: string): void;
}

export interface SpanSink {
  startSpan(start: SpanStart): OpenSpan;
}
