/**
 * Tells the bus which chunks L1 has gained, with the tokens that they were computed from.
 *
 *   STORE, COMMIT ─▶ objects readable ─▶ announce ─▶ chunks that became whole ─▶ l1.chunks.stored
 *
 * What a chunk is for those who follow: all objects that a LOOKUP asks for before it counts the
 * chunk, that is every rank of the world size that has registered the model, and every object
 * group without a window. Groups with a window have no objects for the early chunks of a prompt
 * and are not asked for there, so they do not count; if all groups have one, all of them do. The
 * core remembers what has been announced (assembly/announcing.ts), so it does not matter which
 * rank comes last, or how often one comes.
 *
 * Every writer of this server knows the tokens of what it stores. When nobody listens all this
 * costs one look at the bus.
 */
import type { ChunkHasher, ChunkHashes } from '../../core/chunk-hasher.ts';
import { RESULT } from '../../core/result.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { StorageManager } from '../../storage/storage-manager.ts';
import { NO_WINDOW } from '../../storage/window-fold.ts';
import type { CacheKey } from '../api.ts';
import { findWholeColumns } from '../column-namespaces.ts';
import type { InstanceRegistry } from '../instances.ts';
import type { RegisteredLayout } from '../layout-registry.ts';

export interface ChunkAnnouncerOptions {
  readonly storage: Pick<StorageManager, 'announce' | 'findNamespace'>;
  readonly instances: Pick<InstanceRegistry, 'findLayout'>;
  readonly hasher: Pick<ChunkHasher, 'chunkSizeTokens' | 'tokenIds'>;
  readonly bus: EventBus;
}

/** A range of chunks of which some objects have just become readable. */
export interface StoredRange {
  readonly key: CacheKey;
  readonly hashes: ChunkHashes;
  readonly firstChunk: number;
  readonly chunkCount: number;
}

export class ChunkAnnouncer {
  readonly #options: ChunkAnnouncerOptions;

  constructor(options: ChunkAnnouncerOptions) {
    this.#options = options;
  }

  /** False: nobody listens. */
  get isFollowed(): boolean {
    return this.#options.bus.hasListeners('l1.chunks.stored');
  }

  /** To be called in the turn in which the objects became readable. */
  announce(range: StoredRange): void {
    const { storage, instances } = this.#options;
    const { key, hashes, firstChunk, chunkCount } = range;
    if (chunkCount === 0 || !this.isFollowed) return;
    const layout = instances.findLayout(key.modelName, key.worldSize);
    if (!layout) return;
    const namespaceIds = findWholeColumns(storage, { ...key, objectGroupIds: groupsOf(layout) });
    if (!namespaceIds) return;
    const codes = storage.announce({ hashes, firstChunk, chunkCount, namespaceIds });
    for (let first = codes.indexOf(RESULT.SUCCESS); first >= 0; ) {
      const next = codes.findIndex((code, i) => i > first && code !== RESULT.SUCCESS);
      const end = next < 0 ? chunkCount : next;
      this.#publish(range, firstChunk + first, end - first);
      first = codes.indexOf(RESULT.SUCCESS, end);
    }
  }

  /** What listeners keep must not keep the hashes of the whole prompt with it: copies. */
  #publish({ key, hashes }: StoredRange, firstChunk: number, chunkCount: number): void {
    const { bus, hasher } = this.#options;
    const { chunkSizeTokens } = hasher;
    const { modelName, worldSize, cacheSalt } = key;
    const { bytes, hashSizeBytes: size } = hashes;
    const own = bytes.slice(firstChunk * size, (firstChunk + chunkCount) * size);
    const parentHash =
      firstChunk > 0 ? bytes.slice((firstChunk - 1) * size, firstChunk * size) : null;
    const firstToken = firstChunk * chunkSizeTokens;
    bus.publish('l1.chunks.stored', {
      modelName,
      worldSize,
      cacheSalt,
      hashes: Array.from({ length: chunkCount }, (_, i) => own.subarray(i * size, (i + 1) * size)),
      parentHash,
      tokenIds: hasher.tokenIds(key.tokens, firstToken, chunkCount * chunkSizeTokens),
    });
  }
}

function groupsOf({ objectGroupIds, groupRules }: RegisteredLayout): readonly number[] {
  const whole = objectGroupIds.filter((_, i) => groupRules[i]?.windowChunks === NO_WINDOW);
  return whole.length > 0 ? whole : objectGroupIds;
}
