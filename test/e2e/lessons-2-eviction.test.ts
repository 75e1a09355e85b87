/** Eviction (spec field-lessons 2): with LRU, where a scenario does not name another policy. */
import * as assert from 'uvu/assert';
import type { KvdClient } from '../../src/client/client.ts';
import {
  BIG,
  endSession,
  type FakeWorker,
  hitsOf,
  lookup,
  promptOf,
} from '../support/fake-worker.ts';
import { expectCalm, scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';
import { passTime, until } from '../support/waiting.ts';

const MIB = 1024 * 1024;
/** Big objects that fit into the 0.02 GB of the scenarios. */
const CAPACITY = 20;
const RSS_OVERHEAD_MAX = 200 * MIB;

async function fill(worker: FakeWorker, first: number, count: number): Promise<void> {
  for (let i = first; i < first + count; i += 1) await worker.store(promptOf(i, 1));
}

/** Prompts `first` … of one chunk that are cached. */
async function countCached(client: KvdClient, first: number, count: number): Promise<number> {
  let cached = 0;
  for (let i = first; i < first + count; i += 1) cached += await hitsOf(client, promptOf(i, 1));
  return cached;
}

suite('lesson 2: eviction', (test) => {
  const bigObjects = { objectSizeBytes: MIB };

  for (const policy of ['LRU', 'IsolatedLRU', 'ARC', 'S3FIFO']) {
    const isByRecency = policy.endsWith('LRU');
    test(
      `2.1 stores go on far beyond the size of L1 with ${policy}, at a watermark of one half`,
      scenario(async (s) => {
        const server = await s.serve({
          '--eviction-policy': policy,
          '--eviction-trigger-watermark': 0.5,
        });
        const client = s.connect(server);
        const worker = await s.worker(server, { geometry: BIG });
        for (let i = 0; i < 40; i += 1) {
          assert.is((await worker.store(promptOf(i, 1))).ok, true);
          const hits = await hitsOf(client, promptOf(i, 1));
          // The others may prefer what was used before to what is new: that is what they are for.
          if (isByRecency) assert.is(hits, 1, `store ${i}`);
          await passTime(20);
        }
        const target = async () => ((await server.l1())['memory_usage_ratio'] as number) < 0.5;
        await until(target, 5000, 'usage below the watermark');
        assert.is(await server.metric('kvd_allocation_failures_total{during="l1_store"}'), 0);
        await expectCalm(server, bigObjects);
      }),
    );
  }

  for (const ending of ['END_SESSION', 'the idle time of their sessions'] as const) {
    test(
      `2.2 after a spell of full pinning stores succeed again, by ${ending}`,
      scenario(async (s) => {
        const isIdle = ending !== 'END_SESSION';
        const server = await s.serve({
          // So that nothing leaves before it can be locked.
          '--eviction-trigger-watermark': 1,
          ...(isIdle && { '--session-ttl-seconds': 2 }),
        });
        const client = s.connect(server);
        const worker = await s.worker(server, { geometry: BIG });
        await fill(worker, 0, CAPACITY);
        for (let i = 0; i < CAPACITY; i += 1) {
          assert.is(await lookup(client, promptOf(i, 1), { requestId: `r${i}` }), 1);
        }
        assert.is((await server.l1())['read_locked_count'], CAPACITY);
        await fill(worker, 100, 3);
        assert.is(await countCached(client, 100, 3), 0, 'refused while all is pinned');
        assert.is(await server.metric('kvd_allocation_failures_total{during="l1_store"}'), 3);
        if (isIdle) {
          await until(async () => (await server.l1())['read_locked_count'] === 0, 10_000);
        } else {
          for (let i = 0; i < CAPACITY; i += 1) await endSession(client, `r${i}`);
        }
        for (let i = 200; i < 200 + CAPACITY; i += 1) {
          await worker.store(promptOf(i, 1));
          assert.is(await hitsOf(client, promptOf(i, 1)), 1, `store ${i}`);
        }
        await expectCalm(server, bigObjects);
      }),
    );
  }

  test(
    '2.3 memory stays bounded by L1 and a fixed overhead after ten times its size',
    scenario(async (s) => {
      const server = await s.serve({ '--l1-size-gb': 0.05 });
      const worker = await s.worker(server, { geometry: BIG });
      const { memory_total_bytes } = await server.l1();
      for (let i = 0; i < 64; i += 1) await worker.store(promptOf(i, 8));
      const limitBytes = (memory_total_bytes as number) + RSS_OVERHEAD_MAX;
      // The mapped tensors of the worker are its own memory, though they count as the server's.
      const tensorBytes = 16 * 8 * 64 * 1024;
      const rssBytes = server.rssBytes() - tensorBytes;
      assert.ok(rssBytes <= limitBytes, `${rssBytes} of ${limitBytes} bytes`);
      await expectCalm(server, bigObjects);
    }),
  );

  for (const policy of ['S3FIFO', 'ARC']) {
    test(
      `2.4 ${policy} keeps the prefixes that everybody reads against chunks that come once`,
      scenario(async (s) => {
        const server = await s.serve({ '--eviction-policy': policy });
        const client = s.connect(server);
        const worker = await s.worker(server, { geometry: BIG });
        const storeOnce = async (i: number) => {
          await lookup(client, promptOf(i, 1), { requestId: `once${i}` });
          await worker.store(promptOf(i, 1), { requestId: `once${i}` });
          await endSession(client, `once${i}`);
        };
        const hot = CAPACITY / 2;
        for (let i = 0; i < hot; i += 1) await storeOnce(i);
        let hitCount = 0;
        for (let round = 0; round < 5; round += 1) {
          hitCount = 0;
          for (let i = 0; i < hot; i += 1) {
            hitCount += await lookup(client, promptOf(i, 1), { requestId: `r${i}` });
            await endSession(client, `r${i}`);
          }
          for (let i = 0; i < CAPACITY; i += 1) await storeOnce(100 + round * CAPACITY + i);
        }
        assert.ok(hitCount >= 0.95 * hot, `${hitCount} of ${hot} in the last round`);
        await expectCalm(server, bigObjects);
      }),
    );
  }

  test(
    '2.5 with the oldest four fifths locked, room comes from the rest',
    scenario(async (s) => {
      const server = await s.serve({ '--eviction-trigger-watermark': 1 });
      const client = s.connect(server);
      const worker = await s.worker(server, { geometry: BIG });
      await fill(worker, 0, CAPACITY);
      const locked = CAPACITY * 0.8;
      for (let i = 0; i < locked; i += 1) {
        assert.is(await lookup(client, promptOf(i, 1), { requestId: `r${i}` }), 1);
      }
      await fill(worker, 100, 2);
      assert.is(await countCached(client, 100, 2), 2);
      assert.is(await countCached(client, locked, CAPACITY - locked), CAPACITY - locked - 2);
      for (let i = 0; i < locked; i += 1) await endSession(client, `r${i}`);
      assert.is(await countCached(client, 0, locked), locked);
      await expectCalm(server, bigObjects);
    }),
  );

  test(
    '2.6 the ranks of a chunk leave together: what LOOKUP counts, every rank can retrieve',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const rank = (workerId: number) =>
        s.worker(server, {
          geometry: BIG,
          worldSize: 2,
          workerId,
          instanceId: 2n ** 62n + BigInt(workerId),
        });
      const ranks = [await rank(0), await rank(1)];
      const scope = { worldSize: 2 };
      let hitCount = 0;
      for (let i = 0; i < 12; i += 1) {
        for (const worker of ranks) await worker.store(promptOf(i, 3));
        for (let earlier = 0; earlier <= i; earlier += 1) {
          const hits = await lookup(client, promptOf(earlier, 3), scope);
          const { memory_used_bytes, total_object_count } = await server.l1();
          assert.is(memory_used_bytes, (total_object_count as number) * MIB);
          hitCount += hits;
          for (const worker of hits > 0 ? ranks : []) {
            const prompt = promptOf(earlier, 3).slice(0, hits * 16);
            assert.is((await worker.retrieve(prompt)).ok, true, `${hits} of prompt ${earlier}`);
          }
          await endSession(client);
        }
      }
      assert.ok(hitCount > 12 && hitCount < 12 * 13 * 1.5, `pressure: ${hitCount} hits`);
      assert.is(((await server.l1())['total_object_count'] as number) % 2, 0, 'whole chunks');
      await expectCalm(server, bigObjects);
    }),
  );
});
