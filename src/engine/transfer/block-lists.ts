/**
 * Block ids of a STORE or RETRIEVE: checked, cut to the window, and laid out for the device.
 *
 * The lists come from a client and decide which bytes of the engine are read or overwritten, so
 * every id is checked before anything moves (spec engine 9.4). Surplus ids behind the range are
 * legal: TensorRT-LLM sends the block list of the whole request.
 */
import { KvdError } from '../../errors.ts';
import { blocksOf, type KernelGroup } from './kernel-groups.ts';

/** Bound of one request over all groups, as the reference's block id buffer. */
export const BLOCK_IDS_PER_REQUEST_MAX = 1_048_576;

export type BlockGeometry = Pick<KernelGroup, 'blockCount' | 'blocksPerChunk' | 'blocksPerWindow'>;

/**
 * For each group the ids that objects hold: of the `blocksPerChunk` ids of each chunk the last
 * `blocksPerWindow`. Throws `ERR_BAD_REQUEST` naming the list and the position.
 */
export function cutBlockIds(
  lists: readonly (readonly number[])[],
  groups: readonly BlockGeometry[],
  chunkCount: number,
): Uint32Array[] {
  if (lists.length !== groups.length) {
    throw new KvdError(
      'ERR_BAD_REQUEST',
      `expected block id lists for ${groups.length} kernel groups, got ${lists.length}`,
    );
  }
  const usedCount = groups.reduce((sum, group) => sum + chunkCount * group.blocksPerChunk, 0);
  if (usedCount > BLOCK_IDS_PER_REQUEST_MAX) {
    throw new KvdError(
      'ERR_BAD_REQUEST',
      `${usedCount} block ids in one request, the bound is ${BLOCK_IDS_PER_REQUEST_MAX}`,
    );
  }
  return groups.map((group, index) =>
    cutList(lists[index] as readonly number[], { group, index, chunkCount }),
  );
}

function cutList(
  ids: readonly number[],
  of: { group: BlockGeometry; index: number; chunkCount: number },
): Uint32Array {
  const { blockCount, blocksPerChunk, blocksPerWindow } = of.group;
  const neededCount = of.chunkCount * blocksPerChunk;
  if (ids.length < neededCount) {
    throw new KvdError(
      'ERR_BAD_REQUEST',
      `kernel group ${of.index}: expected at least ${neededCount} block ids ` +
        `(${of.chunkCount} chunks of ${blocksPerChunk} blocks), got ${ids.length}`,
    );
  }
  const kept = new Uint32Array(of.chunkCount * blocksPerWindow);
  let keptCount = 0;
  for (let position = 0; position < neededCount; position += 1) {
    const id = ids[position] as number;
    // A Uint32Array holds the id unchanged only when it is an integer that may be one at all.
    if (!(id >= 0 && id < blockCount && Number.isInteger(id))) {
      throw new KvdError(
        'ERR_BAD_REQUEST',
        `kernel group ${of.index}: block id ${id} at position ${position} is outside the ` +
          `engine's ${blockCount} blocks`,
      );
    }
    if (position % blocksPerChunk >= blocksPerChunk - blocksPerWindow) {
      kept[keptCount] = id;
      keptCount += 1;
    }
  }
  return kept;
}

/**
 * Marks the chunks of which an object group has no bytes: all their block ids, in all its kernel
 * groups, are the null block. Null when there are none. `lists` have passed `cutBlockIds`.
 */
export function findNullChunks(options: {
  readonly id: number;
  readonly lists: readonly (readonly number[])[];
  readonly groups: readonly BlockGeometry[];
  readonly of: { readonly kernelGroupIndices: readonly number[] };
  readonly chunkCount: number;
}): Uint8Array | null {
  const { id, lists, groups, of, chunkCount } = options;
  let marks: Uint8Array | null = null;
  for (let chunk = 0; chunk < chunkCount; chunk += 1) {
    const isNull = of.kernelGroupIndices.every((index) => {
      const { blocksPerChunk } = groups[index] as BlockGeometry;
      const list = lists[index] as readonly number[];
      const end = (chunk + 1) * blocksPerChunk;
      for (let i = end - blocksPerChunk; i < end; i += 1) if (list[i] !== id) return false;
      return true;
    });
    if (!isNull) continue;
    marks ??= new Uint8Array(chunkCount);
    marks[chunk] = 1;
  }
  return marks;
}

/** Kept blocks among the first `blockCount` blocks of a range (`blocks_to_skip` of the vectors). */
export function countSkippedBlocks(
  group: Pick<BlockGeometry, 'blocksPerChunk' | 'blocksPerWindow'>,
  blockCount: number,
): number {
  const { blocksPerChunk, blocksPerWindow } = group;
  const outside = blocksPerChunk - blocksPerWindow;
  const inLastChunk = Math.max(0, (blockCount % blocksPerChunk) - outside);
  return Math.floor(blockCount / blocksPerChunk) * blocksPerWindow + inLastChunk;
}

/**
 * Leading blocks of each object that a RETRIEVE must leave alone, per group. Tokens inside a block
 * are floored: a few tokens more are written, never fewer (spec engine 5.7, step 8).
 */
export function skipBlocksPerObject(
  groups: readonly KernelGroup[],
  range: { readonly skipFirstTokens: number; readonly chunkCount: number },
): Uint32Array[] {
  return groups.map((group) => {
    const skipped = countSkippedBlocks(group, blocksOf(group, Math.max(0, range.skipFirstTokens)));
    return Uint32Array.from({ length: range.chunkCount }, (_, object) =>
      Math.min(group.blocksPerWindow, Math.max(0, skipped - object * group.blocksPerWindow)),
    );
  });
}
