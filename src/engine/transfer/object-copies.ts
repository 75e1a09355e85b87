/**
 * The copies of one STORE or RETRIEVE: one per object group of the worker.
 *
 *   kernel groups   0   1   2         block ids as the worker sent them
 *                   │   │   │
 *   object groups   └ 0 ┘   1         one object per chunk, one copy job, one list of places each
 *
 * A STORE leaves chunks out of a group when the group has no bytes of them (null blocks). A
 * RETRIEVE reads of each group only what its window needs: the last chunks of the range. With one
 * group and no null blocks this is one reservation of the whole key list, and one job.
 */
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import type { CopyJob, DeviceInstance } from '../../device/device.ts';
import type { Places } from '../../storage/l1-manager.ts';
import { firstNeededChunk } from '../../storage/window-fold.ts';
import type { CacheKey } from '../api.ts';
import type { KvCacheInstance } from '../instances.ts';
import { findNullChunks, skipBlocksPerObject } from './block-lists.ts';
import type { KernelGroup } from './kernel-groups.ts';
import type { KvObjectGroup } from './kv-layout.ts';
import type { TransferStorage } from './ports.ts';
import { objectKeysOf, type TransferRange } from './transfer-key.ts';

/** A checked request: nothing in it can be refused any more except by missing bytes. */
export interface Transfer {
  readonly instance: KvCacheInstance;
  readonly key: CacheKey;
  readonly range: TransferRange;
  readonly hashes: ChunkHashes;
  /** Per kernel group, after the window cut (block-lists.ts). */
  readonly blockIds: readonly Uint32Array[];
}

/** The part of a transfer that concerns one object group. Its places are pinned. */
export interface ObjectCopy extends Places {
  readonly job: CopyJob;
  readonly objectSizeBytes: number;
}

/** Places for what the worker has and nobody else has stored. */
export function reserveCopies(
  storage: TransferStorage,
  transfer: Transfer,
  nullBlocks: { readonly id: number; readonly lists: readonly (readonly number[])[] } | null,
): ObjectCopy[] {
  const { groups, objectGroups } = transfer.instance.layout;
  const { chunkCount } = transfer.range;
  const stores = objectGroups.map((group) => ({
    keys: objectKeysOf(storage, transfer, group.objectGroupId),
    shape: group,
    isLeftOut: nullBlocks && findNullChunks({ ...nullBlocks, groups, chunkCount, of: group }),
  }));
  const [only] = stores;
  const places =
    only && stores.length === 1 && !only.isLeftOut
      ? [storage.reserveStore(only.keys, only.shape)]
      : storage.reserveStoreGroups(stores);
  return objectGroups.map((group, index) => {
    const { slots, offsets } = places[index] as Places;
    const blockIds = blockIdsOf(transfer, group, 0);
    const planIndex = group.objectGroupId;
    const job: CopyJob = { direction: 'gather', planIndex, objectOffsets: offsets, blockIds };
    return { slots, offsets, job, objectSizeBytes: group.objectSizeBytes };
  });
}

/** Everything that the worker needs, or null when something of it is not there. */
export function acquireCopies(
  storage: TransferStorage,
  transfer: Transfer,
  skipFirstTokens: number,
): ObjectCopy[] | null {
  // The keys of all groups first: making them can fail, and then nothing must be pinned.
  const wanted = transfer.instance.layout.objectGroups
    .filter(({ isAuxiliary }) => !isAuxiliary)
    .map((group) => ({ group, keys: objectKeysOf(storage, transfer, group.objectGroupId) }));
  const copies: ObjectCopy[] = [];
  for (const { group, keys } of wanted) {
    const copy = acquireCopy(storage, transfer, { group, keys, skipFirstTokens });
    if (!copy) {
      for (const { slots } of copies) storage.releaseRead(slots);
      return null;
    }
    copies.push(copy);
  }
  return copies;
}

function acquireCopy(
  storage: TransferStorage,
  transfer: Transfer,
  of: {
    readonly group: KvObjectGroup;
    readonly keys: ObjectKeys;
    readonly skipFirstTokens: number;
  },
): ObjectCopy | null {
  const { group, keys, skipFirstTokens } = of;
  const { chunkCount } = transfer.range;
  const first = firstNeededChunk(chunkCount, group.windowChunks);
  const needed =
    first === 0
      ? keys
      : { ...keys, firstChunk: keys.firstChunk + first, chunkCount: chunkCount - first };
  const places = storage.acquireForRead(needed, group);
  if (!places) return null;
  const { slots, offsets } = places;
  const range = { skipFirstTokens, chunkCount };
  const job: CopyJob = {
    direction: 'scatter',
    planIndex: group.objectGroupId,
    objectOffsets: offsets,
    blockIds: blockIdsOf(transfer, group, first),
    ...(skipFirstTokens > 0 && {
      skipBlocks: skipBlocksPerObject(kernelGroupsOf(transfer, group), range).map((skips) =>
        skips.subarray(first),
      ),
    }),
  };
  return { slots, offsets, job, objectSizeBytes: group.objectSizeBytes };
}

function kernelGroupsOf({ instance }: Transfer, group: KvObjectGroup): KernelGroup[] {
  const { groups } = instance.layout;
  return group.kernelGroupIndices.map((index) => groups[index] as KernelGroup);
}

/** The lists of an object group's kernel groups, from a chunk of the range on. */
function blockIdsOf(transfer: Transfer, group: KvObjectGroup, firstChunk: number): Uint32Array[] {
  const { groups } = transfer.instance.layout;
  return group.kernelGroupIndices.map((index) => {
    const { blocksPerWindow } = groups[index] as KernelGroup;
    return (transfer.blockIds[index] as Uint32Array).subarray(firstChunk * blocksPerWindow);
  });
}

/** Starts the jobs that have something to copy. The promise settles when all of them have ended. */
export function submitCopies(
  handle: DeviceInstance,
  copies: readonly ObjectCopy[],
): Promise<void> | undefined {
  const running = copies.filter(hasObjects).map(({ job }) => handle.submit(job));
  return running.length > 1 ? settleAll(running) : running[0];
}

export function countCopiedBytes(copies: readonly ObjectCopy[]): number {
  return copies.reduce((sum, copy) => sum + countCopiedObjects([copy]) * copy.objectSizeBytes, 0);
}

export function countCopiedObjects(copies: readonly ObjectCopy[]): number {
  return copies.reduce(
    (sum, { offsets }) => offsets.reduce((n, offset) => (offset >= 0 ? n + 1 : n), sum),
    0,
  );
}

function hasObjects({ offsets }: ObjectCopy): boolean {
  return offsets.some((offset) => offset >= 0);
}

/** Memory may only go back when no job uses it, so the failure of one waits for the others. */
async function settleAll(running: readonly Promise<void>[]): Promise<void> {
  const outcomes = await Promise.allSettled(running);
  const failure = outcomes.find((outcome) => outcome.status === 'rejected');
  if (failure) throw failure.reason;
}

/** Makes what was copied readable. Returns how many objects had been taken away meanwhile. */
export function finishCopies(
  storage: Pick<TransferStorage, 'finishStore'>,
  copies: readonly ObjectCopy[],
): number {
  return copies.reduce((lostCount, { slots, offsets }) => {
    const reservedCount = offsets.reduce((n, offset) => (offset >= 0 ? n + 1 : n), 0);
    return lostCount + reservedCount - storage.finishStore(slots);
  }, 0);
}
