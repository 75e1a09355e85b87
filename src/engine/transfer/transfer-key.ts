/**
 * From the key of a transfer to the objects it means (spec engine 1.3, 2.2): checks the range, the
 * rank and the model name, and names the objects.
 */
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import { KvdError } from '../../errors.ts';
import type { CacheKey, InstanceId } from '../api.ts';
import type { RequestContext } from '../client-traits.ts';
import { allRanks } from '../column-namespaces.ts';
import type { InstanceRegistry } from '../instances.ts';
import type { ObjectScope } from '../lookup-share.ts';
import type { TransferSessions, TransferStorage } from './ports.ts';

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

/** The objects of one object group of the rank; engines without groups have group 0 only. */
export function objectKeysOf(
  storage: Pick<TransferStorage, 'internNamespace'>,
  of: { readonly key: CacheKey; readonly range: TransferRange; readonly hashes: ChunkHashes },
  objectGroupId = 0,
): ObjectKeys {
  const { modelName, worldSize, cacheSalt } = of.key;
  const { workerId, firstChunk, chunkCount } = of.range;
  const namespace = { modelName, worldSize, workerId, objectGroupId, cacheSalt };
  const namespaceIds = [storage.internNamespace(namespace)];
  return { hashes: of.hashes, firstChunk, chunkCount, namespaceIds };
}

/** All objects of the key's chunks, of every rank, as a LOOKUP of it would name them. */
export function objectScopeOf(
  { modelName, worldSize, cacheSalt }: CacheKey,
  instances: Pick<InstanceRegistry, 'findLayout'>,
): ObjectScope {
  const layout = instances.findLayout(modelName, worldSize);
  const ranks = layout ? allRanks(worldSize) : [];
  const objectGroupIds = layout?.objectGroupIds ?? [];
  return { modelName, worldSize, cacheSalt, ranks, objectGroupIds };
}

/** A read failed before it took anything: what the request's LOOKUP holds for it goes back. */
export function giveUpRead(
  sessions: Pick<TransferSessions, 'giveUpRead'>,
  of: { readonly key: CacheKey; readonly instanceId: InstanceId; readonly chunkSizeTokens: number },
  { connectionId }: RequestContext,
): void {
  const { key, instanceId, chunkSizeTokens } = of;
  const { requestId, modelName, worldSize, workerId: rank } = key;
  if (rank === null) return;
  const startChunk = Math.ceil(Math.max(0, key.startToken) / chunkSizeTokens);
  const endChunk = Math.floor(key.endToken / chunkSizeTokens);
  const read = { instanceId, startChunk, endChunk, rank };
  sessions.giveUpRead(requestId, connectionId, { modelName, worldSize, read });
}
