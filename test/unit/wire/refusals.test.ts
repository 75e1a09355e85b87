/** What a client is told when its request is refused, by the engine or by the door. */
import * as assert from 'uvu/assert';
import type { KvdClient } from '../../../src/client/client.ts';
import type { InstanceId, RequestOf } from '../../../src/engine/api.ts';
import { KvdError, RefusedTransferError, WithheldReplyError } from '../../../src/errors.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { until } from '../../support/waiting.ts';
import {
  type Answers,
  CALL_TIMEOUT_MS,
  lookup,
  openWireHouse,
  ping,
  replyOrSilence,
  retrieve,
  type WireHouse,
  withWireHouse,
} from '../../support/wire-house.ts';
import { wireVectors } from '../../support/wire-vectors.ts';

/** What the first request of `oldClient` asks for. */
const CHUNK_SIZE: Answers = { GET_CHUNK_SIZE: () => 256 };

/** A client that the server knows to be one of 0.5.0. */
async function oldClient(house: WireHouse): Promise<KvdClient> {
  const client = house.client();
  const frames = wireVectors.establish.map((hex) => Buffer.from(hex, 'hex'));
  await client.exchange(frames, CALL_TIMEOUT_MS);
  return client;
}

suite('withheld reply', (test) => {
  test('is silence, counted by operation, for registrations and strict transfers', () =>
    withWireHouse(
      {
        RETRIEVE: () => {
          throw new WithheldReplyError('ERR_DATA_MISSING', 'strict');
        },
        REGISTER_KV_CACHE: () => Promise.reject(new KvdError('ERR_LAYOUT', 'unknown layout')),
      },
      async (house) => {
        const client = house.client();
        await rejects(client.call('RETRIEVE', retrieve(), 100), /no reply within 100 ms/);
        const registration: RequestOf<'REGISTER_KV_CACHE'> = {
          instanceId: 1n,
          wrappers: [],
          modelName: 'm',
          worldSize: 1,
          engineType: 'vllm',
          layoutHints: {},
          engineGroupInfos: [],
        };
        await rejects(client.call('REGISTER_KV_CACHE', registration, 100), /no reply/);
        assert.equal(house.router.statistics()['replies_withheld'], {
          RETRIEVE: 1,
          REGISTER_KV_CACHE: 1,
        });
        const line = house.log.lines.find(({ message }) => /REGISTER_KV_CACHE/.test(message));
        assert.is(line?.level, 'error');
        assert.match(line?.message as string, /unknown layout \(next: Compare engine/);
      },
    ));
});

suite('refusal by the door', (test) => {
  const overload = { limits: { inFlightCountMax: 0 } };

  test('says what the engine wants the client to be told', () => {
    const asked: unknown[] = [];
    return withWireHouse(
      { RETRIEVE: () => assert.unreachable() },
      async (house) => {
        const request = retrieve();
        const { value, error } = await house.client().call('RETRIEVE', request, CALL_TIMEOUT_MS);
        assert.is(Buffer.from(value!.event).toString(), 'event!');
        assert.equal([value!.ok, error?.error], [false, 'OVERLOADED']);
        const [[name, instanceId, connectionId, code]] = asked as [unknown[]];
        assert.equal([name, instanceId, code], ['RETRIEVE', 1n, 'ERR_OVERLOADED']);
        assert.type(connectionId, 'number');
        assert.equal(house.router.statistics()['refusals'], { ERR_OVERLOADED: 1 });
      },
      {
        ...overload,
        refuse(name, instanceId, context, error) {
          asked.push([name, instanceId, context.connectionId, error.code]);
          return new RefusedTransferError(error.code, error.message, Buffer.from('event!'));
        },
      },
    );
  });

  test('is silence where the client would take every reply for success', () =>
    withWireHouse(
      {},
      async (house) => {
        const client = house.client();
        await rejects(client.call('RETRIEVE', retrieve(), 100), /no reply within 100 ms/);
        await ping(client);
        assert.equal(house.router.statistics()['replies_withheld'], { RETRIEVE: 1 });
        assert.equal(house.router.statistics()['refusals'], { ERR_OVERLOADED: 1 });
      },
      {
        ...overload,
        refuse: (_name, _request, _context, { code, message }) =>
          new WithheldReplyError(code, message),
      },
    ));

  test('may come later, and then comes once', () => {
    const due = Promise.withResolvers<KvdError>();
    return withWireHouse(
      {},
      async (house) => {
        const client = house.client();
        const { key } = lookup();
        const call = client.call('PREPARE_RETRIEVE', { key, instanceId: 1n }, CALL_TIMEOUT_MS);
        await ping(client);
        assert.equal(house.router.statistics()['refusals'], {});
        due.resolve(new KvdError('ERR_OVERLOADED', 'held'));
        const { value, error } = await call;
        assert.equal([value?.success, error?.message], [false, 'held']);
        assert.is(house.router.statistics()['in_flight'], 0);
      },
      { ...overload, refuse: () => due.promise },
    );
  });

  const BAD = Buffer.of(0xc1);
  const unreadable: [string, 3 | 4 | 15, Buffer[], InstanceId | null][] = [
    ['a bad key', 4, [BAD, Buffer.of(77), BAD, BAD, BAD], 77n],
    ['an id as text', 4, [BAD, Buffer.from([0xa2, 0x37, 0x37]), BAD, BAD, BAD], 77n],
    ['a payload too many', 4, [BAD, Buffer.of(77), BAD, BAD, BAD, BAD], 77n],
    ['nothing that can be read', 4, [BAD, BAD, BAD, BAD, BAD], null],
    ['an id that is none', 4, [BAD, Buffer.of(0xff), BAD, BAD, BAD], null],
    ['no id', 4, [BAD], null],
    ['a bad key', 15, [BAD, Buffer.of(77)], 77n],
    ['a bad key', 3, [BAD, Buffer.of(77), BAD, BAD], null],
  ];
  for (const [what, op, payloads, expectedId] of unreadable) {
    const name = { 3: 'STORE', 4: 'RETRIEVE', 15: 'PREPARE_RETRIEVE' }[op];
    test(`of a ${name} with ${what} asks the engine, which may want silence`, () => {
      const asked: unknown[] = [];
      return withWireHouse(
        CHUNK_SIZE,
        async (house) => {
          const client = await oldClient(house);
          const frames = [Buffer.of(7), Buffer.of(op), ...payloads];
          assert.is(await replyOrSilence(client, frames), null);
          assert.equal(asked, [[name, expectedId]]);
          const statistics = house.router.statistics();
          assert.equal(statistics['replies_withheld'], { [name]: 1 });
          assert.equal(statistics['refusals'], {});
          assert.equal(Object.values(statistics['bad_messages'] as object), [1]);
        },
        {
          refuse(operation, instanceId, _, { code, message }) {
            asked.push([operation, instanceId]);
            return new WithheldReplyError(code, message);
          },
        },
      );
    });
  }

  test('of a request that cannot be read is its failure value if the engine has no objection', () =>
    withWireHouse(CHUNK_SIZE, async (house) => {
      const frames = [Buffer.of(7), Buffer.of(4), BAD, BAD, BAD, BAD, BAD];
      assert.is((await replyOrSilence(await oldClient(house), frames))?.length, 4);
      assert.equal(house.router.statistics()['bad_messages'], { ERR_WIRE_PAYLOAD: 1 });
    }));

  test('behind an empty uid is bare: what looks like an operation is the uid of a REQ socket', () =>
    withWireHouse(
      CHUNK_SIZE,
      async (house) => {
        const frames = [Buffer.of(), Buffer.of(4), Buffer.of(0x15)];
        assert.is((await replyOrSilence(await oldClient(house), frames))?.length, 2);
      },
      {
        refuse() {
          throw new Error('the engine was asked');
        },
      },
    ));

  test('of a router that closes asks the engine, too', async () => {
    const late = Promise.withResolvers<number>();
    const refuse = (_: unknown, __: unknown, ___: unknown, { code }: KvdError) =>
      new RefusedTransferError(code, 'closing', Buffer.from('event!'));
    const house = await openWireHouse({ QUERY_PREFETCH_STATUS: () => late.promise }, { refuse });
    const client = house.client();
    const open = client.call('QUERY_PREFETCH_STATUS', { requestId: 'r' }, CALL_TIMEOUT_MS);
    await until(() => house.router.statistics()['in_flight'] === 1, 5_000, 'the request');
    const closed = house.router.close({ deadlineMs: CALL_TIMEOUT_MS });
    const { value, error } = await client.call('RETRIEVE', retrieve(), CALL_TIMEOUT_MS);
    assert.is(Buffer.from(value!.event).toString(), 'event!');
    assert.is(error?.error, 'SHUTTING_DOWN');
    late.resolve(1);
    await open;
    await closed;
    await house.close();
  });

  test('is one line that names the request and what became of it', () =>
    withWireHouse(
      {
        RETRIEVE: () => {
          throw new WithheldReplyError('ERR_DATA_MISSING', 'gone');
        },
        STORE: () => {
          throw new KvdError('ERR_BAD_REQUEST', 'no');
        },
      },
      async (house) => {
        const client = house.client();
        const { skipFirstTokens: _, ...store } = retrieve();
        await client.call('STORE', store, CALL_TIMEOUT_MS);
        await rejects(client.call('RETRIEVE', retrieve(), 50), /no reply/);
        const lines = house.log.lines.map(({ level, message }) => `${level}: ${message}`);
        assert.is(lines.length, 2);
        assert.match(
          lines[0] as string,
          /^warn: STORE of client \d+ \(instance 1, request r\) refused: ERR_BAD_REQUEST: no \(/,
        );
        assert.match(
          lines[1] as string,
          /^warn: RETRIEVE of client \d+ \(.*\) refused without an answer: ERR_DATA_MISSING: gone/,
        );
      },
    ));

  test('of a registration is an error, whatever the reason', () =>
    withWireHouse(
      {
        ...CHUNK_SIZE,
        REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: () => {
          throw new WithheldReplyError('ERR_OVERLOADED', 'full');
        },
      },
      async (house) => {
        const client = await oldClient(house);
        await replyOrSilence(client, [Buffer.of(7), Buffer.of(11), BAD]);
        await replyOrSilence(client, [Buffer.of(7), Buffer.of(1), BAD]);
        const seen = house.log.lines.map(({ level, message }) => `${level} ${message}`);
        assert.is(seen.length, 2);
        for (const line of seen) assert.match(line, /^error REGISTER_\w+ of client \d+ refused/);
      },
    ));

  test('shows of a name that a client made long only the beginning', () =>
    withWireHouse({}, async (house) => {
      await house.client().call('LOOKUP', lookup('x'.repeat(4000)), CALL_TIMEOUT_MS);
      const line = house.log.lines.find(({ message }) => /^LOOKUP/.test(message));
      assert.match(line?.message as string, /\(request x{120}…\) refused: ERR_NOT_ENABLED/);
    }));
});
