import { chmodSync, readdirSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import * as assert from 'uvu/assert';
import type { L2Object } from '../../../src/l2/backend.ts';
import { fileNameOf } from '../../../src/l2/file-name.ts';
import type { FileStore, FileStoreOptions } from '../../../src/l2/file-store.ts';
import { diskFiles, type Files } from '../../../src/l2/files.ts';
import { FaultyFiles, refuseDirectOpen, systemError } from '../../support/faulty-files.ts';
import { newFolder, openStore } from '../../support/l2-folders.ts';
import { l2Key, l2Value, SlotArena } from '../../support/l2-objects.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const never = new AbortController().signal;
const objectOf = (index: number, sizeBytes = 4096): L2Object => ({
  key: l2Key(index, { cacheSalt: 'secret-tenant' }),
  bytes: l2Value(sizeBytes, index),
});

interface House {
  readonly folder: string;
  readonly store: FileStore;
  readonly log: RecordingLogger;
  readonly calls: readonly string[];
}

async function inHouse(
  faults: Partial<Files>,
  options: Partial<FileStoreOptions>,
  run: (house: House) => Promise<void>,
): Promise<void> {
  const folder = newFolder();
  const log = new RecordingLogger();
  const faulty = new FaultyFiles(faults);
  const context = { log, clock: new VirtualClock(), alignBytes: 4096 };
  const store = await openStore(folder, { files: faulty.files, context, ...options });
  await store.cleaned;
  faulty.begin();
  try {
    await run({ folder, store, log, calls: faulty.calls });
  } finally {
    await store.close();
    await rm(folder, { recursive: true, force: true });
  }
}

/** The call that fails first, and only that one. */
function failingAt(name: keyof Files, code: string, at = 1): Partial<Files> {
  let count = 0;
  const run = diskFiles[name] as (...args: readonly unknown[]) => Promise<unknown>;
  return {
    [name]: (...args: readonly unknown[]) => {
      count += 1;
      return count === at ? Promise.reject(systemError(code, name)) : run(...args);
    },
  };
}

async function expectStoredAlone({ store, folder }: House, failed: L2Object): Promise<void> {
  const [size] = await store.lookup([failed.key], never);
  assert.is(size, null);
  assert.equal(await store.store([objectOf(2)], never), ['stored']);
  assert.equal(readdirSync(folder), [fileNameOf(objectOf(2).key).name]);
}

suite('file store: faults while storing', (test) => {
  for (const [name, code] of [
    ['open', 'EMFILE'],
    ['write', 'ENOSPC'],
    ['close', 'EDQUOT'],
    ['rename', 'EIO'],
    ['factsOf', 'EACCES'],
  ] as const) {
    test(`${code} in ${name} costs that object only; nothing of it is seen or left`, () =>
      inHouse(failingAt(name, code), {}, async (house) => {
        const failed = objectOf(1);
        const [result] = await house.store.store([failed], never);
        assert.instance(result, Error);
        assert.match((result as Error).message, new RegExp(`cannot write a file in .*: ${code}`));
        assert.is((result as Error).message.includes('secret-tenant'), false);
        await expectStoredAlone(house, failed);
      }));
  }

  test('a disk that fills up half-way leaves nothing', () => {
    let count = 0;
    const write: Files['write'] = (fd, bytes, range) => {
      count += 1;
      if (count === 2) return Promise.reject(systemError('ENOSPC', 'write'));
      const length = count === 1 ? 1000 : range.length;
      return diskFiles.write(fd, bytes, { ...range, length });
    };
    return inHouse({ write }, {}, async (house) => {
      const failed = objectOf(1);
      const [result] = await house.store.store([failed], never);
      assert.match((result as Error).message, /ENOSPC/);
      await expectStoredAlone(house, failed);
    });
  });

  test('writes and reads that end early are continued', () => {
    const short = (length: number): number => Math.min(length, 1000);
    const faults: Partial<Files> = {
      write: (fd, bytes, range) =>
        diskFiles.write(fd, bytes, { ...range, length: short(range.length) }),
      read: (fd, bytes, range) =>
        diskFiles.read(fd, bytes, { ...range, length: short(range.length) }),
    };
    return inHouse(faults, {}, async ({ store }) => {
      const object = objectOf(1, 4500);
      assert.equal(await store.store([object], never), ['stored']);
      const target = { key: object.key, bytes: new Uint8Array(4500) };
      assert.equal(await store.load([target], never), ['loaded']);
      assert.equal(target.bytes, object.bytes);
    });
  });

  test('a write that takes nothing is an error, not a loop', () =>
    inHouse({ write: async () => 0 }, {}, async ({ store }) => {
      const [result] = await store.store([objectOf(1)], never);
      assert.match((result as Error).message, /takes no more bytes/);
    }));

  test('waits for the disk as told, in the order that survives a power loss', async () => {
    for (const [sync, expected] of [
      ['none', ['factsOf', 'open', 'write', 'close', 'rename']],
      ['data', ['factsOf', 'open', 'write', 'syncData', 'close', 'rename']],
      ['full', ['factsOf', 'open', 'write', 'sync', 'close', 'rename', 'open', 'sync', 'close']],
    ] as const) {
      await inHouse({}, { sync }, async ({ store, calls }) => {
        await store.store([objectOf(1)], never);
        assert.equal(calls, expected);
      });
    }
  });

  test('that hang do not keep look-ups and deletes waiting', () => {
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    const faults: Partial<Files> = {
      write: async (...args) => {
        await released;
        return diskFiles.write(...args);
      },
    };
    return inHouse(faults, { workerCount: 2 }, async ({ store }) => {
      const storing = store.store(
        [1, 2, 3, 4].map((index) => objectOf(index)),
        never,
      );
      assert.equal(await store.lookup([objectOf(1).key], never), [null]);
      assert.equal(await store.delete([objectOf(1).key], never), ['absent']);
      release();
      assert.equal(await storing, new Array(4).fill('stored'));
    });
  });

  test('never has more files open than workers', () => {
    let openCount = 0;
    let openCountMax = 0;
    const faults: Partial<Files> = {
      open: async (...args) => {
        openCount += 1;
        openCountMax = Math.max(openCountMax, openCount);
        return diskFiles.open(...args);
      },
      close: async (fd) => {
        await diskFiles.close(fd);
        openCount -= 1;
      },
    };
    return inHouse(faults, { workerCount: 3 }, async ({ store }) => {
      const batches = [0, 1, 2].map((batch) =>
        store.store(
          Array.from({ length: 20 }, (_, i) => objectOf(batch * 20 + i)),
          never,
        ),
      );
      const results = (await Promise.all(batches)).flat();
      assert.ok(results.every((result) => result === 'stored'));
      assert.is(openCountMax, 3);
    });
  });
});

suite('file store: faults while loading', (test) => {
  test('EIO costs that object only', () =>
    inHouse(failingAt('read', 'EIO'), { workerCount: 1 }, async ({ store }) => {
      await store.store([objectOf(1), objectOf(2)], never);
      const results = await store.load([objectOf(1), objectOf(2)], never);
      assert.match((results[0] as Error).message, /cannot read a file in .*: EIO/);
      assert.is(results[1], 'loaded');
    }));

  test('a file that is cut while it is read is missing', () =>
    inHouse({ read: async () => 0 }, {}, async ({ store }) => {
      await store.store([objectOf(1)], never);
      assert.equal(await store.load([objectOf(1)], never), ['missing']);
    }));

  test('one key that cannot be looked up does not make misses of the others', () =>
    inHouse(failingAt('factsOf', 'EIO', 3), { workerCount: 1 }, async ({ store }) => {
      await store.store([objectOf(1), objectOf(2)], never);
      const sizes = await store.lookup([objectOf(1).key, objectOf(2).key], never);
      assert.instance(sizes[0], Error);
      assert.is(sizes[1], 4096);
    }));
});

suite('file store: direct I/O', (test) => {
  test('refused by the file system costs one warning with folder and error; all is stored', () =>
    inHouse({ open: refuseDirectOpen }, { isDirect: true }, async ({ store, log, folder }) => {
      const arena = await SlotArena.open(1 << 20);
      const objects = Array.from({ length: 20 }, (_, index) =>
        arena.object(l2Key(index), l2Value(4096, index)),
      );
      const results = await store.store(objects, never);
      assert.ok(
        results.every((result) => result === 'stored'),
        `${results}`,
      );
      const warnings = log.lines.filter(({ level }) => level === 'warn');
      assert.is(warnings.length, 1);
      assert.ok(warnings[0]?.message.includes(folder));
      assert.match(warnings[0]?.message ?? '', /EINVAL/);
      assert.is(store.status()['direct_io_active'], false);
      const again = await openStore(folder);
      const sizes = await again.lookup(
        objects.map(({ key }) => key),
        never,
      );
      assert.equal(sizes, new Array(20).fill(4096));
      assert.is(readdirSync(folder).length, 20);
      await again.close();
      await arena.close();
    }));

  test('refused for single transfers is done buffered, with one warning', () =>
    inHouse(failingAt('write', 'EINVAL'), { isDirect: true }, async ({ store, log }) => {
      const arena = await SlotArena.open(1 << 20);
      const objects = [1, 2].map((index) => arena.object(l2Key(index), l2Value(8192, index)));
      assert.equal(await store.store(objects, never), ['stored', 'stored']);
      assert.is(log.lines.filter(({ level }) => level === 'warn').length, 1);
      assert.is(store.status()['direct_io_active'], true);
      assert.is(store.status()['direct_io_refused_count'], 1);
      await arena.close();
    }));

  test('is not tried for buffers at odd addresses', () =>
    inHouse({}, { isDirect: true }, async ({ store, log }) => {
      const arena = await SlotArena.open(1 << 20);
      const slot = arena.slot(l2Value(9000, 1));
      const object = { key: l2Key(1), bytes: slot.subarray(1, 8193) };
      assert.equal(await store.store([object], never), ['stored']);
      const expected = Uint8Array.from(object.bytes);
      object.bytes.fill(0);
      assert.equal(await store.load([object], never), ['loaded']);
      assert.equal(Uint8Array.from(object.bytes), expected);
      assert.is(log.lines.length, 0);
      await arena.close();
    }));
});

/** Rights do not bind root: as somebody else, where the test runs as root. */
async function withoutRoot(run: () => Promise<void>): Promise<void> {
  const isRoot = process.geteuid?.() === 0;
  if (isRoot) process.seteuid?.(65_534);
  try {
    await run();
  } finally {
    if (isRoot) process.seteuid?.(0);
  }
}

suite('file store: rights', (test) => {
  test('a folder that cannot be written serves what it holds', () =>
    inHouse({}, {}, async ({ store, folder }) => {
      await store.store([objectOf(1)], never);
      chmodSync(folder, 0o555);
      await withoutRoot(async () => {
        const log = new RecordingLogger();
        const context = { log, clock: new VirtualClock(), alignBytes: 4096 };
        const reader = await openStore(folder, { context });
        assert.ok(log.has(/cannot be written \(EACCES\)/));
        const [result] = await reader.store([objectOf(2)], never);
        assert.match((result as Error).message, /cannot write .*EACCES/);
        const [deleted] = await reader.delete([objectOf(1).key], never);
        assert.match((deleted as Error).message, /cannot delete .*EACCES/);
        assert.equal(await reader.load([objectOf(1)], never), ['loaded']);
        await reader.close();
      });
      chmodSync(folder, 0o755);
    }));

  test('a file that cannot be read costs that object only', () =>
    inHouse({}, {}, async ({ store, folder }) => {
      chmodSync(folder, 0o755);
      await store.store([objectOf(1), objectOf(2)], never);
      chmodSync(`${folder}/${fileNameOf(objectOf(1).key).name}`, 0);
      await withoutRoot(async () => {
        const results = await store.load([objectOf(1), objectOf(2)], never);
        assert.match((results[0] as Error).message, /cannot read .*EACCES/);
        assert.is(results[1], 'loaded');
      });
    }));
});
