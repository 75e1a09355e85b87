/**
 * Passes a message through the router's loop at regular intervals and remembers when that last
 * worked: what liveness asks (spec http 10.1). Between two rounds nothing runs.
 */
import type { Clock, Timer } from '../clock.ts';
import type { Router } from './router.ts';

const ROUND_INTERVAL_MS = 5_000;
const ANSWER_WITHIN_MS = 5_000;
/** Longer silence means a dead loop: several rounds in a row found no answer. */
const STALE_AFTER_MS = 30_000;

export class LoopWatch {
  readonly #router: Pick<Router, 'selfPing'>;
  readonly #clock: Clock;
  readonly #timer: Timer;
  #lastAnswerMs: number;

  constructor(router: Pick<Router, 'selfPing'>, clock: Clock) {
    this.#router = router;
    this.#clock = clock;
    this.#lastAnswerMs = clock.nowMs();
    this.#timer = clock.every(ROUND_INTERVAL_MS, () => void this.#round());
  }

  /** Null while the loop answers. */
  get problem(): string | null {
    const silentMs = this.#clock.nowMs() - this.#lastAnswerMs;
    if (silentMs < STALE_AFTER_MS) return null;
    return `the ZMQ message loop has not answered for ${Math.round(silentMs / 1000)} s`;
  }

  close(): void {
    this.#timer.cancel();
  }

  async #round(): Promise<void> {
    try {
      await this.#router.selfPing(ANSWER_WITHIN_MS);
      this.#lastAnswerMs = this.#clock.nowMs();
    } catch {
      // No answer is what `problem` reports; the next round tries again.
    }
  }
}
