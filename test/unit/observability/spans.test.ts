import * as assert from 'uvu/assert';
import type { EventCatalogue, EventName } from '../../../src/observability/events.ts';
import { MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import { blendSpans } from '../../../src/observability/tracing/blend-spans.ts';
import { mpSpans } from '../../../src/observability/tracing/mp-spans.ts';
import { readMetric } from '../../support/metric-readings.ts';
import fc from '../../support/property.ts';
import { type RecordedSpan, SpanRecorder } from '../../support/recorded-spans.ts';
import {
  deliver,
  readScenarios,
  type Scenario,
  ScenarioConverter,
} from '../../support/scenario-events.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

interface ExpectedSpan {
  readonly name: string;
  readonly scope: string;
  readonly parent: string | null;
  readonly start_ns: number;
  readonly end_ns: number;
  readonly attributes: Readonly<Record<string, unknown>>;
}
type SpanScenario = Scenario & { readonly expected_spans_in_end_order: readonly ExpectedSpan[] };

const MAKERS = { MPServerTracingSubscriber: mpSpans, BlendTracingSubscriber: blendSpans };

/** Ours ends with its latest child, the reference's before it (spec observability 14.7). */
const LATER_ENDS: Readonly<Record<string, Readonly<Record<string, number>>>> = {
  spans_deferred_end: { request: 2_500_000_000 },
};

/** As Python prints it: what the reference makes of every attribute. */
function inPython(value: unknown): string {
  if (value === true) return 'True';
  if (value === false) return 'False';
  return String(value);
}

const textOf = (attributes: Readonly<Record<string, unknown>>) =>
  Object.entries(attributes)
    .map(([name, value]) => `${name}=${inPython(value)}`)
    .sort();

const shown = ({ start, parent, endSeconds, attributes }: RecordedSpan) => ({
  name: start.name,
  scope: start.scope,
  parent,
  start_ns: Math.round(start.startSeconds * 1e9),
  end_ns: Math.round((endSeconds ?? 0) * 1e9),
  attributes: textOf(attributes),
});

function house(make: typeof mpSpans = mpSpans) {
  const clock = new VirtualClock();
  const registry = new MetricRegistry();
  const sink = new SpanRecorder();
  const subscriber = make({ sink, clock, registry });
  const say = <N extends EventName>(name: N, event: EventCatalogue[N], afterMs = 0) => {
    clock.advance(afterMs);
    deliver(subscriber, { name, event, atSeconds: clock.wallMs() / 1000 });
  };
  const expiredCount = () => readMetric(registry, 'kvd.expired_pending')['span'] ?? 0;
  return { clock, sink, subscriber, say, expiredCount };
}

const start = (sessionId: string, transferId: number) => ({
  ...{ sessionId, transferId, device: 'cpu', engineId: '1', modelName: 'm' },
});
const end = (sessionId: string, transferId: number, error: string | null = null) => ({
  ...start(sessionId, transferId),
  ...{ cacheSalt: '', totalBytes: 64, tokenCount: 16, seconds: 0.1, error },
});

suite('spans: those of the reference', (test) => {
  for (const scenario of readScenarios() as readonly SpanScenario[]) {
    if (!scenario.name.startsWith('spans_')) continue;
    test(scenario.name, () => {
      const name = scenario.subscribers[0] as keyof typeof MAKERS;
      const { sink, subscriber } = house(MAKERS[name]);
      assert.is(subscriber.name, name);
      const converter = new ScenarioConverter();
      for (const event of scenario.events) deliver(subscriber, converter.convert(event));
      const later = LATER_ENDS[scenario.name] ?? {};
      const expected = scenario.expected_spans_in_end_order.map((span) => ({
        ...span,
        end_ns: later[span.name] ?? span.end_ns,
        attributes: textOf(span.attributes),
      }));
      assert.equal(sink.ended.map(shown), expected);
      assert.equal(sink.open, []);
    });
  }
});

suite('spans of requests', (test) => {
  test('attributes have their own types', () => {
    const { sink, say } = house();
    say('mp.store.submitted', { sessionId: 's', transferId: 1, device: 'cpu' });
    say('mp.store.start', start('s', 1));
    say('mp.store.end', { ...end('s', 1), storedCount: 3 }, 5);
    const [store] = sink.ended;
    assert.is(store?.attributes['stored_count'], 3);
    assert.is(store?.attributes['total_bytes'], 64);
    assert.is(store?.attributes['device'], 'cpu');
  });

  test('overlapping transfers of a session are told apart, whichever ends first', () => {
    const { sink, say } = house();
    for (const id of [1, 2]) {
      say('mp.retrieve.submitted', { sessionId: 's', transferId: id, device: 'cpu' });
      say('mp.retrieve.start', start('s', id), 10);
    }
    say('mp.request.end', { sessionId: 's' }, 10);
    assert.is(sink.ended.length, 0, 'the request ends with its transfers');
    say('mp.retrieve.end', { ...end('s', 2), retrievedCount: 2 }, 10);
    say('mp.retrieve.end', { ...end('s', 1), retrievedCount: 1 }, 10);
    assert.equal(
      sink.ended.map((span) => [span.start.name, span.attributes['retrieved_count'] ?? null]),
      [
        ['mp.retrieve', 2],
        ['mp.retrieve', 1],
        ['request', null],
      ],
    );
    const [second, first, request] = sink.ended as [RecordedSpan, RecordedSpan, RecordedSpan];
    assert.ok((second.endSeconds ?? 0) < (first.endSeconds ?? 0));
    assert.is(request.endSeconds, first.endSeconds);
  });

  test('a transfer that fails is a failed span, also one that never started', () => {
    const { sink, say } = house();
    say('mp.request.start', { sessionId: 's' });
    say('mp.retrieve.submitted', { sessionId: 's', transferId: 1, device: 'cpu' });
    say('mp.retrieve.start', start('s', 1));
    say('mp.retrieve.end', { ...end('s', 1, 'ERR_DATA_MISSING'), retrievedCount: 0 });
    say('mp.retrieve.submitted', { sessionId: 's', transferId: 2, device: 'cpu' });
    say('mp.retrieve.end', { ...end('s', 2, 'ERR_BAD_REQUEST'), retrievedCount: 0 });
    say('mp.request.end', { sessionId: 's' });
    const [retrieve, request] = sink.ended;
    assert.is(retrieve?.error, 'ERR_DATA_MISSING');
    assert.is(retrieve?.attributes['error'], 'ERR_DATA_MISSING');
    assert.is(request?.start.name, 'request');
    assert.equal(sink.open, []);
  });

  test('a lookup that nobody fetched is failed, and the next one of its session is not', () => {
    const { sink, say } = house();
    const ended = { sessionId: 's', modelName: 'm', cacheSalt: '', requestedTokens: 32 };
    const rest = { ...ended, foundCount: 1, hitTokens: 16, readySeconds: 0.1 };
    say('mp.lookup_prefetch.start', { sessionId: 's' });
    say('mp.lookup_prefetch.start', { sessionId: 's' }, 10);
    say('mp.lookup_prefetch.end', { ...rest, error: 'abandoned' });
    say('mp.lookup_prefetch.end', { ...rest, error: null }, 10);
    say('mp.request.end', { sessionId: 's' });
    assert.equal(
      sink.ended.map(({ start: { name }, error }) => [name, error]),
      [
        ['mp.lookup_prefetch', 'abandoned'],
        ['mp.lookup_prefetch', null],
        ['request', null],
      ],
    );
    assert.is(sink.ended[2]?.attributes['hit_rate'], 0.5);
  });

  test('a timeout is a failed span without length below its request', () => {
    const { sink, say } = house();
    say('mp.request.start', { sessionId: 's' });
    const timeout = { exceptionType: 'TransferTimeout', message: 'STORE met its deadline' };
    say('timeout.raised', { sessionId: 's', ...timeout });
    say('timeout.raised', { sessionId: '', ...timeout });
    const [known, unknown] = sink.ended;
    assert.equal([known?.parent, known?.error], ['request', timeout.message]);
    assert.is(unknown?.parent, null);
  });

  test('what nobody ends is ended as failed after ten minutes of silence', () => {
    const { sink, say, clock, expiredCount } = house();
    say('mp.request.start', { sessionId: 's' });
    say('mp.lookup_prefetch.start', { sessionId: 's' });
    say('mp.request.start', { sessionId: 'alive' });
    clock.advance(300_000);
    say('mp.lookup_prefetch.start', { sessionId: 'alive' });
    clock.advance(360_000);
    assert.equal(
      sink.ended.map(({ start: { name }, error }) => [name, error]),
      [
        ['mp.lookup_prefetch', 'no end within 600 s'],
        ['request', 'no end within 600 s'],
      ],
    );
    assert.is(expiredCount(), 2);
    assert.is(sink.open.length, 2);
  });

  test('the oldest session goes when too many are open', () => {
    const { sink, say, expiredCount } = house();
    for (let i = 0; i <= 10_000; i += 1) say('mp.request.start', { sessionId: `${i}` });
    assert.is(sink.open.length, 10_000);
    assert.is(sink.ended[0]?.attributes['session_id'], '0');
    assert.is(expiredCount(), 1);
  });

  test('the end of the server ends every span', async () => {
    const { sink, say, subscriber } = house();
    say('mp.store.start', start('s', 1));
    await subscriber.shutdown?.();
    assert.equal(sink.open, []);
    assert.equal([...new Set(sink.ended.map(({ error }) => error))], ['the server stopped']);
  });

  test('a trace may be named after its request', () => {
    const sink = new SpanRecorder();
    const clock = new VirtualClock();
    const subscriber = mpSpans({ sink, clock, registry: null, hasRequestTraceIds: true });
    const event = { sessionId: 'r' };
    deliver(subscriber, { name: 'mp.request.start', event, atSeconds: 1 });
    assert.is(sink.started[0]?.start.traceSeed, 'r');
  });
});

const STEP = fc.record({
  kind: fc.constantFrom('submitted', 'start', 'end', 'lookup', 'looked', 'over', 'begin', 'pause'),
  session: fc.integer({ min: 0, max: 2 }),
  transfer: fc.integer({ min: 0, max: 3 }),
});

suite('spans: properties', (test) => {
  test('whatever the order of events, every span ends once, and none stays open', () => {
    fc.assert(
      fc.property(fc.array(STEP, { maxLength: 60 }), (steps) => {
        const { sink, say, clock, subscriber } = house();
        for (const { kind, session, transfer } of steps) {
          const sessionId = `s${session}`;
          if (kind === 'submitted')
            say('mp.store.submitted', { sessionId, transferId: transfer, device: 'cpu' }, 1);
          else if (kind === 'start') say('mp.store.start', start(sessionId, transfer), 1);
          else if (kind === 'end')
            say('mp.store.end', { ...end(sessionId, transfer), storedCount: 1 }, 1);
          else if (kind === 'lookup') say('mp.lookup_prefetch.start', { sessionId }, 1);
          else if (kind === 'looked') endLookup(say, sessionId);
          else if (kind === 'begin') say('mp.request.start', { sessionId }, 1);
          else if (kind === 'over') say('mp.request.end', { sessionId }, 1);
          else clock.advance(200_000);
        }
        clock.advance(700_000);
        assert.equal(sink.open, []);
        assert.is(sink.ended.length, sink.started.length);
        void subscriber.shutdown?.();
      }),
    );
  });
});

function endLookup(say: ReturnType<typeof house>['say'], sessionId: string): void {
  say(
    'mp.lookup_prefetch.end',
    {
      ...{ sessionId, modelName: 'm', cacheSalt: '', foundCount: 1, requestedTokens: 16 },
      ...{ hitTokens: 16, readySeconds: 0, error: null },
    },
    1,
  );
}
