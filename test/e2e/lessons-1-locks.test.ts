/**
 * Locks and leases (spec field-lessons 1). Where the reference's fault lies in the engine-driven
 * path, the scenario provokes the same one on the path over shared memory. 1.6 needs L2.
 */
import * as assert from 'uvu/assert';
import { BIG, endSession, hitsOf, keyOf, lookup, promptOf } from '../support/fake-worker.ts';
import { expectCalm, isFullRun, scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';
import { passTime, until } from '../support/waiting.ts';

const FOUR_BLOCKS = [0, 1, 2, 3];
const FREE_DEADLINE_MS = 100;

suite('lesson 1: locks and leases', (test) => {
  test(
    '1.1 a store that breaks off never becomes a hit, and the next one succeeds',
    scenario(async (s) => {
      const server = await s.serve({ '--l1-write-ttl-seconds': 1 });
      const client = s.connect(server);
      const broken = await s.worker(server, { instanceId: 2n ** 62n });
      const prompt = promptOf(1, 4);
      broken.shrink();
      const reply = await broken.tryStore(prompt);
      assert.is(reply.value?.ok, false);
      assert.is(reply.error?.error, 'INTERNAL');
      await passTime(1500);
      assert.is(await hitsOf(client, prompt), 0);
      const worker = await s.worker(server);
      worker.fill(FOUR_BLOCKS, 1);
      assert.is((await worker.store(prompt)).ok, true);
      assert.is(await hitsOf(client, prompt), 4);
      await expectCalm(server);
    }),
  );

  test(
    '1.2 a retrieve after the end of the read lease gets the bytes that are still there',
    scenario(async (s) => {
      const server = await s.serve({ '--l1-read-ttl-seconds': 1 });
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 4);
      worker.fill(FOUR_BLOCKS, 1);
      const stored = worker.read(FOUR_BLOCKS);
      await worker.store(prompt);
      assert.is(await lookup(client, prompt), 4);
      await passTime(2000);
      const blockIds = [8, 9, 10, 11];
      assert.is((await worker.retrieve(prompt, { blockIds })).ok, true);
      assert.equal(worker.read(blockIds), stored);
      assert.is((await worker.retrieve(prompt, { blockIds })).ok, true, 'without any lock');
      await endSession(client);
      await expectCalm(server);
    }),
  );

  test(
    '1.3 lookups whose request ends release their locks',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const numbers = Array.from({ length: 10 }, (_, i) => i);
      for (const i of numbers) {
        await worker.store(promptOf(i, 1));
        assert.is(await lookup(client, promptOf(i, 1), { requestId: `r${i}` }), 1);
      }
      assert.is((await server.l1())['read_locked_count'], 10);
      for (const i of numbers) await endSession(client, `r${i}`);
      const isFree = async () => (await server.l1())['read_locked_count'] === 0;
      await until(isFree, FREE_DEADLINE_MS);
      // Ending twice must not take a lock that another request holds.
      await lookup(client, promptOf(0, 1), { requestId: 'other' });
      await endSession(client, 'r0');
      assert.is((await server.l1())['read_locked_count'], 1);
      await endSession(client, 'other');
      await expectCalm(server);
    }),
  );

  test(
    '1.3 sessions that nobody ends release their locks after their idle time',
    scenario(async (s) => {
      const server = await s.serve({ '--session-ttl-seconds': 1 });
      const client = s.connect(server);
      const worker = await s.worker(server);
      await worker.store(promptOf(1, 4));
      assert.is(await lookup(client, promptOf(1, 4)), 4);
      assert.is((await server.l1())['read_locked_count'], 4);
      await until(async () => (await server.l1())['read_locked_count'] === 0, 10_000);
      assert.is((await server.status()).active_sessions, 0);
      await expectCalm(server);
    }),
  );

  test(
    '1.4 FREE_LOOKUP_LOCKS without a salt releases what the lookup with a salt has locked',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 4);
      assert.is((await worker.store(prompt, { cacheSalt: 'A' })).ok, true);
      assert.is(await lookup(client, prompt, { cacheSalt: 'A' }), 4);
      assert.is((await server.l1())['read_locked_count'], 4);
      await client.call('FREE_LOOKUP_LOCKS', { key: keyOf(prompt), tpSize: 1 }, 5000);
      assert.is((await server.l1())['read_locked_count'], 0);
      await endSession(client);
      await expectCalm(server);
    }),
  );

  test(
    '1.5 a copy that several ranks read stays until the last one has read it',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const ranks = [];
      for (let i = 0n; i < 4n; i += 1n) {
        ranks.push(await s.worker(server, { instanceId: 2n ** 62n + i, geometry: BIG }));
      }
      const [first] = ranks as [(typeof ranks)[0]];
      const shared = promptOf(1, 4);
      first.fill(FOUR_BLOCKS, 1);
      const stored = first.read(FOUR_BLOCKS);
      await first.store(shared);
      assert.is(await lookup(client, shared, { tpSize: 4 }), 4);
      const blockIds = [4, 5, 6, 7];
      for (const [rank, worker] of ranks.entries()) {
        // Each round writes more than all of L1.
        for (let i = 0; i < 8; i += 1) await worker.store(promptOf(1000 + rank * 8 + i, 4));
        assert.is((await server.l1())['read_locked_count'], 4, `before rank ${rank}`);
        assert.is((await worker.retrieve(shared, { blockIds })).ok, true, `rank ${rank}`);
        assert.equal(worker.read(blockIds), stored, `rank ${rank}`);
      }
      assert.is((await server.l1())['read_locked_count'], 0);
      for (let i = 0; i < 8; i += 1) await first.store(promptOf(2000 + i, 4));
      assert.is(await hitsOf(client, shared), 0, 'evictable after the last reader');
      await endSession(client);
      await expectCalm(server, { objectSizeBytes: first.objectSizeBytes });
    }),
  );

  test(
    '1.7 a store with fewer blocks than chunks says so, keeps nothing, and can be repeated',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      worker.fill(FOUR_BLOCKS, 1);
      const roundCount = isFullRun ? 500 : 100;
      for (let round = 0; round < roundCount; round += 1) {
        const prompt = promptOf(round, 4);
        assert.is((await worker.store(prompt, { blockIds: [0, 1] })).ok, false);
        assert.ok((await hitsOf(client, prompt)) <= 2);
        assert.is((await worker.store(prompt)).ok, true);
        assert.is(await hitsOf(client, prompt), 4);
        const { write_locked_count, memory_used_bytes } = await server.l1();
        assert.is(write_locked_count, 0);
        assert.is(memory_used_bytes, 4 * 4096, `round ${round}`);
        await client.call('CLEAR', { isForced: true }, 5000);
      }
      await expectCalm(server);
    }),
  );
});
