/**
 * Keys of a trace as the storage room wants them: chunks by columns (a column is a rank's object
 * group), each block with one list of hashes.
 *
 *   chunk 0 rank 0, chunk 0 rank 1, chunk 1 rank 0, chunk 1 rank 1    one block of two columns
 *   chunk 0 rank 0, chunk 1 rank 0, chunk 0 rank 1, chunk 1 rank 1    two blocks of one column
 *
 * The keys of a block follow each other in the list, so what is answered for a block is answered
 * for them in order.
 */
import { kvRank as joinRank, type NamespaceKey } from '../core/namespaces.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../device/tensor-wrapper.ts';
import { describeLayout, layoutTagOf } from '../engine/layout-registry.ts';
import type { LayoutFields, ObjectKeyFields } from '../observability/trace-file/values.ts';
import type { ObjectShape } from '../storage/l1-manager.ts';
import { CallError } from './trace-replay-calls.ts';

export interface KeyBlock {
  /** Of its first key in the list. */
  readonly start: number;
  readonly columns: readonly NamespaceKey[];
  readonly chunkCount: number;
  readonly hashes: Uint8Array;
}

/** Throws `CallError` for keys that no server of ours could have. */
export function blocksOf(keys: readonly ObjectKeyFields[], hashSizeBytes: number): KeyBlock[] {
  const odd = keys.find(({ chunkHash }) => chunkHash.length !== hashSizeBytes);
  if (odd) {
    throw new CallError(
      `expected chunk hashes of ${hashSizeBytes} bytes, got ${odd.chunkHash.length}: give the ` +
        '--hash-algorithm of the recording',
    );
  }
  const width = widthOf(keys);
  if (keys.length === 0) return [];
  if (isGrid(keys, width)) return [blockOf(keys, 0, width)];
  const blocks: KeyBlock[] = [];
  for (let start = 0; start < keys.length; ) {
    let end = start + 1;
    while (end < keys.length && isSameColumn(keys[start]!, keys[end]!)) end += 1;
    blocks.push(blockOf(keys.slice(start, end), start, 1));
    start = end;
  }
  return blocks;
}

/** A name that only this object has. */
export function nameOf(key: ObjectKeyFields): string {
  return `${columnNameOf(key)} ${Buffer.from(key.chunkHash).toString('latin1')}`;
}

export function columnNameOf(key: Omit<ObjectKeyFields, 'chunkHash'>): string {
  const { kvRank, objectGroupId, modelName, cacheSalt } = key;
  return `${kvRank} ${objectGroupId} ${modelName.length} ${modelName}${cacheSalt}`;
}

/** As the engine describes such an object, so that stores to slower tiers have its names. */
export function shapeOf({ shapes, dtypes }: LayoutFields): ObjectShape {
  const names = dtypes.map((dtype) => dtype.replace(/^torch\./, ''));
  const odd = names.find((name) => !Object.hasOwn(DTYPE_SIZE_BYTES, name));
  if (odd !== undefined) throw new CallError(`unknown dtype ${JSON.stringify(odd)}`);
  if (names.length !== shapes.length) throw new CallError('expected one dtype for each shape');
  const known = names as readonly DtypeName[];
  const sizes = shapes.map((shape, i) =>
    shape.reduce((product, size) => product * size, DTYPE_SIZE_BYTES[known[i]!]),
  );
  const layoutText = describeLayout({ shapes, dtypes: known });
  return {
    objectSizeBytes: sizes.reduce((sum, size) => sum + size, 0),
    layoutText,
    layoutTag: layoutTagOf(layoutText),
  };
}

/** Keys at the start that are of one chunk. */
function widthOf(keys: readonly ObjectKeyFields[]): number {
  const first = keys[0];
  const width = keys.findIndex((key) => first && !isSameHash(key, first));
  return width < 0 ? keys.length : width;
}

function isGrid(keys: readonly ObjectKeyFields[], width: number): boolean {
  if (keys.length % width !== 0) return false;
  return keys.every(
    (key, i) => isSameHash(key, keys[i - (i % width)]!) && isSameColumn(key, keys[i % width]!),
  );
}

function isSameHash(a: ObjectKeyFields, b: ObjectKeyFields): boolean {
  return Buffer.compare(a.chunkHash, b.chunkHash) === 0;
}

function isSameColumn(a: ObjectKeyFields, b: ObjectKeyFields): boolean {
  return (
    a.kvRank === b.kvRank &&
    a.objectGroupId === b.objectGroupId &&
    a.modelName === b.modelName &&
    a.cacheSalt === b.cacheSalt
  );
}

function blockOf(keys: readonly ObjectKeyFields[], start: number, width: number): KeyBlock {
  const chunks = keys.filter((_, i) => i % width === 0);
  return {
    start,
    columns: keys.slice(0, width).map((key) => {
      const { modelName, objectGroupId, cacheSalt } = key;
      return { modelName, objectGroupId, cacheSalt, ...splitRank(key.kvRank) };
    }),
    chunkCount: chunks.length,
    hashes: Buffer.concat(chunks.map(({ chunkHash }) => chunkHash)),
  };
}

/** World size and rank have eight bits each, twice; worlds beyond that cannot be told apart. */
function splitRank(kvRank: number): Pick<NamespaceKey, 'worldSize' | 'workerId'> {
  const workerId = kvRank % 256;
  const worldSize = Math.floor(kvRank / 256) % 256;
  if (joinRank(worldSize, workerId) === kvRank) return { worldSize, workerId };
  throw new CallError(`kv_rank ${kvRank} is of no world of up to 255 ranks`);
}
