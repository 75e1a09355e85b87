/**
 * Layers of one registration, sorted into kernel groups (spec engine 5.4).
 *
 * A kernel group is a set of layers that are copied alike: same format, geometry, dtype and block
 * ids. Each group has its own list of block ids in STORE and RETRIEVE, and its own slab in every
 * object. All arithmetic between tokens, slots and blocks of a group is decided here, once:
 *
 *   token ──× slotsPerBlock / tokensPerBlock──▶ slot ──/ slotsPerBlock──▶ block
 *
 *   chunk   │ block 0 │ block 1 │ block 2 │ block 3 │   blocksPerChunk  = 4
 *   window                      │ block 2 │ block 3 │   blocksPerWindow = 2 (kept in the object)
 *
 * `tokensPerBlock > slotsPerBlock` is a compressed cache: one slot stands for several tokens.
 * Everything that does not divide evenly is refused at registration, so later arithmetic is exact.
 */
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../device/tensor-wrapper.ts';
import { KvdError } from '../../errors.ts';
import type { EngineGroupInfo } from '../api.ts';
import type { FormattedTensor, FormattedTensors } from './format-discovery.ts';
import type { Axis, KvFormat, TensorRole, TensorView } from './kv-format.ts';

/** One (keys or values, layer): where its first block begins, in elements. */
export interface LayerPlane {
  readonly tensorIndex: number;
  readonly offsetElements: number;
  readonly blockStrideElements: number;
}

export interface LayerGeometry {
  readonly format: KvFormat;
  /** Keys first, then values; one plane for MLA. */
  readonly planes: readonly LayerPlane[];
  readonly headCount: number;
  readonly headSize: number;
  readonly slotsPerBlock: number;
  readonly slotStrideElements: number;
  readonly headStrideElements: number;
  readonly blockCount: number;
  readonly dtype: DtypeName;
  /** Shape of the layer's (first) tensor, for people. */
  readonly shape: readonly number[];
}

export interface KernelGroup {
  readonly format: KvFormat;
  readonly kvSize: 1 | 2;
  readonly engineGroupId: number;
  /** Ascending; indexes of the engine's layer list. */
  readonly layerIndices: readonly number[];
  readonly layers: readonly LayerGeometry[];
  readonly headCount: number;
  readonly headSize: number;
  readonly slotsPerBlock: number;
  readonly tokensPerBlock: number;
  readonly dtype: DtypeName;
  readonly itemSizeBytes: number;
  /** Smallest block count of the group's layers: every block id must be below it. */
  readonly blockCount: number;
  readonly blocksPerChunk: number;
  readonly blocksPerWindow: number;
  /** Slots of one object in this group. */
  readonly slotsPerObject: number;
}

export interface GroupingOptions {
  readonly tensors: FormattedTensors;
  readonly infos: readonly EngineGroupInfo[];
  readonly chunkSizeTokens: number;
}

/**
 * Layers × keys and values; the largest models have some hundreds. A shape is only a claim (a
 * sparse segment of any size costs its owner nothing), so it is bounded before it is believed.
 */
const PLANE_COUNT_MAX = 4096;

export function buildKernelGroups(options: GroupingOptions): KernelGroup[] {
  const layers = listLayers(options.tensors);
  const { infos } = options;
  const engineGroups = assignEngineGroups(layers.length, infos);
  const members = new Map<string, number[]>();
  for (let index = 0; index < layers.length; index += 1) {
    const engineGroupId = engineGroups[index];
    const layer = layers[index];
    if (engineGroupId === undefined || !layer) continue;
    const identity = `${identityOf(layer)}/${engineGroupId}`;
    const indices = members.get(identity);
    if (indices) indices.push(index);
    else members.set(identity, [index]);
  }
  const groups = [...members.values()];
  if (groups.length === 0) {
    throw new KvdError('ERR_LAYOUT', 'engine group infos leave out every layer');
  }
  if (infos.length > 0) checkInfosMatch(infos, groups);
  checkChunkSize(options, groups, layers);
  return groups.map((indices, groupIndex) =>
    buildGroup(options, {
      groupIndex,
      layerIndices: indices,
      layers: indices.map((index) => layers[index] as LayerGeometry),
      engineGroupId: engineGroups[indices[0] as number] as number,
    }),
  );
}

/** Blocks that hold `tokenCount` tokens; a token count inside a block is floored. */
export function blocksOf(
  group: Pick<KernelGroup, 'slotsPerBlock' | 'tokensPerBlock'>,
  tokenCount: number,
): number {
  const slots = Math.floor((tokenCount * group.slotsPerBlock) / group.tokensPerBlock);
  return Math.floor(slots / group.slotsPerBlock);
}

