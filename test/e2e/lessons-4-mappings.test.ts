/**
 * Memory of workers that the server has mapped (spec field-lessons 4). The reap time is in
 * lessons-5-silence. A worker process is a visible owner only if it maps its segments.
 */
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import { endSession, hitsOf, lookup, promptOf } from '../support/fake-worker.ts';
import { rejects } from '../support/rejects.ts';
import { expectCalm, isFullRun, scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';
import { passTime, until } from '../support/waiting.ts';

const REAP_SECONDS = 30;
const GONE_WITHIN_MS = 10_000;
const FIRST_ID = 2n ** 62n;

const segmentsOf = (pid: number) => `lmcache_kv_${pid}_`;

type OwnerPids = Readonly<Record<string, { readonly owner_pid: number | null }>>;

suite('lesson 4: mappings', (test) => {
  test(
    '4.1 the memory of a worker that unregisters is unmapped by the time of the reply',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server);
      assert.is(server.mappedSegments(segmentsOf(process.pid)).length, 2);
      await worker.store(promptOf(1, 4));
      await worker.unregister();
      assert.equal(server.mappedSegments(segmentsOf(process.pid)), []);
      await worker.register();
      assert.is(await hitsOf(client, promptOf(1, 4)), 4, 'what it stored is still there');
      await expectCalm(server);
    }),
  );

  test(
    '4.2 the drop call releases a killed worker at once; an unknown id is 404',
    scenario(async (s) => {
      const server = await s.serve();
      const instanceId = 2n ** 62n + 1n;
      const killed = await s.workerProcess({ url: server.url, instanceId, pings: true });
      assert.is(server.mappedSegments(segmentsOf(killed.pid)).length, 2);
      await killed.kill();
      const drop = () => fetch(`${server.httpUrl}/instances/${instanceId}`, { method: 'DELETE' });
      assert.is((await drop()).status, 200);
      assert.equal(server.mappedSegments(segmentsOf(killed.pid)), []);
      assert.equal((await server.status()).cache_context_meta, {});
      const again = await drop();
      assert.is(again.status, 404);
      assert.is(typeof ((await again.json()) as { error: unknown }).error, 'string');
      await expectCalm(server);
    }),
  );

  for (const pings of [true, false]) {
    const title = pings
      ? '4.2 a killed worker is unmapped in seconds, with a reap time of two minutes'
      : '4.3 a worker that is killed before its first PING is unmapped in seconds, too';
    test(
      title,
      scenario(async (s) => {
        const server = await s.serve();
        const [instanceId, invisibleId] = [FIRST_ID, FIRST_ID + 1n];
        const common = { url: server.url, pings };
        const killed = await s.workerProcess({ ...common, instanceId, mapsSegments: true });
        const invisible = await s.workerProcess({ ...common, instanceId: invisibleId });
        const known = (await server.status()).cache_context_meta as OwnerPids;
        assert.is(known[String(instanceId)]?.owner_pid, killed.pid);
        assert.is(known[String(invisibleId)]?.owner_pid, null);
        await killed.kill();
        await invisible.kill();
        const isUnmapped = () => server.mappedSegments(segmentsOf(killed.pid)).length === 0;
        await until(isUnmapped, GONE_WITHIN_MS, 'unmapped');
        const left = Object.keys((await server.status()).cache_context_meta);
        assert.equal(left, [String(invisibleId)], 'whose owner is not visible has the reap time');
        assert.is(server.mappedSegments(segmentsOf(invisible.pid)).length, 2);
        assert.is(server.linesWith(/Process \d+ has ended: its instance/).length, 1);
        await expectCalm(server);
      }),
    );
  }

  test(
    'a killed worker leaves nothing in /dev/shm, if it was certain whose it was',
    scenario(async (s) => {
      const server = await s.serve();
      const common = { url: server.url, pings: true };
      const [killed, living, invisible] = await Promise.all([
        s.workerProcess({ ...common, instanceId: FIRST_ID, mapsSegments: true }),
        s.workerProcess({ ...common, instanceId: FIRST_ID + 1n, mapsSegments: true }),
        s.workerProcess({ ...common, instanceId: FIRST_ID + 2n }),
      ]);
      const leftOf = ({ pid }: { pid: number }) =>
        fs.readdirSync('/dev/shm').filter((name) => name.startsWith(segmentsOf(pid))).length;
      await killed.crash();
      await invisible.crash();
      await until(() => leftOf(killed) === 0, GONE_WITHIN_MS, 'removed');
      await until(() => server.mappedSegments(segmentsOf(killed.pid)).length === 0, 2000);
      assert.equal([leftOf(living), leftOf(invisible)], [2, 2]);
      assert.is(server.linesWith(/and 2 segments that it left are removed/).length, 1);
      await expectCalm(server);
    }),
  );

  test(
    '4.3 a worker that lives and says nothing after its registration stays',
    scenario(async (s) => {
      const server = await s.serve({ '--worker-reap-timeout-seconds': REAP_SECONDS });
      const idle = await s.workerProcess({
        url: server.url,
        instanceId: FIRST_ID,
        pings: false,
        mapsSegments: true,
      });
      // Several looks at its process; in a full run also the reap time and the reaper's interval.
      await passTime(isFullRun ? REAP_SECONDS * 1250 + 2000 : 3000);
      assert.equal(Object.keys((await server.status()).cache_context_meta), [String(FIRST_ID)]);
      assert.is(server.mappedSegments(segmentsOf(idle.pid)).length, 2);
      await expectCalm(server);
    }),
    60_000,
  );

  test(
    'the registration of a worker whose memory is gone fails and leaves nothing mapped',
    scenario(async (s) => {
      const server = await s.serve();
      const worker = s.newWorker(server);
      worker.shrink();
      const { wrappers, instanceId } = worker;
      await rejects(worker.register(500), /no reply within/);
      assert.is((await server.status()).lmcache_driven_transfer['registration_failure_count'], 1);
      const [line = '', ...more] = server.linesWith(/REGISTER|egistration/);
      assert.equal(more, [], 'said once');
      for (const word of ['ERROR', String(instanceId), wrappers[0]?.shmName ?? '', 'next: ']) {
        assert.ok(line.includes(word), line);
      }
      assert.equal(server.mappedSegments(segmentsOf(process.pid)), []);
      await expectCalm(server);
    }),
  );

  test(
    'a worker whose memory shrinks under a copy harms no one but itself',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const shrinking = await s.worker(server, { instanceId: 2n ** 62n });
      const prompt = promptOf(1, 4);
      shrinking.fill([0, 1, 2, 3], 1);
      const stored = shrinking.read([0, 1, 2, 3]);
      await shrinking.store(prompt);
      assert.is(await lookup(client, prompt), 4);
      shrinking.shrink();
      // Strict mode: a vLLM worker would take a failed retrieve for a success.
      await rejects(shrinking.retrieve(prompt, { deadlineMs: 500 }), /no reply/);
      assert.is(await shrinking.ping(), false);
      assert.is((await shrinking.store(promptOf(2, 1))).ok, false);
      const worker = await s.worker(server);
      assert.is((await worker.retrieve(prompt)).ok, true);
      assert.equal(worker.read([0, 1, 2, 3]), stored);
      await endSession(client);
      await expectCalm(server);
    }),
  );
});
