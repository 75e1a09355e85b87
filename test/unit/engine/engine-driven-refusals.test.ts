/** What refused requests are told, and when (spec engine 9.1, 9.3; wire 7.3) */
import * as assert from 'uvu/assert';
import type { CacheKey } from '../../../src/engine/api.ts';
import { Dispatcher } from '../../../src/engine/dispatch.ts';
import { StallWatch } from '../../../src/engine/stall-watch.ts';
import { KvdError, WithheldReplyError } from '../../../src/errors.ts';
import { AbandonableAttempt } from '../../support/attempts.ts';
import { NEW_CLIENT, OLD_CLIENT } from '../../support/client-traits.ts';
import { CHUNK_TOKENS, EngineDrivenHouse, WORKER } from '../../support/engine-driven-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const PID = 4242n;

async function open(strictRetrieve = true) {
  const house = new EngineDrivenHouse({ strictRetrieve });
  await house.register();
  const dispatcher = new Dispatcher({
    modules: [house.module, house.lookup],
    clock: house.clock,
    bus: house.bus,
    log: house.log,
    stalls: new StallWatch({ clock: house.clock, log: house.log, isIntakeDry: () => true }),
    transferDeadlineMs: 60_000,
    refusals: { PREPARE_RETRIEVE: house.module.refuseRetrieve.bind(house.module) },
  });
  return { house, dispatcher };
}

const contextOf = (client: typeof OLD_CLIENT) => ({ connectionId: 1, client });

type Opened = Awaited<ReturnType<typeof open>>;

/** What has become of a read by now: pending, or its error. */
function watchRead(
  { house, dispatcher }: Opened,
  request: { key: CacheKey; instanceId?: bigint; client?: typeof OLD_CLIENT },
) {
  const { key, instanceId = WORKER, client = OLD_CLIENT } = request;
  const seen: { error: unknown } = { error: null };
  const context = { connectionId: 1, client };
  const read = { key, instanceId };
  const reply = (async () => await dispatcher.dispatch('PREPARE_RETRIEVE', read, context))();
  reply.catch((error) => {
    seen.error = error;
  });
  return {
    async isPending() {
      await house.settle();
      return seen.error === null;
    },
    async error() {
      await house.settle();
      return seen.error;
    },
  };
}

suite('requests that cannot be served', (test) => {
  const calls = ['PREPARE_STORE', 'COMMIT_STORE', 'PREPARE_RETRIEVE', 'COMMIT_RETRIEVE'] as const;
  const request = (house: EngineDrivenHouse, key: CacheKey, instanceId = WORKER) => ({
    key,
    instanceId,
    data: { kind: 'none' } as const,
    house,
  });

  for (const name of calls) {
    test(`${name} of an unknown worker`, async () => {
      const { house } = await open(false);
      const given = request(house, house.key(1, 1), PID);
      assert.is(await house.answer(name, given), 'ERR_UNKNOWN_INSTANCE');
      house.assertClean();
    });

    test(`${name} with a key that makes no sense`, async () => {
      const { house } = await open(false);
      const keys: Partial<CacheKey>[] = [
        { workerId: null },
        { workerId: 1 },
        { startToken: 3 },
        { startToken: -CHUNK_TOKENS },
        { startToken: 2 * CHUNK_TOKENS, endToken: CHUNK_TOKENS },
        { endToken: 4 * CHUNK_TOKENS },
        { endToken: CHUNK_TOKENS + 1 },
        { modelName: 'a@b' },
      ];
      for (const rest of keys) {
        const given = request(house, house.key(1, 3, rest));
        assert.is(await house.answer(name, given), 'ERR_BAD_REQUEST', JSON.stringify(rest));
      }
      house.assertClean();
    });
  }
});