/** One entry per layer of the engine; null where the registration says nothing about it. */
function listLayers(tensors: FormattedTensors): (LayerGeometry | null)[] {
  const first = tensors.find((tensor) => tensor !== null);
  if (!first) return [];
  checkPlaneCount(first, tensors);
  const { format } = first;
  switch (format.role) {
    case 'layer':
      return tensors.map((tensor, index) =>
        tensor ? geometryOf(tensor.format, [{ view: tensor.view, tensorIndex: index }], 0) : null,
      );
    case 'cache':
      return Array.from({ length: countCachedLayers(first) }, (_, layer) =>
        geometryOf(format, [{ view: first.view, tensorIndex: 0 }], layer),
      );
    case 'keys-or-values':
      return pairKeysAndValues(tensors as readonly FormattedTensor[]);
  }
}

function checkPlaneCount(first: FormattedTensor, tensors: FormattedTensors): void {
  const { role, kvSize } = first.format;
  const layerCounts = {
    layer: tensors.length,
    cache: countCachedLayers(first),
    'keys-or-values': tensors.length / 2,
  } satisfies Record<TensorRole, number>;
  const layerCount = layerCounts[role];
  const planeCount =
    role === 'layer'
      ? tensors.reduce((sum, tensor) => sum + (tensor?.format.kvSize ?? 0), 0)
      : layerCount * kvSize;
  if (planeCount <= PLANE_COUNT_MAX) return;
  throw new KvdError(
    'ERR_LAYOUT',
    `${layerCount} layers of ${kvSize} planes, at most ${PLANE_COUNT_MAX} planes are supported`,
  );
}

function countCachedLayers({ format, view }: FormattedTensor): number {
  return view.shape[format.axes.indexOf('NL')] ?? 0;
}

function pairKeysAndValues(tensors: readonly FormattedTensor[]): LayerGeometry[] {
  if (tensors.length % 2 !== 0) {
    throw new KvdError(
      'ERR_LAYOUT',
      `expected the key tensors of all layers, then as many value tensors; got ${tensors.length}`,
    );
  }
  const layerCount = tensors.length / 2;
  return Array.from({ length: layerCount }, (_, layer) => {
    const { format, view: keys } = tensors[layer] as FormattedTensor;
    const { view: values } = tensors[layerCount + layer] as FormattedTensor;
    if (keys.dtype !== values.dtype || keys.shape.join() !== values.shape.join()) {
      throw new KvdError(
        'ERR_LAYOUT',
        `layer ${layer}: keys are ${keys.dtype} [${keys.shape.join(', ')}], ` +
          `values are ${values.dtype} [${values.shape.join(', ')}]`,
      );
    }
    const sources = [
      { view: keys, tensorIndex: layer },
      { view: values, tensorIndex: layerCount + layer },
    ];
    return geometryOf(format, sources, 0);
  });
}

type Source = { readonly view: TensorView; readonly tensorIndex: number };

/** `sources`: one tensor that holds keys and values, or one for each. */
function geometryOf(
  format: KvFormat,
  sources: readonly Source[],
  layerInTensor: number,
): LayerGeometry {
  const { view } = sources[0] as Source;
  const sizeOf = (axis: Axis): number => view.shape[format.axes.indexOf(axis)] ?? 1;
  const strideOf = (axis: Axis, of = view): number => of.stride[format.axes.indexOf(axis)] ?? 0;
  const planes = Array.from({ length: format.kvSize }, (_, kv): LayerPlane => {
    const source = sources.length > 1 ? (sources[kv] as Source) : (sources[0] as Source);
    return {
      tensorIndex: source.tensorIndex,
      offsetElements:
        layerInTensor * strideOf('NL', source.view) + kv * strideOf('TWO', source.view),
      blockStrideElements: strideOf('NB', source.view),
    };
  });
  return {
    format,
    planes,
    headCount: sizeOf('NH'),
    headSize: sizeOf(format.axes.includes('CS') ? 'CS' : 'HS'),
    slotsPerBlock: sizeOf('BS'),
    slotStrideElements: strideOf('BS'),
    headStrideElements: strideOf('NH'),
    blockCount: sizeOf('NB'),
    dtype: view.dtype,
    shape: view.shape,
  };
}

/** Engine group id per layer; layers in no info stay out (they share another layer's cache). */
function assignEngineGroups(layerCount: number, infos: readonly EngineGroupInfo[]): number[] {
  if (infos.length === 0) return new Array<number>(layerCount).fill(0);
  const engineGroups = new Array<number>(layerCount);
  for (const info of infos) {
    for (const layer of info.layerIndices) {
      if (!Number.isInteger(layer) || layer < 0 || layer >= layerCount) {
        throw new KvdError(
          'ERR_LAYOUT',
          `engine group ${info.engineGroupId}: layer index ${layer} is outside the ` +
            `${layerCount} registered layers`,
        );
      }
      engineGroups[layer] = info.engineGroupId;
    }
  }
  return engineGroups;
}

