/**
 * Notices that the process stood still (SIGSTOP, a frozen container, a host without memory), and
 * until when what arrives afterwards may have been sent before.
 *
 * A vLLM worker whose PING gets no answer within a heartbeat gives up the transfers that it waits
 * for and hands their blocks to other requests. The transfers themselves still wait, in a lane or
 * unread in the sockets: carried out on waking, a RETRIEVE would overwrite, and a STORE would
 * publish, what now belongs to somebody else. They are overdue (`Attempt.isOverdue`). Clients that
 * do not watch the server wait for minutes, but not for ever (`Attempt.isExpired`).
 *
 *             no sign of life for STALL_MS
 *   in time ────────────────────────────────▶ catching up: what arrives is overdue
 *      ▲                                           │ SETTLE_MS after waking, the door is dry
 *      └───────────────────────────────────────────┘ (or CATCH_UP_MS_MAX)
 *
 * Signs of life are a tick every second and every look at the clock, so an idle server is not taken
 * for one that stands still. Everybody who asks looks: after waking, a message, the end of a copy
 * or the tick may come first. The door has to be dry *and* some time must have passed, because
 * ZMQ's own thread slept, too, and brings what the kernel holds bit by bit.
 *
 * The clock is the monotonic one. Workers whose memory is reached share the host and so the clock:
 * a machine that is suspended as a whole lets no heartbeat run out.
 *
 * Out of reach: copies that were with the device already when the process was stopped (running, or
 * queued there for milliseconds) go on when it wakes, before anything here can run.
 */
import type { Clock, Timer } from '../clock.ts';
import type { Logger } from '../observability/log.ts';

/**
 * Half a heartbeat of vLLM, whose interval (10 s by default) is its time-out as well. Workers with
 * a heartbeat shorter than this may give up unnoticed.
 */
export const STALL_MS = 5_000;
const TICK_MS = 1_000;
/** Emptying the kernel's buffers takes milliseconds. */
const SETTLE_MS = 1_000;
/** A door that is not dry by then is busy with new messages: the queues of old ones are bounded. */
const CATCH_UP_MS_MAX = 30_000;

export interface StallWatchOptions {
  readonly clock: Clock;
  readonly log: Logger;
  /** True when the door waits for messages. */
  readonly isIntakeDry: () => boolean;
}

export class StallWatch {
  readonly #options: StallWatchOptions;
  readonly #timer: Timer;
  #lastSignMs: number;
  /** Null when in time. */
  #wokeMs: number | null = null;
  #stallCount = 0;
  /** Of all stalls together. */
  #stalledMs = 0;
  /** The same without those after which what arrives is overdue. */
  #settledMs = 0;

  constructor(options: StallWatchOptions) {
    this.#options = options;
    this.#lastSignMs = options.clock.preciseMs();
    this.#timer = options.clock.every(TICK_MS, () => this.#tick());
  }

  /** How often the process stood still. */
  get stallCount(): number {
    return this.#stallCount;
  }

  /** How long what arrives now may have lain unread, as of the last look. */
  get unreadMs(): number {
    return this.#stalledMs - this.#settledMs;
  }

  /** What a request keeps from its arrival until it asks how late it is. */
  mark(): number {
    this.#look();
    return this.#settledMs;
  }

  /** How long the process may have stood still since what got this mark was sent; 0: not at all. */
  stalledMs(mark: number): number {
    this.#look();
    return this.#stalledMs - mark;
  }

  close(): void {
    this.#timer.cancel();
  }

  /** Returns the time. */
  #look(): number {
    const { clock, log } = this.#options;
    const nowMs = clock.preciseMs();
    const gapMs = nowMs - this.#lastSignMs;
    this.#lastSignMs = nowMs;
    if (gapMs >= STALL_MS) {
      this.#wokeMs = nowMs;
      this.#stallCount += 1;
      this.#stalledMs += gapMs;
      log.warn(
        `The process stood still for ${(gapMs / 1000).toFixed(1)} s: transfers that vLLM workers ` +
          'sent meanwhile are refused, because they may have given them up. Look for a stopped ' +
          'container, or a host without free memory or processor time',
      );
    }
    return nowMs;
  }

  #tick(): void {
    const nowMs = this.#look();
    if (this.#wokeMs === null) return;
    const awakeMs = nowMs - this.#wokeMs;
    const hasSettled = awakeMs >= SETTLE_MS && this.#options.isIntakeDry();
    if (!hasSettled && awakeMs < CATCH_UP_MS_MAX) return;
    this.#wokeMs = null;
    this.#settledMs = this.#stalledMs;
  }
}
