/**
 * Clients that stop, crash or misbehave (spec field-lessons 5). What takes a whole reap time is in
 * lessons-5-silence.
 */
import { setImmediate as eventLoopTurn } from 'node:timers/promises';
import * as assert from 'uvu/assert';
import { Dealer } from 'zeromq';
import { idA } from '../support/calls.ts';
import { BIG, hitsOf, lookup, promptOf, SMALL } from '../support/fake-worker.ts';
import { rejects } from '../support/rejects.ts';
import { expectAnswers, expectCalm, isFullRun, scenario, TAIL_SHARE } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';
import { percentile, timed, until } from '../support/waiting.ts';

const ANSWER_MS = 100;
/** Bound of the replies that wait for one client. */
const QUEUE_BYTES_MAX = 64 * 1024 * 1024;
/** A reply repeats the uid, so 20,000 of these are more than the bound and all socket buffers. */
const UID_BYTES = 5 * 1024;
const NOOP = Buffer.of(idA('NOOP'));

suite('lesson 5: clients that stop, crash or misbehave', (test) => {
  test(
    '5.1 an unknown worker is answered at once, and PING false, then true, brings it back',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 4);
      await worker.store(prompt);
      await worker.unregister();
      const { result, ms } = await timed(() => worker.tryStore(prompt));
      assert.is(result.value?.ok, false);
      assert.is(result.error?.error, 'UNKNOWN_INSTANCE');
      assert.ok(ms < ANSWER_MS, `STORE took ${ms} ms`);
      assert.is(await worker.ping(), false);
      assert.is(await worker.ping(), true);
      assert.is(await worker.ping(), true);
      await worker.register();
      assert.is(await worker.ping(), true);
      assert.is(await hitsOf(client, prompt), 4);
      await expectCalm(server);
    }),
  );

  test(
    '5.1 a late retrieve of an unknown vLLM worker owes it one more PING false',
    scenario(async (s) => {
      const server = await s.serve();
      const worker = s.newWorker(server);
      assert.is(await worker.ping(), false);
      assert.is(await worker.ping(), true);
      await rejects(worker.retrieve(promptOf(1, 1), { deadlineMs: 300 }), /no reply/);
      assert.is(await worker.ping(), false);
      assert.is(await worker.ping(), true);
      await expectCalm(server);
    }),
  );

  test(
    '5.1 an unknown process id, which cannot register again, gets PING false and failures',
    scenario(async (s) => {
      const server = await s.serve();
      const worker = s.newWorker(server, { instanceId: 4711n, engineType: 'sglang' });
      for (let i = 0; i < 3; i += 1) assert.is(await worker.ping(), false);
      const { value, error } = await worker.tryRetrieve(promptOf(1, 1));
      assert.is(value?.ok, false);
      assert.is(error?.error, 'UNKNOWN_INSTANCE');
      await expectCalm(server);
    }),
  );

  test(
    '5.2 a registration with other tensors under a known id replaces the earlier one',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const big = await s.worker(server, { instanceId: 7n, geometry: BIG });
      await big.store(promptOf(1, 1));
      assert.is((await server.l1())['memory_used_bytes'], big.objectSizeBytes);
      await client.call('CLEAR', { isForced: true }, 5000);
      const hidden64 = { ...SMALL, headSize: 32 };
      const small = await s.worker(server, { instanceId: 7n, geometry: hidden64 });
      assert.is(server.mappedSegments(`lmcache_kv_${process.pid}_`).length, 2, 'old ones unmapped');
      small.fill([3], 1);
      assert.is((await small.store(promptOf(2, 1), { blockIds: [3] })).ok, true);
      assert.is((await server.l1())['memory_used_bytes'], small.objectSizeBytes);
      assert.is((await small.retrieve(promptOf(2, 1), { blockIds: [9] })).ok, true);
      assert.equal(small.read([9]), small.read([3]));
      await expectCalm(server, { objectSizeBytes: small.objectSizeBytes });
    }),
  );

  test(
    '5.2 objects of the earlier layout are no hits that could be copied into the new one',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const big = await s.worker(server, { instanceId: 7n, geometry: BIG });
      await big.store(promptOf(1, 1));
      const small = await s.worker(server, { instanceId: 7n });
      small.fillAll(0xaa);
      const before = small.read([0, 1, 2, 3]);
      await lookup(client, promptOf(1, 1));
      await rejects(small.retrieve(promptOf(1, 1), { deadlineMs: 300 }), /no reply/);
      assert.is(await small.ping(), false);
      assert.equal(small.read([0, 1, 2, 3]), before);
      await client.call('END_SESSION', { requestId: 'request' }, 5000);
      await expectCalm(server, { objectSizeBytes: big.objectSizeBytes });
    }),
  );

  test(
    '5.3 a client that sends and never reads harms nobody, and what it loses is counted',
    scenario(async (s) => {
      const server = await s.serve();
      const other = s.connect(server);
      const deaf = new Dealer({ linger: 0, receiveHighWaterMark: 1, sendHighWaterMark: 0 });
      deaf.connect(server.url);
      try {
        const count = 20_000;
        const pings: number[] = [];
        let pingCount = 0;
        const pingSome = async () => {
          for (let i = 0; i < 20; i += 1) {
            pingCount += 1;
            pings.push((await timed(() => other.call('PING', { instanceId: null }, 5000))).ms);
          }
        };
        // What the machine itself takes, whatever else it does.
        for (let i = 0; i < 5; i += 1) await pingSome();
        const quietPings = pings.splice(0);
        const sending = (async () => {
          for (let i = 0; i < count; i += 1) {
            await deaf.send([Buffer.alloc(UID_BYTES, i), NOOP]);
            // A send resolves at once; without a turn the PINGs would wait for this very loop.
            if (i % 20 === 0) await eventLoopTurn();
          }
        })();
        const received = async () =>
          ((await server.status()).wire['messages_received'] as number) >= count + pingCount;
        await until(async () => {
          await pingSome();
          return received();
        }, 20_000);
        await sending;
        const slowMs = percentile(pings, TAIL_SHARE);
        const quietMs = percentile(quietPings, TAIL_SHARE);
        assert.ok(slowMs < Math.max(50, 5 * quietMs), `PINGs: ${slowMs} ms, before ${quietMs} ms`);
        const { wire } = await server.status();
        const { replies_queued_bytes, replies_lost } = wire;
        assert.ok((replies_queued_bytes as number) <= QUEUE_BYTES_MAX, `${replies_queued_bytes}`);
        assert.ok(replies_lost.full > 0);
        assert.is(replies_lost.full, await server.metric('kvd_lost_replies_total{reason="full"}'));
        await expectAnswers(server);
      } finally {
        deaf.close();
      }
      const isEmpty = async () => (await server.status()).wire['replies_queued'] === 0;
      await until(isEmpty, 5000, 'the replies of a client that has gone are dropped');
      await expectCalm(server);
    }),
  );

  test(
    'a worker that dies in the middle of its stores leaves no lock and no half object',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const rounds = isFullRun ? 20 : 3;
      for (let round = 0; round < rounds; round += 1) {
        const instanceId = 2n ** 62n + BigInt(round);
        const dying = await s.workerProcess({
          url: server.url,
          instanceId,
          pings: true,
          storeCount: 64,
        });
        await dying.kill();
        const isIdle = async () => (await server.status()).requests.in_flight === 0;
        await until(isIdle, 5000);
      }
      const { write_locked_count, staging_object_count } = await server.l1();
      assert.equal([write_locked_count, staging_object_count], [0, 0]);
      const worker = await s.worker(server);
      worker.fill([0], 1);
      await worker.store(promptOf(1_000_000, 1), { blockIds: [0] });
      assert.is(await hitsOf(client, promptOf(1_000_000, 1)), 1);
      await expectCalm(server);
    }),
  );
});
