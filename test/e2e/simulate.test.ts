/** `kvd simulate` on a log that a server has written, as its users start it. */
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { endSession, lookup, promptOf } from '../support/fake-worker.ts';
import { scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/cli/main.ts');

/** What the command prints with `--format json`. */
function simulate(...args: string[]) {
  const executable = process.env['KVD_E2E_EXECUTABLE'];
  const [file = '', ...rest] = executable ? [executable] : [process.execPath, MAIN];
  const stdout = execFileSync(file, [...rest, 'simulate', ...args, '--format', 'json']);
  return JSON.parse(String(stdout)).metrics;
}

suite('kvd simulate', (test) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-e2e-simulate-'));
  test.after(() => fs.rmSync(folder, { recursive: true }));

  test(
    'replays the lookups that a server has logged',
    scenario(async (s) => {
      const server = await s.serve({ '--lookup-hash-log-dir': folder });
      const client = s.connect(server);
      const worker = await s.worker(server);
      // Three prompts of four chunks, each looked up twice.
      for (let i = 0; i < 6; i += 1) {
        const requestId = `r${i}`;
        const hits = await lookup(client, promptOf(i % 3, 4), { requestId });
        assert.is(hits, i < 3 ? 0 : 4);
        if (hits === 0) await worker.store(promptOf(i % 3, 4), { requestId });
        await endSession(client, requestId);
      }
      await server.stop();
      const metrics = simulate(folder, '--l1-size-gb', '0.001,1');
      assert.is(metrics.lookups, 6);
      assert.is(metrics.distinct_chunks, 12);
      assert.is(metrics.distinct_bytes, 12 * 4096);
      assert.is(metrics.unlimited_hit_rate, 0.5);
      assert.is(metrics.results.length, 8);
      for (const { hit_rate } of metrics.results) assert.is(hit_rate, 0.5);
    }),
  );

  test('says what is wrong with its arguments', () => {
    const run = () =>
      execFileSync(process.execPath, [MAIN, 'simulate', '--policies', 'x'], { stdio: 'pipe' });
    assert.throws(run, /kvd simulate: error: --policies: expected some of/);
  });
});
