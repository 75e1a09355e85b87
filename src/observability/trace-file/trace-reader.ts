/**
 * Reads a trace from its file, one frame at a time, whatever is in it.
 *
 *   open ─▶ header, checked ─▶ records ─▶ end, trailer, or a cut frame
 *                                └ malformed: skipped, with a warning
 *
 * A frame is read only as far as the file goes and never above `FRAME_SIZE_MAX_BYTES`; what was
 * written after `open` is not looked at, so a trace may still be growing.
 */
import fs from 'node:fs/promises';
import {
  decodeFrame,
  decodeHeader,
  FRAME_SIZE_MAX_BYTES,
  TraceFileError,
  type TraceHeader,
  type TraceRecord,
  type TraceTrailer,
} from './frames.ts';
import { FRAME_HEAD_BYTES } from './packer.ts';

/** Bytes of one read; frames are mostly far smaller. */
const READ_BYTES = 1024 * 1024;
/** The configuration is in it. */
const HEADER_SIZE_MAX_BYTES = 16 * 1024 * 1024;
/** A damaged file has one for each frame; more than these help nobody. */
const WARNING_COUNT_MAX = 10;

export interface TraceReaderOptions {
  readonly path: string;
  readonly warn: (message: string) => void;
}

export class TraceReader {
  readonly header: TraceHeader;
  readonly #options: TraceReaderOptions;
  readonly #bytes: BufferedFile;
  #trailer: TraceTrailer | null = null;
  #skippedCount = 0;
  #isCut = false;

  private constructor(options: TraceReaderOptions, bytes: BufferedFile, header: TraceHeader) {
    this.#options = options;
    this.#bytes = bytes;
    this.header = header;
  }

  /** Rejects with `TraceFileError`, which names the file. */
  static async open(options: TraceReaderOptions): Promise<TraceReader> {
    const { path } = options;
    const bytes = await BufferedFile.open(path);
    try {
      return new TraceReader(options, bytes, decodeHeader(await readFirstFrame(bytes)));
    } catch (error) {
      await bytes.close();
      if (!(error instanceof TraceFileError)) throw error;
      throw new TraceFileError(`${path}: ${error.message}`);
    }
  }

  /** Null until the end has been read, and behind a recording that was cut off. */
  get trailer(): TraceTrailer | null {
    return this.#trailer;
  }

  /** Frames that are no records, so far. */
  get skippedCount(): number {
    return this.#skippedCount;
  }

  /** The file ends within a frame. */
  get isCut(): boolean {
    return this.#isCut;
  }

  async *records(): AsyncGenerator<TraceRecord> {
    const bytes = this.#bytes;
    for (;;) {
      const offset = bytes.offset;
      const leftBytes = bytes.leftBytes;
      if (leftBytes === 0) return;
      const sizeBytes = leftBytes < FRAME_HEAD_BYTES ? Infinity : await readLength(bytes);
      if (sizeBytes > bytes.leftBytes) {
        this.#isCut = true;
        this.#options.warn(`the trace is cut off in the frame at offset ${offset}`);
        return;
      }
      if (sizeBytes > FRAME_SIZE_MAX_BYTES) {
        bytes.skip(sizeBytes);
        this.#skip(offset, `expected at most ${FRAME_SIZE_MAX_BYTES} bytes, got ${sizeBytes}`);
        continue;
      }
      const frame = decodeFrame(await bytes.take(sizeBytes));
      if (frame instanceof Error) this.#skip(offset, frame.message);
      else if ('qualname' in frame) yield frame;
      else this.#trailer = frame;
    }
  }

  close(): Promise<void> {
    return this.#bytes.close();
  }

  #skip(offset: number, reason: string): void {
    const { warn } = this.#options;
    this.#skippedCount += 1;
    if (this.#skippedCount > WARNING_COUNT_MAX) return;
    warn(`skipping the malformed record at offset ${offset}: ${reason}`);
    if (this.#skippedCount === WARNING_COUNT_MAX)
      warn('further malformed records are only counted');
  }
}

async function readFirstFrame(bytes: BufferedFile): Promise<Uint8Array> {
  if (bytes.leftBytes === 0) throw new TraceFileError('not a trace file: it is empty');
  const isWhole = bytes.leftBytes >= FRAME_HEAD_BYTES;
  const sizeBytes = isWhole ? await readLength(bytes) : 0;
  if (!isWhole || sizeBytes > Math.min(bytes.leftBytes, HEADER_SIZE_MAX_BYTES)) {
    const got = isWhole ? `a frame of ${sizeBytes} bytes` : `${bytes.leftBytes} bytes`;
    throw new TraceFileError(`not a trace file: expected a header first, got ${got}`);
  }
  return bytes.take(sizeBytes);
}

async function readLength(bytes: BufferedFile): Promise<number> {
  const head = await bytes.take(FRAME_HEAD_BYTES);
  return new DataView(head.buffer, head.byteOffset).getUint32(0);
}

/** A file from its start to where it ended when it was opened. */
class BufferedFile {
  readonly #handle: fs.FileHandle;
  readonly #sizeBytes: number;
  #offset = 0;
  #buffer: Uint8Array = new Uint8Array(0);
  /** Of the buffer's first byte in the file. */
  #bufferOffset = 0;

  private constructor(handle: fs.FileHandle, sizeBytes: number) {
    this.#handle = handle;
    this.#sizeBytes = sizeBytes;
  }

  static async open(path: string): Promise<BufferedFile> {
    try {
      // Before it is opened: a pipe would wait for somebody who writes.
      const { size, isFile } = await kindOf(path);
      if (!isFile) throw new TraceFileError(`${path}: expected a file, got something else`);
      return new BufferedFile(await fs.open(path), size);
    } catch (error) {
      if (error instanceof TraceFileError) throw error;
      const { code, message } = error as NodeJS.ErrnoException;
      const reason = code === 'ENOENT' ? 'there is no such file' : message;
      throw new TraceFileError(`${path}: ${reason}`, { cause: error });
    }
  }

  get offset(): number {
    return this.#offset;
  }

  get leftBytes(): number {
    return this.#sizeBytes - this.#offset;
  }

  skip(sizeBytes: number): void {
    this.#offset += sizeBytes;
  }

  /** At most `leftBytes`. What is returned is the caller's until the next call. */
  async take(sizeBytes: number): Promise<Uint8Array> {
    let start = this.#offset - this.#bufferOffset;
    if (start < 0 || start + sizeBytes > this.#buffer.length) {
      await this.#fill(Math.min(Math.max(sizeBytes, READ_BYTES), this.leftBytes));
      start = 0;
    }
    this.#offset += sizeBytes;
    const taken = this.#buffer.subarray(start, start + sizeBytes);
    if (taken.length < sizeBytes) throw new TraceFileError('the file has become shorter');
    return taken;
  }

  async #fill(sizeBytes: number): Promise<void> {
    const buffer = new Uint8Array(sizeBytes);
    let filledBytes = 0;
    while (filledBytes < sizeBytes) {
      const position = this.#offset + filledBytes;
      const { bytesRead } = await this.#handle.read(buffer, {
        offset: filledBytes,
        length: sizeBytes - filledBytes,
        position,
      });
      if (bytesRead === 0) break;
      filledBytes += bytesRead;
    }
    this.#buffer = buffer.subarray(0, filledBytes);
    this.#bufferOffset = this.#offset;
  }

  close(): Promise<void> {
    return this.#handle.close();
  }
}

async function kindOf(path: string): Promise<{ size: number; isFile: boolean }> {
  const stats = await fs.stat(path);
  return { size: stats.size, isFile: stats.isFile() };
}
