/** Restart and shutdown (spec field-lessons 6). 6.3 is about L2. */
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import type { KvdClient } from '../../src/client/client.ts';
import { type FakeWorker, hitsOf, promptOf } from '../support/fake-worker.ts';
import { expectCalm, type Scenario, scenario } from '../support/scenario.ts';
import type { ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';
import { deadline, passTime, until } from '../support/waiting.ts';

const INTERVAL_MS = 1000;

const segment = (name: string | null) => fs.existsSync(`/dev/shm/${name}`);

/**
 * The heartbeat of the 0.5.0 vLLM worker: false or silence makes it unhealthy, the next true makes
 * it register again.
 */
class Heartbeat {
  readonly #worker: FakeWorker;
  readonly answers: (boolean | 'none')[] = [];
  registrationCount = 0;
  #isBeating = true;
  #isHealthy = true;

  constructor(worker: FakeWorker) {
    this.#worker = worker;
    void this.#beat();
  }

  stop(): void {
    this.#isBeating = false;
  }

  async #beat(): Promise<void> {
    while (this.#isBeating) {
      const answer = await this.#worker.ping(INTERVAL_MS).catch(() => 'none' as const);
      this.answers.push(answer);
      if (answer !== true) this.#isHealthy = false;
      else if (!this.#isHealthy) {
        await this.#worker.register();
        this.registrationCount += 1;
        this.#isHealthy = true;
      }
      await passTime(INTERVAL_MS);
    }
  }
}

async function shmName(server: ServerProcess): Promise<string | null> {
  return (await server.l1()).memory_shm_name;
}

/** Names of this run only: other servers may live on this machine. */
const named = (suffix: string) => ({ '--shm-name': `kvd_test_${process.pid}_${suffix}` });

async function storeAndFind(s: Scenario, server: ServerProcess): Promise<KvdClient> {
  const client = s.connect(server);
  const worker = await s.worker(server);
  await worker.store(promptOf(1, 4));
  assert.is(await hitsOf(client, promptOf(1, 4)), 4);
  return client;
}

suite('lesson 6: restart and shutdown', (test) => {
  test(
    '6.1 a restart within one heartbeat: PING false, true, and the worker is registered again',
    scenario(async (s) => {
      const before = await s.serve();
      const worker = await s.worker(before);
      const heartbeat = new Heartbeat(worker);
      await until(() => heartbeat.answers.length === 1, 5000);
      const startMs = performance.now();
      await before.kill();
      const after = await s.serve({}, { ports: before.ports });
      const restartMs = performance.now() - startMs;
      const start = heartbeat.answers.length;
      const isBack = () => heartbeat.registrationCount === 1;
      // Two intervals, and one more for the time at which the server came back in between.
      await until(isBack, 3 * INTERVAL_MS, 'registered again');
      heartbeat.stop();
      const [first, second] = heartbeat.answers.slice(-2);
      // A slow machine turns this into a restart that the worker notices by itself.
      assert.ok(first === false || (first === 'none' && restartMs > INTERVAL_MS), `${first}`);
      assert.is(second, true);
      assert.ok(heartbeat.answers.length - start <= 3, `${heartbeat.answers}`);
      const client = s.connect(after);
      assert.is((await worker.store(promptOf(1, 4))).ok, true);
      assert.is(await hitsOf(client, promptOf(1, 4)), 4);
      await expectCalm(after);
    }),
  );

  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    test(
      `6.2 ${signal} removes the segment of L1`,
      scenario(async (s) => {
        const server = await s.serve(named(signal));
        await storeAndFind(s, server);
        const name = await shmName(server);
        assert.is(segment(name), true);
        await expectCalm(server);
        process.kill(server.pid, signal);
        assert.is(await server.exitCode(), 0, server.output);
        assert.is(segment(name), false);
      }),
    );
  }

  test(
    '6.2 the segment of a killed server is removed by the next start of that name',
    scenario(async (s) => {
      const killed = await s.serve(named('killed'));
      const name = await shmName(killed);
      const inode = fs.statSync(`/dev/shm/${name}`).ino;
      await killed.kill();
      assert.is(segment(name), true, 'SIGKILL runs no handler');
      const next = await s.serve(named('killed'));
      assert.is(await shmName(next), name);
      assert.ok(fs.statSync(`/dev/shm/${name}`).ino !== inode, 'a segment of its own');
      await storeAndFind(s, next);
      await expectCalm(next);
    }),
  );

  test(
    '6.2 default names of dead servers are removed by any start with shared memory',
    scenario(async (s) => {
      const dead = await s.spawn({ '--l1-size-gb': 0 });
      await dead.exitCode();
      const name = `lmcache_l1_pool_${dead.pid}`;
      fs.writeFileSync(`/dev/shm/${name}`, 'left behind');
      const server = await s.serve(named('cleaner'));
      assert.is(segment(name), false);
      await expectCalm(server);
    }),
  );

  test(
    '6.2 two servers side by side keep their segments',
    scenario(async (s) => {
      const first = await s.serve(named('first'));
      const second = await s.serve(named('second'));
      assert.is(segment(await shmName(first)), true);
      await second.stop();
      assert.is(segment(await shmName(first)), true);
      await storeAndFind(s, first);
      await expectCalm(first);
    }),
  );

  test(
    'a shutdown answers what was sent before it, and new requests with a typed failure',
    scenario(async (s) => {
      const server = await s.serve();
      const worker = await s.worker(server);
      const stores = Array.from({ length: 32 }, (_, i) => worker.tryStore(promptOf(i, 4)));
      // On the same connection: what was sent before it has arrived.
      await worker.ping();
      process.kill(server.pid, 'SIGTERM');
      const replies = await deadline(Promise.all(stores), 5000, 'stores were left unanswered');
      for (const { value, error } of replies) {
        assert.ok(value?.ok === true || error?.error === 'SHUTTING_DOWN', JSON.stringify(error));
      }
      assert.is(await server.exitCode(), 0, server.output);
    }),
  );
});
