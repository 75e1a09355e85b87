/**
 * L1 in a POSIX shared memory segment, `/dev/shm/lmcache_l1_pool_<pid>` unless the user names it
 * (spec storage 4.2).
 *
 * Ownership is an flock that the kernel drops with the process (`shim/shm.c`). So:
 *   a name that a live server holds     refused; the reference unlinks the other one's segment
 *   a name left by a dead server        taken over
 *   default names of dead processes     removed at start: each is as large as somebody's L1
 *   our own segment                     unlinked on close and on any exit that runs handlers;
 *                                       after SIGKILL by the next start, see above
 *
 * Containers that share /dev/shm often have the same pid in namespaces of their own. A default name
 * that is held therefore gets a number appended; clients use the name that they are told.
 */
import fs from 'node:fs';
import { HostMemory } from '../../device/host-memory.ts';
import { type Segment, SHIM_CODE, type Shim, ShimError } from '../../device/shim.ts';
import { KvdError } from '../../errors.ts';
import type { Logger } from '../../observability/log.ts';
import { formatBytes } from '../../units.ts';
import { HUGE_PAGE_FLAGS } from './anonymous.ts';
import type { HugePages, L1Memory } from './l1-memory.ts';

const SHM_FOLDER = '/dev/shm';
const PREFIX = 'lmcache_l1_pool_';
const DEFAULT_NAME = /^lmcache_l1_pool_(\d+)(_\d+)?$/;
/** Whatever follows the prefix: no path, nothing that a shell or a log line would mangle. */
const SAFE_NAME = /^lmcache_l1_pool_[A-Za-z0-9_.-]{1,200}$/;
/** So many servers on one host with the same pid: more is a mistake of ours. */
const DEFAULT_NAME_TRIES = 16;

export interface ShmMemoryOptions {
  readonly shim: Shim;
  readonly log: Logger;
  readonly sizeBytes: number;
  readonly hugePages: HugePages;
  readonly name: string | null;
  readonly mode: number;
}

/** `"/pool"` → `"lmcache_l1_pool_pool"`. Throws `ERR_CONFIG` when it cannot be a segment's name. */
export function shmNameOf(name: string): string {
  const bare = name.replace(/^\/+/, '');
  const full = bare.startsWith(PREFIX) ? bare : PREFIX + bare;
  if (!SAFE_NAME.test(full)) {
    throw new KvdError(
      'ERR_CONFIG',
      `--shm-name ${JSON.stringify(name)}: expected letters, digits, "_", "-" and "."`,
    );
  }
  return full;
}

/** Throws `ERR_CONFIG` with the reason and the remedy. */
export async function openShmMemory(options: ShmMemoryOptions): Promise<L1Memory> {
  const { shim, sizeBytes, hugePages, name } = options;
  if (hugePages === 'explicit') {
    throw new KvdError('ERR_CONFIG', 'explicit huge pages do not go with shared memory (/dev/shm)');
  }
  removeStaleSegments(shim, options.log);
  const names =
    name === null
      ? Array.from({ length: DEFAULT_NAME_TRIES }, (_, i) => defaultName(i))
      : [shmNameOf(name)];
  for (const candidate of names) {
    const segment = await createSegment(candidate, options);
    if (segment === null) continue;
    const memory = new HostMemory(shim, segment, sizeBytes);
    return shmMemory(shim, memory, candidate);
  }
  throw new KvdError(
    'ERR_CONFIG',
    `shared memory ${names[0]} belongs to a running server: choose another --shm-name`,
  );
}

const defaultName = (tries: number): string =>
  tries === 0 ? `${PREFIX}${process.pid}` : `${PREFIX}${process.pid}_${tries}`;

/** Null when a live process holds the name. */
async function createSegment(name: string, options: ShmMemoryOptions): Promise<Segment | null> {
  const { shim, sizeBytes, mode, hugePages } = options;
  // The space of a dead server's segment is ours: make it free before looking at what is.
  if (shim.removeStaleSegment(`/${name}`) === SHIM_CODE.held) return null;
  checkFreeSpace(sizeBytes);
  try {
    const flags = HUGE_PAGE_FLAGS[hugePages];
    return await shim.createSegment({ name: `/${name}`, sizeBytes, mode, flags });
  } catch (error) {
    if (!(error instanceof ShimError)) throw error;
    if (error.code === SHIM_CODE.held) return null;
    throw new KvdError('ERR_CONFIG', `cannot create shared memory ${name}: ${error.message}`, {
      cause: error,
    });
  }
}

/** A segment larger than the file system would raise SIGBUS when it is full. */
function checkFreeSpace(sizeBytes: number): void {
  const { bavail, bsize } = fs.statfsSync(SHM_FOLDER);
  const freeBytes = bavail * bsize;
  if (sizeBytes <= freeBytes) return;
  throw new KvdError(
    'ERR_CONFIG',
    `L1 of ${formatBytes(sizeBytes)} does not fit into ${SHM_FOLDER}, which has ` +
      `${formatBytes(freeBytes)} free: lower --l1-size-gb or enlarge it ` +
      '(docker --shm-size or --ipc host; mount -o remount,size=…)',
  );
}

function shmMemory(shim: Shim, memory: HostMemory, name: string): L1Memory {
  const unlink = (): void => {
    try {
      shim.unlinkSegment(`/${name}`);
    } catch {
      // Somebody removed it already: that is all that was wanted.
    }
  };
  process.on('exit', unlink);
  return {
    kind: 'posix-shm',
    sizeBytes: memory.sizeBytes,
    shmName: name,
    memory,
    get preparedBytes() {
      return memory.preparedBytes;
    },
    view: (offset, length) => memory.view(offset, length),
    prepareAhead: (highWaterBytes) => memory.prepareAhead(highWaterBytes),
    async close() {
      if (process.listeners('exit').includes(unlink)) unlink();
      process.off('exit', unlink);
      await memory.close();
    },
  };
}

/** Removes segments with default names whose process is gone and whose lock is free. */
export function removeStaleSegments(shim: Shim, log: Logger): void {
  for (const entry of fs.readdirSync(SHM_FOLDER)) {
    const pid = DEFAULT_NAME.exec(entry)?.[1];
    if (pid === undefined || isAlive(Number(pid))) continue;
    const code = shim.removeStaleSegment(`/${entry}`);
    if (code === 0) log.info(`removed ${entry}, left by a process that is gone`);
  }
}

function isAlive(pid: number): boolean {
  if (pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}
