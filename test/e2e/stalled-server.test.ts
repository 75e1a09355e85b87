/**
 * The server itself is stopped for longer than a heartbeat, as by `docker pause` or a host without
 * memory: what vLLM workers have given up meanwhile must not happen afterwards.
 */
import * as assert from 'uvu/assert';
import { STALL_MS } from '../../src/engine/stall-watch.ts';
import { endSession, lookup, promptOf } from '../support/fake-worker.ts';
import { rejects } from '../support/rejects.ts';
import { expectCalm, scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';
import { passTime, until } from '../support/waiting.ts';

const VLLM_ID = 2n ** 62n;
const BLOCKS = [8, 9, 10, 11];

suite('a server that was stopped', (test) => {
  test(
    'leaves the blocks of a RETRIEVE alone that lay in its socket, and then serves again',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = await s.worker(server, { instanceId: VLLM_ID });
      const prompt = promptOf(1, 4);
      worker.fill([0, 1, 2, 3], 1);
      const stored = worker.read([0, 1, 2, 3]);
      await worker.store(prompt);
      assert.is(await lookup(client, prompt), 4);
      assert.is(await worker.ping(), true);

      process.kill(server.pid, 'SIGSTOP');
      worker.fill(BLOCKS, 2);
      const ofOthers = worker.read(BLOCKS);
      const retrieve = rejects(
        worker.retrieve(prompt, { blockIds: BLOCKS, deadlineMs: STALL_MS + 3000 }),
        /no reply/,
      );
      const store = worker.store(promptOf(2, 4));
      await passTime(STALL_MS + 500);
      process.kill(server.pid, 'SIGCONT');
      const [{ ok }] = await Promise.all([store, retrieve]);
      assert.is(ok, false);
      assert.equal(worker.read(BLOCKS), ofOthers);
      assert.equal([await worker.ping(), await worker.ping()], [false, true]);
      assert.is(server.linesWith(/stood still for \d+\.\d s/).length, 1);
      assert.is((await server.status()).lmcache_driven_transfer['overdue_transfer_count'], 2);

      const hasRecovered = async () => (await worker.store(promptOf(3, 1))).ok;
      await until(hasRecovered, 5000, 'it serves again');
      assert.is((await worker.retrieve(prompt, { blockIds: BLOCKS })).ok, true);
      assert.equal(worker.read(BLOCKS), stored);
      await endSession(client);
      await expectCalm(server);
    }),
  );
});
