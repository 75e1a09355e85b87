/**
 * The only place where kvd reads a clock or starts a timer.
 *
 * Everything that needs time takes a `Clock`, so that tests and the simulation can run hours of
 * leases, reaping and eviction in milliseconds (`test/support/virtual-clock.ts`).
 */
import { performance } from 'node:perf_hooks';

export interface Timer {
  /** Stops the timer; calling it again does nothing. */
  cancel(): void;
}

export interface Clock {
  /** Monotonic milliseconds, truncated to a whole number, as the lock table expects them. */
  nowMs(): number;
  /** Monotonic microseconds as a fraction of milliseconds, for durations in logs and metrics. */
  preciseMs(): number;
  /** Wall clock, milliseconds since 1970. Only for people and file names, never for leases. */
  wallMs(): number;
  /** Calls `run` once after `delayMs`. The timer does not keep the process alive. */
  after(delayMs: number, run: () => void): Timer;
  /** Calls `run` every `intervalMs`. The timer does not keep the process alive. */
  every(intervalMs: number, run: () => void): Timer;
}

export const systemClock: Clock = {
  nowMs: () => Math.trunc(performance.now()),
  preciseMs: () => performance.now(),
  wallMs: () => Date.now(),
  after(delayMs, run) {
    const handle = setTimeout(run, delayMs);
    handle.unref();
    return { cancel: () => clearTimeout(handle) };
  },
  every(intervalMs, run) {
    const handle = setInterval(run, intervalMs);
    handle.unref();
    return { cancel: () => clearInterval(handle) };
  },
};
