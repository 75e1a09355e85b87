/** The router over real sockets: one reply a request, bounds, closing. */
import { createServer } from 'node:net';
import * as assert from 'uvu/assert';
import type { RequestContext } from '../../../src/engine/client-traits.ts';
import { KvdError, RefusedTransferError } from '../../../src/errors.ts';
import { OLD_CLIENT } from '../../support/client-traits.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { deadline, until } from '../../support/waiting.ts';
import {
  type Answers,
  CALL_TIMEOUT_MS,
  lookup,
  openWireHouse,
  ping,
  pingUnheard,
  replyOrSilence,
  retrieve,
  type WireHouse,
  withWireHouse,
} from '../../support/wire-house.ts';

suite('reply', (test) => {
  test('is the value of a handler that returns at once', () =>
    withWireHouse({ GET_CHUNK_SIZE: () => 256, LOOKUP: () => undefined }, async (house) => {
      const client = house.client();
      assert.equal(await client.call('GET_CHUNK_SIZE', {}, CALL_TIMEOUT_MS), {
        value: 256,
        error: null,
      });
      assert.equal(await client.call('LOOKUP', lookup(), CALL_TIMEOUT_MS), {
        value: null,
        error: null,
      });
    }));

  test('of a later handler comes when its promise settles, others overtake it', () => {
    const late = Promise.withResolvers<number | null>();
    return withWireHouse({ QUERY_PREFETCH_STATUS: () => late.promise }, async (house) => {
      const client = house.client();
      const query = client.call('QUERY_PREFETCH_STATUS', { requestId: 'r' }, CALL_TIMEOUT_MS);
      await ping(client);
      assert.is(house.router.statistics()['in_flight'], 1);
      late.resolve(7);
      assert.is((await query).value, 7);
      assert.is(house.router.statistics()['in_flight'], 0);
    });
  });

  test('to a handler that throws or rejects is the neutral value with the reason', () =>
    withWireHouse(
      {
        QUERY_PREFETCH_STATUS: () => {
          throw new KvdError('ERR_OVERLOADED', 'too much');
        },
        COMMIT_RETRIEVE: () => Promise.reject(new Error('a bug')),
      },
      async (house) => {
        const client = house.client();
        const thrown = await client.call(
          'QUERY_PREFETCH_STATUS',
          { requestId: 'r' },
          CALL_TIMEOUT_MS,
        );
        assert.is(thrown.value, 0);
        assert.equal(thrown.error, {
          error: 'OVERLOADED',
          message: 'too much',
          op: 'QUERY_PREFETCH_STATUS',
        });
        const { key } = lookup();
        const rejected = await client.call(
          'COMMIT_RETRIEVE',
          { key, instanceId: 1n },
          CALL_TIMEOUT_MS,
        );
        assert.is(rejected.value, false);
        assert.is(rejected.error?.error, 'INTERNAL');
        assert.equal(house.router.statistics()['refusals'], {
          ERR_OVERLOADED: 1,
          ERR_INTERNAL: 1,
        });
      },
    ));

  test('that cannot be encoded becomes the neutral one', () =>
    withWireHouse({ GET_CHUNK_SIZE: () => 1.5 }, async (house) => {
      const { value, error } = await house.client().call('GET_CHUNK_SIZE', {}, CALL_TIMEOUT_MS);
      assert.is(value, -1);
      assert.match(error?.message as string, /whole numbers/);
    }));

  test('to a refused transfer carries the event that the engine gave', () =>
    withWireHouse(
      {
        RETRIEVE: () => {
          throw new RefusedTransferError('ERR_DATA_MISSING', 'gone', Buffer.from('event!'));
        },
      },
      async (house) => {
        const { value } = await house.client().call('RETRIEVE', retrieve(), CALL_TIMEOUT_MS);
        assert.is(Buffer.from(value!.event).toString(), 'event!');
        assert.is(value!.ok, false);
      },
    ));

  test('comes exactly once, however the handler ends', () => {
    let count = 0;
    const ends = [
      () => true,
      () => Promise.resolve(true),
      () => Promise.reject(new KvdError('ERR_INTERNAL', 'x')),
      () => {
        throw new KvdError('ERR_INTERNAL', 'x');
      },
    ];
    const answers: Answers = { PING: () => ends[count++ % ends.length]!() };
    return withWireHouse(answers, async (house) => {
      const client = house.client();
      const seen = new Map<string, number>();
      client.onStrayReply(([uid]) => {
        const key = Buffer.from(uid!).toString('hex');
        seen.set(key, (seen.get(key) ?? 0) + 1);
      });
      for (let index = 0; index < 400; index += 1) {
        await client.send([Buffer.from(`uid ${index}`), Buffer.from([19]), Buffer.from([0xc0])]);
      }
      await until(() => seen.size === 400, 5_000, '400 replies');
      await client.call('GET_CHUNK_SIZE', {}, CALL_TIMEOUT_MS);
      assert.ok([...seen.values()].every((times) => times === 1));
    });
  });

  test('echoes uid and operation byte for byte', () =>
    withWireHouse({}, async (house) => {
      const uid = Buffer.from('c1ff00', 'hex');
      const op = Buffer.from('cd0015', 'hex');
      const reply = await house.client().exchange([uid, op], CALL_TIMEOUT_MS);
      assert.equal([Buffer.from(reply[0]!), Buffer.from(reply[1]!)], [uid, op]);
      assert.is(reply.length, 3);
    }));
});

