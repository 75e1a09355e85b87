import * as assert from 'uvu/assert';
import { EventBus, type Subscriber } from '../../../src/observability/event-bus.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Until what waits has been handed over. */
async function settle(clock: VirtualClock): Promise<void> {
  clock.advance(50);
  await turn();
}

function openBus(queueSize = 4) {
  const clock = new VirtualClock();
  const log = new RecordingLogger();
  const bus = new EventBus({ clock, log, queueSize });
  return { bus, clock, log };
}

/** Counts and remembers what it gets. */
function observer(name = 'Observer') {
  const got = { counted: 0, seen: [] as string[], times: [] as number[], isShutDown: false };
  const subscriber: Subscriber = {
    name,
    counts: {
      'mp.request.start': () => {
        got.counted += 1;
      },
    },
    subscriptions: {
      'mp.request.start': ({ sessionId }, atSeconds) => {
        got.seen.push(sessionId);
        got.times.push(atSeconds);
      },
    },
    shutdown: () => {
      got.isShutDown = true;
    },
  };
  return { got, subscriber };
}

const start = (bus: EventBus, sessionId: string) => bus.publish('mp.request.start', { sessionId });

suite('event bus', (test) => {
  test('an event that nobody listens to is not worth building', () => {
    const { bus } = openBus();
    assert.not.ok(bus.hasListeners('mp.request.start'));
    start(bus, 'a');
    assert.is(bus.queueDepth, 0);
    bus.attach(observer().subscriber);
    assert.ok(bus.hasListeners('mp.request.start'));
    assert.not.ok(bus.hasListeners('mp.request.end'));
  });

  test('subscribers get events later, in order, with the time of their publishing', async () => {
    const { bus, clock } = openBus();
    const { got, subscriber } = observer();
    bus.attach(subscriber);
    start(bus, 'a');
    const firstSeconds = clock.wallMs() / 1000;
    clock.advance(8);
    start(bus, 'b');
    assert.equal(got.seen, [], 'a publisher waits for nobody');
    assert.is(bus.queueDepth, 2);
    assert.is(bus.oldestEventLagSeconds.toFixed(3), '0.008');
    await settle(clock);
    assert.equal(got.seen, ['a', 'b']);
    const lags = got.times.map((at) => (at - firstSeconds).toFixed(3));
    assert.equal(lags, ['0.000', '0.008']);
    assert.is(got.counted, 2);
    assert.is(bus.queueDepth, 0);
    assert.is(bus.oldestEventLagSeconds, 0);
  });

  test('followers run inside of publish, and a broken one is counted', () => {
    const { bus } = openBus();
    const seen: string[] = [];
    bus.subscribe('mp.request.start', () => {
      throw new Error('broken');
    });
    bus.subscribe('mp.request.start', ({ sessionId }) => void seen.push(sessionId));
    start(bus, 'a');
    assert.equal(seen, ['a']);
    assert.is(bus.listenerErrorCount, 1);
  });

  test('a full queue loses events for all but counters, and says how many for whom', async () => {
    const { bus, clock, log } = openBus(2);
    const { got, subscriber } = observer();
    const other = observer('Other');
    bus.attach(subscriber);
    bus.attach(other.subscriber);
    for (const id of ['a', 'b', 'c', 'd', 'e']) start(bus, id);
    await settle(clock);
    assert.equal(got.seen, ['a', 'b']);
    assert.is(got.counted, 5, 'counters never lose');
    assert.is(other.got.counted, 5);
    assert.is(bus.droppedEventsCount, 3);
    assert.equal(
      [...bus.lostCounts],
      [
        ['Observer', 3],
        ['Other', 3],
      ],
    );
    const lines = log.lines.filter(({ message }) => message.includes('event queue is full'));
    assert.equal([...new Set(lines.map(({ key }) => key))], ['event-queue-full'], 'one a minute');
    start(bus, 'f');
    await settle(clock);
    assert.equal(got.seen, ['a', 'b', 'f'], 'there is room again');
  });

  test('with a queue of 0 only counters live', async () => {
    const { bus, clock } = openBus(0);
    const { got, subscriber } = observer();
    bus.attach(subscriber);
    for (let i = 0; i < 10; i += 1) start(bus, `${i}`);
    await settle(clock);
    assert.is(got.counted, 10);
    assert.equal(got.seen, []);
    assert.is(bus.droppedEventsCount, 10);
  });

  test('a subscriber that throws is counted by name, and the others go on', async () => {
    const { bus, clock, log } = openBus();
    const broken: Subscriber = {
      name: 'Broken',
      counts: {
        'mp.request.start': () => {
          throw new Error('cannot count');
        },
      },
      subscriptions: {
        'mp.request.start': () => {
          throw new Error('cannot see');
        },
      },
    };
    const { got, subscriber } = observer();
    bus.attach(broken);
    bus.attach(subscriber);
    start(bus, 'a');
    await settle(clock);
    assert.equal([...bus.subscriberExceptionCounts], [['Broken', 2]]);
    assert.equal(got.seen, ['a']);
    assert.ok(log.lines.some(({ message }) => message.includes('Broken failed: Error: cannot')));
  });

  test('a long queue is worked off in slices, between which others run', async () => {
    const { bus, clock } = openBus(1000);
    let seenCount = 0;
    bus.attach({
      name: 'Slow',
      subscriptions: {
        'mp.request.start': () => {
          seenCount += 1;
          clock.advance(1);
        },
      },
    });
    for (let i = 0; i < 600; i += 1) start(bus, `${i}`);
    await turn();
    assert.ok(seenCount > 0 && seenCount < 600, `${seenCount} in the first slice`);
    for (let i = 0; i < 40; i += 1) await turn();
    assert.is(seenCount, 600);
  });

  test('closing hands over what waits, then shuts subscribers down', async () => {
    const { bus } = openBus();
    const { got, subscriber } = observer();
    bus.attach(subscriber);
    start(bus, 'a');
    await bus.close();
    assert.equal(got.seen, ['a']);
    assert.ok(got.isShutDown);
    start(bus, 'b');
    await turn();
    assert.equal(got.seen, ['a']);
  });
});
