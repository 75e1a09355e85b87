/** Replies of many parts: one on its way, the rest when it has been taken. */
import * as assert from 'uvu/assert';
import type { KvEventBatch, ReplyStream, RequestOf } from '../../../src/engine/api.ts';
import { KvdError } from '../../../src/errors.ts';
import { Connection } from '../../../src/wire/connections.ts';
import { callNamed, DIALECTS, dialectNamed } from '../../../src/wire/dialect.ts';
import type { Call } from '../../../src/wire/operation.ts';
import type { Accepted } from '../../../src/wire/received.ts';
import { PayloadReader } from '../../../src/wire/schema.ts';
import { StreamTable } from '../../../src/wire/streams.ts';
import { openHasher } from '../../support/core-hasher.ts';
import { suite } from '../../support/suite.ts';
import { until } from '../../support/waiting.ts';
import { CALL_TIMEOUT_MS, openWireHouse, ping, withWireHouse } from '../../support/wire-house.ts';

const DIALECT = dialectNamed('C');
const SUBSCRIBE = callNamed(DIALECT, 'SUBSCRIBE_KV_EVENTS') as unknown as Call;
const OP = Buffer.from('subscribe');
const ACK = Buffer.from('ack');
const CANCEL = Buffer.from('cancel');
const REQUEST: RequestOf<'SUBSCRIBE_KV_EVENTS'> = {
  instanceId: 1n,
  modelName: 'm',
  cursor: 0,
  eventCountMax: 1024,
};

function batch(nextCursor: number): KvEventBatch {
  return { isEnabled: true, incarnation: 5n, nextCursor, isLost: false, events: [] };
}

/** A subscription whose parts the test gives out; cancelled, it ends as the contract says. */
class Source implements ReplyStream<KvEventBatch> {
  readonly #waiting: ((part: KvEventBatch | null) => void)[] = [];
  askedCount = 0;
  cancelCount = 0;
  isEnded = false;

