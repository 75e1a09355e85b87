import * as assert from 'uvu/assert';
import { Dispatcher } from '../../../src/engine/dispatch.ts';
import type { EngineModule, HandlerTable } from '../../../src/engine/handlers.ts';
import { StallWatch } from '../../../src/engine/stall-watch.ts';
import { KvdError } from '../../../src/errors.ts';
import { EventBus } from '../../../src/observability/event-bus.ts';
import type { EventCatalogue } from '../../../src/observability/events.ts';
import { OLD_CLIENT } from '../../support/client-traits.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const CONTEXT = { connectionId: 1, client: OLD_CLIENT };
const DEADLINE_MS = 5000;

function setUp(handlers: HandlerTable) {
  const [clock, log] = [new VirtualClock(), new RecordingLogger()];
  const bus = new EventBus({ clock });
  const finished: EventCatalogue['request.finished'][] = [];
  const timeouts: EventCatalogue['timeout.raised'][] = [];
  bus.subscribe('request.finished', (event) => finished.push(event));
  bus.subscribe('timeout.raised', (event) => timeouts.push(event));
  const module: EngineModule = {
    ...{ name: 'test', handlers, status: () => ({}), close: async () => {} },
  };
  const dispatcher = new Dispatcher({
    modules: [module],
    stalls: new StallWatch({ clock, log, isIntakeDry: () => true }),
    transferDeadlineMs: DEADLINE_MS,
    refusals: {},
    ...{ clock, bus, log },
  });
  return { dispatcher, clock, finished, timeouts };
}

const endSession = (requestId: string) => ({ requestId });

suite('dispatch: what the bus hears of requests', (test) => {
  test('an answer, and how long it took', async () => {
    const { dispatcher, clock, finished } = setUp({
      NOOP: () => {
        clock.advance(2);
        return 'OK';
      },
    });
    dispatcher.dispatch('NOOP', {}, CONTEXT);
    assert.equal(finished, [{ operation: 'NOOP', queueSeconds: 0, seconds: 0.002, error: null }]);
  });

  test('waiting behind another request of the connection is told apart', async () => {
    const gate = Promise.withResolvers<void>();
    const { dispatcher, clock, finished } = setUp({ END_SESSION: () => gate.promise });
    const answers = ['a', 'b'].map((id) =>
      dispatcher.dispatch('END_SESSION', endSession(id), CONTEXT),
    );
    clock.advance(250);
    gate.resolve();
    await Promise.all(answers);
    assert.equal(
      finished.map(({ queueSeconds, seconds }) => [queueSeconds, seconds]),
      [
        [0, 0.25],
        [0.25, 0.25],
      ],
    );
  });

  test('a failure has the code that the client gets, once', async () => {
    const { dispatcher, finished } = setUp({
      END_SESSION: async () => {
        throw new KvdError('ERR_BAD_REQUEST', 'no');
      },
    });
    const answer = dispatcher.dispatch('END_SESSION', endSession('a'), CONTEXT);
    await rejects(Promise.resolve(answer), /^no$/);
    assert.equal(
      finished.map(({ operation, error }) => [operation, error]),
      [['END_SESSION', 'ERR_BAD_REQUEST']],
    );
  });

  test('a request that no module handles has taken no time', () => {
    const { dispatcher, finished } = setUp({});
    assert.throws(() => dispatcher.dispatch('NOOP', {}, CONTEXT));
    assert.equal(finished, [
      { operation: 'NOOP', queueSeconds: 0, seconds: 0, error: 'ERR_NOT_ENABLED' },
    ]);
  });

  test('a transfer that meets its deadline is a timeout of its session', async () => {
    const { dispatcher, clock, finished, timeouts } = setUp({
      UNREGISTER_KV_CACHE: () => new Promise<void>(() => {}),
    });
    const answer = dispatcher.dispatch('UNREGISTER_KV_CACHE', { instanceId: 1n }, CONTEXT);
    const refused = rejects(Promise.resolve(answer), /did not end within 5 s/);
    clock.advance(DEADLINE_MS);
    await refused;
    assert.equal(
      finished.map(({ error, seconds }) => [error, seconds]),
      [['ERR_TIMEOUT', 5]],
    );
    assert.equal(
      timeouts.map(({ exceptionType }) => exceptionType),
      ['TransferTimeout'],
    );
  });
});
