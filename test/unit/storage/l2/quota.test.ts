/** The table of quotas and its file (spec storage 10.8, 18.20). */
import fs from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { QuotaTable } from '../../../../src/storage/l2/quota.ts';
import { refuses } from '../../../support/rejects.ts';
import { suite } from '../../../support/suite.ts';

async function inFolder(body: (folder: string) => Promise<void>): Promise<void> {
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), 'kvd-quota-'));
  try {
    await body(folder);
  } finally {
    await fs.rm(folder, { recursive: true, force: true });
  }
}

const open = (filePath: string | null, defaultLimitBytes: number | null = null) =>
  QuotaTable.open({ filePath, defaultLimitBytes });

suite('quota table', (test) => {
  test('a salt has its quota, else the default limit, else none', async () => {
    const exempt = await open(null);
    assert.is(exempt.limitBytesOf('a'), null);
    await exempt.set('a', 5);
    await exempt.set('', 0);
    assert.is(exempt.limitBytesOf('a'), 5);
    assert.is(exempt.limitBytesOf(''), 0);
    assert.is(exempt.quotaOf('b'), null);
    const bounded = await open(null, 7);
    await bounded.set('a', 5);
    assert.is(bounded.limitBytesOf('a'), 5);
    assert.is(bounded.limitBytesOf('b'), 7);
    assert.is(await bounded.delete('a'), true);
    assert.is(await bounded.delete('a'), false);
    assert.is(bounded.limitBytesOf('a'), 7);
  });

  test('the list has the order in which quotas were first set', async () => {
    const table = await open(null);
    await Promise.all([table.set('b', 1), table.set('a', 2), table.set('b', 3)]);
    assert.equal(table.list(), [
      { cacheSalt: 'b', limitBytes: 3 },
      { cacheSalt: 'a', limitBytes: 2 },
    ]);
  });

  test('quotas survive in their file, which others cannot read', async () => {
    await inFolder(async (folder) => {
      const file = path.join(folder, 'quotas.json');
      const table = await open(file);
      await Promise.all([table.set('été', 2 ** 40), table.set('', 0), table.set('gone', 1)]);
      await table.delete('gone');
      assert.equal((await open(file)).list(), [
        { cacheSalt: 'été', limitBytes: 2 ** 40 },
        { cacheSalt: '', limitBytes: 0 },
      ]);
      assert.is((await fs.stat(file)).mode & 0o777, 0o600);
      assert.equal(await fs.readdir(folder), ['quotas.json']);
    });
  });

  test('a damaged file stops the start with the mend', async () => {
    await inFolder(async (folder) => {
      const file = path.join(folder, 'quotas.json');
      const damages: [string, RegExp][] = [
        ['', /JSON/],
        ['{"version":1,"quotas":[{"cache_sa', /JSON/],
        ['null', /expected version 1, got undefined/],
        ['{"version":2,"quotas":[]}', /expected version 1, got 2/],
        ['{"version":1,"quotas":{}}', /expected a list "quotas"/],
        ['{"version":1,"quotas":[{"cache_salt":"a","limit_bytes":1},{}]}', /quotas\[1\]: expected/],
        ['{"version":1,"quotas":[{"cache_salt":"a","limit_bytes":-1}]}', /quotas\[0\]: expected/],
      ];
      for (const [content, reason] of damages) {
        await fs.writeFile(file, content);
        await refuses(open(file), 'ERR_CONFIG', reason);
        const mend = /--quota-file .*quotas\.json: .*mend the file, or remove it/s;
        await refuses(open(file), 'ERR_CONFIG', mend);
        assert.is(await fs.readFile(file, 'utf8'), content, 'the file is as it was');
      }
    });
  });

  test('a place that cannot be written stops the start', async () => {
    await inFolder(async (folder) => {
      const file = path.join(folder, 'no', 'quotas.json');
      await refuses(open(file), 'ERR_CONFIG', /--quota-file: ENOENT.*may write to/);
    });
  });

  test('a change that cannot be written has not happened, and the next one goes on', async () => {
    await inFolder(async (folder) => {
      const home = path.join(folder, 'home');
      await fs.mkdir(home);
      const table = await open(path.join(home, 'quotas.json'));
      await table.set('a', 1);
      await fs.rename(home, `${home}-away`);
      await refuses(table.set('a', 2), 'ERR_QUOTA_FILE');
      await refuses(table.delete('a'), 'ERR_QUOTA_FILE');
      assert.is(table.quotaOf('a'), 1);
      await fs.rename(`${home}-away`, home);
      await table.set('a', 3);
      assert.is(table.quotaOf('a'), 3);
    });
  });
});