suite('connection', (test) => {
  test('has an id of its own, the same for all its messages', () => {
    const seen: RequestContext[] = [];
    const answers: Answers = { PING: (_, context) => seen.push(context) > 0 };
    return withWireHouse(answers, async (house) => {
      const [first, second] = [house.client(), house.client()];
      for (const client of [first, second, first]) await ping(client);
      const ids = seen.map((context) => context.connectionId);
      assert.is(ids[0], ids[2]);
      assert.is.not(ids[0], ids[1]);
      assert.equal(seen[0]?.client, OLD_CLIENT);
    });
  });

  test('with too many requests in flight is refused until some end', () => {
    const late = Promise.withResolvers<number>();
    return withWireHouse(
      { QUERY_PREFETCH_STATUS: () => late.promise },
      async (house) => {
        const client = house.client();
        const query = () =>
          client.call('QUERY_PREFETCH_STATUS', { requestId: 'r' }, CALL_TIMEOUT_MS);
        const calls = [query(), query(), query()];
        assert.match((await calls[2])?.error?.message as string, /2 requests in flight/);
        await ping(client);
        await ping(house.client());
        late.resolve(7);
        assert.is((await calls[0])?.value, 7);
        assert.is((await query()).value, 7);
      },
      { limits: { inFlightCountMax: 2 } },
    );
  });

  test('that sends more bytes than allowed gets a refusal, and may go on', () =>
    withWireHouse(
      { LOOKUP: () => undefined },
      async (house) => {
        const client = house.client();
        const { error } = await client.call('LOOKUP', lookup('x'.repeat(2000)), CALL_TIMEOUT_MS);
        assert.is(error?.error, 'OVERLOADED');
        assert.is((await client.call('LOOKUP', lookup(), CALL_TIMEOUT_MS)).error, null);
      },
      { limits: { messageBytesMax: 1000 } },
    ));
});

suite('router', (test) => {
  test('answers its own NOOP through the loop', () =>
    withWireHouse({}, async (house) => {
      const ms = await house.router.selfPing(CALL_TIMEOUT_MS);
      assert.ok(ms >= 0 && ms < CALL_TIMEOUT_MS);
    }));

  test('is dry when it waits, and not while it reads', async () => {
    const seen: boolean[] = [];
    const house: WireHouse = await openWireHouse({
      PING: () => {
        seen.push(house.router.isDry);
        return true;
      },
    });
    await ping(house.client());
    assert.equal(seen, [false]);
    assert.is(house.router.isDry, true);
    await house.close();
  });

  test('says so when the loop gives no answer', () =>
    withWireHouse({ NOOP: () => new Promise(() => {}) }, async (house) => {
      await rejects(house.router.selfPing(20), /no answer in 20 ms/);
    }));

  test('that closes answers what is in flight and refuses what is new', async () => {
    const late = Promise.withResolvers<boolean>();
    const house = await openWireHouse({ PING: () => late.promise });
    const client = house.client();
    const open = client.call('PING', { instanceId: null }, CALL_TIMEOUT_MS);
    await until(() => house.router.statistics()['in_flight'] === 1, 5_000, 'the request');
    const closed = house.router.close({ deadlineMs: CALL_TIMEOUT_MS });
    const refused = await client.call('PING', { instanceId: null }, CALL_TIMEOUT_MS);
    assert.equal([refused.value, refused.error?.error], [false, 'SHUTTING_DOWN']);
    late.resolve(true);
    assert.is((await open).value, true);
    await closed;
    await house.close();
  });

  test('that closes does not wait for a handler beyond the deadline', async () => {
    const house = await openWireHouse({ PING: () => new Promise(() => {}) });
    const client = house.client();
    await pingUnheard(client);
    await until(() => house.router.statistics()['in_flight'] === 1, 5_000, 'the request');
    await deadline(house.router.close({ deadlineMs: 50 }), 2_000, 'close did not end');
    await house.close();
  });

  test('that cannot bind says which endpoint, why, and leaves nothing open', async () => {
    const taken = createServer().listen(0, '127.0.0.1');
    await new Promise((resolve) => taken.once('listening', resolve));
    const { port } = taken.address() as { port: number };
    const path = `/tmp/kvd-wire-bind-${process.pid}.sock`;
    const endpoints = [`ipc://${path}`, `tcp://127.0.0.1:${port}`];
    await rejects(
      openWireHouse({}, { endpoints }),
      /endpoint tcp:\/\/127\.0\.0\.1:\d+ cannot be bound: another process listens there/,
    );
    taken.close();
    const house = await openWireHouse({}, { endpoints: [`ipc://${path}`] });
    await ping(house.client());
    await house.close();
  });

  test('warns when other hosts can reach it', () =>
    withWireHouse(
      {},
      async (house) => {
        assert.ok(house.log.has(/can be reached from other hosts/));
      },
      { endpoints: ['tcp://0.0.0.0:0'] },
    ));

  test('publishes each bad message with its reason', () =>
    withWireHouse({}, async (house) => {
      const reasons: string[] = [];
      house.bus.subscribe('wire.bad_message', ({ reason }) => reasons.push(reason));
      const client = house.client();
      const uid = Buffer.from('odd');
      for (const frames of [
        [uid],
        [uid, Buffer.from([99])],
        [uid, Buffer.from([19])],
        [uid, Buffer.from([19]), Buffer.from([0xa0])],
      ]) {
        await replyOrSilence(client, frames);
      }
      assert.equal(reasons, [
        'ERR_WIRE_FRAME_COUNT',
        'ERR_WIRE_OPERATION',
        'ERR_WIRE_FRAME_COUNT',
        'ERR_WIRE_PAYLOAD',
      ]);
    }));
});
