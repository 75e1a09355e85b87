/**
 * Where the files that are not JavaScript come from: the WASM core, the C shim, the two addons.
 *
 * kvd runs in three forms, and this module is the only one that knows which:
 *
 *   source      node src/cli/main.ts     files in build/; zeromq and koffi load themselves
 *   bundle      node dist/kvd.mjs        files in dist/native/
 *   executable  dist/kvd                 files inside the executable; the dynamic linker wants
 *                                        real ones, so they are unpacked into a private folder
 *
 * Unpacking. The folder is KVD_NATIVE_DIR alone if set, else the first that works of
 * $XDG_CACHE_HOME/kvd, $HOME/.cache/kvd, $XDG_RUNTIME_DIR/kvd, $TMPDIR/kvd-<uid>. "Works" means: a
 * real directory of our own that nobody else can enter, the file placed in it, and the file loaded
 * from it (a `noexec` mount shows itself only then). The name of a file holds its SHA-256, and a
 * file that exists is used only if its whole content has that hash; otherwise a complete one is
 * renamed over it, so any number of first starts may run at once. This protects against other
 * users, not against the same user. Nothing is ever removed: another version may be running.
 *
 * Environment: these variables are read here and not through src/config, because the addons load
 * while modules are still being evaluated, before there is a configuration.
 */
import { createHash, randomBytes } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { getRawAsset } from 'node:sea';
import { KvdError } from './errors.ts';

export type AssetName = 'core.wasm' | 'libkvshim.so' | 'koffi.node' | 'zeromq.node';
export type Environment = Readonly<Record<string, string | undefined>>;

/** A file to be unpacked; `read` is called only when it has to be written. */
export interface PackedFile {
  readonly name: string;
  readonly sha256: string;
  read(): Uint8Array;
}

// Both are put in by build.mjs; running from sources there is neither.
declare const KVD_FORM: 'bundle' | 'executable';
declare const KVD_ASSET_SHA256: Readonly<Record<AssetName, string>>;
const FORM = typeof KVD_FORM === 'undefined' ? 'source' : KVD_FORM;

/** The folder from which a file has been loaded: what follows goes there, too. */
let folderProven: string | undefined;

/** The bytes of an asset. In the executable they are mapped read-only: writing to them crashes. */
export function readAsset(name: AssetName): Uint8Array {
  if (FORM === 'executable') return new Uint8Array(getRawAsset(name));
  return fs.readFileSync(fileBeside(name));
}

/** Calls `load` with the path of a file; in the executable with further ones while it throws. */
export function loadNative<T>(
  name: AssetName,
  load: (file: string) => T,
  env: Environment = process.env,
): T {
  if (FORM !== 'executable') return load(fileBeside(name));
  const file = { name, sha256: KVD_ASSET_SHA256[name], read: () => readAsset(name) };
  return loadUnpacked(file, env, load);
}

/** The exports of a Node addon; build.mjs makes zeromq and koffi call this. */
export function nativeAddon(name: AssetName): unknown {
  return loadNative(name, (file) => {
    const module = { exports: {} };
    process.dlopen(module, file);
    return module.exports;
  });
}

function fileBeside(name: AssetName): string {
  const folder = FORM === 'source' ? ['..', 'build'] : ['native'];
  const file = path.join(import.meta.dirname, ...folder, name);
  if (fs.existsSync(file)) return file;
  throw new KvdError('ERR_NATIVE', `${file} is missing: run \`npm run build\``);
}

/** Places `file` in the first folder from which `load` succeeds. */
export function loadUnpacked<T>(file: PackedFile, env: Environment, load: (file: string) => T): T {
  const reasons: string[] = [];
  for (const folder of folderCandidates(env)) {
    try {
      checkFolder(folder);
      const result = load(placeFile(folder, file));
      folderProven = folder;
      return result;
    } catch (error) {
      reasons.push(`  ${folder}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  throw new KvdError(
    'ERR_NATIVE',
    `${file.name} cannot be unpacked and loaded from any of these folders:\n` +
      `${reasons.join('\n')}\nSet KVD_NATIVE_DIR to a private folder (mode 0700) on a file ` +
      'system that allows execution.',
  );
}

export function folderCandidates(env: Environment): string[] {
  const forced = env['KVD_NATIVE_DIR'];
  if (forced) return [path.resolve(forced)];
  const under = (base: string | undefined, ...rest: string[]): string[] =>
    base && path.isAbsolute(base) ? [path.join(base, ...rest)] : [];
  const folders = [
    ...under(env['XDG_CACHE_HOME'], 'kvd'),
    ...under(env['HOME'], '.cache', 'kvd'),
    ...under(env['XDG_RUNTIME_DIR'], 'kvd'),
    ...under(env['TMPDIR'] || '/tmp', `kvd-${ownUid()}`),
  ];
  if (folderProven !== undefined && folders.includes(folderProven)) folders.unshift(folderProven);
  return [...new Set(folders)];
}

/** Creates the folder if needed, and refuses one that somebody else could change. */
function checkFolder(folder: string): void {
  makeFolder(folder);
  const stat = fs.lstatSync(folder);
  if (!stat.isDirectory()) throw new Error('is not a directory of its own (symbolic link?)');
  if (stat.uid !== ownUid()) throw new Error(`belongs to user ${stat.uid}, not to ${ownUid()}`);
  if ((stat.mode & 0o077) !== 0) {
    throw new Error(`mode is 0${(stat.mode & 0o777).toString(8)}, others may enter; want 0700`);
  }
  fs.accessSync(folder, fs.constants.W_OK | fs.constants.X_OK);
}

/** Not `recursive: true`: in a folder that refuses with ENOENT, like /proc, that never ends. */
function makeFolder(folder: string): void {
  if (fs.existsSync(folder)) return;
  makeFolder(path.dirname(folder));
  try {
    fs.mkdirSync(folder, { mode: 0o700 });
  } catch (error) {
    // Another first start was faster.
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

function placeFile(folder: string, file: PackedFile): string {
  const target = path.join(folder, `${file.sha256.slice(0, 32)}-${file.name}`);
  if (isIntact(target, file.sha256)) return target;
  const draft = path.join(folder, `.${process.pid}-${randomBytes(6).toString('hex')}`);
  try {
    const descriptor = fs.openSync(draft, 'wx', 0o500);
    try {
      fs.writeFileSync(descriptor, file.read());
      fs.fsyncSync(descriptor);
    } finally {
      fs.closeSync(descriptor);
    }
    fs.renameSync(draft, target);
  } catch (error) {
    fs.rmSync(draft, { force: true });
    throw error;
  }
  return target;
}

function isIntact(file: string, sha256: string): boolean {
  let descriptor: number;
  try {
    descriptor = fs.openSync(file, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW);
  } catch {
    // Absent, a symbolic link or unreadable: a good one is written over it.
    return false;
  }
  try {
    const stat = fs.fstatSync(descriptor);
    if (!stat.isFile() || stat.uid !== ownUid() || (stat.mode & 0o022) !== 0) return false;
    return createHash('sha256').update(fs.readFileSync(descriptor)).digest('hex') === sha256;
  } finally {
    fs.closeSync(descriptor);
  }
}

/** kvd runs on Linux only, where there is always an effective user id. */
function ownUid(): number {
  return process.geteuid?.() ?? -1;
}
