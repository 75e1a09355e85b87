import { createHash } from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import * as assert from 'uvu/assert';
import {
  type Environment,
  folderCandidates,
  loadNative,
  loadUnpacked,
  type PackedFile,
  readAsset,
} from '../../src/native.ts';
import { suite } from '../support/suite.ts';

const BYTES = Buffer.from('the bytes of a library');
const SHA256 = createHash('sha256').update(BYTES).digest('hex');
const FILE_NAME = `${SHA256.slice(0, 32)}-probe.so`;

suite('unpacking of native files', (test) => {
  let base = '';
  let readCount = 0;
  const probe: PackedFile = {
    name: 'probe.so',
    sha256: SHA256,
    read: () => {
      readCount += 1;
      return BYTES;
    },
  };
  const unpack = (env: Environment): string => loadUnpacked(probe, env, (file) => file);
  const folder = (name: string, mode = 0o700): string => {
    const created = path.join(base, name);
    fs.mkdirSync(created);
    fs.chmodSync(created, mode);
    return created;
  };

  test.beforeEach(() => {
    base = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-native-test-'));
    readCount = 0;
  });
  test.afterEach(() => fs.rmSync(base, { recursive: true, force: true }));

  test('the file is placed once under a name that holds its hash', () => {
    const env = { KVD_NATIVE_DIR: path.join(base, 'a', 'b') };
    const file = unpack(env);
    assert.is(file, path.join(base, 'a', 'b', FILE_NAME));
    assert.equal(fs.readFileSync(file), BYTES);
    assert.is(fs.statSync(file).mode & 0o777, 0o500);
    assert.is(fs.statSync(path.dirname(file)).mode & 0o777, 0o700);
    assert.is(unpack(env), file);
    assert.is(readCount, 1, 'a good file is not written again');
    assert.equal(fs.readdirSync(path.dirname(file)), [FILE_NAME], 'no draft is left');
  });

  test('a file with other bytes is replaced', () => {
    const private_ = folder('private');
    fs.writeFileSync(path.join(private_, FILE_NAME), 'tampered', { mode: 0o500 });
    assert.equal(fs.readFileSync(unpack({ KVD_NATIVE_DIR: private_ })), BYTES);
  });

  test('a symbolic link in place of the file is replaced and its target left alone', () => {
    const private_ = folder('private');
    const target = path.join(base, 'target');
    fs.writeFileSync(target, BYTES);
    fs.symlinkSync(target, path.join(private_, FILE_NAME));
    const file = unpack({ KVD_NATIVE_DIR: private_ });
    assert.ok(fs.lstatSync(file).isFile());
    assert.is(readCount, 1);
  });

  test('a file that others may write is replaced', () => {
    const private_ = folder('private');
    const file = path.join(private_, FILE_NAME);
    fs.writeFileSync(file, BYTES);
    fs.chmodSync(file, 0o722);
    unpack({ KVD_NATIVE_DIR: private_ });
    assert.is(fs.statSync(file).mode & 0o777, 0o500);
  });

  test('a folder that others may enter is refused with the way out', () => {
    const open = folder('open', 0o755);
    assert.throws(() => unpack({ KVD_NATIVE_DIR: open }), /mode is 0755.*KVD_NATIVE_DIR/s);
    assert.equal(fs.readdirSync(open), []);
  });

  test('a symbolic link to a folder is refused', () => {
    const link = path.join(base, 'link');
    fs.symlinkSync(folder('private'), link);
    assert.throws(() => unpack({ KVD_NATIVE_DIR: link }), /not a directory of its own/);
  });

  test('a folder that cannot be created is refused and the start does not hang', () => {
    assert.throws(() => unpack({ KVD_NATIVE_DIR: '/proc/kvd' }), /\/proc\/kvd: ENOENT/);
  });

  test('the next folder is tried when loading from the first fails', () => {
    const env = { HOME: folder('home'), TMPDIR: folder('tmp') };
    const tried: string[] = [];
    const file = loadUnpacked(probe, env, (candidate) => {
      tried.push(candidate);
      if (tried.length === 1) throw new Error('failed to map segment from shared object');
      return candidate;
    });
    assert.is(path.dirname(tried[0] ?? ''), path.join(env.HOME, '.cache', 'kvd'));
    assert.is(path.dirname(file), path.join(env.TMPDIR, `kvd-${process.geteuid?.()}`));
    assert.is(unpack(env), file, 'the folder that worked is tried first from then on');
  });

  test('a failure names every folder and its reason', () => {
    const env = { HOME: folder('home'), TMPDIR: folder('tmp') };
    const failing = (): never => {
      throw new Error('no exec here');
    };
    assert.throws(
      () => loadUnpacked(probe, env, failing),
      /\.cache\/kvd: no exec here\n.*kvd-\d+: no exec here/s,
    );
  });

  test('KVD_NATIVE_DIR excludes every other folder', () => {
    const env = { KVD_NATIVE_DIR: '/x/y', HOME: '/home/u', XDG_CACHE_HOME: '/c', TMPDIR: '/t' };
    assert.equal(folderCandidates(env), ['/x/y']);
  });

  test('folders come in the order cache, home, runtime, temporary', () => {
    const env = { XDG_CACHE_HOME: '/c', HOME: '/home/u', XDG_RUNTIME_DIR: '/run/u', TMPDIR: '/t' };
    assert.equal(folderCandidates(env), [
      '/c/kvd',
      '/home/u/.cache/kvd',
      '/run/u/kvd',
      `/t/kvd-${process.geteuid?.()}`,
    ]);
  });

  test('relative and absent variables are left out', () => {
    const env = { XDG_CACHE_HOME: 'cache', HOME: '' };
    assert.equal(folderCandidates(env), [`/tmp/kvd-${process.geteuid?.()}`]);
  });
});

suite('native files of a run from sources', (test) => {
  test('the core is read from the build folder', () => {
    assert.equal([...readAsset('core.wasm').subarray(0, 4)], [0, 0x61, 0x73, 0x6d]);
  });

  test('the shim is a file in the build folder', () => {
    assert.match(
      loadNative('libkvshim.so', (file) => file),
      /\/build\/libkvshim\.so$/,
    );
  });
});
