/**
 * Shared memory that is not what was said about it (spec engine 9.4, field-lessons 4, 8): segments
 * of workers that are too short or become so in the middle of a copy, and the segment of L1 when
 * two servers want it.
 */
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import { expectNothingLeft } from '../support/aftermath.ts';
import { endSession, hitsOf, lookup, promptOf } from '../support/fake-worker.ts';
import {
  inCopy,
  LONG_CHUNKS,
  LONG_COPY_FLAGS,
  LONG_GEOMETRY,
  LONG_PROMPT,
  LONG_SIZE,
} from '../support/long-copies.ts';
import { rejects } from '../support/rejects.ts';
import { scenario } from '../support/scenario.ts';
import { SlotWorker } from '../support/slot-worker.ts';
import { suite } from '../support/suite.ts';

const CHUNKS = 4;
const PROMPT = promptOf(1, CHUNKS);

const SHRINKING = 2n ** 62n + 1n;

suite('faults: segments of workers', (test) => {
  test(
    'one shorter than announced is refused: by silence, with nothing mapped, and for good reason',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const layers = s.newWorker(server).wrappers;
      const pathOf = ({ shmName }: { shmName: string }) => `/dev/shm${shmName}`;
      const last = layers.at(-1) as (typeof layers)[0];
      const cuts = [last.sizeBytes - 1, last.sizeBytes / 2, 1];
      for (const [i, sizeBytes] of cuts.entries()) {
        const worker = s.newWorker(server, { instanceId: SHRINKING + BigInt(i) });
        const segment = worker.wrappers.at(-1) as typeof last;
        fs.truncateSync(pathOf(segment), sizeBytes);
        await rejects(worker.register(300), /no reply/);
        const failures = (await server.status()).lmcache_driven_transfer;
        assert.is(failures['registration_failure_count'], i + 1);
        assert.equal(server.mappedSegments(`lmcache_kv_${process.pid}_`), [], `${sizeBytes} bytes`);
        // The same worker, once its memory is what it says.
        fs.truncateSync(pathOf(segment), segment.sizeBytes);
        await worker.register();
        assert.is((await worker.store(promptOf(i, CHUNKS))).ok, true);
        assert.is(await hitsOf(client, promptOf(i, CHUNKS)), CHUNKS);
        await worker.unregister();
      }
      await expectNothingLeft(server);
    }),
  );

  test(
    'one cut short in the middle of a copy: its worker learns it, nothing wrong is stored',
    scenario(async (s) => {
      const server = await s.serve(LONG_COPY_FLAGS);
      const client = s.connect(server);
      const shrinking = (i: number) =>
        s.worker(server, { geometry: LONG_GEOMETRY, instanceId: SHRINKING + BigInt(i) });
      const writer = await shrinking(1);
      const store = writer.tryStore(LONG_PROMPT);
      await inCopy(server, () => writer.shrink());
      const { value, error } = await store;
      assert.is(value?.ok, false);
      assert.is(error?.error, 'INTERNAL');
      assert.is(await hitsOf(client, LONG_PROMPT), 0);

      const other = await s.worker(server, { geometry: LONG_GEOMETRY });
      other.fill([5], 1);
      const stored = other.read([5]);
      assert.is((await other.store(LONG_PROMPT)).ok, true);
      const reader = await shrinking(2);
      assert.is(await lookup(client, LONG_PROMPT), LONG_CHUNKS);
      const unanswered = rejects(reader.retrieve(LONG_PROMPT, { deadlineMs: 2000 }), /no reply/);
      await inCopy(server, () => reader.shrink());
      assert.is(await reader.ping(), false, 'strict mode');
      assert.is((await server.l1())['read_locked_count'], 0, 'its readers are given back');
      other.fill([5], 2);
      assert.is((await other.retrieve(LONG_PROMPT)).ok, true);
      assert.ok(other.read([5]).equals(stored));
      await unanswered;
      await endSession(client);
      await expectNothingLeft(server, LONG_SIZE);
    }),
  );
});

suite('faults: two servers with one --shm-name', (test) => {
  test(
    'the second refuses to start, the first and the worker on its segment notice nothing',
    scenario(async (s) => {
      const named = { '--shm-name': `kvd_test_${process.pid}_faults` };
      const first = await s.serve(named);
      const worker = s.own(new SlotWorker(first.url, { transport: 'shm' }));
      const segment = `/dev/shm/${await worker.register()}`;
      const { ino } = fs.statSync(segment);
      const context = await worker.prepareStore(PROMPT);
      const second = await s.spawn(named);
      assert.is(await second.exitCode(), 1, second.output);
      const errors = second.linesWith(/^kvd server: error: /);
      assert.is(errors.length, 1, second.output);
      assert.match(errors[0] as string, /belongs to a running server: choose another --shm-name/);
      assert.is(fs.statSync(segment).ino, ino, 'the segment is the same');
      await worker.fill(context, 1);
      assert.is(await worker.commitStore(PROMPT), true);
      assert.equal(await worker.retrieve(PROMPT), worker.expected(1, CHUNKS));
      await expectNothingLeft(first);
    }),
  );
});
