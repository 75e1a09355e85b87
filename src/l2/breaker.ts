/**
 * Keeps work away from a store that fails all the time.
 *
 *            failures in a row                      back-off over
 *   closed ────────────────────▶ open ───────────────────────────────▶ half-open
 *     ▲                           ▲    5 s, doubled each time up to 60 s    │
 *     │                           └───────────── the probe fails ───────────┤
 *     └────────────────────────────────────── the probe succeeds ───────────┘
 *
 * While it is open nothing passes; half-open, one call does, the probe. Time comes from the clock;
 * `onHalfOpen` lets the owner send a probe of its own instead of waiting for somebody's call.
 */
import type { Clock, Timer } from '../clock.ts';

/** A store that fails at once is given up after 4 calls, one that is silent after 2. */
const FAILURE_WEIGHT_MAX = 4;
const BACKOFF_MIN_MS = 5_000;
const BACKOFF_MAX_MS = 60_000;

export type BreakerState = 'closed' | 'open' | 'half-open';

export class Breaker {
  readonly #clock: Clock;
  readonly #onHalfOpen: () => void;
  #state: BreakerState = 'closed';
  #weight = 0;
  #backoffMs = BACKOFF_MIN_MS;
  #isProbing = false;
  #timer: Timer | null = null;
  #lastFailure = '';
  /** How often it has opened. */
  openCount = 0;

  constructor(clock: Clock, onHalfOpen: () => void = () => {}) {
    this.#clock = clock;
    this.#onHalfOpen = onHalfOpen;
  }

  get state(): BreakerState {
    return this.#state;
  }

  /** Of the last failure; '' = there was none since the last success. */
  get lastFailure(): string {
    return this.#lastFailure;
  }

  /** May a call be made now? Who got true has to report how it ended. */
  mayPass(): boolean {
    if (this.#state === 'closed') return true;
    if (this.#state === 'open' || this.#isProbing) return false;
    this.#isProbing = true;
    return true;
  }

  succeeded(): void {
    this.#timer?.cancel();
    this.#state = 'closed';
    this.#weight = 0;
    this.#isProbing = false;
    this.#backoffMs = BACKOFF_MIN_MS;
    this.#lastFailure = '';
  }

  /** `isTimeout`: it counts twice, for it has cost somebody the whole deadline. */
  failed(reason: string, isTimeout: boolean): void {
    this.#lastFailure = reason;
    if (this.#state === 'open') return;
    this.#weight += isTimeout ? 2 : 1;
    if (this.#state === 'half-open') {
      this.#backoffMs = Math.min(2 * this.#backoffMs, BACKOFF_MAX_MS);
      this.#open();
    } else if (this.#weight >= FAILURE_WEIGHT_MAX) {
      this.#open();
    }
  }

  /** The call has said nothing about the store's health: the next one may probe. */
  passed(): void {
    this.#isProbing = false;
  }

  close(): void {
    this.#timer?.cancel();
  }

  #open(): void {
    this.#state = 'open';
    this.#isProbing = false;
    this.#weight = 0;
    this.openCount += 1;
    this.#timer = this.#clock.after(this.#backoffMs, () => {
      this.#state = 'half-open';
      this.#onHalfOpen();
    });
  }
}
