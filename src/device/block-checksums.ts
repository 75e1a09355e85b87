/**
 * MD5 over blocks of an engine's cache, for diagnosis (spec http 5.8): the digest of
 * `tensor[…, ids, …]` in C order, bfloat16 widened to float32.
 *
 * The slice is never built. With the dimensions before the block axis outermost, C order is
 *
 *   for every index of the dimensions before the axis      "plane": one offset in the tensor
 *     for every block id, in the given order
 *       the rest of the block, row-major
 *
 * so it is read plane by plane, some blocks at a time, through the instance's copy queue into a
 * small buffer, and fed to the hash. The buffer bounds the memory and also how long one update
 * holds the event loop: 256 KiB of MD5 take about half a millisecond.
 */
import { createHash, type Hash } from 'node:crypto';
import { KvdError } from '../errors.ts';
import { KIB, MIB } from '../units.ts';
import type { KernelGroupPlan, MappedTensor } from './device.ts';
import { DTYPE_SIZE_BYTES } from './tensor-wrapper.ts';

const BUFFER_BYTES = 256 * KIB;
/** A block of one plane is at most a few MiB in any known cache. */
const BLOCK_BYTES_MAX = 64 * MIB;
/** Planes are K and V, at most times the layers of one tensor. */
const PLANE_COUNT_MAX = 65_536;

export interface ChecksumOptions {
  readonly blockIds: readonly number[];
  readonly blocksPerChecksum: number;
  /** One per tensor. */
  readonly blockAxes: readonly number[];
  readonly isLayerwise: boolean;
}

/** One plane of one tensor as a group of a copy plan whose objects are single blocks. */
export interface BlockReader {
  readonly blockBytes: number;
  /** Copies the blocks one behind the other to the start of `buffer`. */
  read(ids: Uint32Array, buffer: Uint8Array): Promise<void>;
  close(): void;
}

export interface BlockSource {
  readonly tensors: readonly MappedTensor[];
  openReader(tensorIndex: number, group: KernelGroupPlan, buffer: Uint8Array): BlockReader;
}

/** One list per tensor if layerwise, else one list; in it one digest per run of block ids. */
export async function checksumBlocks(
  source: BlockSource,
  options: ChecksumOptions,
): Promise<string[][]> {
  const { blockIds, blocksPerChecksum, blockAxes, isLayerwise } = options;
  if (!Number.isSafeInteger(blocksPerChecksum) || blocksPerChecksum < 1) {
    throw new KvdError(
      'ERR_BAD_REQUEST',
      `blocks per checksum: ${blocksPerChecksum}, expected ≥ 1`,
    );
  }
  const layers = source.tensors.map((tensor, i) => readPlanes(tensor, blockAxes[i]));
  for (const id of blockIds) {
    const outside = layers.find((layer) => !(id >= 0 && id < layer.engineBlockCount));
    if (outside) {
      throw new KvdError('ERR_BAD_REQUEST', `block id ${id} of ${outside.engineBlockCount} blocks`);
    }
  }
  const buffer = new Uint8Array(
    Math.max(BUFFER_BYTES, ...layers.map((layer) => layer.pattern.objectBlockStrideBytes)),
  );
  const results: string[][] = isLayerwise ? layers.map(() => []) : [[]];
  for (let start = 0; start < blockIds.length; start += blocksPerChecksum) {
    const ids = Uint32Array.from(blockIds.slice(start, start + blocksPerChecksum));
    let hash = createHash('md5');
    for (let layer = 0; layer < layers.length; layer += 1) {
      await feedLayer(
        { source, tensorIndex: layer, planes: layers[layer] as Planes, ids, buffer },
        hash,
      );
      if (!isLayerwise) continue;
      results[layer]?.push(hash.digest('hex'));
      hash = createHash('md5');
    }
    if (!isLayerwise) results[0]?.push(hash.digest('hex'));
  }
  return results;
}

interface Feed {
  readonly source: BlockSource;
  readonly tensorIndex: number;
  readonly planes: Planes;
  readonly ids: Uint32Array;
  readonly buffer: Uint8Array;
}

