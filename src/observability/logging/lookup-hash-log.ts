/**
 * The lookup-hash log: one JSON line per LOOKUP, in files that rotate (observability 7.2).
 *
 *   lookup_hashes_<YYYYMMDD_HHMMSS, UTC>_<nnnnnn>.jsonl
 *
 * A file is opened at the first lookup, and anew when the open one is old or large enough; then the
 * oldest are deleted, those of earlier runs included. Numbers go on from the highest one that is
 * there, and a file that exists is never opened: somebody else may be writing it.
 *
 * Nothing here waits for a slow disk. Up to BACKLOG_BYTES_MAX wait for it and are written together,
 * what comes then is lost and counted. When a file cannot be written the log pauses, and the next
 * lookup after that tries a new one. What the event queue has lost is counted by the bus.
 */
import fs from 'node:fs';
import path from 'node:path';
import type { Clock } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import type { Logger } from '../log.ts';
import { formatLookupLine } from './lookup-hash-line.ts';

/** Some hundred lines of long prompts: a burst that a disk catches up with. */
const BACKLOG_BYTES_MAX = 16 * 1024 * 1024;
const PAUSE_MS = 10_000;
const FILE_NAME = /^lookup_hashes_.*\.jsonl$/;
const FILE_NUMBER = /_(\d{1,9})\.jsonl$/;
/** Files of the same second and number that somebody else has made meanwhile. */
const TAKEN_COUNT_MAX = 100;

type Lookup = EventCatalogue['mp.lookup'];

export interface LookupHashLogOptions {
  readonly folder: string;
  readonly rotationIntervalMs: number;
  readonly rotationSizeBytes: number;
  readonly fileCountMax: number;
  readonly clock: Clock;
  readonly log: Logger;
}

export class LookupHashLog implements Subscriber {
  readonly name = 'LookupHashLoggingSubscriber';
  readonly subscriptions = {
    'mp.lookup': (lookup: Lookup, atSeconds: number) => this.#write(lookup, atSeconds),
  };
  readonly #options: LookupHashLogOptions;
  /** Oldest first. */
  readonly #files: string[];
  #fileNumber: number;
  #stream: fs.WriteStream | null = null;
  #openedMs = 0;
  #writtenBytes = 0;
  #pausedUntilMs = 0;
  #lostCount = 0;
  /** Files that are being closed. */
  readonly #endings = new Set<Promise<void>>();

  private constructor(options: LookupHashLogOptions, files: string[]) {
    this.#options = options;
    this.#files = files;
    const numbers = files.map((file) => Number(FILE_NUMBER.exec(file)?.[1] ?? -1));
    this.#fileNumber = numbers.reduce((highest, number) => Math.max(highest, number), -1) + 1;
  }

  /** Makes the folder; the first file comes with the first lookup. */
  static open(options: LookupHashLogOptions): LookupHashLog {
    const { folder } = options;
    try {
      fs.mkdirSync(folder, { recursive: true });
      const ages = fs
        .readdirSync(folder)
        .filter((name) => FILE_NAME.test(name))
        .map((name) => ({ file: path.join(folder, name) }))
        .map(({ file }) => ({ file, mtimeMs: fs.statSync(file).mtimeMs }));
      const files = ages.sort((a, b) => a.mtimeMs - b.mtimeMs).map(({ file }) => file);
      return new LookupHashLog(options, files);
    } catch (error) {
      throw new KvdError('ERR_CONFIG', `--lookup-hash-log-dir: cannot use ${folder}`, {
        cause: error,
      });
    }
  }

  /** Lines that no file has. */
  get lostCount(): number {
    return this.#lostCount;
  }

  /** Ends when every line has been handed to the disk. */
  async shutdown(): Promise<void> {
    this.#endFile();
    this.#pausedUntilMs = Number.POSITIVE_INFINITY;
    await Promise.all(this.#endings);
  }

  #endFile(): void {
    const stream = this.#stream;
    this.#stream = null;
    if (!stream) return;
    const ending = new Promise<void>((resolve) => stream.end(() => resolve()));
    this.#endings.add(ending);
    ending.finally(() => this.#endings.delete(ending));
  }

  #write(lookup: Lookup, atSeconds: number): void {
    const nowMs = this.#options.clock.nowMs();
    const stream = nowMs < this.#pausedUntilMs ? null : this.#currentFile(nowMs, atSeconds);
    if (!stream || stream.writableLength > BACKLOG_BYTES_MAX) {
      this.#lostCount += 1;
      return;
    }
    const line = formatLookupLine(lookup, atSeconds);
    this.#writtenBytes += line.length;
    stream.write(line, (error) => {
      if (error) this.#lostCount += 1;
    });
  }

  #currentFile(nowMs: number, atSeconds: number): fs.WriteStream | null {
    const { rotationIntervalMs, rotationSizeBytes } = this.#options;
    const isOld = nowMs - this.#openedMs >= rotationIntervalMs;
    if (this.#stream && !isOld && this.#writtenBytes < rotationSizeBytes) return this.#stream;
    this.#endFile();
    this.#stream = this.#openFile(atSeconds);
    this.#openedMs = nowMs;
    this.#writtenBytes = 0;
    this.#deleteOldest();
    return this.#stream;
  }

  #openFile(atSeconds: number): fs.WriteStream | null {
    try {
      const { file, fd } = this.#createFile(atSeconds);
      const stream = fs.createWriteStream(file, { fd });
      stream.on('error', (error) => {
        stream.destroy();
        if (this.#stream === stream) this.#stream = null;
        this.#pause(error);
      });
      this.#files.push(file);
      return stream;
    } catch (error) {
      this.#pause(error as Error);
      return null;
    }
  }

  /** At once, so that a file exists before it can be the oldest of too many. */
  #createFile(atSeconds: number): { readonly file: string; readonly fd: number } {
    const time = new Date(atSeconds * 1000).toISOString().replace(/[-:]|\..*/g, '');
    for (let takenCount = 0; ; takenCount += 1) {
      const number = String(this.#fileNumber).padStart(6, '0');
      const name = `lookup_hashes_${time.replace('T', '_')}_${number}.jsonl`;
      const file = path.join(this.#options.folder, name);
      try {
        const fd = fs.openSync(file, 'wx');
        this.#fileNumber += 1;
        return { file, fd };
      } catch (error) {
        const isTaken = (error as NodeJS.ErrnoException).code === 'EEXIST';
        if (!isTaken || takenCount === TAKEN_COUNT_MAX) throw error;
        this.#fileNumber += 1;
      }
    }
  }

  #pause(error: Error): void {
    const { clock, log } = this.#options;
    log.limited('warn', 'lookup-hash-log', `lookup-hash log: ${error.message}`);
    this.#pausedUntilMs = Math.max(this.#pausedUntilMs, clock.nowMs() + PAUSE_MS);
  }

  #deleteOldest(): void {
    const { fileCountMax, log } = this.#options;
    while (this.#files.length > fileCountMax) {
      const file = this.#files.shift()!;
      fs.unlink(file, (error) => {
        if (error && error.code !== 'ENOENT') {
          log.limited('warn', 'lookup-hash-delete', `lookup-hash log: ${error.message}`);
        }
      });
    }
  }
}
