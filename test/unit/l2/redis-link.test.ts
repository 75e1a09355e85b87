import * as assert from 'uvu/assert';
import type { RedisConnection } from '../../../src/l2/redis/connection.ts';
import { RedisLink } from '../../../src/l2/redis/link.ts';
import { rejects } from '../../support/rejects.ts';
import { silentLogger } from '../../support/silent-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const REQUEST_TIMEOUT_MS = 5_000;
const CONNECT_TIMEOUT_MS = 10_000;

/** A connection whose every step the test takes. */
class Puppet implements RedisConnection {
  readonly #opening = Promise.withResolvers<void>();
  readonly replies: PromiseWithResolvers<unknown>[] = [];
  isDestroyed = false;
  readonly onDown: (error: Error) => void;

  constructor(onDown: (error: Error) => void) {
    this.onDown = onDown;
  }

  get opened(): Promise<void> {
    return this.#opening.promise;
  }

  async open(): Promise<void> {
    this.#opening.resolve();
    await settle();
  }

  async refuse(): Promise<void> {
    this.#opening.reject(new Error('refused'));
    await settle();
  }

  send(): Promise<unknown> {
    const reply = Promise.withResolvers<unknown>();
    this.replies.push(reply);
    return reply.promise;
  }

  load(): Promise<number | null> {
    return this.send() as Promise<number | null>;
  }

  sendToNode(): Promise<unknown> {
    return this.send();
  }

  nodeNames(): string[] {
    return ['server'];
  }

  /** Like the library at its worst: what waits is never told. */
  destroy(): void {
    this.isDestroyed = true;
  }
}

const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

function makeLink() {
  const clock = new VirtualClock(1000);
  const dialled: Puppet[] = [];
  const link = new RedisLink({
    dial: (onDown) => {
      dialled.push(new Puppet(onDown));
      return dialled.at(-1) as Puppet;
    },
    requestTimeoutMs: REQUEST_TIMEOUT_MS,
    connectTimeoutMs: CONNECT_TIMEOUT_MS,
    clock,
    log: silentLogger,
    where: 'resp test:1',
  });
  return { clock, dialled, link, newest: () => dialled.at(-1) as Puppet };
}

suite('redis link', (test) => {
  test('attempts to connect come at doubling distances up to five seconds', async () => {
    const { clock, dialled, newest } = makeLink();
    for (const delayMs of [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]) {
      const before = dialled.length;
      await newest().refuse();
      clock.advance(delayMs - 1);
      assert.is(dialled.length, before, `${delayMs}`);
      clock.advance(delayMs / 4 + 1);
      assert.is(dialled.length, before + 1, `${delayMs}`);
    }
  });

  test('an answer makes the next distance short again; a mere connection does not', async () => {
    const { clock, dialled, link, newest } = makeLink();
    for (let i = 0; i < 4; i += 1) {
      await newest().refuse();
      clock.advance(5_000);
    }
    await newest().open();
    newest().onDown(new Error('reset'));
    clock.advance(1_500);
    assert.is(dialled.length, 5);
    clock.advance(1_000);
    assert.is(dialled.length, 6);
    await newest().open();
    const answered = link.send('k', ['GET', 'k']);
    newest().replies[0]?.resolve('x');
    assert.is(await answered, 'x');
    newest().onDown(new Error('reset'));
    clock.advance(125);
    assert.is(dialled.length, 7);
  });

  test('a connection that is not made in time is given up', async () => {
    const { clock, dialled, link } = makeLink();
    clock.advance(CONNECT_TIMEOUT_MS);
    assert.ok(dialled[0]?.isDestroyed);
    await link.firstDialEnded;
    assert.not(link.isReady);
    clock.advance(125);
    assert.is(dialled.length, 2);
    // The first one comes too late to count.
    await dialled[0]?.open();
    assert.not(link.isReady);
  });

  test('commands end when the server is silent, however long others took before', async () => {
    const { clock, link, newest } = makeLink();
    const connection = newest();
    await connection.open();
    const waiting = [1, 2, 3].map(() => link.send('k', ['GET', 'k']));
    clock.advance(REQUEST_TIMEOUT_MS - 1);
    connection.replies[0]?.resolve('first');
    assert.is(await waiting[0], 'first');
    clock.advance(REQUEST_TIMEOUT_MS - 1);
    connection.replies[1]?.resolve('second');
    assert.is(await waiting[1], 'second');
    assert.not(connection.isDestroyed);
    clock.advance(REQUEST_TIMEOUT_MS);
    await rejects(waiting[2] as Promise<unknown>, /no reply for 5000 ms/);
    assert.ok(connection.isDestroyed);
  });

  test('an idle connection is left alone', async () => {
    const { clock, link, newest } = makeLink();
    await newest().open();
    const answered = link.send('k', ['GET', 'k']);
    newest().replies[0]?.resolve('x');
    await answered;
    clock.advance(3_600_000);
    assert.ok(link.isReady);
    assert.not(newest().isDestroyed);
  });

  test('what waits is told when the connection breaks or is closed', async () => {
    const { clock, link, newest } = makeLink();
    await newest().open();
    const first = link.send('k', ['GET', 'k']);
    newest().onDown(new Error('reset by peer'));
    await rejects(first, /reset by peer/);
    await rejects(link.send('k', ['GET', 'k']), /no connection to resp test:1 \(reset by peer\)/);
    clock.advance(125);
    await newest().open();
    const second = link.send('k', ['GET', 'k']);
    link.close();
    await rejects(second, /closed/);
    assert.ok(newest().isDestroyed);
  });

  test('nothing is dialled after close', async () => {
    const { clock, dialled, link, newest } = makeLink();
    await newest().refuse();
    link.close();
    clock.advance(60_000);
    assert.is(dialled.length, 1);
  });
});
