/**
 * Which objects to load from where, so that the longest prefix becomes readable.
 *
 * Cells are (chunk, column), chunk-major, as in `ObjectKeys`. A cell is there when L1 has it or one
 * of the sources does; the prefix that can be served under the windows of the columns decides what
 * is needed of them, and each needed cell that L1 lacks goes to the first source that has it
 * (spec storage 9.1, 18.10).
 */
import { countServableChunks, firstNeededChunk } from '../window-fold.ts';

export interface PlanInput {
  /** 1 where L1 has the cell. */
  readonly isResident: Uint8Array;
  /** Of each source, in the order in which they are preferred: 1 where it has the cell. */
  readonly sources: readonly Uint8Array[];
  /** Per column; `NO_WINDOW` or less = all of a prefix. */
  readonly windows: readonly number[];
}

export const NOT_LOADED = -1;

export interface PrefetchPlan {
  readonly chunkCount: number;
  /** Per cell: the index of the source to load it from, or `NOT_LOADED`. */
  readonly sourceOf: Int16Array;
}

/** `chunkCountMax`: a longer prefix is not wanted. */
export function planPrefetch(input: PlanInput, chunkCountMax: number): PrefetchPlan {
  const { isResident, sources, windows } = input;
  const columnCount = windows.length;
  const cellCount = Math.min(isResident.length, chunkCountMax * columnCount);
  const isThere = isResident.slice(0, cellCount);
  for (const source of sources) {
    for (let i = 0; i < cellCount; i += 1) if (source[i]) isThere[i] = 1;
  }
  const chunkCount = countServableChunks(isThere, windows);
  const sourceOf = new Int16Array(isResident.length).fill(NOT_LOADED);
  for (const [column, window] of windows.entries()) {
    for (let chunk = firstNeededChunk(chunkCount, window); chunk < chunkCount; chunk += 1) {
      const cell = chunk * columnCount + column;
      if (isResident[cell]) continue;
      sourceOf[cell] = sources.findIndex((source) => source[cell]);
    }
  }
  return { chunkCount, sourceOf };
}
