/**
 * How the KV cache of a benchmark worker is cut up. Words as in the rest of the house: a layer has
 * one *plane* for its keys and one for its values (a single one for MLA), and a plane has one
 * *piece* of bytes per block.
 *
 *   plane of heads × slots × head size, as a CPU client of 0.5.0 lays it out ("HND"):
 *
 *     block 0           block 1           …      block NB−1
 *     ├ pieceBytes ─────┼─────────────────┼──────────────────┤
 *
 * One request uses `blockCount` blocks to store from and as many others to load into.
 */
import type { RequestOf } from '../../engine/api.ts';
import { KvdError } from '../../errors.ts';

/** Consecutive layers of one shape. */
export interface LayerGroup {
  /** 2 = keys and values, 1 = MLA. */
  readonly kvSize: 1 | 2;
  readonly headCount: number;
  readonly headSize: number;
  readonly dtype: RequestOf<'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT'>['dtype'];
  readonly itemSizeBytes: number;
  readonly layerCount: number;
}

export interface CacheGeometry {
  /** Null = as many as one request needs. */
  readonly blockCount: number | null;
  readonly slotsPerBlock: number;
  readonly groups: readonly LayerGroup[];
}

export interface Plane {
  readonly layerIndex: number;
  /** 0 = keys, 1 = values. */
  readonly kvIndex: number;
  readonly pieceBytes: number;
}

export interface CacheShape {
  readonly geometry: CacheGeometry;
  readonly chunkSizeTokens: number;
  /** Of one request, whole chunks. */
  readonly chunkCount: number;
  readonly tokenCount: number;
  readonly blocksPerChunk: number;
  /** Blocks of one request. */
  readonly blockCount: number;
  /** Blocks of the whole cache. */
  readonly cacheBlockCount: number;
  /** Layer after layer, keys before values. */
  readonly planes: readonly Plane[];
  readonly requestBytes: number;
  /** Kernel groups as the server will see them: layers that differ in shape or type. */
  readonly kernelGroupCount: number;
}

export function pieceBytesOf(group: LayerGroup, slotsPerBlock: number): number {
  return group.headCount * group.headSize * group.itemSizeBytes * slotsPerBlock;
}

/** Fits a geometry to the chunks of the server. Throws `ERR_BAD_REQUEST` when it cannot. */
export function fitCacheShape(
  geometry: CacheGeometry,
  options: { readonly chunkSizeTokens: number; readonly tokenCountMax: number },
): CacheShape {
  const { slotsPerBlock, groups } = geometry;
  const { chunkSizeTokens, tokenCountMax } = options;
  const chunkCount = Math.floor(tokenCountMax / chunkSizeTokens);
  if (chunkCount === 0) {
    refuse(`expected at least one chunk of ${chunkSizeTokens} tokens, got ${tokenCountMax} tokens`);
  }
  if (chunkSizeTokens % slotsPerBlock !== 0) {
    refuse(`blocks of ${slotsPerBlock} tokens do not divide chunks of ${chunkSizeTokens}`);
  }
  const blocksPerChunk = chunkSizeTokens / slotsPerBlock;
  const blockCount = chunkCount * blocksPerChunk;
  const cacheBlockCount = geometry.blockCount ?? 2 * blockCount;
  if (cacheBlockCount < 2 * blockCount) {
    refuse(
      `one request stores ${blockCount} blocks and loads them into as many others: ` +
        `expected a cache of at least ${2 * blockCount} blocks, got ${cacheBlockCount}`,
    );
  }
  const planes = groups.flatMap((group, g) => {
    const before = groups.slice(0, g).reduce((sum, { layerCount }) => sum + layerCount, 0);
    return Array.from({ length: group.layerCount * group.kvSize }, (_, i) => ({
      layerIndex: before + Math.floor(i / group.kvSize),
      kvIndex: i % group.kvSize,
      pieceBytes: pieceBytesOf(group, slotsPerBlock),
    }));
  });
  const identities = groups.map(({ kvSize, headCount, headSize, dtype }) =>
    (kvSize === 1 ? [1, 1, headCount * headSize, dtype] : [2, headCount, headSize, dtype]).join(),
  );
  return {
    geometry,
    chunkSizeTokens,
    chunkCount,
    tokenCount: chunkCount * chunkSizeTokens,
    blocksPerChunk,
    blockCount,
    cacheBlockCount,
    planes,
    requestBytes: planes.reduce((sum, { pieceBytes }) => sum + pieceBytes * blockCount, 0),
    kernelGroupCount: new Set(identities).size,
  };
}

function refuse(message: string): never {
  throw new KvdError('ERR_BAD_REQUEST', message);
}
