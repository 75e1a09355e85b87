/** The send queue against a scripted socket and a virtual clock. */
import { setImmediate as turn } from 'node:timers/promises';
import * as assert from 'uvu/assert';
import { Connection } from '../../../src/wire/connections.ts';
import { DIALECTS } from '../../../src/wire/dialect.ts';
import { type LossReason, Outbox, type OutboxLimits } from '../../../src/wire/outbox.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const LIMITS: OutboxLimits = {
  queueCountMax: 10,
  queueBytesMax: 100_000,
  queueBytesMaxTotal: 150_000,
};

/** Takes messages while `credit` of the client is above zero. */
class ScriptedSocket {
  readonly credit = new Map<string, number>();
  readonly gone = new Set<string>();
  readonly sent: string[] = [];
  attemptCount = 0;
  isClosed = false;

  async send(frames: Uint8Array[]): Promise<void> {
    const [identity, body] = frames.map((frame) => Buffer.from(frame).toString()) as [
      string,
      string,
    ];
    this.attemptCount += 1;
    if (this.gone.has(identity)) throw errno('EHOSTUNREACH');
    const credit = this.credit.get(identity) ?? Number.POSITIVE_INFINITY;
    if (credit === 0) throw errno('EAGAIN');
    this.credit.set(identity, credit - 1);
    this.sent.push(`${identity}:${body.slice(0, 8)}`);
  }
}

function errno(code: string): Error {
  return Object.assign(new Error(code), { code });
}

function open(limits: Partial<OutboxLimits> = {}) {
  const socket = new ScriptedSocket();
  const clock = new VirtualClock();
  const losses: [number, LossReason, number][] = [];
  const outbox = new Outbox({
    socket,
    clock,
    limits: { ...LIMITS, ...limits },
    onLost: (connection, reason, count) => losses.push([connection.id, reason, count]),
  });
  const send = (client: Connection, body: string) =>
    outbox.send(client, [client.identity, Buffer.from(body)]);
  return { socket, clock, losses, outbox, send };
}

const alice = new Connection(1, Buffer.from('alice'), DIALECTS);
const bob = new Connection(2, Buffer.from('bob'), DIALECTS);

