/**
 * `npm run bench:l2-files -- [--folder F] [--size-mib 8] [--count 64] [--workers 4] [--rounds 3]
 *                           [--reference PYTHON]`
 *
 * How fast `fs` stores and loads, beside sequential I/O with the same block size and flags on the
 * same disk:
 *
 *   dd          one file of the same length in all, from and to one buffer of one block
 *   plain       synchronous system calls over the same files, from and to the same L1 memory; the
 *               difference to dd is that of many files and of memory that no cache holds
 *   reference   with `--reference`, the interpreter of an environment with lmcache: its `fs_native`
 *
 *   direct     O_DIRECT on both sides: the disk
 *   buffered   the page cache on both sides: stores end in memory, loads come from there
 *
 * All sides in turn, the best round of each counts. The target is 90 %.
 */
import { spawnSync } from 'node:child_process';
import fs, { mkdtempSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { ReferenceAdapter } from '../../scripts/interop/reference-adapter.ts';
import { sizeThreadPool } from '../../src/config/thread-pool.ts';
import { backendType } from '../../src/l2/adapters/fs.ts';
import type { L2Object } from '../../src/l2/backend.ts';
import { GIB, MIB } from '../../src/units.ts';
import { openBackend } from '../../test/support/l2-context.ts';
import { l2Key, SlotArena } from '../../test/support/l2-objects.ts';

const { values } = parseArgs({
  options: {
    folder: { type: 'string', default: tmpdir() },
    'size-mib': { type: 'string', default: '8' },
    count: { type: 'string', default: '64' },
    workers: { type: 'string', default: '4' },
    rounds: { type: 'string', default: '3' },
    reference: { type: 'string' },
  },
});
const sizeBytes = Math.round(Number(values['size-mib']) * MIB);
const count = Number(values.count);
const workerCount = Number(values.workers);
const totalBytes = sizeBytes * count;
sizeThreadPool([{ num_workers: workerCount }]);

const never = new AbortController().signal;

interface Speeds {
  store: number;
  load: number;
}

const gibPerSecond = (seconds: number): number => totalBytes / GIB / seconds;

async function measureOurs(folder: string, isDirect: boolean, arena: SlotArena): Promise<Speeds> {
  const json = { base_path: folder, use_odirect: isDirect, num_workers: workerCount };
  const store = await openBackend(backendType, json);
  arena.reset();
  const objects: L2Object[] = Array.from({ length: count }, (_, index) => {
    const object = arena.object(l2Key(index), sizeBytes);
    object.bytes.fill(index + 1);
    return object;
  });
  const storeMs = await timeOf(() => store.store(objects, never), 'stored');
  const loadMs = await timeOf(() => store.load(objects, never), 'loaded');
  await store.close();
  return { store: gibPerSecond(storeMs / 1000), load: gibPerSecond(loadMs / 1000) };
}

async function timeOf(run: () => Promise<readonly unknown[]>, expected: string): Promise<number> {
  const startMs = performance.now();
  const results = await run();
  const elapsedMs = performance.now() - startMs;
  const odd = results.find((result) => result !== expected);
  if (odd !== undefined) throw new Error(`${expected} was expected, got ${odd}`);
  return elapsedMs;
}

function runDd(...args: readonly string[]): number {
  const startMs = performance.now();
  const dd = spawnSync('dd', [...args, `bs=${sizeBytes}`, `count=${count}`, 'status=none'], {
    encoding: 'utf8',
  });
  if (dd.status !== 0) throw new Error(`dd: ${dd.stderr}`);
  return (performance.now() - startMs) / 1000;
}

async function measureDd(folder: string, isDirect: boolean): Promise<Speeds> {
  const file = path.join(folder, 'dd');
  const seconds = {
    store: runDd('if=/dev/zero', `of=${file}`, ...(isDirect ? ['oflag=direct'] : [])),
    load: runDd(`if=${file}`, 'of=/dev/null', ...(isDirect ? ['iflag=direct'] : [])),
  };
  return { store: gibPerSecond(seconds.store), load: gibPerSecond(seconds.load) };
}

function measurePlain(folder: string, isDirect: boolean, arena: SlotArena): Speeds {
  const { O_CREAT, O_DIRECT, O_RDONLY, O_WRONLY } = fs.constants;
  const flag = isDirect ? O_DIRECT : 0;
  arena.reset();
  const slots = Array.from({ length: count }, (_, index) => arena.slot(sizeBytes).fill(index + 1));
  const overAll = (flags: number, move: (fd: number, slot: Uint8Array) => void): number => {
    const startMs = performance.now();
    for (const [index, slot] of slots.entries()) {
      const fd = fs.openSync(path.join(folder, `${index}`), flags | flag);
      move(fd, slot);
      fs.closeSync(fd);
    }
    return gibPerSecond((performance.now() - startMs) / 1000);
  };
  const store = overAll(O_WRONLY | O_CREAT, (fd, slot) => fs.writeSync(fd, slot));
  const load = overAll(O_RDONLY, (fd, slot) => fs.readSync(fd, slot));
  return { store, load };
}

async function measureReference(folder: string, isDirect: boolean): Promise<Speeds> {
  const spec = {
    type: 'fs_native',
    base_path: folder,
    use_odirect: isDirect,
    num_workers: workerCount,
  };
  const adapter = await ReferenceAdapter.start(values.reference ?? '', null, spec);
  const samples = Array.from({ length: count }, (_, index) => ({
    key: l2Key(index),
    sizeBytes,
    seed: index,
  }));
  const store = gibPerSecond((await adapter.store(samples)).seconds);
  const load = gibPerSecond((await adapter.load(samples)).seconds);
  await adapter.end();
  return { store, load };
}

async function inFreshFolder(measure: (folder: string) => Promise<Speeds>): Promise<Speeds> {
  const folder = mkdtempSync(path.join(values.folder, 'kvd-bench-'));
  try {
    return await measure(folder);
  } finally {
    await rm(folder, { recursive: true });
  }
}

const arena = await SlotArena.open(totalBytes + (count + 1) * 8192);
const rows: Record<string, unknown>[] = [];
for (const isDirect of [true, false]) {
  const sides: Record<string, (folder: string) => Promise<Speeds>> = {
    dd: (folder) => measureDd(folder, isDirect),
    plain: async (folder) => measurePlain(folder, isDirect, arena),
    kvd: (folder) => measureOurs(folder, isDirect, arena),
    ...(values.reference ? { reference: (folder) => measureReference(folder, isDirect) } : {}),
  };
  const best: Record<string, Speeds> = {};
  for (let round = 0; round < Number(values.rounds); round += 1) {
    for (const [side, measure] of Object.entries(sides)) {
      const speeds = await inFreshFolder(measure);
      const before = best[side] ?? { store: 0, load: 0 };
      best[side] = {
        store: Math.max(before.store, speeds.store),
        load: Math.max(before.load, speeds.load),
      };
    }
  }
  for (const operation of ['store', 'load'] as const) {
    const figures = Object.fromEntries(
      Object.entries(best).map(([side, speeds]) => [`${side} GiB/s`, speeds[operation].toFixed(2)]),
    );
    const ratioTo = (side: string): string =>
      `${(((best['kvd']?.[operation] ?? 0) / (best[side]?.[operation] ?? 1)) * 100).toFixed(0)} %`;
    const mode = isDirect ? 'direct' : 'buffered';
    const ratios = { 'kvd of dd': ratioTo('dd'), 'kvd of plain': ratioTo('plain') };
    rows.push({ mode, operation, ...figures, ...ratios });
  }
}
await arena.close();
console.log(`${count} objects of ${values['size-mib']} MiB, ${workerCount} workers`);
console.table(rows);
