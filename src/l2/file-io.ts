/**
 * Writes and reads the value of one file, straight between an L1 buffer and the disk.
 *
 * Direct I/O (`O_DIRECT`) keeps values out of the page cache, whose copy and write-back cost more
 * than the disk does when a folder holds many times the memory. It moves whole blocks between
 * aligned addresses only:
 *
 *   value   |<------- whole blocks ------->|<- rest ->|
 *   L1      straight to and from the disk  | by way of an own block; the slot behind the value is
 *                                          | not ours to read or write
 *   file    exact size: cut after writing  |
 *
 * How it fails. A file system that refuses direct I/O does so at `open` (EINVAL): one warning, then
 * buffered I/O for good. One that refuses a single transfer (a buffer at an odd address, larger
 * blocks): that file is done again buffered, with a warning at the first. A write that ends early
 * is continued; none is taken for whole because it did not throw. A file that ends early while it
 * is read is no value.
 */
import fs from 'node:fs';
import { KvdError } from '../errors.ts';
import type { Logger } from '../observability/log.ts';
import { alignUp, KIB, MIB } from '../units.ts';
import { errnoOf, type Files } from './files.ts';

/** Of a call: one that was broken off ends within one of them. */
const PIECE_BYTES_MAX = 64 * MIB;
/** The unit of direct I/O on nearly all disks; where it is larger, transfers are refused. */
export const BLOCK_BYTES = 4 * KIB;
const WASM_PAGE_BYTES = 64 * KIB;

// The compiler's library has no WebAssembly without the DOM; this is the part that is used here.
declare const WebAssembly: {
  Memory: new (limits: { initial: number }) => { readonly buffer: ArrayBuffer };
};

const { O_CREAT, O_DIRECT, O_EXCL, O_RDONLY, O_WRONLY } = fs.constants;

export type Sync = 'none' | 'data' | 'full';

export interface FileIoOptions {
  readonly files: Files;
  readonly folder: string;
  readonly isDirect: boolean;
  /** First read of a buffered load; 0 = all at once. */
  readonly readAheadBytes: number;
  readonly sync: Sync;
  /** Files are padded with zeros to multiples of it; 0 = exact size. */
  readonly paddingBytes: number;
  readonly workerCount: number;
  readonly log: Logger;
}

interface Call {
  readonly path: string;
  readonly bytes: Uint8Array;
  /** Whose block is used. */
  readonly worker: number;
  readonly signal: AbortSignal;
}

export class FileIo {
  readonly #options: FileIoOptions;
  /** One block per worker, at aligned addresses. */
  readonly #blocks: Uint8Array;
  #isDirect: boolean;
  #refusedTransferCount = 0;

  constructor(options: FileIoOptions) {
    this.#options = options;
    this.#isDirect = options.isDirect;
    const pageCount = Math.ceil((options.workerCount * BLOCK_BYTES) / WASM_PAGE_BYTES);
    // WebAssembly memory begins at a page; an ArrayBuffer does not.
    this.#blocks = options.isDirect
      ? new Uint8Array(new WebAssembly.Memory({ initial: pageCount }).buffer)
      : new Uint8Array(0);
  }

  get isDirect(): boolean {
    return this.#isDirect;
  }

  /** Files that were done buffered because their transfer was refused. */
  get refusedTransferCount(): number {
    return this.#refusedTransferCount;
  }

  /** Makes the file, whole or not at all. */
  async write(call: Call): Promise<void> {
    try {
      await this.#directOrBuffered(call, (isDirect) => this.#writeFile(call, isDirect));
    } catch (error) {
      await this.#removeQuietly(call.path);
      throw error;
    }
  }

  /** False when there is no value of this size. */
  async read(call: Call, accepts: (fileBytes: number) => boolean): Promise<boolean> {
    return this.#directOrBuffered(call, (isDirect) => this.#readFile(call, isDirect, accepts));
  }

  async #directOrBuffered<T>(call: Call, run: (isDirect: boolean) => Promise<T>): Promise<T> {
    const { bytes } = call;
    const canBeDirect = bytes.length >= BLOCK_BYTES && bytes.byteOffset % BLOCK_BYTES === 0;
    if (!this.#isDirect || !canBeDirect) return run(false);
    try {
      return await run(true);
    } catch (error) {
      if (errnoOf(error) !== 'EINVAL') throw error;
      this.#noteRefusal(error as NodeJS.ErrnoException);
      return run(false);
    }
  }

