import { existsSync, mkdirSync, readdirSync, readFileSync, truncateSync } from 'node:fs';
import { rm, utimes, writeFile } from 'node:fs/promises';
import path from 'node:path';
import * as assert from 'uvu/assert';
import type { L2Object } from '../../../src/l2/backend.ts';
import { fileNameOf } from '../../../src/l2/file-name.ts';
import type { FileStore, FileStoreOptions } from '../../../src/l2/file-store.ts';
import { encodeFileName } from '../../../src/l2/key-text.ts';
import type { ObjectKey } from '../../../src/l2/object-key.ts';
import { inFolder, openStore } from '../../support/l2-folders.ts';
import { l2Key, l2Value, SlotArena } from '../../support/l2-objects.ts';
import { refuses, rejects } from '../../support/rejects.ts';
import { silentLogger } from '../../support/silent-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const never = new AbortController().signal;

function objectOf(index: number, sizeBytes = 4096, rest: Partial<ObjectKey> = {}): L2Object {
  return { key: l2Key(index, rest), bytes: l2Value(sizeBytes, index) };
}

const pathOf = (folder: string, key: ObjectKey): string => path.join(folder, fileNameOf(key).name);

/** Runs over an open store and closes it. */
async function withStore(
  options: Partial<FileStoreOptions>,
  run: (store: FileStore, folder: string) => Promise<void>,
): Promise<void> {
  await inFolder(async (folder) => {
    const store = await openStore(folder, options);
    try {
      await run(store, folder);
    } finally {
      await store.close();
    }
  });
}

async function load(store: FileStore, { key, bytes }: L2Object): Promise<unknown> {
  const target = { key, bytes: new Uint8Array(bytes.length) };
  const [result] = await store.load([target], never);
  if (result === 'loaded') assert.equal(target.bytes, bytes);
  return result;
}

suite('file store: files', (test) => {
  test('are the bytes of the value under the name of the reference', () =>
    withStore({}, async (store, folder) => {
      const object = objectOf(1, 5000, { cacheSalt: 'tenant-a' });
      assert.equal(await store.store([object], never), ['stored']);
      assert.equal(readdirSync(folder), [encodeFileName(object.key)]);
      assert.equal(new Uint8Array(readFileSync(pathOf(folder, object.key))), object.bytes);
    }));

  test('have exactly the size of the value under direct I/O', () =>
    withStore({ isDirect: true }, async (store, folder) => {
      const arena = await SlotArena.open(1 << 20);
      for (const sizeBytes of [1, 4095, 4096, 4097, 100_001]) {
        const object = arena.object(l2Key(sizeBytes), l2Value(sizeBytes, 1));
        assert.equal(await store.store([object], never), ['stored']);
        assert.equal(
          new Uint8Array(readFileSync(pathOf(folder, object.key))),
          l2Value(sizeBytes, 1),
        );
      }
      assert.is(store.status()['direct_io_refused_count'], 0);
      await arena.close();
    }));

  test('are padded with zeros where that is asked for', () =>
    withStore({ padding: 'written' }, async (store, folder) => {
      const object = objectOf(1, 1000);
      await store.store([object], never);
      const content = new Uint8Array(readFileSync(pathOf(folder, object.key)));
      assert.is(content.length, 4096);
      assert.equal(content.subarray(0, 1000), object.bytes);
      assert.ok(content.subarray(1000).every((byte) => byte === 0));
      assert.is(await load(store, object), 'loaded');
    }));

  test('of the padded size are values where they are accepted; of any other size, never', () =>
    withStore({ padding: 'accepted' }, async (store, folder) => {
      const object = objectOf(1, 1000);
      for (const [fileBytes, expected] of [
        [4096, 'loaded'],
        [1000, 'loaded'],
        [1001, 'missing'],
        [999, 'missing'],
        [4095, 'missing'],
        [4097, 'missing'],
        [8192, 'missing'],
      ] as const) {
        const content = new Uint8Array(fileBytes);
        content.set(object.bytes.subarray(0, fileBytes));
        await writeFile(pathOf(folder, object.key), content);
        assert.is(await load(store, object), expected, `${fileBytes} bytes`);
        assert.is(store.acceptsSize(fileBytes, 1000), expected === 'loaded');
      }
    }));

  test('of the padded size are no values where they are not accepted', () =>
    withStore({}, async (store, folder) => {
      await writeFile(pathOf(folder, l2Key(1)), new Uint8Array(4096));
      assert.is(await load(store, objectOf(1, 1000)), 'missing');
    }));

  test('that were cut are missing until the next store replaces them', () =>
    withStore({}, async (store, folder) => {
      const object = objectOf(1);
      await store.store([object], never);
      truncateSync(pathOf(folder, object.key), 100);
      assert.is(await load(store, object), 'missing');
      assert.equal(await store.store([object], never), ['stored']);
      assert.is(await load(store, object), 'loaded');
      assert.equal(await store.store([object], never), ['present']);
    }));

  test('with short names have a sibling that says whose they are, and leave with it', () =>
    withStore({}, async (store, folder) => {
      const object = objectOf(1, 10, { modelName: 'm'.repeat(141), cacheSalt: 's'.repeat(64) });
      await store.store([object], never);
      const { name, plainName } = fileNameOf(object.key);
      assert.equal(readdirSync(folder).sort(), [name, name.replace('.data', '.key')].sort());
      assert.is(readFileSync(path.join(folder, name.replace('.data', '.key')), 'utf8'), plainName);
      assert.is(await load(store, object), 'loaded');
      assert.equal(await store.delete([object.key], never), ['deleted']);
      assert.equal(readdirSync(folder), []);
    }));

  test('of `org/x` are not those of `org-SEP-x`, whichever was stored first', async () => {
    for (const [stored, asked] of [
      ['org/x', 'org-SEP-x'],
      ['org-SEP-x', 'org/x'],
    ] as const) {
      await withStore({}, async (store) => {
        await store.store([objectOf(1, 64, { modelName: stored })], never);
        assert.equal(await store.lookup([l2Key(1, { modelName: asked })], never), [null]);
        assert.is(await load(store, objectOf(1, 64, { modelName: asked })), 'missing');
        assert.is(await load(store, objectOf(1, 64, { modelName: stored })), 'loaded');
      });
    }
  });

  test('that two stores write at the same time have names of their own meanwhile', () =>
    withStore({}, async (store, folder) => {
      const other = await openStore(folder);
      const object = objectOf(1, 1 << 20);
      const all = await Promise.all([store, other].map((each) => each.store([object], never)));
      assert.ok(all.flat().every((result) => result === 'stored' || result === 'present'));
      assert.equal(readdirSync(folder), [fileNameOf(object.key).name]);
      assert.is(await load(other, object), 'loaded');
      await other.close();
    }));
});

