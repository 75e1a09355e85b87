/**
 * At most one line per key and minute, and a count of what was left out.
 *
 * A client can cause some lines as often as it likes, so their number must not depend on it.
 *
 *   first call            the line
 *   during the window     counted only
 *   end of the window     the last one with "(N more in the last 60 s)" if N > 0, and a new
 *                         window; else the key is forgotten
 *
 * Keys hold client text (peer, reason), so they are bounded, too: beyond KEY_COUNT_MAX all further
 * keys of a room share one.
 */
import type { Clock } from '../clock.ts';

export const LIMIT_WINDOW_MS = 60_000;
const KEY_COUNT_MAX = 1000;
const OVERFLOW_KEY = 'too many kinds of lines';

interface Entry {
  suppressedCount: number;
  /** The latest line, which the summary repeats. */
  write: (suffix: string) => void;
}

export class LineLimit {
  readonly #clock: Clock;
  readonly #entries = new Map<string, Entry>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Calls `write('')` now, or later with a suffix that says how many lines were left out. */
  offer(key: string, write: (suffix: string) => void): void {
    const isKnown = this.#entries.has(key);
    const bounded = isKnown || this.#entries.size < KEY_COUNT_MAX ? key : OVERFLOW_KEY;
    const entry = this.#entries.get(bounded);
    if (entry) {
      entry.suppressedCount += 1;
      entry.write = write;
      return;
    }
    write('');
    this.#open(bounded, { suppressedCount: 0, write });
  }

  #open(key: string, entry: Entry): void {
    this.#entries.set(key, entry);
    this.#clock.after(LIMIT_WINDOW_MS, () => this.#closeWindow(key, entry));
  }

  #closeWindow(key: string, entry: Entry): void {
    if (entry.suppressedCount === 0) {
      this.#entries.delete(key);
      return;
    }
    entry.write(` (${entry.suppressedCount} more in the last ${LIMIT_WINDOW_MS / 1000} s)`);
    this.#open(key, { suppressedCount: 0, write: entry.write });
  }
}
