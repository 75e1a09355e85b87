/** Whose memory a segment is, and the end of that process (spec field-lessons 4.2). */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import * as assert from 'uvu/assert';
import type { ProcessOwner } from '../../../src/device/device.ts';
import { findOwner, isProcessAlive, removeName } from '../../../src/device/process-owner.ts';
import { openDeviceHouse, wrapperOf } from '../../support/device-house.ts';
import { MappingProcess } from '../../support/mapping-process.ts';
import { suite } from '../../support/suite.ts';
import { until } from '../../support/waiting.ts';

const fileOf = (name: string): string => `/dev/shm${name}`;

function identify(...names: string[]) {
  return new Map(
    names.map((name) => {
      const { dev, ino } = fs.statSync(fileOf(name), { bigint: true });
      return [name, { device: dev, inode: ino }];
    }),
  );
}

const statOf = (pid: number): string => fs.readFileSync(`/proc/${pid}/stat`, 'latin1');

/** Field 22, with a name of the process that has no spaces. */
const startTicksOf = (pid: number): number => Number(statOf(pid).split(' ')[21]);

const processOf = (pid: number): ProcessOwner => ({ pid, startTicks: startTicksOf(pid) });

async function withProcess(body: (owner: MappingProcess) => Promise<void>): Promise<void> {
  const owner = new MappingProcess();
  try {
    await body(owner);
  } finally {
    await owner.kill();
  }
}

suite('the owner of segments', (test) => {
  test('is the process in their names that maps all of them', () =>
    withProcess(async (owner) => {
      const names = [1, 2].map((n) => owner.create(`/lmcache_kv_${owner.pid}_${n}`));
      await owner.map(...names);
      assert.equal(await findOwner(identify(...names)), {
        pid: owner.pid,
        startTicks: startTicksOf(owner.pid),
      });
      const third = owner.create(`/lmcache_kv_${owner.pid}_3`);
      assert.is(await findOwner(identify(...names, third)), null, 'one is not mapped');
    }));

  test('is unknown where only the name speaks for a process', () =>
    withProcess(async (owner) => {
      const name = owner.create(`/lmcache_kv_${owner.pid}_1`);
      assert.is(await findOwner(identify(name)), null);
      await owner.map(name);
      fs.unlinkSync(fileOf(name));
      owner.create(name);
      assert.is(await findOwner(identify(name)), null, 'another segment of the same name');
    }));

  test('is unknown where the process is not visible, or is the server', () =>
    withProcess(async (owner) => {
      const gone = spawn('true');
      await once(gone, 'exit');
      const ofGone = owner.create(`/lmcache_kv_${gone.pid}_1`);
      const ofServer = owner.create(`/lmcache_kv_${process.pid}_owner`);
      const house = await openDeviceHouse();
      const [geometry, sizeBytes] = [{ shape: [4096] }, 4096];
      for (const name of [ofGone, ofServer]) {
        const wrapper = wrapperOf({ name, sizeBytes }, geometry);
        const instance = await house.device.openInstance([wrapper]);
        assert.is(instance.owner, null, name);
      }
      await house.close();
    }));

  test('is unknown where names speak for several processes, or for none', () =>
    withProcess(async (owner) => {
      const { pid } = owner;
      const good = owner.create(`/lmcache_kv_${pid}_1`);
      const names = [`${process.ppid}_${pid}`, `x${pid}_1`, `${pid}`, `0${pid}_1`].map((rest) =>
        owner.create(`/lmcache_kv_${rest}`),
      );
      await owner.map(good, ...names);
      assert.ok(await findOwner(identify(good)));
      for (const name of names) {
        assert.is(await findOwner(identify(name)), null, name);
        assert.is(await findOwner(identify(good, name)), null, name);
      }
      assert.is(await findOwner(new Map()), null);
    }));

  test('is known to the instance of a device', () =>
    withProcess(async (owner) => {
      const name = owner.create(`/lmcache_kv_${owner.pid}_1`);
      await owner.map(name);
      const house = await openDeviceHouse();
      const wrapper = wrapperOf({ name, sizeBytes: 4096 }, { shape: [4096] });
      const instance = await house.device.openInstance([wrapper]);
      assert.equal(instance.owner, processOf(owner.pid));
      await house.close();
    }));
});

