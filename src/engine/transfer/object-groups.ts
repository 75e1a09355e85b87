/**
 * Which kernel groups of a worker share an object (spec engine 2.4).
 *
 * By default all of them: one object per chunk and rank. Separated, they are sorted by what a
 * prefix needs of them, so that a group which only looks back a little does not keep, load or miss
 * chunks that it never reads:
 *
 *   kernel groups                       object groups
 *   0  full attention        ─────────▶ 0  window: none
 *   1  sliding, 3 chunks     ───┬─────▶ 1  window: 3 chunks
 *   2  recurrent, 1 chunk    ───│─┬───▶ 2  window: 1 chunk, recurrent state
 *   3  sliding, 3 chunks     ───┘ │
 *   4  private, tag 1        ─────│───▶ 3  auxiliary: after all others, so that their ids do not
 *   5  recurrent, 1 chunk    ─────┘        depend on what a connector adds
 */
import { NO_WINDOW } from '../../storage/window-fold.ts';
import type { EngineGroupInfo } from '../api.ts';

export interface ObjectGroupMembers {
  /** Ascending; at least one. Their slabs lie in the object in this order. */
  readonly kernelGroupIndices: readonly number[];
  readonly windowChunks: number;
  readonly isAuxiliary: boolean;
}

/** Each snapshot of recurrent state stands for all tokens before it. */
const RECURRENT_CHUNKS = 1;

/** `infos` describe the kernel groups in their order, or are empty: nothing is known of them. */
export function sortIntoObjectGroups(options: {
  readonly kernelGroupCount: number;
  readonly infos: readonly EngineGroupInfo[];
  readonly chunkSizeTokens: number;
  readonly isSeparate: boolean;
}): ObjectGroupMembers[] {
  const { kernelGroupCount, infos, chunkSizeTokens, isSeparate } = options;
  const all = Array.from({ length: kernelGroupCount }, (_, index) => index);
  if (!isSeparate || infos.length === 0) {
    return [{ kernelGroupIndices: all, windowChunks: NO_WINDOW, isAuxiliary: false }];
  }
  const buckets = new Map<string, ObjectGroupMembers & { kernelGroupIndices: number[] }>();
  for (const index of all) {
    const info = infos[index] as EngineGroupInfo;
    const { slidingWindowTokens, extraObjectGroupTag: tag, isRecurrentState } = info;
    const windowChunks = isRecurrentState
      ? RECURRENT_CHUNKS
      : Math.max(NO_WINDOW, Math.ceil(slidingWindowTokens / chunkSizeTokens));
    const name = `${tag}/${isRecurrentState}/${windowChunks}`;
    const bucket = buckets.get(name);
    if (bucket) bucket.kernelGroupIndices.push(index);
    else buckets.set(name, { kernelGroupIndices: [index], windowChunks, isAuxiliary: tag > 0 });
  }
  const groups = [...buckets.values()];
  return [
    ...groups.filter(({ isAuxiliary }) => !isAuxiliary),
    ...groups.filter(({ isAuxiliary }) => isAuxiliary),
  ];
}
