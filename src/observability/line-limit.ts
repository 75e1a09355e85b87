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

type Entries = Map<string, Entry>;

export class LineLimit {
  readonly #clock: Clock;
  /** By room and key. Rooms are names in the code, so there are few. */
  readonly #rooms = new Map<string, Entries>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Calls `write('')` now, or later with a suffix that says how many lines were left out. */
  offer({ room, key }: { room: string; key: string }, write: (suffix: string) => void): void {
    const entries = this.#entriesOf(room);
    const isRoomy = entries.has(key) || entries.size < KEY_COUNT_MAX;
    const bounded = isRoomy ? key : OVERFLOW_KEY;
    const entry = entries.get(bounded);
    if (entry) {
      entry.suppressedCount += 1;
      entry.write = write;
      return;
    }
    write('');
    this.#open(entries, bounded, write);
  }

  #entriesOf(room: string): Entries {
    let entries = this.#rooms.get(room);
    if (!entries) {
      entries = new Map();
      this.#rooms.set(room, entries);
    }
    return entries;
  }

  #open(entries: Entries, key: string, write: (suffix: string) => void): void {
    const entry: Entry = { suppressedCount: 0, write };
    entries.set(key, entry);
    this.#clock.after(LIMIT_WINDOW_MS, () => {
      if (entry.suppressedCount === 0) {
        entries.delete(key);
        return;
      }
      entry.write(` (${entry.suppressedCount} more in the last ${LIMIT_WINDOW_MS / 1000} s)`);
      this.#open(entries, key, entry.write);
    });
  }
}
