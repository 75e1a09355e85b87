import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import * as assert from 'uvu/assert';
import type { FileStore } from '../../../src/l2/file-store.ts';
import { inFolder, openStore } from '../../support/l2-folders.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import { suite } from '../../support/suite.ts';

const never = new AbortController().signal;
const CHILD = path.resolve(import.meta.dirname, '../../support/file-store-child.mjs');
const SIZE_BYTES = 128 * 1024;
const OBJECT_COUNT = 80;

/** Everything that is there is whole; returns how many that are. */
async function countWhole(store: FileStore, count: number, sizeBytes: number): Promise<number> {
  let wholeCount = 0;
  for (let index = 0; index < count; index += 1) {
    const [size] = await store.lookup([l2Key(index)], never);
    if (size === null) continue;
    assert.is(size, sizeBytes);
    const target = { key: l2Key(index), bytes: new Uint8Array(sizeBytes) };
    assert.equal(await store.load([target], never), ['loaded']);
    assert.ok(Buffer.compare(target.bytes, l2Value(sizeBytes, index)) === 0, `object ${index}`);
    wholeCount += 1;
  }
  return wholeCount;
}

/** Kills a process after `lineCount` objects were reported stored; returns which ones. */
async function killAfter(folder: string, lineCount: number): Promise<number[]> {
  const args = [CHILD, folder, `${SIZE_BYTES}`, `${OBJECT_COUNT}`];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const reported: number[] = [];
  for await (const line of createInterface({ input: child.stdout })) {
    const [index, word] = line.split(' ');
    if (word === 'stored') reported.push(Number(index));
    if (reported.length === lineCount) child.kill('SIGKILL');
  }
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
  assert.is(child.signalCode, 'SIGKILL');
  return reported;
}

function runWithLimit(command: string, args: readonly string[]): string[] {
  const child = spawnSync(command, args, { encoding: 'utf8', timeout: 20_000 });
  assert.is(child.status, 0, child.stderr);
  return child.stdout.trim().split('\n');
}

suite('file store: crashes', (test) => {
  test('kill -9 in the middle of stores leaves whole values only, and all that were reported', () =>
    inFolder(async (folder) => {
      for (const lineCount of [1, 5, 17]) {
        const basePath = path.join(folder, `${lineCount}`);
        const reported = await killAfter(basePath, lineCount);
        const store = await openStore(basePath);
        const sizes = await store.lookup(
          reported.map((index) => l2Key(index)),
          never,
        );
        assert.ok(sizes.every((size) => size === SIZE_BYTES));
        const wholeCount = await countWhole(store, OBJECT_COUNT, SIZE_BYTES);
        assert.ok(wholeCount >= reported.length && wholeCount < OBJECT_COUNT);
        await store.close();
      }
    }));
});

suite('file store: no room', (test) => {
  test('a limit that cuts a write in two leaves nothing of it', () =>
    inFolder(async (folder) => {
      // In units of 512 or 1024 bytes, by shell: less than the object either way.
      const script = `ulimit -f 64; exec "$0" "$@"`;
      const args = ['-c', script, process.execPath, CHILD, folder, `${SIZE_BYTES}`, '3'];
      const lines = runWithLimit('sh', args);
      assert.is(lines.length, 3);
      for (const line of lines) assert.match(line, /failed cannot write .*EFBIG/);
      assert.equal(readdirSync(folder), []);
    }));

  // A file system of our own needs a mount, which not every machine allows.
  if (spawnSync('unshare', ['--map-root-user', '--mount', 'true']).status === 0) {
    test('a full disk refuses what does not fit and keeps the rest', () =>
      inFolder(async (folder) => {
        const mounted = path.join(folder, 'small');
        mkdirSync(mounted);
        const script =
          'mount -t tmpfs -o size=1m tmpfs "$1" || exit 9; "$0" "$2" "$1" "$3" 16; ls -A "$1"';
        const shell = ['sh', '-c', script, process.execPath, mounted, CHILD, `${SIZE_BYTES}`];
        const lines = runWithLimit('unshare', ['--map-root-user', '--mount', ...shell]);
        const stored = lines.filter((line) => line.endsWith(' stored'));
        const failed = lines.filter((line) => /failed .*ENOSPC/.test(line));
        assert.is(stored.length + failed.length, 16, lines.join('\n'));
        assert.ok(stored.length >= 1 && failed.length >= 8, lines.join('\n'));
        const names = lines.filter((line) => line.endsWith('.data') || line.endsWith('.tmp'));
        assert.is(names.length, stored.length, lines.join('\n'));
      }));
  }
});
