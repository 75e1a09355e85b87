/**
 * How much of a prompt is cached when parts of a model see only a window of it.
 *
 * Each chunk has one object per column (an object group of a rank). A column with a window of w
 * chunks needs only the last w chunks of a prefix, one without a window needs all of them:
 *
 *   chunk            0 1 2 3 4
 *   whole prefix     x x x x .     ▶ the prefix of 4 chunks can be served, that of 5 cannot
 *   window of 2      . . x x x       kept: chunks 0 to 3 above, 2 and 3 below
 *
 * A prefix that can be served may follow one that cannot, but none follows the first gap of a
 * column without a window (spec engine 2.4; storage 2.8).
 */

/** The window of a column that needs the whole prefix; so does any window below 1. */
export const NO_WINDOW = 0;

/** `isPresent[chunk * windows.length + column]`. Answers the longest prefix, in chunks. */
export function countServableChunks(isPresent: Uint8Array, windows: readonly number[]): number {
  const columnCount = windows.length;
  const chunkCount = isPresent.length / columnCount;
  /** Chunks that are there without a gap up to the present one. */
  const runs = new Uint32Array(columnCount);
  let servableCount = 0;
  for (let chunk = 0; chunk < chunkCount; chunk += 1) {
    let isServable = true;
    for (let column = 0; column < columnCount; column += 1) {
      const run = isPresent[chunk * columnCount + column] ? (runs[column] as number) + 1 : 0;
      runs[column] = run;
      const window = windows[column] as number;
      const needed = window > NO_WINDOW ? Math.min(window, chunk + 1) : chunk + 1;
      if (run >= needed) continue;
      if (window <= NO_WINDOW) return servableCount;
      isServable = false;
    }
    if (isServable) servableCount = chunk + 1;
  }
  return servableCount;
}

/** Of a prefix of `chunkCount` chunks, the first one that a column needs. */
export function firstNeededChunk(chunkCount: number, window: number): number {
  return window > NO_WINDOW ? Math.max(0, chunkCount - window) : 0;
}
