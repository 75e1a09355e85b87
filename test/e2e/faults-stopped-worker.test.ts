/**
 * Workers that are stopped (SIGSTOP) and go on (SIGCONT) as if nothing had happened (spec engine
 * 9.3). What the server gave up meanwhile the worker still writes to, or reads from: these bytes
 * must not be anybody else's. L1 is small here and full, so memory that is given back is used.
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
import { expectAnswers, scenario } from '../support/scenario.ts';
import type { Flags, ServerProcess } from '../support/server-process.ts';
import { digestOf, type SlotWorker } from '../support/slot-worker.ts';
import { suite } from '../support/suite.ts';
import { passTime, until } from '../support/waiting.ts';

const puppetId = (i: number) => 2n ** 62n + 1000n + BigInt(i);
/** How long memory stays out of use after a transfer was given up: one write TTL. */
const QUARANTINE_SECONDS = 2;
/** 262 objects; the quarantine is 5 % of them. Eviction begins when nothing is free. */
const SMALL_L1: Flags = {
  '--l1-size-gb': 0.001,
  '--eviction-trigger-watermark': 1,
  '--l1-write-ttl-seconds': QUARANTINE_SECONDS,
  '--l1-read-ttl-seconds': 1,
};
const OBJECT_COUNT_MAX = 262;
const CHUNKS = 4;
const GIVEN_UP_WITHIN_MS = 6000;

/** Prompts `first`, `first` + 1, …: more chunks than L1 has room for. */
async function fillL1(worker: SlotWorker, first: number): Promise<number[]> {
  const count = Math.ceil(OBJECT_COUNT_MAX / CHUNKS) + 1;
  const prompts = Array.from({ length: count }, (_, i) => first + i);
  for (const prompt of prompts) assert.is(await storeOne(worker, prompt), true);
  return prompts;
}

const storeOne = (worker: SlotWorker, prompt: number) =>
  worker.store(promptOf(prompt, CHUNKS), prompt);

/** Each of these prompts is as it was stored, or not there. Returns how many are there. */
async function countIntact(worker: SlotWorker, prompts: readonly number[]): Promise<number> {
  let count = 0;
  for (const prompt of prompts) {
    const chunks = await worker.retrieve(promptOf(prompt, CHUNKS));
    if (!chunks) continue;
    assert.equal(chunks, worker.expected(prompt, CHUNKS), `prompt ${prompt}`);
    count += 1;
  }
  return count;
}

async function quarantinedCount(server: ServerProcess): Promise<number> {
  return (await server.status()).engine_driven_transfer['quarantined_transfer_count'] as number;
}

