/**
 * Lines to stderr, whose reader may be slow, stuck or gone: a daemon outlives all three.
 *
 *   file, terminal     written at once; a full disk loses the lines
 *   pipe, socket       written at once while the reader keeps up; up to BACKLOG_BYTES_MAX wait for
 *                      a slow one; what comes then is lost until it has caught up
 *   reader gone        every line is lost (EPIPE), until somebody opens a named pipe again
 *
 * At once means: at the end of the callback that the lines come from, all of them with one call of
 * the system. A call a line was two thirds of what a line cost. A process that ends calls `flush`.
 *
 * Nothing here waits: a log line must not stop the event loop. What was lost is counted and stands
 * in `/status`.
 */
import type { Writable } from 'node:stream';

/** Some thousand lines: a burst that a reader catches up with, and little memory. */
export const BACKLOG_BYTES_MAX = 1024 * 1024;

export class LineWriter {
  readonly #stream: Writable;
  #lostCount = 0;
  /** Lines of this callback, as one text. */
  #text = '';
  #lineCount = 0;

  constructor(stream: Writable) {
    this.#stream = stream;
    // Counted where the lines were written; without a listener the process would end.
    stream.on('error', () => {});
  }

  get lostCount(): number {
    return this.#lostCount;
  }

  write(line: string): void {
    if (this.#stream.writableLength + this.#text.length > BACKLOG_BYTES_MAX) {
      this.#lostCount += 1;
      return;
    }
    this.#text += line;
    this.#lineCount += 1;
    if (this.#lineCount === 1) queueMicrotask(() => this.flush());
  }

  /** Writes what `write` has left for the end of the callback. */
  flush(): void {
    if (this.#lineCount === 0) return;
    const [text, lineCount] = [this.#text, this.#lineCount];
    this.#text = '';
    this.#lineCount = 0;
    this.#stream.write(text, (error) => {
      if (error) this.#lostCount += lineCount;
    });
  }
}
