/**
 * How many threads Node reads and writes files with, names hosts and compresses.
 *
 * libuv's default of 4 would bound the file adapters whatever their `num_workers` says. It takes
 * `UV_THREADPOOL_SIZE` when it starts the threads, which is at the first such call: later changes
 * have no effect, and adapters that are added at runtime share what is there.
 */

/** For everything that is not an adapter, and for adapters that come later. */
const THREAD_COUNT_MIN = 16;
const OTHER_THREAD_COUNT = 4;
/** Of an adapter, beside its workers: a look-up does not wait for the bytes of others. */
const LOOKUP_THREAD_COUNT = 4;
/** Of an adapter that does not say. */
const WORKER_COUNT = 4;
/** Of libuv. */
const THREAD_COUNT_MAX = 1024;

/** Before anything asynchronous. What the operator has set stays. */
export function sizeThreadPool(
  adapters: readonly unknown[],
  environment: Record<string, string | undefined> = process.env,
): void {
  if ((environment['UV_THREADPOOL_SIZE'] ?? '') !== '') return;
  const workerCount = adapters.reduce<number>((sum, json) => sum + workerCountOf(json), 0);
  const threadCount = Math.max(THREAD_COUNT_MIN, OTHER_THREAD_COUNT + workerCount);
  environment['UV_THREADPOOL_SIZE'] = `${Math.min(threadCount, THREAD_COUNT_MAX)}`;
}

/** Of a JSON that nobody has checked yet: its problems are told elsewhere. */
function workerCountOf(json: unknown): number {
  const { inner, ...keys } = (json ?? {}) as Record<string, unknown>;
  const counts = Object.entries(keys)
    .filter(([name]) => /^num_([a-z]+_)?workers$/.test(name))
    .map(([, value]) => (Number.isSafeInteger(value) ? Math.max(0, value as number) : 0));
  const ownCount = counts.length > 0 ? counts.reduce((sum, count) => sum + count) : WORKER_COUNT;
  return ownCount + LOOKUP_THREAD_COUNT + (inner === undefined ? 0 : workerCountOf(inner));
}
