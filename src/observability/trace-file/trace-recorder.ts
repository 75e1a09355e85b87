/**
 * Records calls of the storage room in a trace file, beside the work and never in its way.
 *
 *   call ─▶ frame ─▶ queue, bounded in bytes ─▶ batches, one write at a time ─▶ file
 *             │        └ full: the call is dropped, and counted
 *             └ file full (sizeMaxBytes): recording ends, the rest is counted
 *
 * Nothing waits for the disk. A file that cannot be written ends the recording with a warning. At
 * close the queue is written, then the trailer with the number of dropped calls; then fsync. The
 * file is made anew, for its owner only: the keys in it name tenants.
 */
import fs from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import type { Clock, Timer } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import type { Logger } from '../log.ts';
import {
  type Arguments,
  encodeHeader,
  encodeRecord,
  encodeTrailer,
  FORMAT_VERSION,
  FRAME_SIZE_MAX_BYTES,
  SCHEMA_VERSION,
} from './frames.ts';
import { type StorageCall, storageArguments, storageQualname } from './storage-calls.ts';
import type { StorageConfigText } from './storage-config.ts';

/** Some seconds of a busy server, until a slow disk has caught up. */
export const QUEUE_SIZE_MAX_BYTES = 32 * 1024 * 1024;
/** Calls that come shortly after each other are written together. */
const BATCH_DELAY_MS = 100;
/** So much is worth a write at once. */
const BATCH_BYTES = 1024 * 1024;
/** Room for the trailer in a full file. */
const TRAILER_BYTES = 128;
/** A disk that hangs must not keep the server from ending. */
const CLOSE_TIMEOUT_MS = 5_000;
const OWNER_ONLY = 0o600;

export interface TraceRecorderOptions {
  /** Null: a new file among the temporary ones. */
  readonly path: string | null;
  readonly sizeMaxBytes: number;
  /** Of the storage room that is recorded; null = not known. */
  readonly config: StorageConfigText | null;
  readonly clock: Clock;
  readonly log: Logger;
}

export class TraceRecorder {
  readonly path: string;
  readonly #options: TraceRecorderOptions;
  readonly #file: fs.FileHandle;
  readonly #startMs: number;
  #queue: Buffer[] = [];
  #queuedBytes = 0;
  /** Written or queued. */
  #fileBytes = 0;
  #recordCount = 0;
  #droppedCount = 0;
  /** Nothing more is recorded: the file is full, cannot be written, or is being closed. */
  #isOver = false;
  #hasFailed = false;
  #timer: Timer | null = null;
  #writing: Promise<void> | null = null;