suite('faults: a worker stopped between PREPARE and COMMIT', (test) => {
  test(
    'a writer: its late bytes are in no object, its late COMMIT_STORE is false',
    scenario(async (s) => {
      const server = await s.serve({ ...SMALL_L1, '--no-strict-retrieve': true });
      const client = s.connect(server);
      const other = await s.slotWorker(server, { transport: 'shm' });
      const before = await fillL1(other, 1000);
      const writer = await s.puppet('slots', server, { transport: 'shm', instanceId: puppetId(0) });
      const prompt = promptOf(1, CHUNKS);
      const context = await writer.do('prepareStore', prompt);
      assert.is(context.slots?.length, CHUNKS);
      await writer.stop();
      await until(async () => (await quarantinedCount(server)) === 1, GIVEN_UP_WITHIN_MS, 'expiry');
      assert.is(await hitsOf(client, prompt), 0);
      // The same prompt, and more than what its slots were: they would be the first to be used.
      const after = [1, 2000, 2001, 2002];
      for (const number of after) assert.is(await storeOne(other, number), true);
      writer.resume();
      await writer.do('fill', context, 666);
      assert.is(await writer.do('commitStore', prompt), false);
      const { late_commit_count } = (await server.status()).engine_driven_transfer;
      assert.is(late_commit_count, 1, 'the slots were kept until the writer was done');
      assert.is(await countIntact(other, after), after.length);
      assert.ok((await countIntact(other, before)) > before.length / 2);
      assert.is(await writer.do('commitStore', prompt), false, 'once more');
      assert.is(await writer.do('store', promptOf(2, CHUNKS), 2), true, 'it goes on');
      assert.is(await countIntact(other, [2]), 1);
      await expectNothingLeft(server);
    }),
  );

  test(
    'a reader: its bytes stay in place for one TTL more; after that its COMMIT is refused',
    scenario(async (s) => {
      const server = await s.serve(SMALL_L1);
      const client = s.connect(server);
      const other = await s.slotWorker(server, { transport: 'shm' });
      const prompts = [1, 2] as const;
      for (const prompt of prompts) await storeOne(other, prompt);
      const [inTime, tooLate] = await Promise.all(
        prompts.map(async (number) => {
          const options = { transport: 'shm', instanceId: puppetId(number) } as const;
          const reader = await s.puppet('slots', server, options);
          const prompt = promptOf(number, CHUNKS);
          const prepared = await reader.do('prepareRetrieve', prompt);
          assert.is(prepared?.success, true);
          await reader.stop();
          return { reader, prompt, prepared: prepared as NonNullable<typeof prepared> };
        }),
      );
      const areGivenUp = async () => (await quarantinedCount(server)) === prompts.length;
      await until(areGivenUp, GIVEN_UP_WITHIN_MS, 'expiry');
      await client.call('CLEAR', { isForced: true }, 5000);
      // Everything else is free now; what the readers see would be the first to be used.
      for (let i = 0; i < 8; i += 1) assert.is(await storeOne(other, 1000 + i), true);
      const { reader, prompt, prepared } = inTime as NonNullable<typeof inTime>;
      reader.resume();
      const chunks = await reader.do('chunksOf', prepared);
      assert.equal(chunks.map(Buffer.from), other.expected(1, CHUNKS));
      assert.is((await reader.do('commitRetrieve', prompt)).value, true);

      const late = tooLate as NonNullable<typeof tooLate>;
      await until(() => hasNothingPending(server), GIVEN_UP_WITHIN_MS, 'the end of the quarantine');
      late.reader.resume();
      const commit = late.reader.do('commitRetrieve', late.prompt);
      // A worker of this generation believes a refusal only if its heartbeat has failed.
      await until(
        async () => (await heldCount(server)) === 1,
        5000,
        'the refusal waits for a PING',
      );
      assert.is(await late.reader.do('ping'), false);
      assert.is((await commit).value, false);
      assert.is(await late.reader.do('ping'), true);
      await expectNothingLeft(server);
    }),
  );
});

async function heldCount(server: ServerProcess): Promise<number> {
  return (await server.status()).engine_driven_transfer['held_reply_count'] as number;
}

suite('faults: a worker stopped while the server copies for it', (test) => {
  test(
    'STORE and RETRIEVE end without it, it stays registered, and goes on with its replies',
    scenario(async (s) => {
      const server = await s.serve(LONG_COPY_FLAGS);
      const client = s.connect(server);
      const options = { instanceId: puppetId(0), geometry: LONG_GEOMETRY };
      const worker = await s.puppet('paged', server, options);
      await worker.do('fill', [3], 1);
      const wanted = await worker.do('read', [3]);
      const store = worker.do('store', LONG_PROMPT);
      await inCopy(server, () => worker.stop());
      await expectAnswers(server);
      assert.is(await lookup(client, LONG_PROMPT), LONG_CHUNKS, 'visible without its worker');
      // Its process is looked at every second: stopped is not dead.
      await passTime(1500);
      worker.resume();
      assert.is((await store).ok, true);
      await worker.do('fill', [3], 2);
      const retrieve = worker.do('retrieve', LONG_PROMPT);
      await inCopy(server, () => worker.stop());
      assert.is((await server.l1())['read_locked_count'], 0);
      worker.resume();
      assert.is((await retrieve).ok, true);
      assert.ok(Buffer.from(await worker.do('read', [3])).equals(wanted));
      await endSession(client);
      await expectNothingLeft(server, LONG_SIZE);
    }),
  );

  test(
    'PREPARE_RETRIEVE of data: the reply waits for it, and nobody waits with it',
    scenario(async (s) => {
      const server = await s.serve({ ...LONG_COPY_FLAGS, '--shm-name': '' });
      const options = { transport: 'inline', geometry: LONG_CHUNK } as const;
      const other = await s.slotWorker(server, options);
      assert.is(await other.store(LONG_PROMPT, 1), true);
      const reader = await s.puppet('slots', server, { ...options, instanceId: puppetId(0) });
      const digests = reader.do('retrieveDigests', LONG_PROMPT);
      await inCopy(server, () => reader.stop());
      await expectAnswers(server);
      reader.resume();
      assert.equal(await digests, other.expected(1, LONG_CHUNKS).map(digestOf));
      await expectNothingLeft(server, LONG_SIZE);
    }),
  );
});