suite('a failed read of a worker that takes failures for successes', (test) => {
  test('is answered 100 ms after the next PING, which was false', async () => {
    const opened = await open();
    const { house } = opened;
    const read = watchRead(opened, { key: house.key(1, 1) });
    assert.ok(await read.isPending());
    house.clock.advance(5_000);
    assert.ok(await read.isPending());
    assert.is(house.instances.ping(WORKER), false);
    house.clock.advance(99);
    assert.ok(await read.isPending());
    house.clock.advance(1);
    assert.match(((await read.error()) as KvdError).message, /not all of 1 chunks/);
    assert.is(house.instances.ping(WORKER), true);
    assert.is(house.status['held_reply_count'], 0);
  });

  test('is answered after 15 s when no PING comes; the false stays owed', async () => {
    const opened = await open();
    const { house } = opened;
    const read = watchRead(opened, { key: house.key(1, 1) });
    assert.ok(await read.isPending());
    house.clock.advance(14_999);
    assert.ok(await read.isPending());
    house.clock.advance(1);
    assert.instance(await read.error(), KvdError);
    assert.is(house.instances.ping(WORKER), false);
    assert.is(house.instances.ping(WORKER), true);
  });

  test('one false PING is enough for all reads that wait', async () => {
    const opened = await open();
    const { house } = opened;
    const reads = [1, 2, 3].map((prompt) => watchRead(opened, { key: house.key(prompt, 1) }));
    await house.settle();
    assert.is(house.status['held_reply_count'], 3);
    house.instances.ping(WORKER);
    house.clock.advance(100);
    for (const read of reads) assert.instance(await read.error(), KvdError);
    assert.is(house.instances.ping(WORKER), true);
  });

  test('another worker’s PING does not release it', async () => {
    const opened = await open();
    const { house } = opened;
    const read = watchRead(opened, { key: house.key(1, 1) });
    house.instances.ping(WORKER + 1n);
    house.clock.advance(100);
    assert.ok(await read.isPending());
  });

  test('holds up neither the connection nor other workers', async () => {
    const opened = await open();
    const { house, dispatcher } = opened;
    const read = watchRead(opened, { key: house.key(1, 1) });
    await house.settle();
    const context = { connectionId: 1, client: OLD_CLIENT };
    const next = { key: house.key(2, 1), instanceId: WORKER };
    const reply = await dispatcher.dispatch('PREPARE_STORE', next, context);
    assert.is(reply.context.slots?.length, 1);
    assert.ok(await read.isPending());
    await house.unregister();
  });

  test('an unknown worker of a random id is one from before a restart: held, too', async () => {
    const opened = await open();
    const { house } = opened;
    const stranger = WORKER + 9n;
    const read = watchRead(opened, { key: house.key(1, 1), instanceId: stranger });
    assert.ok(await read.isPending());
    assert.is(house.instances.ping(stranger), false);
    house.clock.advance(100);
    assert.is(((await read.error()) as KvdError).code, 'ERR_UNKNOWN_INSTANCE');
  });

  test('at once: newer clients, process ids, empty ranges, and without strict mode', async () => {
    const opened = await open();
    const { house } = opened;
    const key = house.key(1, 1);
    for (const request of [
      { key, client: NEW_CLIENT },
      { key, instanceId: PID },
      { key: house.key(1, 1, { endToken: 0 }) },
    ]) {
      assert.not.ok(await watchRead(opened, request).isPending());
    }
    const lax = await open(false);
    assert.not.ok(await watchRead(lax, { key: lax.house.key(1, 1) }).isPending());
    assert.is(lax.house.instances.ping(WORKER), true);
  });

  test('a read that met its deadline is held and opens nothing', async () => {
    const opened = await open();
    const { house } = opened;
    const key = house.key(1, 1);
    await house.register({ instanceId: PID });
    await house.store(key, 1, PID);
    const release = house.device.hold();
    const read = watchRead(opened, { key });
    await house.settle();
    house.clock.advance(60_000);
    assert.ok(await read.isPending());
    release();
    await house.settle();
    house.assertClean();
    house.instances.ping(WORKER);
    house.clock.advance(100);
    assert.is(((await read.error()) as KvdError).code, 'ERR_TIMEOUT');
  });

  test('a shutdown leaves held reads without an answer, and does not wait for them', async () => {
    const opened = await open();
    const { house, dispatcher } = opened;
    const read = watchRead(opened, { key: house.key(1, 1) });
    await house.settle();
    await dispatcher.drain(10_000);
    assert.instance(await read.error(), WithheldReplyError);
    // ... and so is what comes after it.
    const late = watchRead(opened, { key: house.key(1, 1) });
    assert.instance(await late.error(), WithheldReplyError);
    const store = { key: house.key(1, 1), instanceId: WORKER };
    const context = { connectionId: 1, client: OLD_CLIENT };
    const refused = async () => await dispatcher.dispatch('PREPARE_STORE', store, context);
    await rejects(refused(), /shutting down/);
  });

  test('a lost read is refused late, as a failed one', async () => {
    const { house } = await open();
    const key = house.key(1, 1);
    await house.store(key, 1);
    await house.prepareRetrieve(key);
    house.clock.advance(60_000);
    let isAnswered = false;
    const answer = house.answer('COMMIT_RETRIEVE', { key, instanceId: WORKER }).then((code) => {
      isAnswered = true;
      return code;
    });
    await house.settle();
    // `answer` sees the held error at once; the dispatch is what waits for its due time.
    assert.ok(isAnswered);
    assert.is(await answer, 'ERR_TIMEOUT');
    assert.is(house.instances.ping(WORKER), false);
  });
});

suite('a read of a worker whose id cannot be read', (test) => {
  const unread = new KvdError('ERR_WIRE_PAYLOAD', 'payload 1');

  test('is not answered where it would be misread: nobody knows whose PING to await', async () => {
    const { house, dispatcher } = await open();
    const refused = dispatcher.refuse('PREPARE_RETRIEVE', null, contextOf(OLD_CLIENT), unread);
    assert.instance(refused, WithheldReplyError);
    assert.is(house.status['held_reply_count'], 0);
  });

  test('is answered to others at once', async () => {
    const { dispatcher } = await open();
    const context = contextOf(NEW_CLIENT);
    assert.is(dispatcher.refuse('PREPARE_RETRIEVE', null, context, unread), unread);
  });
});

suite('a request whose client has been told that it failed', (test) => {
  test('reserves nothing', async () => {
    const { house } = await open(false);
    const attempt = new AbandonableAttempt();
    attempt.abandon();
    const request = { key: house.key(1, 1), instanceId: WORKER };
    const context = { connectionId: 1, client: OLD_CLIENT };
    const { PREPARE_STORE, PREPARE_RETRIEVE } = house.module.handlers;
    assert.throws(() => PREPARE_STORE?.(request, context, attempt), /deadline/);
    assert.throws(() => PREPARE_RETRIEVE?.(request, context, attempt), /deadline/);
    house.assertClean();
  });
});
