import * as assert from 'uvu/assert';
import { MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import { SpanTree } from '../../../src/observability/tracing/span-tree.ts';
import { readMetric } from '../../support/metric-readings.ts';
import fc from '../../support/property.ts';
import { RecordedSpan, SpanRecorder } from '../../support/recorded-spans.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

function house() {
  const clock = new VirtualClock();
  const registry = new MetricRegistry();
  const sink = new SpanRecorder();
  const tree = new SpanTree('scope', 'root', { sink, clock, registry });
  const nowSeconds = () => clock.wallMs() / 1000;
  const expiredCount = () => readMetric(registry, 'kvd.expired_pending')['span'] ?? 0;
  return { clock, sink, tree, nowSeconds, expiredCount };
}

const child = (key: string, atSeconds: number) => ({ key, name: key, atSeconds, attributes: {} });
const endAt = (atSeconds: number) => ({ atSeconds, attributes: {} });
const ends = (sink: SpanRecorder) =>
  sink.ended.map(({ start: { name }, endSeconds, error }) => [name, endSeconds, error]);

suite('span tree: bounds', (test) => {
  test('of too many sessions that one goes which has been silent for longest', () => {
    const { sink, tree, nowSeconds, expiredCount } = house();
    const at = nowSeconds();
    for (let i = 0; i < 10_000; i += 1) tree.openRoot(`${i}`, at);
    tree.openChild('0', child('work', at + 1));
    tree.openRoot('one more', at + 2);
    assert.equal(
      sink.ended.map(({ attributes }) => attributes['session_id']),
      ['1'],
    );
    assert.is(sink.ended[0]?.error, 'too many sessions are open');
    assert.is(expiredCount(), 1);
  });

  test('of too many children of a session the oldest goes, and its own end is not heard', () => {
    const { sink, tree, nowSeconds, expiredCount } = house();
    const at = nowSeconds();
    for (let i = 0; i <= 1024; i += 1) tree.openChild('s', child(`${i}`, at));
    assert.equal(ends(sink), [['0', at, 'too many spans of a session are open']]);
    tree.closeChild('s', '0', endAt(at + 1));
    assert.is(sink.ended.length, 1);
    // A place is free again.
    tree.closeChild('s', '1', endAt(at + 1));
    tree.openChild('s', child('new', at + 2));
    assert.is(sink.ended.length, 2);
    assert.is(expiredCount(), 1);
  });

  test('spans that the end of the server ends have not expired', () => {
    const { sink, tree, nowSeconds, expiredCount } = house();
    tree.openChild('s', child('work', nowSeconds()));
    tree.close();
    assert.is(sink.open.length, 0);
    assert.is(expiredCount(), 0);
  });
});

suite('span tree: news before the first span', (test) => {
  test('a session that is over before its work starts ends with this work', () => {
    const { sink, tree, nowSeconds } = house();
    const at = nowSeconds();
    tree.begin('s', at);
    tree.closeRoot('s', at + 1);
    tree.openChild('s', child('work', at + 2));
    tree.closeChild('s', 'work', endAt(at + 3));
    tree.finish('s', at + 3);
    assert.equal(ends(sink), [
      ['work', at + 3, null],
      ['root', at + 3, null],
    ]);
  });

  test('what is awaited keeps a session open that has been opened since', () => {
    const { sink, tree, nowSeconds } = house();
    const at = nowSeconds();
    tree.begin('s', at);
    tree.await('s', true);
    tree.openChild('s', child('first', at + 1));
    tree.closeChild('s', 'first', endAt(at + 2));
    tree.finish('s', at + 2);
    tree.closeRoot('s', at + 3);
    assert.is(sink.open.length, 1, 'the second is still to come');
    tree.begin('s', at + 4);
    tree.await('s', false);
    tree.openChild('s', child('second', at + 4));
    tree.closeChild('s', 'second', endAt(at + 5));
    tree.finish('s', at + 5);
    assert.equal(ends(sink).at(-1), ['root', at + 5, null]);
  });

  test('work that never started says nothing about later work of that session', () => {
    const { sink, tree, nowSeconds } = house();
    const at = nowSeconds();
    tree.begin('s', at);
    tree.closeRoot('s', at + 1);
    tree.finish('s', at + 1);
    tree.begin('s', at + 2);
    tree.openChild('s', child('work', at + 2));
    tree.closeChild('s', 'work', endAt(at + 3));
    tree.finish('s', at + 3);
    assert.is(sink.open.length, 1, 'this session is not over');
    tree.closeRoot('s', at + 4);
    assert.equal(ends(sink).at(-1), ['root', at + 4, null]);
  });

  test('of too many sessions that nothing has opened the oldest is forgotten', () => {
    const { sink, tree, nowSeconds } = house();
    const at = nowSeconds();
    for (let i = 0; i <= 10_000; i += 1) tree.begin(`${i}`, at);
    for (const sessionId of ['0', '1']) {
      tree.openRoot(sessionId, at);
      tree.closeRoot(sessionId, at + 1);
    }
    assert.equal(
      sink.ended.map(({ attributes }) => attributes['session_id']),
      ['0'],
    );
    assert.is(sink.open[0]?.attributes['session_id'], '1', 'its work is still expected');
  });
});

const STEP = fc.record({
  kind: fc.constantFrom('root', 'child', 'end', 'mark', 'begin', 'finish', 'await', 'over', 'wait'),
  session: fc.constantFrom('a', 'b'),
  key: fc.constantFrom('x', 'y', 'z'),
});

/** Below which root a span hangs. */
function rootOf(span: RecordedSpan): RecordedSpan {
  const { parent } = span.start;
  return parent instanceof RecordedSpan ? rootOf(parent) : span;
}

suite('span tree: properties', (test) => {
  test('no root ends before what hangs below it, and nothing is left', () => {
    fc.assert(
      fc.property(fc.array(STEP, { maxLength: 60 }), (steps) => {
        const { clock, sink, tree, nowSeconds } = house();
        let isAwaited = false;
        for (const { kind, session, key } of steps) {
          clock.advance(kind === 'wait' ? 250_000 : 1);
          const at = nowSeconds();
          if (kind === 'root') tree.openRoot(session, at);
          else if (kind === 'child') {
            const parents = key === 'z' ? ['x', 'y'] : [];
            tree.openChild(session, { ...child(key, at), parents });
          } else if (kind === 'end') tree.closeChild(session, key, endAt(at));
          else if (kind === 'mark') tree.mark(session, 'mark', endAt(at));
          else if (kind === 'begin') tree.begin(session, at);
          else if (kind === 'finish') tree.finish(session, at);
          else if (kind === 'await') {
            isAwaited = !isAwaited;
            tree.await(session, isAwaited);
          } else if (kind === 'over') tree.closeRoot(session, at);
        }
        clock.advance(700_000);
        assert.equal(sink.open, []);
        assert.is(sink.ended.length, sink.started.length);
        for (const span of sink.ended) {
          const root = rootOf(span);
          assert.ok((root.endSeconds ?? 0) >= (span.endSeconds ?? 0));
          assert.ok(root.start.startSeconds <= span.start.startSeconds);
        }
        tree.close();
      }),
    );
  });
});
