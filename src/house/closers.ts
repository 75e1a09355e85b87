/** Closing what was built, in the reverse order. */
import { type Clock, systemClock } from '../clock.ts';
import type { Logger } from '../observability/log.ts';

/** What to undo, latest first. */
export class Closers {
  readonly #log: Logger;
  readonly #clock: Clock;
  readonly #closers: (() => unknown)[] = [];
  #startMs: number | null = null;

  constructor(log: Logger, clock: Clock = systemClock) {
    this.#log = log;
    this.#clock = clock;
  }

  /** What is left of the time for all of them together. */
  leftMsOf(budgetMs: number): number {
    const nowMs = this.#clock.nowMs();
    return Math.max(0, budgetMs - (nowMs - (this.#startMs ?? nowMs)));
  }

  add(close: () => unknown): void {
    this.#closers.push(close);
  }

  /** Runs all of them, also behind one that fails. Rejects with the first failure. */
  async closeAll(): Promise<void> {
    const failures: unknown[] = [];
    this.#startMs ??= this.#clock.nowMs();
    for (let close = this.#closers.pop(); close; close = this.#closers.pop()) {
      try {
        await close();
      } catch (error) {
        failures.push(error);
        const reason = error instanceof Error ? error.message : String(error);
        this.#log.error(`A part of the server cannot be closed: ${reason}`);
      }
    }
    if (failures.length > 0) throw failures[0];
  }
}
