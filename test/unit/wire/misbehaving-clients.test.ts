/** Clients that flood, do not read or vanish: nobody else notices (spec field-lessons 5.3). */
import * as assert from 'uvu/assert';
import { Dealer } from 'zeromq';
import type { KvdClient } from '../../../src/client/client.ts';
import { suite } from '../../support/suite.ts';
import { percentile, timed, until } from '../../support/waiting.ts';
import {
  CALL_TIMEOUT_MS,
  ping,
  pingUnheard,
  type WireHouse,
  withWireHouse,
} from '../../support/wire-house.ts';

function lossCount(house: WireHouse, reason: 'gone' | 'full'): number {
  return (house.router.statistics()['replies_lost'] as Record<string, number>)[reason]!;
}

async function pingTimes(client: KvdClient, count: number): Promise<number[]> {
  const times: number[] = [];
  while (times.length < count) times.push((await timed(() => ping(client))).ms);
  return times;
}

suite('client that misbehaves', (test) => {
  test('with 20,000 unread requests delays nobody', () =>
    withWireHouse({}, async (house) => {
      const client = house.client();
      const idleMs = percentile(await pingTimes(client, 200), 0.99);
      const flood = new Dealer({ linger: 0, sendHighWaterMark: 0, receiveHighWaterMark: 1 });
      flood.connect(house.url);
      try {
        for (let index = 0; index < 20_000; index += 1) await flood.send(['u', Buffer.from([21])]);
        const busyMs = percentile(await pingTimes(client, 200), 0.99);
        assert.ok(busyMs < idleMs + 50, `PING p99 is ${busyMs} ms, idle ${idleMs} ms`);
        assert.ok((house.router.statistics()['messages_received'] as number) > 2_000);
      } finally {
        flood.close();
      }
    }));

  test('that never reads loses what is beyond its queue, counted; others lose nothing', () =>
    withWireHouse(
      {},
      async (house) => {
        const deaf = new Dealer({ linger: 0, sendHighWaterMark: 0, receiveHighWaterMark: 1 });
        deaf.connect(house.url);
        try {
          const uid = Buffer.alloc(64 * 1024);
          let before = -1;
          // Buffers of the kernel fill first; then nothing moves from one look to the next.
          await until(
            async () => {
              for (let index = 0; index < 50; index += 1) await deaf.send([uid, Buffer.from([21])]);
              const { replies_sent: sent } = house.router.statistics();
              const isStuck = sent === before && lossCount(house, 'full') > 0;
              before = sent as number;
              return isStuck;
            },
            20_000,
            'a client that is stuck',
          );
          const { replies_queued_bytes: queued } = house.router.statistics();
          assert.ok((queued as number) <= 1 << 20, `${queued} bytes are queued`);
          await ping(house.client());
          assert.is(house.router.statistics()['clients_not_reading'], 1);
        } finally {
          deaf.close();
        }
        await until(
          () => house.router.statistics()['replies_queued'] === 0,
          5_000,
          'the queue of a client that has gone is dropped',
        );
        assert.ok(lossCount(house, 'gone') > 0);
      },
      { limits: { queueBytesMax: 1 << 20 } },
    ));

  test('that vanishes before its replies costs those, counted and published', () => {
    const late = Array.from({ length: 100 }, () => Promise.withResolvers<boolean>());
    let asked = 0;
    return withWireHouse({ PING: () => late[asked++]!.promise }, async (house) => {
      const reasons: string[] = [];
      house.bus.subscribe('wire.reply.lost', ({ reason }) => reasons.push(reason));
      const client = house.client();
      for (const _ of late) {
        await pingUnheard(client);
      }
      await until(() => asked === late.length, 5_000, 'all requests');
      client.close();
      // ZMQ notices on its own thread, so the replies are tried one after the other.
      await until(
        () => {
          late.pop()?.resolve(true);
          return lossCount(house, 'gone') > 0;
        },
        5_000,
        'a lost reply',
      );
      for (const waiting of late) waiting.resolve(true);
      await until(() => house.router.statistics()['in_flight'] === 0, 5_000, 'all handlers');
      assert.is((await house.client().call('GET_CHUNK_SIZE', {}, CALL_TIMEOUT_MS)).value, 16);
      assert.equal(
        reasons,
        reasons.map(() => 'gone'),
      );
    });
  });

  test('that pipelines 20,000 requests and reads gets every reply', () =>
    withWireHouse({}, async (house) => {
      const client = house.client();
      let count = 0;
      client.onStrayReply(() => {
        count += 1;
      });
      for (let index = 0; index < 20_000; index += 1) {
        await client.send([Buffer.from(`uid ${index}`), Buffer.from([21])]);
      }
      await until(() => count === 20_000, 15_000, '20,000 replies');
      assert.equal(house.router.statistics()['replies_lost'], { gone: 0, full: 0 });
    }));

  test('that sends requests to a sink without end leaves timers their turn', () =>
    withWireHouse({}, async (house) => {
      const client = house.client();
      for (let index = 0; index < 5_000; index += 1) {
        await client.send([Buffer.from([7]), Buffer.from([21])]);
      }
      const { ms } = await timed(() => new Promise((resolve) => setImmediate(resolve)));
      assert.ok(ms < 50, `the event loop was held for ${ms} ms`);
    }));
});
