/** `--trace-level storage`, `kvd trace info` and `kvd trace replay`, as their users start them. */
import { execFileSync, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { endSession, lookup, promptOf } from '../support/fake-worker.ts';
import { scenario } from '../support/scenario.ts';
import { suite } from '../support/suite.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/cli/main.ts');
const VECTOR = path.resolve(import.meta.dirname, '../vectors/metrics/trace_storage_0.5.0.lct');
const STORAGE = ['--l1-size-gb', '0.02', '--eviction-policy', 'LRU', '--speed', 'max'];
const PREFIX = 'lmcache.v1.distributed.storage_manager.StorageManager.';

function command(): readonly [string, readonly string[]] {
  const executable = process.env['KVD_E2E_EXECUTABLE'];
  return executable ? [executable, []] : [process.execPath, [MAIN]];
}

function trace(...args: readonly string[]): string {
  const [file, head] = command();
  return execFileSync(file, [...head, 'trace', ...args], { encoding: 'utf8', stdio: 'pipe' });
}

suite('kvd trace', (test) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-e2e-trace-'));
  test.after(() => fs.rmSync(folder, { recursive: true }));
  const file = path.join(folder, 'recorded.lct');

  test(
    'records what a server is asked, and asks a fresh storage room the same',
    scenario(async (s) => {
      const server = await s.serve({ '--trace-level': 'storage', '--trace-output': file });
      const client = s.connect(server);
      const worker = await s.worker(server);
      for (const [i, cacheSalt] of ['', 'tenant'].entries()) {
        const requestId = `r${i}`;
        const prompt = promptOf(1, 4);
        assert.is(await lookup(client, prompt, { requestId, cacheSalt }), 0);
        await worker.store(prompt, { requestId, cacheSalt });
        assert.is(await lookup(client, prompt, { requestId, cacheSalt }), 4);
        assert.ok((await worker.retrieve(prompt, { requestId, cacheSalt })).ok);
        await endSession(client, requestId);
      }
      await server.stop();
      const { metrics } = JSON.parse(trace('info', file, '--format', 'json'));
      assert.is(metrics.dropped_records, 0);
      assert.ok(metrics.is_complete);
      const counts = ['reserve_write', 'finish_write', 'submit_prefetch_task'].map(
        (name) => metrics.ops[PREFIX + name],
      );
      assert.equal(counts, [2, 2, 4]);
      trace('replay', file, ...STORAGE, '--json', '--output-dir', folder, '-q');
      const summary = JSON.parse(
        fs.readFileSync(path.join(folder, 'trace_replay_summary.json'), 'utf8'),
      );
      const errors = Object.values<{ errors: number }>(summary.ops).map(({ errors: n }) => n);
      assert.ok(errors.length >= 5);
      assert.ok(errors.every((count) => count === 0));
      assert.ok(fs.existsSync(path.join(folder, 'trace_replay_ops.csv')));
    }),
  );

  test('replays a trace of the reference', () => {
    const lines = path.join(folder, 'lines.jsonl');
    const text = trace('replay', VECTOR, ...STORAGE, '--no-csv', '--jsonl-out', lines);
    assert.match(text, /Records replayed: +24/);
    assert.match(text, /Records failed: +0/);
    const records = fs
      .readFileSync(lines, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    assert.is(records.length, 24);
    assert.ok(records.every(({ failed }) => failed === false));
  });

  test('says in one line what is wrong with a file', () => {
    const [executable, head] = command();
    for (const [content, expected] of [
      [null, /^kvd trace info: error: .*missing\.lct/],
      ['no trace', /not a trace file/],
    ] as const) {
      const broken = path.join(folder, content === null ? 'missing.lct' : 'broken.lct');
      if (content !== null) fs.writeFileSync(broken, content);
      const run = spawnSync(executable, [...head, 'trace', 'info', broken], { encoding: 'utf8' });
      assert.is(run.status, 1);
      assert.match(run.stderr, expected);
      assert.is(run.stderr.trim().split('\n').length, 1);
    }
  });
});
