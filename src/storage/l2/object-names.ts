/** What the core knows as numbers, as the names under which other stores file it. */
import type { Namespace } from '../../core/namespaces.ts';
import type { ObjectKey } from '../../l2/object-key.ts';

export function objectKeyOf(
  { modelName, kvRank, objectGroupId, cacheSalt }: Omit<Namespace, 'id' | 'scope' | 'tenant'>,
  chunkHash: Uint8Array,
): ObjectKey {
  return { chunkHash, modelName, kvRank, objectGroupId, cacheSalt };
}
