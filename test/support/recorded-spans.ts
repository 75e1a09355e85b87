/** A sink that keeps its spans for the test that asks. */
import * as assert from 'uvu/assert';
import type {
  OpenSpan,
  SpanAttributes,
  SpanSink,
  SpanStart,
} from '../../src/observability/tracing/span-sink.ts';

export class RecordedSpan implements OpenSpan {
  readonly start: SpanStart;
  readonly parent: string | null;
  attributes: SpanAttributes;
  endSeconds: number | null = null;
  error: string | null = null;
  readonly #onEnd: (span: RecordedSpan) => void;

  constructor(start: SpanStart, onEnd: (span: RecordedSpan) => void) {
    this.start = start;
    this.attributes = { ...start.attributes };
    this.parent = start.parent instanceof RecordedSpan ? start.parent.start.name : null;
    this.#onEnd = onEnd;
  }

  setAttributes(attributes: SpanAttributes): void {
    assert.is(this.endSeconds, null, 'attributes of a span that has ended');
    this.attributes = { ...this.attributes, ...attributes };
  }

  end(atSeconds: number, error?: string): void {
    assert.is(this.endSeconds, null, `${this.start.name} has ended already`);
    assert.ok(atSeconds >= this.start.startSeconds, `${this.start.name} ends before it starts`);
    this.endSeconds = atSeconds;
    this.error = error ?? null;
    this.#onEnd(this);
  }
}

export class SpanRecorder implements SpanSink {
  readonly started: RecordedSpan[] = [];
  /** In the order of their ends. */
  readonly ended: RecordedSpan[] = [];

  startSpan(start: SpanStart): RecordedSpan {
    const span = new RecordedSpan(start, (ended) => this.ended.push(ended));
    this.started.push(span);
    return span;
  }

  get open(): RecordedSpan[] {
    return this.started.filter(({ endSeconds }) => endSeconds === null);
  }
}
