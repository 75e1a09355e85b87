/** Waiting for what another process does: always for a condition, always with a deadline. */
import { setTimeout as pause } from 'node:timers/promises';
import * as assert from 'uvu/assert';

const POLL_MS = 10;

/** Polls until `condition` holds. Returns how long that took. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  deadlineMs: number,
  expectation = 'the condition',
): Promise<number> {
  const startMs = performance.now();
  while (!(await condition())) {
    const waitedMs = performance.now() - startMs;
    assert.ok(waitedMs < deadlineMs, `${expectation}: not within ${deadlineMs} ms`);
    await pause(POLL_MS);
  }
  return performance.now() - startMs;
}

/** Rejects when `promise` takes longer. */
export async function deadline<T>(
  promise: Promise<T>,
  deadlineMs: number,
  complaint: string,
): Promise<T> {
  const late = new AbortController();
  const timer = pause(deadlineMs, undefined, { signal: late.signal }).then(
    () => assert.unreachable(`${complaint} within ${deadlineMs} ms`),
    () => undefined,
  );
  try {
    return (await Promise.race([promise, timer])) as T;
  } finally {
    late.abort();
  }
}

/** How long something took, with its result. */
export async function timed<T>(run: () => Promise<T>): Promise<{ result: T; ms: number }> {
  const startMs = performance.now();
  const result = await run();
  return { result, ms: performance.now() - startMs };
}

/** The value that `share` of all are not above; `share` 0.99 = p99. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] as number;
}

/** For leases and timeouts of another process, which no virtual clock can move. */
export async function passTime(ms: number): Promise<void> {
  await pause(ms);
}

/** Runs `count` pieces of work, at most `width` of them at a time. */
export async function inParallel(
  count: number,
  width: number,
  run: (index: number) => Promise<unknown>,
): Promise<void> {
  let next = 0;
  const work = async (): Promise<void> => {
    while (next < count) {
      const index = next;
      next += 1;
      await run(index);
    }
  };
  await Promise.all(Array.from({ length: Math.min(width, count) }, work));
}