function identityOf(layer: LayerGeometry): string {
  const { format, headCount, headSize, slotsPerBlock, dtype } = layer;
  return `${format.value}/${headCount}/${headSize}/${slotsPerBlock}/${dtype}`;
}

function checkInfosMatch(
  infos: readonly EngineGroupInfo[],
  groups: readonly (readonly number[])[],
): void {
  const expected = groups.map((layers) => layers.join(' '));
  const given = infos.map((info) => [...info.layerIndices].sort((a, b) => a - b).join(' '));
  if (expected.join() === given.join()) return;
  throw new KvdError(
    'ERR_LAYOUT',
    `the layers form ${groups.length} groups by geometry (${expected.join(' | ')}), but the ` +
      `engine reports ${infos.length} (${given.join(' | ')})`,
  );
}

function tokensPerBlockOf(info: EngineGroupInfo | undefined, layer: LayerGeometry): number {
  return info && info.tokensPerBlock > 0 ? info.tokensPerBlock : layer.slotsPerBlock;
}

/** One message for all groups, with the chunk sizes that would work for all of them. */
function checkChunkSize(
  options: GroupingOptions,
  groups: readonly (readonly number[])[],
  layers: readonly (LayerGeometry | null)[],
): void {
  const blockSizes = groups.map((indices, groupIndex) =>
    tokensPerBlockOf(options.infos[groupIndex], layers[indices[0] as number] as LayerGeometry),
  );
  const misfit = blockSizes.findIndex((tokens) => options.chunkSizeTokens % tokens !== 0);
  if (misfit < 0) return;
  const common = blockSizes.reduce(leastCommonMultiple);
  throw new KvdError(
    'ERR_LAYOUT',
    `the server's chunk size of ${options.chunkSizeTokens} tokens is no multiple of the ` +
      `engine's block size of ${blockSizes[misfit]} tokens (kernel group ${misfit}); valid ` +
      `values of --chunk-size are the multiples of ${common}: ` +
      `${common}, ${2 * common}, ${3 * common}, …`,
  );
}

interface GroupMembers {
  readonly groupIndex: number;
  readonly layerIndices: readonly number[];
  readonly layers: readonly LayerGeometry[];
  readonly engineGroupId: number;
}

function buildGroup(options: GroupingOptions, members: GroupMembers): KernelGroup {
  const { groupIndex, layerIndices, layers, engineGroupId } = members;
  const info = options.infos[groupIndex];
  const first = layers[0] as LayerGeometry;
  const { slotsPerBlock, headCount, headSize, dtype } = first;
  const tokensPerBlock = tokensPerBlockOf(info, first);
  if (tokensPerBlock % slotsPerBlock !== 0) {
    throw new KvdError(
      'ERR_LAYOUT',
      `kernel group ${groupIndex}: ${tokensPerBlock} tokens per block do not divide evenly over ` +
        `the ${slotsPerBlock} slots of a block`,
    );
  }
  const chunk = options.chunkSizeTokens;
  const slidingWindow = info?.slidingWindowTokens ?? -1;
  const window = slidingWindow >= 0 && slidingWindow < chunk ? slidingWindow : chunk;
  if (window % tokensPerBlock !== 0) {
    throw new KvdError(
      'ERR_LAYOUT',
      `kernel group ${groupIndex}: a sliding window of ${window} tokens is shorter than a chunk ` +
        `of ${chunk} and no multiple of the block size of ${tokensPerBlock} tokens; ` +
        `a --chunk-size of at most ${window} avoids the cut`,
    );
  }
  const sizes = { slotsPerBlock, tokensPerBlock };
  const blocksPerWindow = blocksOf(sizes, window);
  return {
    format: first.format,
    kvSize: first.format.kvSize,
    engineGroupId,
    layerIndices,
    layers,
    headCount,
    headSize,
    ...sizes,
    dtype,
    itemSizeBytes: DTYPE_SIZE_BYTES[dtype],
    blockCount: layers.reduce((least, layer) => Math.min(least, layer.blockCount), Infinity),
    blocksPerChunk: blocksOf(sizes, chunk),
    blocksPerWindow,
    slotsPerObject: blocksPerWindow * slotsPerBlock,
  };
}

function leastCommonMultiple(a: number, b: number): number {
  let [x, y] = [a, b];
  while (y !== 0) [x, y] = [y, x % y];
  return (a / x) * b;
}