  private constructor(options: TraceRecorderOptions, path: string, file: fs.FileHandle) {
    this.path = path;
    this.#options = options;
    this.#file = file;
    this.#startMs = options.clock.preciseMs();
    this.#append(
      encodeHeader({
        formatVersion: FORMAT_VERSION,
        level: 'storage',
        schemaVersion: SCHEMA_VERSION,
        monoStartSeconds: this.#startMs / 1000,
        wallStartSeconds: options.clock.wallMs() / 1000,
        configText: options.config?.text ?? '',
        configDigest: options.config?.digest ?? '',
      }),
    );
  }

  /** Makes the file, and writes its header. Rejects with `ERR_CONFIG`, as when it exists. */
  static async open(options: TraceRecorderOptions): Promise<TraceRecorder> {
    const { clock, log } = options;
    const file = options.path ?? defaultTracePath(clock.wallMs());
    try {
      const recorder = new TraceRecorder(options, file, await fs.open(file, 'wx', OWNER_ONLY));
      await recorder.#flush();
      if (!recorder.#hasFailed) log.info(`recording storage calls to ${file}`);
      return recorder;
    } catch (error) {
      const { code, message } = error as NodeJS.ErrnoException;
      const reason = code === 'EEXIST' ? `${file} exists already` : message;
      throw new KvdError('ERR_CONFIG', `--trace-output: ${reason}`, { cause: error });
    }
  }

  get recordCount(): number {
    return this.#recordCount;
  }

  /** Calls that the file lacks. */
  get droppedCount(): number {
    return this.#droppedCount;
  }

  /** Never throws and never waits. */
  record(call: StorageCall): void {
    if (this.#isOver) {
      this.#droppedCount += 1;
      return;
    }
    try {
      this.#offer(this.#encode(call));
    } catch (error) {
      this.#drop(`a call cannot be recorded: ${(error as Error).message}`);
    }
  }

  /** Ends when everything is on the disk, or has had its time. */
  async close(): Promise<void> {
    const { clock, log } = this.#options;
    this.#isOver = true;
    this.#timer?.cancel();
    const late = Promise.withResolvers<'late'>();
    const timer = clock.after(CLOSE_TIMEOUT_MS, () => late.resolve('late'));
    const outcome = await Promise.race([this.#finish(), late.promise]);
    timer.cancel();
    if (outcome === 'late') log.warn(`the trace ${this.path} could not be completed in time`);
    else if (this.#droppedCount > 0) {
      log.warn(`the trace ${this.path} lacks ${this.#droppedCount} calls`);
    }
  }

  async #finish(): Promise<void> {
    await this.#flush();
    try {
      if (!this.#hasFailed) {
        const [recordCount, droppedCount] = [this.#recordCount, this.#droppedCount];
        const monoSeconds = this.#elapsedSeconds();
        await this.#file.writeFile(encodeTrailer({ monoSeconds, recordCount, droppedCount }));
        await this.#file.sync();
      }
      await this.#file.close();
    } catch (error) {
      this.#fail(error);
    }
  }

  #encode(call: StorageCall): Buffer {
    const { clock } = this.#options;
    const args: Arguments = storageArguments(call);
    const monoSeconds = this.#elapsedSeconds();
    const wallSeconds = clock.wallMs() / 1000;
    return encodeRecord({ monoSeconds, wallSeconds, qualname: storageQualname(call) }, args);
  }

  #elapsedSeconds(): number {
    return Math.max(0, this.#options.clock.preciseMs() - this.#startMs) / 1000;
  }

  #offer(frame: Buffer): void {
    const { sizeMaxBytes, log } = this.#options;
    if (frame.length > FRAME_SIZE_MAX_BYTES) {
      this.#drop(`a call of ${frame.length} bytes is too large to be recorded`);
    } else if (this.#fileBytes + frame.length + TRAILER_BYTES > sizeMaxBytes) {
      // Also a later, smaller call: what is recorded has no gaps.
      this.#isOver = true;
      this.#droppedCount += 1;
      log.warn(`recording ends: ${this.path} has reached --trace-max-size-bytes`);
    } else if (this.#queuedBytes + frame.length > QUEUE_SIZE_MAX_BYTES) {
      this.#drop('the disk is too slow for the trace: calls are not recorded');
    } else {
      this.#recordCount += 1;
      this.#append(frame);
      this.#scheduleFlush();
    }
  }

  #drop(reason: string): void {
    this.#droppedCount += 1;
    this.#options.log.limited('warn', 'trace-dropped', reason);
  }

  #append(frame: Buffer): void {
    this.#queue.push(frame);
    this.#queuedBytes += frame.length;
    this.#fileBytes += frame.length;
  }

  #scheduleFlush(): void {
    if (this.#writing) return;
    if (this.#queuedBytes >= BATCH_BYTES) void this.#flush();
    else this.#timer ??= this.#options.clock.after(BATCH_DELAY_MS, () => void this.#flush());
  }

  /** Ends when the queue is empty, or the file cannot be written. */
  #flush(): Promise<void> {
    this.#timer?.cancel();
    this.#timer = null;
    if (this.#queue.length > 0) this.#writing ??= this.#writeQueue();
    return this.#writing ?? Promise.resolve();
  }

  async #writeQueue(): Promise<void> {
    try {
      while (this.#queue.length > 0) {
        const bytes = Buffer.concat(this.#queue);
        this.#queue = [];
        await this.#file.writeFile(bytes);
        this.#queuedBytes -= bytes.length;
      }
    } catch (error) {
      this.#fail(error);
    }
    // In the same step as the last look at the queue, so that nothing is left in it.
    this.#writing = null;
  }

  #fail(error: unknown): void {
    this.#isOver = true;
    this.#hasFailed = true;
    this.#queue = [];
    const { message } = error as Error;
    this.#options.log.warn(`recording ends: ${this.path} cannot be written: ${message}`);
  }
}

/** `<tmp>/lmcache-trace-<pid>-<YYYYMMDD-HHMMSS, UTC>.lct`, as the reference names it. */
export function defaultTracePath(wallMs: number): string {
  const time = new Date(wallMs).toISOString().replace(/[-:]|\..*/g, '');
  const name = `lmcache-trace-${process.pid}-${time.replace('T', '-')}.lct`;
  return path.join(os.tmpdir(), name);
}
