/**
 * Which process owns the shared memory of an instance, and whether it still lives.
 *
 * A killed engine says no goodbye, and its KV cache stays in memory for as long as it is mapped
 * here. A client names its segments `/lmcache_kv_<pid>_<n>` (spec engine 5.8), but a name proves
 * nothing: the number may come from another pid namespace or from an earlier process. So the owner
 * counts only if /proc shows that it maps these very segments:
 *
 *     /proc/<pid>/maps   7f10… rw-s 00000000 00:19 4711    /dev/shm/lmcache_kv_…
 *                                            │     └ inode    both as in the fstat of our mapping
 *                                            └ device, major:minor in hex
 *
 * Pids are reused: the time at which the process was started tells two of them apart.
 *
 * All doubt ends in "no known owner" or "alive", and then the reap time applies. Reading is off
 * the event loop; of the memory map of a large engine (some MB) one part at a time.
 *
 * Where the owner was certain and has ended, its segments are unlinked as well (`removeName`). It
 * would have done so itself on a normal exit (spec engine 5.8).
 */
import { lstatSync, unlinkSync } from 'node:fs';
import { open, readFile } from 'node:fs/promises';
import type { ProcessOwner } from './device.ts';

/** A file as the kernel tells files apart. */
export interface FileIdentity {
  readonly device: bigint;
  readonly inode: bigint;
}

const NAME = /^\/lmcache_kv_([1-9]\d{0,9})_/;
const MAPPING = /^[\da-f]+-[\da-f]+ \S+ [\da-f]+ ([\da-f]+):([\da-f]+) (\d+)/;

/** The kernel gives one page at a time, whatever is asked for. */
const READ_SIZE_BYTES = 16 * 1024;
/** 65,530 mappings, the kernel's default bound, with paths of some hundred characters. */
const MAPS_BYTES_MAX = 32 * 1024 * 1024;

/** Null when the segments have no common owner, or none that can be seen from here. */
export async function findOwner(
  segments: ReadonlyMap<string, FileIdentity>,
): Promise<ProcessOwner | null> {
  const pid = pidOf(segments.keys());
  // Our own maps would always agree: a client of another namespace may have our pid there.
  if (pid === null || pid === process.pid) return null;
  try {
    // In this order: a process that takes over the pid in between does not map the segments.
    const stat = await readStat(pid);
    if (stat.hasEnded || !(await mapsAll(pid, [...segments.values()]))) return null;
    return { pid, startTicks: stat.startTicks };
  } catch {
    // Not there, or not ours to look at: an owner that cannot be seen is no error.
    return null;
  }
}

/** False only when the process has certainly ended. Never rejects. `procPath`: for tests. */
export async function isProcessAlive(
  { pid, startTicks }: ProcessOwner,
  procPath = '/proc',
): Promise<boolean> {
  try {
    const stat = await readStat(pid, procPath);
    return stat.startTicks === startTicks && !stat.hasEnded;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ENOENT' && code !== 'ESRCH') return true;
    // /proc can be mounted anew so that it hides processes of others (hidepid).
    return hasProcess(pid);
  }
}

/** Whether there is any process with this pid. */
function hasProcess(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}

/**
 * Unlinks a segment if its name still stands for this file, which has to be mapped here: then no
 * other one can have its inode number. A later process with the same pid cannot have taken the file
 * over either, because clients create their segments exclusively. Never throws; true when the name
 * is gone by this call.
 */
export function removeName(name: string, file: FileIdentity): boolean {
  const path = `/dev/shm${name}`;
  try {
    const { dev, ino } = lstatSync(path, { bigint: true });
    if (dev !== file.device || ino !== file.inode) return false;
    unlinkSync(path);
    return true;
  } catch {
    // Removed already, or of another user in a sticky folder: it stays as it would have stayed.
    return false;
  }
}

/** The one pid that all names have. */
function pidOf(names: Iterable<string>): number | null {
  const pids = new Set(Array.from(names, (name) => NAME.exec(name)?.[1]));
  const [pid] = pids;
  return pids.size === 1 && pid !== undefined ? Number(pid) : null;
}

/** Fields 3, 20 and 22 of /proc/<pid>/stat; the second is a name that may contain anything. */
async function readStat(
  pid: number,
  procPath = '/proc',
): Promise<{ startTicks: number; hasEnded: boolean }> {
  const text = await readFile(`${procPath}/${pid}/stat`, 'latin1');
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const [state = '', threadCount, startTicks] = [fields[0], Number(fields[17]), Number(fields[19])];
  if (!Number.isSafeInteger(startTicks)) throw new Error(`/proc/${pid}/stat: ${text}`);
  // Until its parent collects it, a dead process is a zombie. So is the first thread of a process
  // whose other threads go on, with all of its memory.
  return { startTicks, hasEnded: /[ZX]/.test(state) && threadCount <= 1 };
}

async function mapsAll(pid: number, files: readonly FileIdentity[]): Promise<boolean> {
  const missing = new Set(files.map(mapsKeyOf));
  const maps = await open(`/proc/${pid}/maps`);
  try {
    const part = Buffer.allocUnsafe(READ_SIZE_BYTES);
    let rest = '';
    for (let readBytes = 0; missing.size > 0 && readBytes < MAPS_BYTES_MAX; ) {
      const { bytesRead } = await maps.read(part, 0, part.length);
      if (bytesRead === 0) return false;
      readBytes += bytesRead;
      const lines = (rest + part.toString('latin1', 0, bytesRead)).split('\n');
      rest = lines.pop() as string;
      for (const line of lines) missing.delete(keyOfLine(line));
    }
  } finally {
    await maps.close();
  }
  return missing.size === 0;
}

function keyOfLine(line: string): string {
  const [, major = '', minor = '', inode = ''] = MAPPING.exec(line) ?? [];
  return `${Number.parseInt(major, 16)}:${Number.parseInt(minor, 16)} ${inode}`;
}

/** `dev_t` of glibc: 12 + 20 bits of major and 8 + 24 bits of minor, interleaved. */
function mapsKeyOf({ device, inode }: FileIdentity): string {
  const major = ((device >> 8n) & 0xfffn) | ((device >> 32n) & 0xffff_f000n);
  const minor = (device & 0xffn) | ((device >> 12n) & 0xffff_ff00n);
  return `${major}:${minor} ${inode}`;
}
