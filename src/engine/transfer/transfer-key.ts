/**
 * From the key of a transfer to the objects it means (spec engine 1.3, 2.2): checks the range, the
 * rank and the model name, and names the objects.
 */
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import { KvdError } from '../../errors.ts';
import type { CacheKey } from '../api.ts';
import type { TransferStorage } from './ports.ts';

export interface TransferRange {
  readonly workerId: number;
  readonly firstChunk: number;
  readonly chunkCount: number;
}

/** Throws `ERR_BAD_REQUEST` naming what is wrong with the key. */
export function checkTransferKey(key: CacheKey, chunkSizeTokens: number): TransferRange {
  const { startToken, endToken, workerId, worldSize } = key;
  if (workerId === null) throw new KvdError('ERR_BAD_REQUEST', 'expected a worker_id, got nil');
  if (!(workerId >= 0 && workerId < worldSize)) {
    throw new KvdError(
      'ERR_BAD_REQUEST',
      `expected a worker_id below the world_size ${worldSize}, got ${workerId}`,
    );
  }
  if (key.modelName.includes('@')) {
    throw new KvdError('ERR_BAD_REQUEST', 'expected a model_name without "@"');
  }
  const isOrdered = startToken >= 0 && startToken <= endToken && endToken <= key.tokens.count;
  if (!isOrdered || startToken % chunkSizeTokens !== 0 || endToken % chunkSizeTokens !== 0) {
    throw new KvdError(
      'ERR_BAD_REQUEST',
      `expected a range within ${key.tokens.count} tokens at multiples of the chunk size ` +
        `${chunkSizeTokens}, got [${startToken}, ${endToken})`,
    );
  }
  return {
    workerId,
    firstChunk: startToken / chunkSizeTokens,
    chunkCount: (endToken - startToken) / chunkSizeTokens,
  };
}

export function objectKeysOf(
  storage: Pick<TransferStorage, 'internNamespace'>,
  of: { readonly key: CacheKey; readonly range: TransferRange; readonly hashes: ChunkHashes },
): ObjectKeys {
  const { modelName, worldSize, cacheSalt } = of.key;
  const { workerId, firstChunk, chunkCount } = of.range;
  const objectGroupId = 0;
  const namespace = { modelName, worldSize, workerId, objectGroupId, cacheSalt };
  const namespaceIds = [storage.internNamespace(namespace)];
  return { hashes: of.hashes, firstChunk, chunkCount, namespaceIds };
}
