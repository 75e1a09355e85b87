/** (Longer than 400 lines: one case each.) */
import * as assert from 'uvu/assert';
import type { CacheKey } from '../../../src/engine/api.ts';
import type { RequestContext } from '../../../src/engine/client-traits.ts';
import { Dispatcher } from '../../../src/engine/dispatch.ts';
import type { Attempt, EngineModule, HandlerTable } from '../../../src/engine/handlers.ts';
import { STALL_MS, StallWatch } from '../../../src/engine/stall-watch.ts';
import { HeldReplyError, KvdError, WithheldReplyError } from '../../../src/errors.ts';
import { EventBus } from '../../../src/observability/event-bus.ts';
import { OLD_CLIENT } from '../../support/client-traits.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const from = (connectionId: number): RequestContext => ({ connectionId, client: OLD_CLIENT });
const key: CacheKey = {
  modelName: 'm',
  worldSize: 1,
  workerId: 0,
  tokens: { bytes: new Uint8Array([0x90]), count: 0 },
  startToken: 0,
  endToken: 0,
  requestId: 'r',
  cacheSalt: '',
  readerCount: null,
  requestConfigs: null,
};
const store = { key, instanceId: 1n, blockIds: [[]], event: new Uint8Array(0) };
const retrieve = { ...store, skipFirstTokens: 0 };
const ok = { event: new Uint8Array(0), ok: true };

function setUp(handlers: HandlerTable, clock = new VirtualClock(), transferDeadlineMs = 1000) {
  const log = new RecordingLogger();
  const module: EngineModule = {
    name: 'test',
    handlers,
    status: () => ({}),
    close: async () => {},
  };
  const bus = new EventBus({ clock });
  const dispatcher = new Dispatcher({
    modules: [module],
    clock,
    bus,
    log,
    stalls: new StallWatch({ clock, log, isIntakeDry: () => true }),
    transferDeadlineMs,
    refusals: {
      RETRIEVE: (_, __, error) => new WithheldReplyError(error.code, 'retrieve is late'),
    },
  });
  return { dispatcher, clock, log, bus };
}

