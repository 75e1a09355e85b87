import { SpanStatusCode } from '@opentelemetry/api';
import { emptyResource } from '@opentelemetry/resources';
import { InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace';
import * as assert from 'uvu/assert';
import { OtelSpanSink } from '../../../src/observability/tracing/otel-span-sink.ts';
import { suite } from '../../support/suite.ts';

function house() {
  const exporter = new InMemorySpanExporter();
  const processor = new SimpleSpanProcessor({ exporter });
  return { exporter, sink: new OtelSpanSink({ resource: emptyResource(), processor }) };
}

const ROOT = { scope: 'scope', name: 'root', parent: null, startSeconds: 10, attributes: {} };

suite('OpenTelemetry spans', (test) => {
  test('a child belongs to its parent, and both keep times and attributes', () => {
    const { exporter, sink } = house();
    const root = sink.startSpan({ ...ROOT, attributes: { model: 'm', hits: 3 } });
    const child = sink.startSpan({ ...ROOT, name: 'child', parent: root, startSeconds: 10.25 });
    root.setAttributes({ hits: 4, success: true });
    child.end(10.5);
    root.end(11);
    const [second, first] = exporter.getFinishedSpans();
    assert.is(first?.name, 'root');
    assert.is(first?.instrumentationScope.name, 'scope');
    assert.equal(first?.attributes, { model: 'm', hits: 4, success: true });
    assert.equal(
      [first?.startTime, first?.endTime],
      [
        [10, 0],
        [11, 0],
      ],
    );
    assert.is(first?.parentSpanContext, undefined);
    assert.is(first?.status.code, SpanStatusCode.UNSET);
    assert.is(second?.parentSpanContext?.spanId, first?.spanContext().spanId);
    assert.is(second?.spanContext().traceId, first?.spanContext().traceId);
    assert.equal(
      [second?.startTime, second?.endTime],
      [
        [10, 250_000_000],
        [10, 500_000_000],
      ],
    );
  });

  test('an error makes a failed span', () => {
    const { exporter, sink } = house();
    sink.startSpan(ROOT).end(11, 'expired');
    const status = exporter.getFinishedSpans()[0]?.status;
    assert.equal(status, { code: SpanStatusCode.ERROR, message: 'expired' });
  });

  test('a seed decides the id of the trace, and only of that one', () => {
    const { exporter, sink } = house();
    for (const traceSeed of ['request-1', 'request-1', 'request-2']) {
      sink.startSpan({ ...ROOT, traceSeed }).end(11);
    }
    for (let i = 0; i < 2; i += 1) sink.startSpan(ROOT).end(11);
    const ids = exporter.getFinishedSpans().map((span) => span.spanContext().traceId);
    assert.is(ids[0], ids[1]);
    assert.is(new Set(ids).size, 4);
    for (const id of ids) assert.match(id, /^[0-9a-f]{32}$/);
  });
});
