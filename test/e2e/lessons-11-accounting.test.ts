/** Memory accounting (spec field-lessons 11). */
import * as assert from 'uvu/assert';
import type { KvdClient } from '../../src/client/client.ts';
import {
  BIG,
  endSession,
  type FakeWorker,
  keyOf,
  lookup,
  promptOf,
  SMALL,
} from '../support/fake-worker.ts';
import { expectCalm, isFullRun, type Scenario, scenario } from '../support/scenario.ts';
import { seededRandom } from '../support/seeded-random.ts';
import type { ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';
import { inParallel, until } from '../support/waiting.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const GIB = 1024 * MIB;

/** The JavaScript heap grows into what it is given before it is swept; live it has 30 MB. */
const HEAP_GROWTH_MAX = 256 * MIB;

/** Prompts of the random run: `PROMPT_COUNT` for each of three models, of 1 to 4 chunks. */
const PROMPT_COUNT = 60;
const chunkCountOf = (prompt: number) => 1 + (prompt % 4);

interface RandomRun {
  readonly server: ServerProcess;
  readonly clients: readonly KvdClient[];
  readonly workers: readonly FakeWorker[];
}

async function startRandomRun(s: Scenario): Promise<RandomRun> {
  // A refused retrieve is answered, so that it can be used to ask whether a chunk exists.
  const server = await s.serve({ '--no-strict-retrieve': true });
  const geometries = [SMALL, { ...SMALL, headSize: 40 }, BIG];
  const workers: FakeWorker[] = [];
  for (const [i, geometry] of geometries.entries()) {
    const options = { geometry, modelName: `m${i}`, instanceId: BigInt(i) };
    workers.push(await s.worker(server, options));
  }
  return { server, workers, clients: [s.connect(server), s.connect(server)] };
}

/** One random request. Replies do not matter: whatever they are, the books must balance. */
async function act(run: RandomRun, random: (limit: number) => number): Promise<void> {
  const model = random(run.workers.length);
  const worker = run.workers[model] as FakeWorker;
  const client = run.clients[random(run.clients.length)] as KvdClient;
  const number = random(PROMPT_COUNT);
  const prompt = promptOf(number, chunkCountOf(number));
  const requestId = `r${random(30)}`;
  const key = keyOf(prompt, { requestId, modelName: `m${model}` });
  const action = random(1000);
  if (action < 330) await worker.store(prompt, { requestId });
  else if (action < 530) await lookup(client, prompt, { requestId, modelName: `m${model}` });
  else if (action < 700) await worker.retrieve(prompt, { requestId });
  else if (action < 780) await client.call('FREE_LOOKUP_LOCKS', { key, tpSize: 1 }, 5000);
  else if (action < 910) await endSession(client, requestId);
  else if (action < 940) await worker.store(prompt, { requestId, blockIds: [0] });
  else if (action < 985) await worker.register();
  else if (action < 996) await worker.unregister();
  else if (action < 997) await client.call('CLEAR', { isForced: true }, 5000);
  else await run.server.clearIdle();
}

/** Sum over all chunks that can be read. */
async function sumLiveBytes({ workers }: RandomRun): Promise<number> {
  let bytes = 0;
  for (const worker of workers) {
    await worker.register();
    const sizeBytes = Math.ceil(worker.objectSizeBytes / 4096) * 4096;
    for (let number = 0; number < PROMPT_COUNT; number += 1) {
      const prompt = promptOf(number, chunkCountOf(number));
      for (let token = 0; token < prompt.length; token += 16) {
        const range = { startToken: token, endToken: token + 16, requestId: 'census' };
        if ((await worker.retrieve(prompt, range)).ok) bytes += sizeBytes;
      }
    }
  }
  return bytes;
}

suite('lesson 11: memory accounting', (test) => {
  test(
    '11.1 sessions that nobody ends fall back by themselves, and memory stays flat',
    scenario(async (s) => {
      const server = await s.serve({ '--session-ttl-seconds': 1 });
      const client = s.connect(server);
      const worker = await s.worker(server);
      const prompt = promptOf(1, 4);
      await worker.store(prompt);
      const lookupAll = (count: number, wave: string) =>
        inParallel(count, 64, (i) => lookup(client, prompt, { requestId: `${wave} ${i}` }));
      const fallsBack = async () => (await server.status()).active_sessions === 0;
      await lookupAll(2000, 'warm up');
      const rssBytes = server.rssBytes();
      await lookupAll(isFullRun ? 100_000 : 10_000, 'measured');
      assert.ok((await server.status()).active_sessions > 0, 'the latest ones are still there');
      await until(fallsBack, 12_000, 'active_sessions falls back');
      const growthBytes = server.rssBytes() - rssBytes;
      assert.ok(growthBytes < HEAP_GROWTH_MAX, `grown by ${growthBytes} bytes`);
      await expectCalm(server);
    }),
    60_000,
  );

  test(
    '11.2 after random operations used bytes are the sum of what can be read; CLEAR gives 0',
    scenario(async (s) => {
      const run = await startRandomRun(s);
      const { server, clients } = run;
      const [client] = clients as [KvdClient];
      const random = seededRandom(112);
      const endMs = performance.now() + (isFullRun ? 60_000 : 4000);
      let count = 0;
      // How many fit into the time differs, so that the last of them may have been a CLEAR.
      const isAlmostEmpty = async () => Number((await server.l1())['memory_used_bytes']) < 8 * MIB;
      while (performance.now() < endMs || (await isAlmostEmpty())) {
        await inParallel(64, 8, () => act(run, random));
        count += 64;
      }
      assert.ok(count > 500, `${count} operations`);
      for (let i = 0; i < 30; i += 1) await endSession(client, `r${i}`);
      const liveBytes = await sumLiveBytes(run);
      await endSession(client, 'census');
      assert.ok(liveBytes > 4 * MIB, `the run ends with only ${liveBytes} bytes`);
      assert.is((await server.l1())['memory_used_bytes'], liveBytes, `after ${count} operations`);
      await expectCalm(server, { objectSizeBytes: null });

      await client.call('CLEAR', { isForced: true }, 5000);
      const { memory_used_bytes, memory_total_bytes } = await server.l1();
      assert.is(memory_used_bytes, 0);
      const huge = { ...BIG, blockCount: 1, headSize: 2360 };
      const worker = await s.worker(server, { geometry: huge, modelName: 'huge' });
      assert.ok(worker.objectSizeBytes >= 0.9 * (memory_total_bytes as number));
      await worker.store(promptOf(1, 1));
      assert.is((await worker.retrieve(promptOf(1, 1))).ok, true);
      await client.call('CLEAR', { isForced: true }, 5000);
      await expectCalm(server);
    }),
    120_000,
  );

  test(
    '11.3 a key costs at most 1 KiB of server memory beyond its bytes',
    scenario(async (s) => {
      const count = isFullRun ? 500_000 : 50_000;
      const sizeGib = (count * 4096 * 1.02) / GIB;
      const server = await s.serve({ '--l1-size-gb': sizeGib, '--eviction-trigger-watermark': 1 });
      const worker = await s.worker(server);
      const idleBytes = server.rssBytes();
      const chunks = 1000;
      for (let i = 0; i < count / chunks; i += 1) await worker.store(promptOf(i, chunks));
      const { total_object_count, memory_total_bytes } = await server.l1();
      assert.is(total_object_count, count);
      const rssBytes = server.rssBytes();
      const growth = (rssBytes - idleBytes - (memory_total_bytes as number)) / count;
      assert.ok(growth <= KIB, `${growth} bytes a key`);
      if (isFullRun) assert.ok((rssBytes - (memory_total_bytes as number)) / count <= KIB);
      await expectCalm(server);
    }),
    120_000,
  );
});
