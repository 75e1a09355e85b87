import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { Segment } from '../../../../src/client/load/segment.ts';
import { rejects } from '../../../support/rejects.ts';
import { suite } from '../../../support/suite.ts';

const MODULE = path.resolve(import.meta.dirname, '../../../../src/client/load/segment.ts');

suite('segment', (test) => {
  test('is named after the process, as a worker names it, and gone when closed', () => {
    const segment = Segment.create(8192);
    const file = `/dev/shm${segment.name}`;
    try {
      assert.match(segment.name, new RegExp(`^/lmcache_kv_${process.pid}_\\d+$`));
      assert.is(fs.statSync(file).mode & 0o777, 0o600);
      assert.is(segment.sizeBytes, 8192);
    } finally {
      segment.close();
    }
    assert.is(fs.existsSync(file), false);
  });

  test('writes any number of pieces one behind the other and reads them back', async () => {
    const segment = Segment.create(64 << 10);
    try {
      const pieces = Array.from({ length: 2500 }, (_, i) => Buffer.alloc(1 + (i % 13), i));
      const all = Buffer.concat(pieces);
      await segment.write(pieces, 100);
      const read = Buffer.alloc(all.length);
      await segment.read(read, 100);
      assert.is(read.compare(all), 0);
      const onDisk = fs.readFileSync(`/dev/shm${segment.name}`);
      assert.is(onDisk.subarray(100, 100 + all.length).compare(all), 0);
    } finally {
      segment.close();
    }
  });

  test('the segment of another is opened by name, and stays when closed', async () => {
    const owner = Segment.create(4096);
    try {
      const guest = Segment.open(owner.name.slice(1));
      await guest.write([Buffer.from('hello')], 10);
      guest.close();
      const read = Buffer.alloc(5);
      await owner.read(read, 10);
      assert.is(read.toString(), 'hello');
    } finally {
      owner.close();
    }
    assert.throws(() => Segment.open('lmcache_l1_pool_0_none'), /ENOENT/);
  });

  test('a read beyond the end is an error, not zeros', async () => {
    const segment = Segment.create(4096);
    try {
      await rejects(segment.read(Buffer.alloc(10), 4090), /6 of 10 bytes at 4090/);
    } finally {
      segment.close();
    }
  });

  test('a process that ends without closing leaves nothing', () => {
    const code = `
      import { Segment } from ${JSON.stringify(MODULE)};
      process.stdout.write(Segment.create(4096).name + ' ' + Segment.create(4096).name);
      throw new Error('on purpose');`;
    const args = ['--input-type=module', '-e', code];
    const { stdout, status } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    assert.is(status, 1);
    const names = stdout.split(' ');
    assert.is(names.length, 2);
    for (const name of names) assert.is(fs.existsSync(`/dev/shm${name}`), false, name);
  });
});
