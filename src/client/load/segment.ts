/**
 * Shared memory as files in /dev/shm, through `fs` alone.
 *
 * Node cannot map memory, and a benchmark does not need it to: a write to a file of tmpfs changes
 * the pages that another process has mapped, and a read returns them. That is exact, at the price
 * of one copy by the kernel, and needs no native code. All transfers run on the threads of libuv,
 * so that one worker of the benchmark does not hold up the replies of another.
 *
 * A worker's segments are unlinked when they are closed and, whatever else happens short of
 * SIGKILL, when the process exits.
 */
import fs from 'node:fs';
import { promisify } from 'node:util';
import { assert } from '../../assert.ts';

const FOLDER = '/dev/shm';
/** IOV_MAX of Linux. */
const BUFFERS_PER_CALL_MAX = 1024;

const writeBuffers = promisify(fs.writev);
const readBytes = promisify(fs.read);

let segmentCount = 0;
const ownPaths = new Set<string>();
let isWatchingExit = false;

export function freeSharedMemoryBytes(): number {
  const { bavail, bsize } = fs.statfsSync(FOLDER);
  return bavail * bsize;
}

export class Segment {
  /** As POSIX names it, with a leading slash. */
  readonly name: string;
  readonly #file: number;

  private constructor(name: string, file: number) {
    this.name = name;
    this.#file = file;
  }

  /** A new segment, named as a worker names its tensors. */
  static create(sizeBytes: number): Segment {
    segmentCount += 1;
    const name = `/lmcache_kv_${process.pid}_${segmentCount}`;
    const path = FOLDER + name;
    if (!isWatchingExit) {
      isWatchingExit = true;
      process.once('exit', removeOwnSegments);
    }
    const file = fs.openSync(path, 'wx+', 0o600);
    ownPaths.add(path);
    fs.ftruncateSync(file, sizeBytes);
    return new Segment(name, file);
  }

  /** The server's segment. Throws as `open` does: ENOENT, EACCES. */
  static open(name: string): Segment {
    const bare = name.replace(/^\/+/, '');
    assert(!bare.includes('/'), 'a segment has no folders in its name');
    return new Segment(`/${bare}`, fs.openSync(`${FOLDER}/${bare}`, 'r+'));
  }

  get sizeBytes(): number {
    return fs.fstatSync(this.#file).size;
  }

  /** Writes `buffers` one behind the other. */
  async write(buffers: readonly Uint8Array[], offset: number): Promise<void> {
    let position = offset;
    for (let first = 0; first < buffers.length; first += BUFFERS_PER_CALL_MAX) {
      const part = buffers.slice(first, first + BUFFERS_PER_CALL_MAX);
      const size = part.reduce((sum, { length }) => sum + length, 0);
      const { bytesWritten } = await writeBuffers(this.#file, part, position);
      if (bytesWritten !== size) throw new Error(`${this.name}: ${FOLDER} is full`);
      position += size;
    }
  }

  /** Fills `buffer`. */
  async read(buffer: Uint8Array, offset: number): Promise<void> {
    const { bytesRead } = await readBytes(this.#file, buffer, 0, buffer.length, offset);
    if (bytesRead !== buffer.length) {
      throw new Error(`${this.name}: ${bytesRead} of ${buffer.length} bytes at ${offset}`);
    }
  }

  /** Unlinks it if it is our own. */
  close(): void {
    fs.closeSync(this.#file);
    const path = FOLDER + this.name;
    if (ownPaths.delete(path)) fs.rmSync(path, { force: true });
  }
}

function removeOwnSegments(): void {
  for (const path of ownPaths) fs.rmSync(path, { force: true });
}
