/** Long work of the event loop, in slices between which it serves others. */

/**
 * Runs `work` for consecutive parts of `count` items, `sliceCount` at a time, and rests after each.
 * Stops early and returns false when the signal is over.
 */
export async function inSlices(
  { count, sliceCount, signal }: { count: number; sliceCount: number; signal?: AbortSignal },
  work: (from: number, to: number) => void,
): Promise<boolean> {
  for (let from = 0; from < count; from += sliceCount) {
    if (from > 0) await new Promise(setImmediate);
    if (signal?.aborted) return false;
    work(from, Math.min(count, from + sliceCount));
  }
  return true;
}
