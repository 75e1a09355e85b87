/**
 * A call of a backend that ends for its caller by a deadline, and for its buffers when it ends.
 *
 *   begin ───────────────▶ work ends ───────────────▶ outcome and released
 *     └──▶ deadline: the signal is over, outcome = what is known, the rest failed
 *                                    work ends ─────▶ released
 *
 * A store that is silent costs its callers the deadline; the buffers stay with it until it lets go,
 * because nobody can take away memory that somebody may still write to.
 */
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';

export interface L2Task<T> {
  /** Settles by the deadline and never rejects. */
  readonly outcome: Promise<T>;
  /** Nothing touches the buffers any more. Never rejects. */
  readonly released: Promise<void>;
}

export interface TaskOptions {
  readonly clock: Clock;
  readonly timeoutMs: number;
  /** Names the task in the error of what has not ended: `store to adapter 0 (fs)`. */
  readonly what: string;
  readonly count: number;
  /** Ends the task early; its reason becomes the error. */
  readonly closing: AbortSignal;
}

/**
 * Fills `results` in any order while it runs. What it leaves open when it ends, or at the deadline,
 * failed. It ends when nothing touches the buffers any more.
 */
export type TaskWork<T> = (
  results: (T | Error | undefined)[],
  signal: AbortSignal,
) => Promise<void>;

export function runTask<T>(options: TaskOptions, work: TaskWork<T>): L2Task<(T | Error)[]> {
  const { clock, timeoutMs, what, count, closing } = options;
  const results: (T | Error | undefined)[] = new Array(count).fill(undefined);
  const abort = new AbortController();
  const { promise: outcome, resolve } = Promise.withResolvers<(T | Error)[]>();
  // Null is a result, undefined is none.
  const finish = (error: Error): void =>
    resolve(results.map((result) => (result === undefined ? error : result)));
  const stop = (error: Error): void => {
    finish(error);
    abort.abort(error);
  };
  const onClosing = (): void => stop(closing.reason as Error);
  const timer = clock.after(timeoutMs, () =>
    stop(new KvdError('ERR_L2_TIMEOUT', `${what}: no answer within ${timeoutMs / 1000} s`)),
  );
  closing.addEventListener('abort', onClosing, { once: true });
  const released = work(results, abort.signal).then(
    () => finish(new KvdError('ERR_L2_STORE', `${what}: no answer for this object`)),
    (error) => finish(error instanceof Error ? error : new Error(String(error))),
  );
  return {
    outcome,
    released: released.finally(() => {
      timer.cancel();
      closing.removeEventListener('abort', onClosing);
    }),
  };
}

/** The promise, or undefined when the signal is over first. */
export function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T | undefined> {
  if (signal.aborted) return Promise.resolve(undefined);
  const { promise: aborted, resolve } = Promise.withResolvers<undefined>();
  const onAbort = (): void => resolve(undefined);
  signal.addEventListener('abort', onAbort, { once: true });
  return Promise.race([promise, aborted]).finally(() =>
    signal.removeEventListener('abort', onAbort),
  );
}