/** Promises that the test settles one by one, in the order in which handlers made them. */
function manualGate() {
  const open: ((value: typeof ok) => void)[] = [];
  const wait = () => new Promise<typeof ok>((resolve) => open.push(resolve));
  return { open, wait };
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

suite('dispatch', (test) => {
  test('an idle lane answers a synchronous handler without a promise', () => {
    const { dispatcher } = setUp({ GET_CHUNK_SIZE: () => 256, LOOKUP: () => undefined });
    assert.is(dispatcher.dispatch('GET_CHUNK_SIZE', {}, from(1)), 256);
    assert.is(dispatcher.dispatch('LOOKUP', { key, tpSize: 1 }, from(1)), undefined);
  });

  test('transfers of one connection run one after the other, of two side by side', async () => {
    const gate = manualGate();
    const { dispatcher } = setUp({ STORE: gate.wait });
    const first = dispatcher.dispatch('STORE', store, from(1));
    const second = dispatcher.dispatch('STORE', store, from(1));
    const other = dispatcher.dispatch('STORE', store, from(2));
    assert.is(gate.open.length, 2, 'connection 1 waits, connection 2 runs');
    gate.open[1]?.(ok);
    assert.equal(await other, ok);
    gate.open[0]?.(ok);
    await first;
    await turn();
    assert.is(gate.open.length, 3, 'the second transfer of connection 1 has started');
    gate.open[2]?.(ok);
    assert.equal(await second, ok);
    assert.is(dispatcher.inFlightCount, 0);
  });

  test('a query waits for the long lookup before it, a PING for nothing', async () => {
    let finishLookup = () => {};
    const order: string[] = [];
    const { dispatcher } = setUp({
      LOOKUP: () =>
        new Promise<void>((resolve) => {
          finishLookup = () => {
            order.push('lookup');
            resolve();
          };
        }),
      QUERY_PREFETCH_STATUS: () => {
        order.push('query');
        return 3;
      },
      PING: () => true,
    });
    const lookup = dispatcher.dispatch('LOOKUP', { key, tpSize: 1 }, from(1));
    const query = dispatcher.dispatch('QUERY_PREFETCH_STATUS', { requestId: 'r' }, from(1));
    assert.is(dispatcher.dispatch('PING', { instanceId: null }, from(1)), true);
    finishLookup();
    await lookup;
    assert.is(await query, 3);
    assert.equal(order, ['lookup', 'query']);
  });

  test('a waiting WAIT_PREFETCH_STATUS holds up nobody, also when it had to queue', async () => {
    let finishLookup = () => {};
    let finishWait = (_: number) => {};
    const { dispatcher } = setUp({
      LOOKUP: () => new Promise<void>((resolve) => (finishLookup = resolve)),
      WAIT_PREFETCH_STATUS: () => new Promise<number>((resolve) => (finishWait = resolve)),
      QUERY_PREFETCH_STATUS: () => 7,
    });
    const lookup = dispatcher.dispatch('LOOKUP', { key, tpSize: 1 }, from(1));
    const request = { requestId: 'r', timeoutSeconds: 60 };
    const wait = dispatcher.dispatch('WAIT_PREFETCH_STATUS', request, from(1));
    const query = dispatcher.dispatch('QUERY_PREFETCH_STATUS', { requestId: 'r' }, from(1));
    finishLookup();
    await lookup;
    assert.is(await query, 7, 'the query did not wait for the WAIT');
    finishWait(5);
    assert.is(await wait, 5);
  });

  test('a handler that throws in a queue fails its own request only', async () => {
    const gate = manualGate();
    let calls = 0;
    const { dispatcher } = setUp({
      STORE: () => {
        calls += 1;
        if (calls === 2) throw new KvdError('ERR_BAD_REQUEST', 'second is bad');
        return gate.wait();
      },
    });
    const first = dispatcher.dispatch('STORE', store, from(1));
    const second = dispatcher.dispatch('STORE', store, from(1)) as Promise<unknown>;
    const third = dispatcher.dispatch('STORE', store, from(1));
    gate.open[0]?.(ok);
    await first;
    await rejects(second, /second is bad/);
    await turn();
    gate.open[1]?.(ok);
    assert.equal(await third, ok);
    assert.is(dispatcher.counters.get('STORE')?.failureCount, 1);
  });

  test('an operation without a handler is refused, and logged', () => {
    const { dispatcher, log } = setUp({});
    assert.throws(
      () => dispatcher.dispatch('COMMIT_RETRIEVE', { key, instanceId: 1n }, from(1)),
      (error: KvdError) => error.code === 'ERR_NOT_ENABLED',
    );
    assert.ok(log.has(/no module of this server handles COMMIT_RETRIEVE/));
  });

  test('a registration that no module handles fails like any other request', () => {
    const { dispatcher } = setUp({});
    assert.throws(
      () =>
        dispatcher.dispatch(
          'CB_REGISTER_KV_CACHE',
          { instanceId: 1n, wrappers: [], modelName: 'm', worldSize: 1 },
          from(1),
        ),
      (error: KvdError) =>
        error.code === 'ERR_NOT_ENABLED' && !(error instanceof WithheldReplyError),
    );
  });

  test('a transfer past its deadline is answered by its failure', async () => {
    const gate = manualGate();
    const { dispatcher, clock, log } = setUp({ STORE: gate.wait, RETRIEVE: gate.wait });
    const late = dispatcher.dispatch('STORE', store, from(1)) as Promise<unknown>;
    clock.advance(1000);
    await rejects(late, /STORE did not end within 1 s/);
    const strict = dispatcher.dispatch('RETRIEVE', retrieve, from(2)) as Promise<unknown>;
    clock.advance(1000);
    assert.instance(await rejects(strict, /retrieve is late/), WithheldReplyError);
    for (const open of gate.open) open(ok);
    await turn();
    assert.ok(log.has(/STORE ended after its deadline/));
    assert.is(dispatcher.inFlightCount, 0);
  });

  test('a transfer that was answered while it waited never starts', async () => {
    const gate = manualGate();
    const started: string[] = [];
    const { dispatcher, clock } = setUp({
      STORE: () => {
        started.push('store');
        return gate.wait();
      },
      RETRIEVE: () => {
        started.push('retrieve');
        return ok;
      },
    });
    const running = dispatcher.dispatch('STORE', store, from(1)) as Promise<unknown>;
    const waiting = dispatcher.dispatch('RETRIEVE', retrieve, from(1)) as Promise<unknown>;
    clock.advance(1000);
    await rejects(running, /did not end/);
    await rejects(waiting, /retrieve is late/);
    gate.open[0]?.(ok);
    await turn();
    assert.equal(started, ['store']);
    const next = dispatcher.dispatch('RETRIEVE', retrieve, from(1));
    assert.equal(await next, ok, 'the lane goes on');
  });

  test('a handler learns that its client has been told of a failure', async () => {
    const gate = manualGate();
    const seen: boolean[] = [];
    const { dispatcher, clock } = setUp({
      STORE: (_, __, attempt) => {
        attempt.onAbandon(() => seen.push(attempt.isAbandoned));
        return gate.wait();
      },
    });
    const running = dispatcher.dispatch('STORE', store, from(1)) as Promise<unknown>;
    clock.advance(999);
    assert.equal(seen, []);
    clock.advance(1);
    assert.equal(seen, [true]);
    await rejects(running, /did not end/);
    gate.open[0]?.(ok);
  });

  test('a request is overdue when the process stood still since it was sent', async () => {
    const gate = manualGate();
    const attempts: Attempt[] = [];
    const clock = new VirtualClock();
    const STORE = (_: unknown, __: unknown, attempt: Attempt) => {
      attempts.push(attempt);
      return gate.wait();
    };
    const { dispatcher } = setUp({ STORE }, clock, 60_000);
    const isOverdue = () => attempts.map((attempt) => attempt.isOverdue);
    // Runs, waits in the lane, lay unread in the socket, was sent afterwards.
    const replies = [1, 1].map((id) => dispatcher.dispatch('STORE', store, from(id)));
    assert.equal(isOverdue(), [false]);
    clock.standStill(STALL_MS);
    replies.push(dispatcher.dispatch('STORE', store, from(2)));
    clock.advance(2000);
    replies.push(dispatcher.dispatch('STORE', store, from(3)));
    assert.equal(isOverdue(), [true, true, false]);
    gate.open[0]?.(ok);
    await replies[0];
    await turn();
    assert.equal(isOverdue(), [true, true, false, true], 'the one of the lane has started last');
    for (const open of gate.open) open(ok);
    await Promise.all(replies);
  });

  test('a request is expired when its client may have sent it before the deadline', () => {
    const clock = new VirtualClock();
    const attempts: Attempt[] = [];
    const PING = (_: unknown, __: unknown, attempt: Attempt) => attempts.push(attempt) > 0;
    const { dispatcher } = setUp({ PING }, clock, 60_000);
    const isExpired = () => attempts.map((attempt) => attempt.isExpired);
    clock.standStill(50_000);
    dispatcher.dispatch('PING', { instanceId: 1n }, from(1));
    clock.advance(9_999);
    dispatcher.dispatch('PING', { instanceId: 1n }, from(1));
    assert.equal(isExpired(), [false, false]);
    clock.advance(1);
    assert.equal(isExpired(), [true, false], 'unread for 50 s, and 10 s since');
  });

  test('a long backlog is worked off in slices between other work', async () => {
    let finish = () => {};
    const clock = new VirtualClock();
    let servedCount = 0;
    const { dispatcher } = setUp(
      {
        LOOKUP: () => new Promise<void>((resolve) => (finish = resolve)),
        QUERY_PREFETCH_STATUS: () => {
          servedCount += 1;
          clock.advance(1);
          return 0;
        },
      },
      clock,
    );
    dispatcher.dispatch('LOOKUP', { key, tpSize: 1 }, from(1));
    const queries = Array.from({ length: 10 }, () =>
      dispatcher.dispatch('QUERY_PREFETCH_STATUS', { requestId: 'r' }, from(1)),
    );
    finish();
    await queries[0];
    assert.is(servedCount, 2, 'two milliseconds, then a turn for the others');
    await Promise.all(queries);
    assert.is(servedCount, 10);
  });

  test('waiting requests are bounded in bytes, too', () => {
    const gate = manualGate();
    const { dispatcher } = setUp({ STORE: gate.wait });
    const tokens = { bytes: new Uint8Array(40 * 1024 * 1024), count: 0 };
    const large = { ...store, key: { ...key, tokens } };
    dispatcher.dispatch('STORE', large, from(1));
    dispatcher.dispatch('STORE', large, from(1));
    assert.throws(
      () => dispatcher.dispatch('STORE', large, from(1)),
      (error: KvdError) => error.code === 'ERR_OVERLOADED',
    );
    dispatcher.dispatch('STORE', large, from(2));
  });

  test('what the door refuses becomes what the client can bear', () => {
    const { dispatcher } = setUp({});
    const error = new KvdError('ERR_OVERLOADED', 'too much');
    assert.instance(dispatcher.refuse('RETRIEVE', 1n, from(1), error), WithheldReplyError);
    assert.is(dispatcher.refuse('STORE', 1n, from(1), error), error);
  });

  test('the bound of a lane refuses instead of growing', () => {
    const gate = manualGate();
    const { dispatcher } = setUp({ STORE: gate.wait });
    for (let i = 0; i < 4097; i += 1) dispatcher.dispatch('STORE', store, from(1));
    assert.throws(
      () => dispatcher.dispatch('STORE', store, from(1)),
      (error: KvdError) => error.code === 'ERR_OVERLOADED',
    );
  });

  test('draining refuses new requests and waits for the accepted ones', async () => {
    const gate = manualGate();
    const { dispatcher } = setUp({
      STORE: gate.wait,
      LOOKUP: () => undefined,
      GET_CHUNK_SIZE: () => 256,
    });
    const running = dispatcher.dispatch('STORE', store, from(1));
    let isDrained = false;
    const drained = dispatcher.drain(5000).then(() => {
      isDrained = true;
    });
    assert.throws(
      () => dispatcher.dispatch('LOOKUP', { key, tpSize: 1 }, from(1)),
      (error: KvdError) => error.code === 'ERR_SHUTTING_DOWN',
    );
    assert.is(dispatcher.dispatch('GET_CHUNK_SIZE', {}, from(1)), 256, 'cannot fail');
    await turn();
    assert.is(isDrained, false);
    gate.open[0]?.(ok);
    await running;
    await drained;
    assert.is(isDrained, true);
  });

  test('a held failure frees its lane at once and is answered when it is due', async () => {
    let tell = (_: KvdError) => {};
    const due = new Promise<KvdError>((resolve) => {
      tell = resolve;
    });
    const { dispatcher } = setUp({
      PREPARE_RETRIEVE: async () => {
        throw new HeldReplyError(new KvdError('ERR_DATA_MISSING', 'missing'), due);
      },
      COMMIT_RETRIEVE: async () => true,
    });
    const read = dispatcher.dispatch('PREPARE_RETRIEVE', { key, instanceId: 1n }, from(1));
    const next = dispatcher.dispatch('COMMIT_RETRIEVE', { key, instanceId: 1n }, from(1));
    assert.is(await next, true);
    assert.is(dispatcher.inFlightCount, 0);
    await dispatcher.drain(1000);
    tell(new WithheldReplyError('ERR_DATA_MISSING', 'never mind'));
    await rejects(Promise.resolve(read), /never mind/);
    assert.is(dispatcher.failuresByCode.get('ERR_DATA_MISSING'), 1);
  });

  test('two handlers for one operation are a fault of the composition', () => {
    const module: EngineModule = {
      name: 'twice',
      handlers: { NOOP: () => 'OK' },
      status: () => ({}),
      close: async () => {},
    };
    const [clock, log] = [new VirtualClock(), new RecordingLogger()];
    assert.throws(
      () =>
        new Dispatcher({
          modules: [module, module],
          clock,
          bus: new EventBus(),
          log,
          stalls: new StallWatch({ clock, log, isIntakeDry: () => true }),
          transferDeadlineMs: 1,
          refusals: {},
        }),
      /NOOP has a handler already/,
    );
  });
});
