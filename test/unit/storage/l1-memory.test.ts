/** L1 memory: sizes, names and ownership of shared memory. The rest is in test/contract. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { Shim } from '../../../src/device/shim.ts';
import type { KvdError } from '../../../src/errors.ts';
import {
  type L1Memory,
  type L1MemoryOptions,
  openL1Memory,
} from '../../../src/storage/l1-memory/l1-memory.ts';
import { removeStaleSegments, shmNameOf } from '../../../src/storage/l1-memory/posix-shm.ts';
import { GIB, MIB } from '../../../src/units.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { rejects } from '../../support/rejects.ts';
import { silentLogger } from '../../support/silent-logger.ts';
import { suite } from '../../support/suite.ts';

const shim = Shim.load();
const HOLDER = path.join(import.meta.dirname, '../../support/shm-holder.mjs');
/** Names of this run: other test files may run beside it. */
const NAME = `lmcache_l1_pool_test-${process.pid}`;

const open = (options: Partial<L1MemoryOptions>): Promise<L1Memory> =>
  openL1Memory({
    shim,
    log: silentLogger,
    sizeBytes: 8 * MIB,
    hugePages: 'transparent',
    shm: null,
    ...options,
  });

const fileOf = (name: string): string => `/dev/shm/${name}`;

async function withMemory(options: Partial<L1MemoryOptions>, body: (memory: L1Memory) => unknown) {
  const memory = await open(options);
  try {
    await body(memory);
  } finally {
    await memory.close();
  }
}

suite('L1 memory: size', (test) => {
  test('100 GiB open at once and cost next to nothing', async () => {
    const before = process.memoryUsage.rss();
    const start = performance.now();
    await withMemory({ sizeBytes: 100 * GIB }, (memory) => {
      const took = performance.now() - start;
      memory.view(99 * GIB, 1)[0] = 1;
      assert.ok(took < 100, `took ${took} ms`);
      const grown = process.memoryUsage.rss() - before;
      assert.ok(grown < 16 * MIB, `grew by ${grown} bytes`);
    });
  });

  test('what somebody still writes to is not given back to the system', async () => {
    for (const isKept of [false, true]) {
      const memory = await open({});
      memory.view(0, 1)[0] = 1;
      const address = memory.memory.base.toString(16).padStart(8, '0');
      const isMapped = () => fs.readFileSync('/proc/self/maps', 'utf8').includes(`${address}-`);
      assert.is(isMapped(), true);
      if (isKept) memory.memory.keepMapped();
      await memory.close();
      assert.is(isMapped(), isKept);
    }
  });

  test('more than the address space is a configuration error', async () => {
    const error = await rejects(open({ sizeBytes: 2 ** 50 }), /cannot reserve .*--l1-size-gb/);
    assert.is((error as KvdError).code, 'ERR_CONFIG');
  });

  test('explicit huge pages without a reserve say how many are needed', async () => {
    const free = Number(
      /HugePages_Free:\s+(\d+)/.exec(fs.readFileSync('/proc/meminfo', 'utf8'))?.[1],
    );
    const sizeBytes = (free + 1) * 2 * MIB;
    await rejects(open({ sizeBytes, hugePages: 'explicit' }), /free huge pages.*vm\.nr_hugepages/);
  });
});

