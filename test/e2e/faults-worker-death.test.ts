/**
 * Workers that are killed (spec engine 9.3, 9.4; field-lessons 4, 5): between the two halves of a
 * transfer, in the middle of a copy, in warm-up. What such a worker leaves is given back, what it
 * had stored is whole or not there, and nobody else notices.
 */
import * as assert from 'uvu/assert';
import { expectNothingLeft, hasNothingPending } from '../support/aftermath.ts';
import { endSession, hitsOf, lookup, promptOf } from '../support/fake-worker.ts';
import {
  inCopy,
  LONG_CHUNK,
  LONG_CHUNKS,
  LONG_COPY_FLAGS,
  LONG_GEOMETRY,
  LONG_PROMPT,
  LONG_SIZE,
} from '../support/long-copies.ts';
import { scenario } from '../support/scenario.ts';
import type { Flags, ServerProcess } from '../support/server-process.ts';
import { chunkBytesOf } from '../support/slot-worker.ts';
import { suite } from '../support/suite.ts';
import { until } from '../support/waiting.ts';
import type { WorkerPuppet } from '../support/worker-puppet.ts';

const victimId = (i: number) => 2n ** 62n + 1000n + BigInt(i);
const TTL_FLAGS: Flags = { '--l1-write-ttl-seconds': 1, '--l1-read-ttl-seconds': 1 };
/** The TTL, the quarantine of one more, and the sweeps between them. */
const GIVEN_UP_WITHIN_MS = 6000;
const CHUNKS = 4;
/** Where the death of a worker cuts what it writes. */
const HALF_A_CHUNK = 2048;
const INLINE_FLAGS: Flags = { '--shm-name': '' };

/** More stores than a worker gets done before it is killed. */
const seedsOf = (victim: number) => Array.from({ length: 200 }, (_, i) => 1000 * (victim + 1) + i);

/** Of all workers together. */
async function storeCount(server: ServerProcess): Promise<number> {
  return (await server.status()).engine_driven_transfer['store_count'] as number;
}