suite('file store: folder', (test) => {
  test('is made with its parents, the one for temporary files too', () =>
    inFolder(async (folder) => {
      const basePath = path.join(folder, 'a/b');
      const store = await openStore(basePath, { temporaryFolder: 'tmp' });
      assert.ok(existsSync(path.join(basePath, 'tmp')));
      await store.store([objectOf(1)], never);
      assert.equal(readdirSync(path.join(basePath, 'tmp')), []);
      await store.close();
    }));

  test('that cannot be made stops the start, naming the key', () =>
    inFolder(async (folder) => {
      await writeFile(path.join(folder, 'file'), '');
      await refuses(openStore(path.join(folder, 'file')), 'ERR_CONFIG', /"base_path".*EEXIST/);
      await refuses(openStore(path.join(folder, 'file/x')), 'ERR_CONFIG', /"base_path".*ENOTDIR/);
    }));

  test('that vanishes costs errors and comes back with its mount', () =>
    withStore({}, async (store, folder) => {
      await rm(folder, { recursive: true });
      const [result] = await store.store([objectOf(1)], never);
      assert.match((result as Error).message, /cannot write .*ENOENT/);
      assert.equal(await store.lookup([l2Key(1)], never), [null]);
      mkdirSync(folder);
      assert.equal(await store.store([objectOf(1)], never), ['stored']);
    }));

  test('is cleaned of temporary files older than an hour, ours and the peer’s', () =>
    inFolder(async (folder) => {
      const clock = new VirtualClock();
      const names = [
        'kvd-0123abcd.7.tmp',
        encodeFileName(l2Key(1)).replace('.data', '.tmp'),
        'kvd-0123abcd.8.tmp',
        'notes.tmp',
        'kvd-0123abcd.9.txt',
        encodeFileName(l2Key(2)),
      ];
      for (const name of names) {
        const ageMs = name.includes('.8.') ? 3_599_000 : 3_601_000;
        await writeFile(path.join(folder, name), 'x');
        const at = (clock.wallMs() - ageMs) / 1000;
        await utimes(path.join(folder, name), at, at);
      }
      mkdirSync(path.join(folder, 'kvd-0123abcd.1.tmp'));
      const context = { log: silentLogger, clock, alignBytes: 4096 };
      const store = await openStore(folder, { context });
      await store.cleaned;
      const kept = [...names.slice(2), 'kvd-0123abcd.1.tmp'];
      assert.equal(readdirSync(folder).sort(), kept.sort());
      await store.close();
    }));
});

suite('file store: listing', (test) => {
  test('leaves foreign names, folders and orphans alone', () =>
    withStore({}, async (store, folder) => {
      await store.store([objectOf(1)], never);
      for (const name of ['notes.data', '~x.data', `~${'0'.repeat(40)}.data`, 'x@0x1@0@ab.data']) {
        await writeFile(path.join(folder, name), 'x');
      }
      mkdirSync(path.join(folder, encodeFileName(l2Key(9))));
      const options = { modelName: null, pageSize: 100, token: null, signal: never };
      const { objects, nextToken } = await store.list(options);
      assert.equal(
        objects.map(({ key }) => key),
        [l2Key(1)],
      );
      assert.is(nextToken, null);
      assert.ok(Math.abs((objects[0]?.storedMs ?? 0) - Date.now()) < 60_000);
    }));

  test('that nobody goes on with is closed when others are open; its token is over', () =>
    withStore({}, async (store) => {
      await store.store([objectOf(1), objectOf(2), objectOf(3)], never);
      const options = { modelName: null, pageSize: 1, token: null, signal: never };
      const tokens: (string | null)[] = [];
      for (let i = 0; i < 6; i += 1) tokens.push((await store.list(options)).nextToken);
      const stale = { ...options, token: tokens[0] as string };
      await refuses(store.list(stale), 'ERR_BAD_REQUEST', /begin it again/);
      const recent = await store.list({ ...options, token: tokens[5] as string });
      assert.is(recent.objects.length, 1);
    }));

  test('ends with its signal', () =>
    withStore({}, async (store) => {
      await store.store([objectOf(1)], never);
      const signal = AbortSignal.abort(new Error('over'));
      await rejects(store.list({ modelName: null, pageSize: 1, token: null, signal }), /over/);
    }));
});