  next(): Promise<KvEventBatch | null> {
    this.askedCount += 1;
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  give(part: KvEventBatch | null): Promise<void> {
    this.#waiting.shift()?.(part);
    return turn();
  }

  cancel(): void {
    this.cancelCount += 1;
    for (const resolve of this.#waiting.splice(0)) resolve(null);
  }
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

const reader = new PayloadReader(openHasher({ chunkSizeTokens: 16, tokenCountMax: 16 }));

/** `sent`: client, uid, and the cursor of the part or `end`. */
function setUp(limits = { streamCountMax: 2, streamCountMaxTotal: 3 }) {
  const sent: string[] = [];
  const failures: string[] = [];
  const table = new StreamTable({
    limits,
    send: ({ id }, [uid, , frame]) => {
      const part =
        frame && (SUBSCRIBE.operation.decodeReply(frame, reader) as unknown as KvEventBatch);
      sent.push(`${id} ${Buffer.from(uid as Uint8Array)} ${part?.nextCursor ?? 'end'}`);
    },
    onFailed: (_request, error) => failures.push(error.code),
  });
  return { table, sent, failures };
}

let lastId = 0;
function connect(): Connection {
  lastId += 1;
  return new Connection(lastId, Buffer.from(`client ${lastId}`), DIALECTS);
}

function subscription(connection: Connection, uid: string): Accepted {
  const call = SUBSCRIBE;
  return { connection, uid: Buffer.from(uid), op: OP, dialect: DIALECT, call, request: REQUEST };
}

suite('stream', (test) => {
  test('sends one part, and the next when that has been acked', async () => {
    const { table, sent } = setUp();
    const source = new Source();
    const client = connect();
    table.open(subscription(client, 'u'), source);
    assert.is(source.askedCount, 1);
    await source.give(batch(1));
    assert.equal(sent, [`${client.id} u 1`]);
    assert.is(source.askedCount, 1, 'not before the ack');
    table.control(client, Buffer.from('u'), ACK);
    assert.is(source.askedCount, 2);
    table.control(client, Buffer.from('u'), ACK);
    assert.is(source.askedCount, 2, 'nothing to ack while the engine owes a part');
    await source.give(batch(2));
    assert.equal(sent, [`${client.id} u 1`, `${client.id} u 2`]);
    assert.equal([table.count, table.partCount], [1, 2]);
  });

  test('ends when the client cancels, also while the engine owes a part', async () => {
    const { table, sent } = setUp();
    const source = new Source();
    const client = connect();
    table.open(subscription(client, 'u'), source);
    table.control(client, Buffer.from('u'), CANCEL);
    await turn();
    assert.equal(sent, [`${client.id} u end`]);
    assert.equal([source.cancelCount, table.count], [1, 0]);
    table.control(client, Buffer.from('u'), CANCEL);
    table.control(client, Buffer.from('u'), ACK);
    assert.is(sent.length, 1);
  });

  test('ends when the engine has no more', async () => {
    const { table, sent } = setUp();
    const source = new Source();
    const client = connect();
    table.open(subscription(client, 'u'), source);
    await source.give(null);
    assert.equal(sent, [`${client.id} u end`]);
    assert.is(table.count, 0);
  });

  test('ends when a part cannot be made or encoded, and says so', async () => {
    const { table, sent, failures } = setUp();
    const client = connect();
    const source = new Source();
    table.open(subscription(client, 'u'), source);
    await source.give({ ...batch(1), nextCursor: 1.5 });
    assert.equal([sent, failures], [[`${client.id} u end`], ['ERR_INTERNAL']]);
    const next = () => Promise.reject(new KvdError('ERR_TIMEOUT', 'never'));
    table.open(subscription(client, 'v'), { next, cancel: () => {}, isEnded: false });
    await turn();
    assert.equal(failures, ['ERR_INTERNAL', 'ERR_TIMEOUT']);
    assert.is(table.count, 0);
  });

  test('under the uid of another takes its place without an end in between', async () => {
    const { table, sent } = setUp({ streamCountMax: 1, streamCountMaxTotal: 1 });
    const [old, young] = [new Source(), new Source()];
    const client = connect();
    table.open(subscription(client, 'u'), old);
    table.open(subscription(client, 'u'), young);
    await young.give(batch(3));
    assert.equal(sent, [`${client.id} u 3`]);
    assert.equal([old.cancelCount, young.cancelCount, table.count], [1, 0, 1]);
  });

  test('beyond the bound of its connection or of all is refused and cancelled', () => {
    const { table } = setUp();
    const [first, second] = [connect(), connect()];
    for (const uid of ['a', 'b']) table.open(subscription(first, uid), new Source());
    const source = new Source();
    const refused = (connection: Connection) =>
      assert.throws(
        () => table.open(subscription(connection, 'x'), source),
        (error: KvdError) => error.code === 'ERR_OVERLOADED',
      );
    refused(first);
    assert.is(source.cancelCount, 1);
    table.open(subscription(second, 'a'), new Source());
    refused(second);
    table.control(first, Buffer.from('a'), CANCEL);
    table.open(subscription(second, 'x'), new Source());
    assert.is(table.count, 3);
  });

  test('that has ended takes no room of others, though its client never acks', async () => {
    const { table, sent } = setUp({ streamCountMax: 1, streamCountMaxTotal: 2 });
    const [first, second, third] = [connect(), connect(), connect()];
    const [ended, lasting] = [new Source(), new Source()];
    table.open(subscription(first, 'a'), ended);
    table.open(subscription(second, 'b'), lasting);
    await ended.give(batch(1));
    await lasting.give(batch(2));
    ended.isEnded = true;
    sent.length = 0;
    table.open(subscription(third, 'c'), new Source());
    assert.equal(sent, [`${first.id} a end`]);
    assert.equal([ended.cancelCount, lasting.cancelCount, table.count], [1, 0, 2]);
    lasting.isEnded = true;
    table.open(subscription(second, 'd'), new Source());
    assert.equal([lasting.cancelCount, table.count], [1, 2]);
  });

  test('is nobody else’s: control of another client, or of other words, means nothing', () => {
    const { table, sent } = setUp();
    const source = new Source();
    const [client, other] = [connect(), connect()];
    table.open(subscription(client, 'u'), source);
    table.control(other, Buffer.from('u'), CANCEL);
    for (const word of [undefined, Buffer.from('cance'), Buffer.from('ACK'), Buffer.of()]) {
      table.control(client, Buffer.from('u'), word);
    }
    assert.equal([table.count, source.askedCount, sent], [1, 1, []]);
  });

  test('ends silently for a client that has gone, with a word when the server closes', async () => {
    const { table, sent } = setUp();
    const [gone, there] = [connect(), connect()];
    const sources = [new Source(), new Source(), new Source()] as const;
    table.open(subscription(gone, 'a'), sources[0]);
    table.open(subscription(gone, 'b'), sources[1]);
    table.open(subscription(there, 'c'), sources[2]);
    table.drop(gone);
    await turn();
    assert.equal([sent, table.count], [[], 1]);
    table.endAll();
    assert.equal(sent, [`${there.id} c end`]);
    assert.equal(
      sources.map(({ cancelCount }) => cancelCount),
      [1, 1, 1],
    );
  });
});

suite('stream over the wire', (test) => {
  test('runs beside requests until the client cancels it', () => {
    const source = new Source();
    return withWireHouse({ SUBSCRIBE_KV_EVENTS: () => source }, async (house) => {
      const client = house.client(house.url, 'C');
      const stream = client.stream('SUBSCRIBE_KV_EVENTS', REQUEST);
      await until(() => source.askedCount === 1, 5_000, 'the first pull');
      await source.give(batch(1));
      assert.is((await stream.next(CALL_TIMEOUT_MS))?.nextCursor, 1);
      await stream.ack();
      await until(() => source.askedCount === 2, 5_000, 'the second pull');
      await ping(client);
      assert.is(house.router.statistics()['in_flight'], 0);
      assert.is(house.router.statistics()['streams'], 1);
      await source.give(batch(2));
      assert.is((await stream.next(CALL_TIMEOUT_MS))?.nextCursor, 2);
      await stream.cancel();
      assert.is(await stream.next(CALL_TIMEOUT_MS), null);
      assert.equal([stream.error, source.cancelCount], [null, 1]);
      assert.is(house.router.statistics()['streams'], 0);
      assert.equal(house.router.statistics()['bad_messages'], {});
    });
  });

  test('that is refused says that nothing is recorded, and why', () =>
    withWireHouse({}, async (house) => {
      const stream = house.client(house.url, 'C').stream('SUBSCRIBE_KV_EVENTS', REQUEST);
      assert.is((await stream.next(CALL_TIMEOUT_MS))?.isEnabled, false);
      assert.is(stream.error?.error, 'NOT_ENABLED');
    }));

  test('ends when the server closes, which does not wait for it', async () => {
    const source = new Source();
    const house = await openWireHouse({ SUBSCRIBE_KV_EVENTS: () => source });
    const client = house.client(house.url, 'C');
    const stream = client.stream('SUBSCRIBE_KV_EVENTS', REQUEST);
    await until(() => source.askedCount === 1, 5_000, 'the first pull');
    await house.router.close({ deadlineMs: 60_000 });
    assert.is(await stream.next(CALL_TIMEOUT_MS), null);
    assert.is(source.cancelCount, 1);
    await house.close();
  });

  test('of a client that vanishes ends when anything for that client is lost', () => {
    const source = new Source();
    const late: PromiseWithResolvers<boolean>[] = [];
    const pingLate = () => {
      const waiting = Promise.withResolvers<boolean>();
      late.push(waiting);
      return waiting.promise;
    };
    const answers = { SUBSCRIBE_KV_EVENTS: () => source, PING: pingLate };
    return withWireHouse(answers, async (house) => {
      const client = house.client(house.url, 'C');
      client.stream('SUBSCRIBE_KV_EVENTS', REQUEST);
      const ping = [Buffer.from('p'), Buffer.of(22), Buffer.of(0xc0)];
      for (let count = 0; count < 500; count += 1) await client.send(ping);
      await until(() => late.length === 500, 5_000, 'all requests');
      client.close();
      // ZMQ notices on its own thread, so the replies are tried one after the other.
      await until(
        () => {
          late.pop()?.resolve(true);
          return source.cancelCount > 0;
        },
        5_000,
        'the end of the stream',
      );
      assert.is(house.router.statistics()['streams'], 0);
      for (const waiting of late) waiting.resolve(true);
    });
  });
});