suite('faults: a worker killed between PREPARE and COMMIT', (test) => {
  test(
    'before COMMIT_STORE: nothing of it is ever a hit, and others can store its prompts',
    scenario(async (s) => {
      const server = await s.serve(TTL_FLAGS);
      const client = s.connect(server);
      const other = await s.slotWorker(server, { transport: 'shm' });
      const victims = [
        { what: 'in warm-up', transport: 'shm', hasPinged: false },
        { what: 'after its first PING', transport: 'shm', hasPinged: true },
        { what: 'which sends its bytes inline', transport: 'inline', hasPinged: false },
      ] as const;
      const killed = victims.map(async ({ transport, hasPinged }, i) => {
        const victim = await s.puppet('slots', server, { transport, instanceId: victimId(i) });
        if (hasPinged) assert.is(await victim.do('ping'), true);
        const context = await victim.do('prepareStore', promptOf(i, CHUNKS));
        assert.is(context.slots?.length, CHUNKS);
        await victim.do('fill', context, i, HALF_A_CHUNK);
        await victim.kill();
      });
      await Promise.all(killed);
      assert.is(await hitsOf(client, promptOf(1, CHUNKS)), 0);
      const isUnlocked = async () => (await server.l1())['write_locked_count'] === 0;
      await until(isUnlocked, GIVEN_UP_WITHIN_MS, 'the reservations are given up');
      for (const [i, { what }] of victims.entries()) {
        const prompt = promptOf(i, CHUNKS);
        assert.is(await hitsOf(client, prompt), 0, what);
        assert.is(await other.store(prompt, 10 + i), true, what);
        assert.equal(await other.retrieve(prompt), other.expected(10 + i, CHUNKS), what);
      }
      await until(() => hasNothingPending(server), GIVEN_UP_WITHIN_MS, 'the slots are free');
      await expectNothingLeft(server);
    }),
  );

  test(
    'before COMMIT_RETRIEVE: the memory it reads stays its own for a time, the locks do not',
    scenario(async (s) => {
      const server = await s.serve(TTL_FLAGS);
      const client = s.connect(server);
      const other = await s.slotWorker(server, { transport: 'shm' });
      const prompt = promptOf(1, CHUNKS);
      await other.store(prompt, 1);
      const victims = (['shm', 'inline'] as const).map(async (transport, i) => {
        const victim = await s.puppet('slots', server, { transport, instanceId: victimId(i) });
        const requestId = `read ${transport}`;
        assert.is(await lookup(client, prompt, { requestId }), CHUNKS);
        assert.is((await victim.do('prepareRetrieve', prompt, { requestId }))?.success, true);
        await victim.kill();
        await endSession(client, requestId);
      });
      await Promise.all(victims);
      assert.is((await server.l1())['read_locked_count'], 0);
      assert.equal(await other.retrieve(prompt), other.expected(1, CHUNKS));
      await client.call('CLEAR', { isForced: true }, 5000);
      const { memory_deferred_bytes } = await server.l1();
      assert.is(memory_deferred_bytes, CHUNKS * other.objectSizeBytes, 'the dead may still read');
      await until(() => hasNothingPending(server), GIVEN_UP_WITHIN_MS, 'the slots are free');
      await expectNothingLeft(server);
    }),
  );

  test(
    'at any moment of many stores and retrieves: what is there is whole',
    scenario(async (s) => {
      const server = await s.serve(TTL_FLAGS);
      const client = s.connect(server);
      const other = await s.slotWorker(server, { transport: 'shm' });
      const ends = [
        { transport: 'shm', afterCount: 5 },
        { transport: 'inline', afterCount: 10 },
        { transport: 'shm', afterCount: 20 },
        { transport: 'inline', afterCount: 40 },
      ] as const;
      const killed = ends.map(async ({ transport, afterCount }, i) => {
        const victim = await s.puppet('slots', server, { transport, instanceId: victimId(i) });
        victim.post('storeAndRetrieve', seedsOf(i), CHUNKS);
        const isTime = async () => (await storeCount(server)) >= afterCount;
        await until(isTime, 10_000, `${afterCount} stores`);
        await victim.kill();
      });
      await Promise.all(killed);
      await until(() => hasNothingPending(server), GIVEN_UP_WITHIN_MS, 'the slots are free');
      let totalCount = 0;
      for (const [i, { transport }] of ends.entries()) {
        const seeds = seedsOf(i);
        let foundCount = 0;
        // It stored one after the other, so behind the first that is missing there is none.
        for (const seed of seeds) {
          if ((await hitsOf(client, promptOf(seed, CHUNKS))) === 0) break;
          foundCount += 1;
          const chunks = await other.retrieve(promptOf(seed, CHUNKS));
          assert.equal(chunks, other.expected(seed, CHUNKS), `prompt ${seed}`);
        }
        assert.ok(foundCount < seeds.length, `${transport} ${i} came to its end`);
        totalCount += foundCount;
      }
      assert.ok(totalCount > 0, 'none of them stored anything');
      await expectNothingLeft(server);
    }),
  );

  test(
    'inline, without a segment: there is nothing to leave behind',
    scenario(async (s) => {
      const server = await s.serve(INLINE_FLAGS);
      const client = s.connect(server);
      const victim = await s.puppet('slots', server, {
        transport: 'inline',
        instanceId: victimId(0),
      });
      assert.equal(await victim.do('prepareStore', promptOf(1, CHUNKS)), {});
      assert.is(await victim.do('store', promptOf(2, CHUNKS), 2), true);
      assert.is(await lookup(client, promptOf(2, CHUNKS)), CHUNKS);
      assert.is((await victim.do('prepareRetrieve', promptOf(2, CHUNKS)))?.success, true);
      await victim.kill();
      assert.is((await server.l1())['read_locked_count'], 0, 'read with the reply');
      assert.is(await hitsOf(client, promptOf(1, CHUNKS)), 0);
      assert.is(await hitsOf(client, promptOf(2, CHUNKS)), CHUNKS);
      await endSession(client);
      await expectNothingLeft(server);
    }),
  );
});

