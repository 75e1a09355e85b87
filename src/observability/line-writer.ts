/**
 * Lines to stderr, whose reader may be slow, stuck or gone: a daemon outlives all three.
 *
 *   file, terminal     written at once; a full disk loses the line
 *   pipe, socket       written at once while the reader keeps up; up to BACKLOG_BYTES_MAX wait for
 *                      a slow one; what comes then is lost until it has caught up
 *   reader gone        every line is lost (EPIPE), until somebody opens a named pipe again
 *
 * Nothing here waits: a log line must not stop the event loop. What was lost is counted and stands
 * in `/status`.
 */
import type { Writable } from 'node:stream';

/** Some thousand lines: a burst that a reader catches up with, and little memory. */
export const BACKLOG_BYTES_MAX = 1024 * 1024;

export class LineWriter {
  readonly #stream: Writable;
  readonly #onWritten: (error?: Error | null) => void;
  #lostCount = 0;

  constructor(stream: Writable) {
    this.#stream = stream;
    this.#onWritten = (error) => {
      if (error) this.#lostCount += 1;
    };
    // Counted where the line was written; without a listener the process would end.
    stream.on('error', () => {});
  }

  get lostCount(): number {
    return this.#lostCount;
  }

  write(line: string): void {
    if (this.#stream.writableLength > BACKLOG_BYTES_MAX) this.#lostCount += 1;
    else this.#stream.write(line, this.#onWritten);
  }
}