  #noteRefusal(error: NodeJS.ErrnoException): void {
    const { folder, log } = this.#options;
    if (error.syscall !== 'open') {
      this.#refusedTransferCount += 1;
      if (this.#refusedTransferCount > 1) return;
    } else {
      if (!this.#isDirect) return;
      this.#isDirect = false;
    }
    const what = error.syscall === 'open' ? 'from now on' : 'for the values it refuses';
    log.warn(
      `direct I/O is refused in ${folder} (${error.syscall}: ${error.code}); buffered I/O ${what}`,
    );
  }

  async #writeFile(call: Call, isDirect: boolean): Promise<void> {
    const { files, paddingBytes, sync } = this.#options;
    const { bytes, path } = call;
    // A refused `open` may leave the file behind.
    const flags = O_WRONLY | O_CREAT | (isDirect ? O_DIRECT : 0);
    if (!isDirect && this.#options.isDirect) await this.#removeQuietly(path);
    const fd = await files.open(path, flags | O_EXCL, 0o666);
    await this.#closing(fd, async () => {
      const wholeBytes = isDirect ? bytes.length - (bytes.length % BLOCK_BYTES) : bytes.length;
      await this.#writeFully(fd, bytes.subarray(0, wholeBytes), 0, call.signal);
      let endBytes = wholeBytes;
      if (wholeBytes < bytes.length) {
        const block = this.#blockOf(call.worker).fill(0);
        block.set(bytes.subarray(wholeBytes));
        await this.#writeFully(fd, block, wholeBytes, call.signal);
        endBytes += BLOCK_BYTES;
      }
      const fileBytes = paddingBytes > 0 ? alignUp(bytes.length, paddingBytes) : bytes.length;
      if (fileBytes !== endBytes) await files.truncate(fd, fileBytes);
      if (sync === 'data') await files.syncData(fd);
      if (sync === 'full') await files.sync(fd);
    });
  }

  async #readFile(
    call: Call,
    isDirect: boolean,
    accepts: (fileBytes: number) => boolean,
  ): Promise<boolean> {
    const { files, readAheadBytes } = this.#options;
    const { bytes } = call;
    const fd = await files.open(call.path, O_RDONLY | (isDirect ? O_DIRECT : 0), 0);
    return this.#closing(fd, async () => {
      const { isFile, sizeBytes } = await files.facts(fd);
      if (!isFile || !accepts(sizeBytes)) return false;
      if (!isDirect) return this.#readFully(fd, bytes, 0, { ...call, firstBytes: readAheadBytes });
      const wholeBytes = bytes.length - (bytes.length % BLOCK_BYTES);
      const whole = bytes.subarray(0, wholeBytes);
      if (!(await this.#readFully(fd, whole, 0, { ...call, firstBytes: 0 }))) return false;
      if (wholeBytes === bytes.length) return true;
      return this.#readRest(fd, bytes.subarray(wholeBytes), wholeBytes, call);
    });
  }

  /** The last bytes of a value that does not fill its last block. */
  async #readRest(fd: number, rest: Uint8Array, position: number, call: Call): Promise<boolean> {
    call.signal.throwIfAborted();
    const block = this.#blockOf(call.worker);
    const range = { offset: 0, length: BLOCK_BYTES, position };
    if ((await this.#options.files.read(fd, block, range)) < rest.length) return false;
    rest.set(block.subarray(0, rest.length));
    return true;
  }

  async #writeFully(
    fd: number,
    bytes: Uint8Array,
    start: number,
    signal: AbortSignal,
  ): Promise<void> {
    let doneBytes = 0;
    while (doneBytes < bytes.length) {
      signal.throwIfAborted();
      const length = Math.min(PIECE_BYTES_MAX, bytes.length - doneBytes);
      const range = { offset: doneBytes, length, position: start + doneBytes };
      const count = await this.#options.files.write(fd, bytes, range);
      if (count === 0) throw new KvdError('ERR_L2_IO', 'the file takes no more bytes');
      doneBytes += count;
    }
  }

  async #readFully(
    fd: number,
    bytes: Uint8Array,
    start: number,
    { firstBytes, signal }: { readonly firstBytes: number; readonly signal: AbortSignal },
  ): Promise<boolean> {
    let doneBytes = 0;
    while (doneBytes < bytes.length) {
      signal.throwIfAborted();
      const pieceBytes = doneBytes === 0 && firstBytes > 0 ? firstBytes : PIECE_BYTES_MAX;
      const length = Math.min(pieceBytes, bytes.length - doneBytes);
      const range = { offset: doneBytes, length, position: start + doneBytes };
      const count = await this.#options.files.read(fd, bytes, range);
      if (count === 0) return false;
      doneBytes += count;
    }
    return true;
  }

  /** A close that fails after writing means that bytes are lost: it is part of the result. */
  async #closing<T>(fd: number, run: () => Promise<T>): Promise<T> {
    let result: T;
    try {
      result = await run();
    } catch (error) {
      // The first failure says more than one of closing what is thrown away.
      await this.#options.files.close(fd).catch(() => {});
      throw error;
    }
    await this.#options.files.close(fd);
    return result;
  }

  async #removeQuietly(path: string): Promise<void> {
    // What cannot be removed now is a stale temporary file at the next start.
    await this.#options.files.unlink(path).catch(() => false);
  }

  #blockOf(worker: number): Uint8Array {
    return this.#blocks.subarray(worker * BLOCK_BYTES, (worker + 1) * BLOCK_BYTES);
  }
}