suite('faults: a worker killed while the server copies for it', (test) => {
  test(
    'STORE and RETRIEVE: it is unmapped behind the copy; what it stored is whole, no lock stays',
    scenario(async (s) => {
      const server = await s.serve(LONG_COPY_FLAGS);
      const client = s.connect(server);
      const other = await s.worker(server, { geometry: LONG_GEOMETRY });
      const ends = [0, LONG_CHUNKS - 1];
      other.fill(ends, 1);
      const stored = ends.map((block) => other.read([block]));
      other.fill(ends, 2);
      const victim = (i: number) =>
        s.puppet('paged', server, { instanceId: victimId(i), geometry: LONG_GEOMETRY });
      const drops: Promise<Response>[] = [];
      const writer = await victim(1);
      await writer.do('fill', ends, 1);
      writer.post('store', LONG_PROMPT);
      await inCopy(server, () => strikeAndDrop(server, writer, drops));
      await untilUnmapped(server, writer.pid);
      assert.is(await hitsOf(client, LONG_PROMPT), LONG_CHUNKS);

      const reader = await victim(2);
      assert.is(await lookup(client, LONG_PROMPT), LONG_CHUNKS);
      reader.post('retrieve', LONG_PROMPT);
      await inCopy(server, () => strikeAndDrop(server, reader, drops));
      await untilUnmapped(server, reader.pid);
      assert.is((await server.l1())['read_locked_count'], 0, 'its readers are given back');

      assert.is((await other.retrieve(LONG_PROMPT)).ok, true);
      for (const [i, block] of ends.entries()) {
        assert.ok(other.read([block]).equals(stored[i] as Buffer), `block ${block}`);
      }
      for (const { status } of await Promise.all(drops)) assert.is(status, 200);
      await endSession(client);
      await expectNothingLeft(server, LONG_SIZE);
    }),
  );

  test(
    'COMMIT_STORE and PREPARE_RETRIEVE of data: what it sent is whole, no lock stays',
    scenario(async (s) => {
      const server = await s.serve({ ...LONG_COPY_FLAGS, ...INLINE_FLAGS });
      const client = s.connect(server);
      const options = { transport: 'inline', geometry: LONG_CHUNK } as const;
      const other = await s.slotWorker(server, options);
      const victim = (i: number) =>
        s.puppet('slots', server, { ...options, instanceId: victimId(i) });
      const writer = await victim(1);
      writer.post('store', LONG_PROMPT, 1);
      await inCopy(server, () => writer.strike());
      assert.is(await hitsOf(client, LONG_PROMPT), LONG_CHUNKS);

      const reader = await victim(2);
      assert.is(await lookup(client, LONG_PROMPT), LONG_CHUNKS);
      reader.post('prepareRetrieve', LONG_PROMPT);
      await inCopy(server, () => reader.strike());
      assert.is((await server.l1())['read_locked_count'], 0, 'its readers are given back');

      const chunks = await other.retrieve(LONG_PROMPT);
      assert.is(chunks?.length, LONG_CHUNKS);
      for (const index of [0, LONG_CHUNKS - 1]) {
        const expected = chunkBytesOf(1, index, other.objectSizeBytes);
        assert.ok(chunks?.[index]?.equals(expected), `chunk ${index}`);
      }
      await endSession(client);
      await expectNothingLeft(server, LONG_SIZE);
    }),
  );
});

/** Its death, and an operator who does not wait until kvd has noticed it. */
function strikeAndDrop(
  server: ServerProcess,
  victim: WorkerPuppet<'paged'>,
  drops: Promise<Response>[],
): void {
  victim.strike();
  assert.is(server.mappedSegments(`lmcache_kv_${victim.pid}_`).length, LONG_GEOMETRY.layerCount);
  const url = `${server.httpUrl}/instances/${victimId(drops.length + 1)}`;
  drops.push(fetch(url, { method: 'DELETE' }));
}

async function untilUnmapped(server: ServerProcess, pid: number): Promise<void> {
  const isUnmapped = () => server.mappedSegments(`lmcache_kv_${pid}_`).length === 0;
  await until(isUnmapped, 2000, 'its memory is unmapped');
}
