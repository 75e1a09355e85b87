/**
 * kill -9 of a server that stores into files, again and again: what had reached its place before is
 * there and whole afterwards, and nothing that is reported as a hit has other bytes.
 *
 * `npm run test:kill` kills 50 times; everyday runs three.
 */
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import { BIG, endSession, type FakeWorker, lookup, promptOf } from '../support/fake-worker.ts';
import { scenario } from '../support/scenario.ts';
import { seededRandom } from '../support/seeded-random.ts';
import type { Flags, ServerProcess } from '../support/server-process.ts';
import { suite } from '../support/suite.ts';
import { passTime } from '../support/waiting.ts';

const ROUND_COUNT = Number(process.env['KVD_KILL_ROUNDS'] ?? 3);
const ROUND_MS_MAX = 500;
/** Objects of earlier rounds that are looked at again. */
const RECHECK_COUNT = 40;
const STORE_BLOCK = 1;
const LOAD_BLOCK = 2;
/** A prompt of one chunk has a salt of its own, by which its file can be told. */
const saltOf = (number: number): string => `p${number}`;

function storedNumbers(folder: string): number[] {
  return fs.readdirSync(folder).flatMap((name) => {
    const number = /@p(\d+)\.data$/.exec(name)?.[1];
    return number === undefined ? [] : [Number(number)];
  });
}

const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

/** Stores one prompt after the other until the server is gone; digests of what was sent. */
async function storeUntilKilled(
  worker: FakeWorker,
  server: ServerProcess,
  digests: Map<number, string>,
): Promise<void> {
  while (!server.hasEnded) {
    const number = digests.size;
    worker.fill([STORE_BLOCK], number);
    digests.set(number, digest(worker.read([STORE_BLOCK])));
    const requestId = `store ${number}`;
    const transfer = { requestId, cacheSalt: saltOf(number), blockIds: [STORE_BLOCK] };
    const reply = worker.store(promptOf(number, 1), { ...transfer, deadlineMs: 1000 });
    // The last one has no server any more.
    await reply.catch(() => null);
  }
}

/** True when it is a hit, and then it is the right one. */
async function isWhole(worker: FakeWorker, number: number, expected: string): Promise<boolean> {
  const requestId = `load ${number}`;
  const key = { requestId, cacheSalt: saltOf(number) };
  const hits = await lookup(worker.client, promptOf(number, 1), key);
  if (hits > 0) {
    const transfer = { ...key, blockIds: [LOAD_BLOCK] };
    assert.is((await worker.retrieve(promptOf(number, 1), transfer)).ok, true);
    assert.is(digest(worker.read([LOAD_BLOCK])), expected, `the bytes of prompt ${number}`);
  }
  await endSession(worker.client, requestId);
  return hits > 0;
}

suite('L2: kill -9 under load', (test) => {
  test(
    `${ROUND_COUNT} times: what was in its place reads back equal, nothing else is a hit`,
    scenario(async (s) => {
      const folder = fs.mkdtempSync('/tmp/kvd-e2e-kill-');
      s.own({ close: () => fs.rmSync(folder, { recursive: true, force: true }) });
      const flags: Flags = {
        '--l1-size-gb': 0.05,
        '--l2-adapter': JSON.stringify({ type: 'fs', base_path: folder }),
      };
      const random = seededRandom(20_261_130);
      const digests = new Map<number, string>();
      let loadedCount = 0;
      for (let round = 0; round <= ROUND_COUNT; round += 1) {
        const server = await s.serve(flags);
        const worker = await s.worker(server, { geometry: BIG });
        const stored = new Set(storedNumbers(folder));
        const numbers = [...digests.keys()].slice(round < ROUND_COUNT ? -RECHECK_COUNT : 0);
        for (const number of numbers) {
          const isHit = await isWhole(worker, number, digests.get(number) as string);
          assert.ok(isHit || !stored.has(number), `prompt ${number} is in its place and no hit`);
          if (isHit) loadedCount += 1;
        }
        if (round === ROUND_COUNT) break;
        const storing = storeUntilKilled(worker, server, digests);
        await passTime(50 + random(ROUND_MS_MAX));
        await server.kill();
        await storing;
        worker.close();
        server.removeSegments();
      }
      assert.ok(loadedCount > ROUND_COUNT, `${loadedCount} loads in all`);
    }),
    30_000 + ROUND_COUNT * 20_000,
  );
});
