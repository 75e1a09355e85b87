/**
 * When those who have been silent for too long are looked for: four times in their time-out.
 *
 * A process that stood still has heard nobody, and what was sent meanwhile still lies unread when
 * its timers run. So silence counts again one round after it went on: not everybody who is dropped
 * comes back (SGLang workers do not).
 */
import type { Clock, Timer } from '../clock.ts';

export interface ReapRoundsOptions {
  readonly clock: Clock;
  /** 0 = never. */
  readonly timeoutMs: number;
  readonly reap: () => void;
}

export class ReapRounds {
  readonly #options: ReapRoundsOptions;
  readonly #intervalMs: number;
  readonly #timer: Timer | null;
  #lastRoundMs: number;
  #wokeMs = Number.NEGATIVE_INFINITY;

  constructor(options: ReapRoundsOptions) {
    const { clock, timeoutMs } = options;
    this.#options = options;
    this.#intervalMs = timeoutMs / 4;
    this.#lastRoundMs = clock.nowMs();
    this.#timer = timeoutMs > 0 ? clock.every(this.#intervalMs, () => this.#run()) : null;
  }

  close(): void {
    this.#timer?.cancel();
  }

  #run(): void {
    const { clock, reap } = this.#options;
    const nowMs = clock.nowMs();
    if (nowMs - this.#lastRoundMs > 2 * this.#intervalMs) this.#wokeMs = nowMs;
    this.#lastRoundMs = nowMs;
    if (nowMs - this.#wokeMs >= this.#intervalMs) reap();
  }
}
