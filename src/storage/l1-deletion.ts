/**
 * Deletes objects of L1 by the names that other stores and tools know them under.
 *
 * A name that L1 has no namespace for is absent, and makes no namespace. World and rank are read
 * out of the rank field; it is ambiguous for worlds of more than 255 ranks (engine 2.3), whose
 * objects are found all the same when the fields happen not to overlap.
 */
import type { Clock } from '../clock.ts';
import { kvRank, type NamespaceTable, NO_NAMESPACE } from '../core/namespaces.ts';
import type { ObjectTable } from '../core/object-table.ts';
import { RESULT } from '../core/result.ts';
import type { ObjectKey } from '../l2/object-key.ts';
import type { L1Reports } from './l1-reports.ts';

export interface L1DeletionOptions {
  readonly table: ObjectTable;
  readonly namespaces: NamespaceTable;
  /** Hashes of another length are of nobody here. */
  readonly hashSizeBytes: number;
  readonly clock: Clock;
  readonly reports: Pick<L1Reports, 'removed'>;
}

export interface L1DeletionResult {
  readonly deletedCount: number;
  /** Somebody uses them. */
  readonly lockedCount: number;
}

const WORLD_SIZE_UNIT = 2 ** 24;
const WORKER_ID_MASK = 0xff;

export class L1Deletion {
  readonly #options: L1DeletionOptions;

  constructor(options: L1DeletionOptions) {
    this.#options = options;
  }

  /** `isForced`: also what is in use; its memory is freed when the last user lets go. */
  delete(keys: readonly ObjectKey[], isForced: boolean): L1DeletionResult {
    const { table, clock, reports } = this.#options;
    let [deletedCount, lockedCount] = [0, 0];
    for (const key of keys) {
      const found = this.#find(key);
      if (!found) continue;
      const [code] = table.deleteObjects(found, isForced, clock.nowMs());
      if (code === RESULT.SUCCESS) deletedCount += 1;
      else if (code === RESULT.KEY_IS_LOCKED) lockedCount += 1;
    }
    reports.removed('delete');
    return { deletedCount, lockedCount };
  }

  #find({ chunkHash, modelName, kvRank: rank, objectGroupId, cacheSalt }: ObjectKey) {
    const { namespaces, hashSizeBytes } = this.#options;
    if (chunkHash.length !== hashSizeBytes) return null;
    const worldSize = Math.floor(rank / WORLD_SIZE_UNIT);
    const workerId = rank % (WORKER_ID_MASK + 1);
    if (worldSize < 1 || kvRank(worldSize, workerId) !== rank) return null;
    const name = { modelName, worldSize, workerId, objectGroupId, cacheSalt };
    const namespaceId = namespaces.find(name);
    if (namespaceId === NO_NAMESPACE) return null;
    const hashes = { bytes: chunkHash, count: 1, hashSizeBytes };
    return { hashes, firstChunk: 0, chunkCount: 1, namespaceIds: [namespaceId] };
  }
}
