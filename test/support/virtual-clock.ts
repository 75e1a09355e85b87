/** A clock that moves only when told to; timers run in order of their due time. */
import type { Clock, Timer } from '../../src/clock.ts';

interface Entry {
  dueMs: number;
  intervalMs: number | null;
  run: () => void;
}

export class VirtualClock implements Clock {
  #nowMs: number;
  readonly #entries = new Set<Entry>();

  constructor(startMs = 0) {
    this.#nowMs = startMs;
  }

  nowMs(): number {
    return Math.trunc(this.#nowMs);
  }

  preciseMs(): number {
    return this.#nowMs;
  }

  wallMs(): number {
    return 1_700_000_000_000 + this.#nowMs;
  }

  after(delayMs: number, run: () => void): Timer {
    return this.#add({ dueMs: this.#nowMs + delayMs, intervalMs: null, run });
  }

  every(intervalMs: number, run: () => void): Timer {
    return this.#add({ dueMs: this.#nowMs + intervalMs, intervalMs, run });
  }

  /** Moves to `now + deltaMs`, running every timer that falls due on the way. */
  advance(deltaMs: number): void {
    const end = this.#nowMs + deltaMs;
    for (;;) {
      let next: Entry | undefined;
      for (const entry of this.#entries) {
        if (entry.dueMs <= end && (!next || entry.dueMs < next.dueMs)) next = entry;
      }
      if (!next) break;
      this.#nowMs = Math.max(this.#nowMs, next.dueMs);
      if (next.intervalMs === null) this.#entries.delete(next);
      else next.dueMs += next.intervalMs;
      next.run();
    }
    this.#nowMs = end;
  }

  /** Time goes by and nothing runs, as in a stopped process; what fell due runs afterwards. */
  standStill(deltaMs: number): void {
    this.#nowMs += deltaMs;
  }

  #add(entry: Entry): Timer {
    this.#entries.add(entry);
    return { cancel: () => void this.#entries.delete(entry) };
  }
}