async function feedLayer(feed: Feed, hash: Hash): Promise<void> {
  const { source, tensorIndex, planes, ids, buffer } = feed;
  const isBfloat16 = source.tensors[tensorIndex]?.dtype === 'bfloat16';
  for (const engineOffsetBytes of planes.offsetsBytes) {
    const plane = {
      tensorIndex,
      engineOffsetBytes,
      engineBlockStrideBytes: planes.engineBlockStrideBytes,
      objectOffsetBytes: 0,
    };
    const reader = source.openReader(tensorIndex, { ...planes.pattern, planes: [plane] }, buffer);
    try {
      const step = Math.max(1, Math.floor(buffer.length / reader.blockBytes));
      for (let at = 0; at < ids.length; at += step) {
        const some = ids.subarray(at, at + step);
        await reader.read(some, buffer);
        const bytes = buffer.subarray(0, some.length * reader.blockBytes);
        hash.update(isBfloat16 ? widenBfloat16(bytes) : bytes);
      }
    } finally {
      reader.close();
    }
  }
}

/** bfloat16 is the upper half of float32. */
export function widenBfloat16(bytes: Uint8Array): Uint8Array {
  const narrow = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2);
  const wide = new Uint32Array(narrow.length);
  for (let i = 0; i < narrow.length; i += 1) wide[i] = (narrow[i] as number) << 16;
  return new Uint8Array(wide.buffer);
}

interface Planes {
  /** Bytes from the tensor's first element to block 0, per index of the dimensions before. */
  readonly offsetsBytes: readonly number[];
  readonly engineBlockStrideBytes: number;
  readonly engineBlockCount: number;
  readonly pattern: Omit<KernelGroupPlan, 'planes'>;
}

function readPlanes(tensor: MappedTensor, axis: number | undefined): Planes {
  const { shape, stride } = tensor;
  if (axis === undefined || shape[axis] === undefined) {
    throw new KvdError('ERR_UNSUPPORTED', `block axis ${axis} of a tensor of shape [${shape}]`);
  }
  const itemBytes = DTYPE_SIZE_BYTES[tensor.dtype];
  const engineBlockCount = shape[axis] as number;
  return {
    offsetsBytes: planeOffsets(tensor, axis).map((elements) => elements * itemBytes),
    engineBlockStrideBytes: (stride[axis] as number) * itemBytes,
    engineBlockCount,
    pattern: { ...blockPattern(tensor, axis, itemBytes), objectBlockCount: 1, engineBlockCount },
  };
}

function planeOffsets({ shape, stride }: MappedTensor, axis: number): number[] {
  let offsets = [0];
  for (let d = 0; d < axis; d += 1) {
    const size = shape[d] as number;
    if (offsets.length * size > PLANE_COUNT_MAX) {
      throw new KvdError('ERR_UNSUPPORTED', `shape [${shape}] has too many planes`);
    }
    const step = stride[d] as number;
    offsets = offsets.flatMap((offset) =>
      Array.from({ length: size }, (_, i) => offset + i * step),
    );
  }
  return offsets;
}

/** The block behind the axis as outer × inner runs: tight dimensions are one run. */
function blockPattern({ shape, stride }: MappedTensor, axis: number, itemBytes: number) {
  const loops: { count: number; engineStrideBytes: number; objectStrideBytes: number }[] = [];
  let elements = 1;
  let runElements = 1;
  for (let d = shape.length - 1; d > axis; d -= 1) {
    const count = shape[d] as number;
    const step = stride[d] as number;
    if (count !== 1 && step === runElements && loops.length === 0) {
      runElements *= count;
    } else if (count !== 1) {
      loops.unshift({
        count,
        engineStrideBytes: step * itemBytes,
        objectStrideBytes: elements * itemBytes,
      });
    }
    elements *= count;
  }
  const blockBytes = elements * itemBytes;
  if (loops.length > 2 || blockBytes === 0 || blockBytes > BLOCK_BYTES_MAX) {
    throw new KvdError('ERR_UNSUPPORTED', `blocks of shape [${shape}], stride [${stride}]`);
  }
  const single = { count: 1, engineStrideBytes: 0, objectStrideBytes: 0 };
  const [outer, inner] = [loops.at(-2) ?? single, loops.at(-1) ?? single];
  return {
    objectBlockStrideBytes: blockBytes,
    outerCount: outer.count,
    engineOuterStrideBytes: outer.engineStrideBytes,
    objectOuterStrideBytes: outer.objectStrideBytes,
    innerCount: inner.count,
    engineInnerStrideBytes: inner.engineStrideBytes,
    objectInnerStrideBytes: inner.objectStrideBytes,
    runBytes: runElements * itemBytes,
  };
}