suite('outbox', (test) => {
  test('sends at once while the client reads', async () => {
    const { socket, outbox, send } = open();
    send(alice, '1');
    send(bob, '2');
    assert.equal(socket.sent, ['alice:1', 'bob:2']);
    await turn();
    assert.equal([outbox.sentCount, outbox.queuedCount], [2, 0]);
  });

  test('keeps what ZMQ does not take and sends it in order when there is room', async () => {
    const { socket, clock, outbox, send, losses } = open();
    socket.credit.set('alice', 1);
    for (const body of ['1', '2', '3']) {
      send(alice, body);
      await Promise.resolve();
    }
    send(bob, 'b');
    assert.equal(socket.sent, ['alice:1', 'bob:b']);
    assert.is(outbox.queuedCount, 2);
    socket.credit.set('alice', 10);
    await turn();
    clock.advance(100);
    await turn();
    assert.equal(socket.sent, ['alice:1', 'bob:b', 'alice:2', 'alice:3']);
    assert.equal([outbox.queuedCount, outbox.queuedBytes, outbox.sentCount], [0, 0, 4]);
    assert.equal(losses, []);
  });

  test('asks a client that does not read less and less often', async () => {
    const { socket, clock, send } = open();
    socket.credit.set('alice', 0);
    send(alice, '1');
    await turn();
    await turn();
    const before = socket.attemptCount;
    for (let ms = 0; ms < 1000; ms += 1) {
      clock.advance(1);
      await turn();
    }
    const attempts = socket.attemptCount - before;
    assert.ok(attempts >= 15 && attempts <= 30, `${attempts} attempts in a second`);
  });

  test('loses what goes beyond the count, and says how much', async () => {
    const { socket, outbox, send, losses } = open();
    socket.credit.set('alice', 0);
    for (let index = 0; index < 13; index += 1) send(alice, `${index}`);
    await turn();
    assert.is(outbox.queuedCount, 10);
    assert.equal(
      losses,
      [1, 2, 3].map(() => [1, 'full', 1]),
    );
  });

  test('loses what goes beyond the bytes, of one client and of all', async () => {
    const { socket, outbox, send, losses } = open();
    for (const name of ['alice', 'bob']) socket.credit.set(name, 0);
    for (let index = 0; index < 3; index += 1) send(alice, 'x'.repeat(45_000));
    await turn();
    assert.equal([outbox.queuedCount, losses.length], [2, 1]);
    send(bob, 'x'.repeat(45_000));
    send(bob, 'x'.repeat(45_000));
    await turn();
    assert.equal([outbox.queuedCount, losses.length], [3, 2]);
    assert.ok(outbox.queuedBytes <= LIMITS.queueBytesMaxTotal);
  });

  test('takes one reply of any size, else it could never be sent', async () => {
    const { socket, outbox, send, losses } = open();
    for (const name of ['alice', 'bob']) socket.credit.set(name, 0);
    send(bob, '1');
    send(bob, '2');
    await turn();
    send(alice, 'x'.repeat(1_000_000));
    await turn();
    assert.equal([outbox.queuedCount, losses.length], [3, 0]);
  });

  test('gives a reply larger than every bound no room of others', async () => {
    const { socket, clock, outbox, send, losses } = open();
    for (const name of ['alice', 'bob']) socket.credit.set(name, 0);
    send(alice, 'x'.repeat(1_000_000));
    await turn();
    send(alice, 'behind it');
    send(bob, '1');
    await turn();
    send(bob, '2');
    await turn();
    assert.equal([outbox.queuedCount, losses.length], [4, 0]);
    // A second large one does not fit behind the first, not even when that is on its way.
    send(alice, 'y'.repeat(1_000_000));
    await turn();
    assert.equal(losses, [[1, 'full', 1]]);
    for (const name of ['alice', 'bob']) socket.credit.set(name, 10);
    clock.advance(100);
    await turn();
    clock.advance(100);
    await turn();
    assert.equal([outbox.queuedCount, outbox.queuedBytes, outbox.sentCount], [0, 0, 4]);
  });

  test('drops the queue of a client that has gone', async () => {
    const { socket, clock, outbox, send, losses } = open();
    socket.credit.set('alice', 0);
    for (const body of ['1', '2', '3']) send(alice, body);
    await turn();
    socket.gone.add('alice');
    clock.advance(100);
    await turn();
    assert.is(
      losses.filter(([, reason]) => reason === 'gone').reduce((sum, l) => sum + l[2], 0),
      3,
    );
    assert.equal([outbox.queuedCount, outbox.queuedBytes, outbox.waitingClientCount], [0, 0, 0]);
    send(alice, '4');
    await turn();
    assert.equal(losses.at(-1), [1, 'gone', 1]);
  });

  test('counts a reply as lost when the socket throws instead of rejecting', async () => {
    const { outbox, losses } = open();
    const broken = new Outbox({
      socket: {
        send(): never {
          throw errno('EBADF');
        },
      },
      clock: new VirtualClock(),
      limits: LIMITS,
      onLost: (connection, reason, count) => losses.push([connection.id, reason, count]),
    });
    broken.send(alice, [alice.identity]);
    assert.equal(losses, [[1, 'gone', 1]]);
    assert.is(outbox.sentCount, 0);
  });

  test('that is closed tries nothing more and counts what it held', async () => {
    const { socket, clock, outbox, send, losses } = open();
    socket.credit.set('alice', 0);
    send(alice, '1');
    await turn();
    outbox.close();
    const before = socket.attemptCount;
    clock.advance(1000);
    await turn();
    assert.is(socket.attemptCount, before);
    assert.equal(losses, [[1, 'gone', 1]]);
  });

  test('keeps order and accounts over thousands of replies to a slow reader', async () => {
    const { socket, clock, outbox, send, losses } = open({
      queueCountMax: 5000,
      queueBytesMax: 1e9,
      queueBytesMaxTotal: 1e9,
    });
    socket.credit.set('alice', 0);
    for (let index = 0; index < 4000; index += 1) send(alice, `${index}`);
    await turn();
    while (outbox.queuedCount > 0) {
      socket.credit.set('alice', 64);
      clock.advance(50);
      await turn();
    }
    assert.equal(
      socket.sent,
      Array.from({ length: 4000 }, (_, index) => `alice:${index}`),
    );
    assert.equal([outbox.queuedBytes, outbox.sentCount, losses.length], [0, 4000, 0]);
  });
});