suite('L1 memory: names in /dev/shm', (test) => {
  const children: ChildProcess[] = [];
  test.afterEach(async () => {
    for (const child of children.splice(0)) await kill(child);
    for (const entry of fs.readdirSync('/dev/shm')) {
      if (entry.startsWith(NAME)) fs.rmSync(fileOf(entry));
    }
  });

  /** Another server; resolves with the name that it got, or with its error. */
  async function startHolder(name: string): Promise<{ child: ChildProcess; answer: string }> {
    const child = spawn(process.execPath, [HOLDER, name], { stdio: ['pipe', 'pipe', 'inherit'] });
    children.push(child);
    const [line] = await once(child.stdout, 'data');
    return { child, answer: String(line).trim() };
  }

  async function kill(child: ChildProcess): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  }

  test('a name loses its slash and gets the prefix of the peer', () => {
    assert.is(shmNameOf('/pool'), 'lmcache_l1_pool_pool');
    assert.is(shmNameOf('lmcache_l1_pool_7'), 'lmcache_l1_pool_7');
    for (const bad of ['', '/', 'a/b', 'a\\b', 'a b', '..\0', 'x'.repeat(300)]) {
      assert.throws(() => shmNameOf(bad), /--shm-name/);
    }
  });

  test('the default name holds our pid, and the segment goes with close', async () => {
    const shm = { name: null, mode: 0o600 };
    let file = '';
    await withMemory({ shm }, (memory) => {
      assert.is(memory.shmName, `lmcache_l1_pool_${process.pid}`);
      file = fileOf(memory.shmName as string);
      const { mode, size } = fs.statSync(file);
      assert.is(mode & 0o777, 0o600);
      assert.is(size, 8 * MIB);
    });
    assert.not.ok(fs.existsSync(file));
  });

  test('a default name that is held gets a number', () =>
    withMemory({ shm: { name: null, mode: 0o600 } }, () =>
      withMemory({ shm: { name: null, mode: 0o600 } }, (second) => {
        assert.is(second.shmName, `lmcache_l1_pool_${process.pid}_1`);
      }),
    ));

  test('the mode is the one asked for, whatever the umask', () =>
    withMemory({ shm: { name: NAME, mode: 0o660 } }, (memory) => {
      assert.is(fs.statSync(fileOf(memory.shmName as string)).mode & 0o777, 0o660);
    }));

  test('clients see the bytes through the name', () =>
    withMemory({ shm: { name: NAME, mode: 0o600 } }, (memory) => {
      memory.view(4096, 2).set([8, 9]);
      const bytes = fs.readFileSync(fileOf(NAME));
      assert.equal([...bytes.subarray(4095, 4099)], [0, 8, 9, 0]);
    }));

  test('the name of a running server is refused and its segment left alone', async () => {
    const { answer } = await startHolder(NAME);
    assert.is(answer, NAME);
    const { ino } = fs.statSync(fileOf(NAME));
    const shm = { name: NAME, mode: 0o600 };
    const error = await rejects(open({ shm }), /belongs to a running server/);
    assert.is((error as KvdError).code, 'ERR_CONFIG');
    assert.is(fs.statSync(fileOf(NAME)).ino, ino);
  });

  test('the name of a killed server is taken over', async () => {
    const { child } = await startHolder(NAME);
    await kill(child);
    assert.ok(fs.existsSync(fileOf(NAME)), 'SIGKILL leaves the segment behind');
    await withMemory({ shm: { name: NAME, mode: 0o600 } }, (memory) => {
      assert.ok(memory.view(0, 4096).every((byte) => byte === 0));
    });
  });

  test('an exit without close unlinks the segment', async () => {
    const { child } = await startHolder(NAME);
    const exited = once(child, 'exit');
    child.stdin?.write('x');
    await exited;
    assert.not.ok(fs.existsSync(fileOf(NAME)));
  });

  test('default names of dead processes are removed, those of the living stay', async () => {
    const dead = await startHolder('');
    const alive = await startHolder('');
    await kill(dead.child);
    const log = new RecordingLogger();
    removeStaleSegments(shim, log);
    assert.not.ok(fs.existsSync(fileOf(dead.answer)));
    assert.ok(fs.existsSync(fileOf(alive.answer)));
    assert.ok(log.has(new RegExp(`removed ${dead.answer}`)));
    await kill(alive.child);
    removeStaleSegments(shim, silentLogger);
    assert.not.ok(fs.existsSync(fileOf(alive.answer)));
  });

  test('a pool that does not fit into /dev/shm names both sizes and the remedy', async () => {
    const shm = { name: NAME, mode: 0o600 };
    const error = await rejects(
      open({ shm, sizeBytes: 2 ** 45 }),
      /32\.00 TiB does not fit .*free: .*--shm-size/,
    );
    assert.is((error as KvdError).code, 'ERR_CONFIG');
    assert.not.ok(fs.existsSync(fileOf(NAME)));
  });

  test('with a default name that case falls back to anonymous memory, loudly', async () => {
    const log = new RecordingLogger();
    const shm = { name: null, mode: 0o600 };
    await withMemory({ shm, log, sizeBytes: 2 ** 45 }, (memory) => {
      assert.is(memory.kind, 'anonymous');
      assert.is(memory.shmName, null);
    });
    assert.ok(log.has(/no shared memory/));
  });
});
