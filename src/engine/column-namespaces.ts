/** The columns of a chunk: one namespace per rank and object group, group-minor. */
import { NO_NAMESPACE } from '../core/namespaces.ts';
import type { StorageManager } from '../storage/storage-manager.ts';

export interface ColumnsOf {
  readonly modelName: string;
  readonly worldSize: number;
  readonly cacheSalt: string;
  readonly ranks: readonly number[];
  readonly objectGroupIds: readonly number[];
}

export function allRanks(worldSize: number): number[] {
  return Array.from({ length: worldSize }, (_, rank) => rank);
}

/** Namespaces that nobody has stored to are found, too: nothing is in them. */
export function findColumnNamespaces(
  storage: Pick<StorageManager, 'findNamespace'>,
  { modelName, worldSize, cacheSalt, ranks, objectGroupIds }: ColumnsOf,
): number[] {
  const namespaceIds: number[] = [];
  for (const workerId of ranks) {
    for (const objectGroupId of objectGroupIds) {
      const namespace = { modelName, worldSize, workerId, objectGroupId, cacheSalt };
      namespaceIds.push(storage.findNamespace(namespace));
    }
  }
  return namespaceIds;
}

/** Those of all ranks, or null when nobody has stored to one of them. */
export function findWholeColumns(
  storage: Pick<StorageManager, 'findNamespace'>,
  of: Omit<ColumnsOf, 'ranks'>,
): number[] | null {
  const namespaceIds: number[] = [];
  for (let rank = 0; rank < of.worldSize; rank += 1) {
    const ofRank = findColumnNamespaces(storage, { ...of, ranks: [rank] });
    if (ofRank.includes(NO_NAMESPACE)) return null;
    namespaceIds.push(...ofRank);
  }
  return namespaceIds;
}