suite('what a process leaves', (test) => {
  const exists = (name: string): boolean => fs.existsSync(fileOf(name));

  test('is removed by its name, and only where that still stands for the mapped file', () =>
    withProcess(async (owner) => {
      const names = [1, 2, 3].map((n) => owner.create(`/lmcache_kv_${owner.pid}_${n}`));
      const [kept, removed, replaced] = names as [string, string, string];
      await owner.map(...names);
      const house = await openDeviceHouse();
      const wrappers = [removed, replaced].map((name) =>
        wrapperOf({ name, sizeBytes: 4096 }, { shape: [4096] }),
      );
      const instance = await house.device.openInstance(wrappers);
      fs.unlinkSync(fileOf(replaced));
      owner.create(replaced);
      assert.is(instance.removeNames(), 1);
      assert.equal(names.map(exists), [true, false, true], `${kept} is not of this instance`);
      assert.is(instance.removeNames(), 0);
      await house.close();
    }));

  test('stays when it is not mapped here any more', () =>
    withProcess(async (owner) => {
      const name = owner.create(`/lmcache_kv_${owner.pid}_1`);
      const house = await openDeviceHouse();
      const wrapper = wrapperOf({ name, sizeBytes: 4096 }, { shape: [4096] });
      const instance = await house.device.openInstance([wrapper]);
      await instance.close();
      assert.is(instance.removeNames(), 0);
      assert.ok(exists(name));
      await house.close();
    }));

  test('stays when something else has the name: a link, a folder, nothing', () =>
    withProcess(async (owner) => {
      const name = owner.create(`/lmcache_kv_${owner.pid}_1`);
      const target = owner.create(`/lmcache_kv_${owner.pid}_2`);
      const file = identify(target).get(target) as { device: bigint; inode: bigint };
      fs.unlinkSync(fileOf(name));
      assert.is(removeName(name, file), false);
      fs.symlinkSync(fileOf(target), fileOf(name));
      assert.is(removeName(name, file), false);
      fs.unlinkSync(fileOf(name));
      fs.mkdirSync(fileOf(name));
      assert.is(removeName(name, file), false);
      fs.rmdirSync(fileOf(name));
      assert.is(removeName(target, file), true);
      assert.not.ok(exists(target));
    }));
});

suite('the end of a process', (test) => {
  test('is told from its life, also when it is stopped', () =>
    withProcess(async (child) => {
      const owner = processOf(child.pid);
      assert.is(await isProcessAlive(owner), true);
      process.kill(child.pid, 'SIGSTOP');
      assert.is(await isProcessAlive(owner), true);
      await child.kill();
      assert.is(await isProcessAlive(owner), false);
    }));

  test('shows although another process has its pid now', async () => {
    const owner = processOf(process.pid);
    assert.is(await isProcessAlive(owner), true);
    assert.is(await isProcessAlive({ ...owner, startTicks: owner.startTicks - 1 }), false);
  });

  test('is not believed because /proc stops showing the process', () =>
    withProcess(async (child) => {
      const hidden = fs.mkdtempSync('/tmp/kvd-proc-');
      try {
        const owner = processOf(child.pid);
        assert.is(await isProcessAlive(owner, hidden), true);
        await child.kill();
        assert.is(await isProcessAlive(owner, hidden), false);
      } finally {
        fs.rmdirSync(hidden);
      }
    }));

  test('shows although nobody has collected it', async () => {
    // The shell becomes `sleep`, which never asks for its child.
    const parent = spawn('sh', ['-c', 'sleep 0 & echo $!; exec sleep 60']);
    try {
      const [line] = (await once(parent.stdout, 'data')) as [Buffer];
      const pid = Number(line.toString());
      await until(() => statOf(pid).includes(') Z '), 10_000, 'a zombie');
      assert.is(await isProcessAlive(processOf(pid)), false);
    } finally {
      parent.kill('SIGKILL');
      await once(parent, 'exit');
    }
  });
});
