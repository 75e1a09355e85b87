/**
 * What the server knows about one worker's KV cache: how to read it, and what an object holds.
 *
 * Bytes of one object (one chunk of one rank), spec engine 5.5:
 *
 *   group 0                                             group 1
 *   ┌─────────────────────────┬────────────────────────┬───────────────
 *   │ keys: layer 0, 1, … L−1 │ values: layer 0 … L−1  │ keys: …
 *   └─────────────────────────┴────────────────────────┴───────────────
 *   one layer = slotsPerObject × (headCount × headSize) elements, slot-major, no padding
 *
 * The order does not depend on the format, so bytes stored through one format can be read through
 * another with the same heads, head size, dtype and layers. Formats only differ in the copy plan:
 * where a block's (slot, head) runs lie on the engine's side.
 */

import { OBJECT_SIZE_MAX_BYTES } from '../../core/object-table.ts';
import type { CopyPlan, KernelGroupPlan } from '../../device/device.ts';
import { KvdError } from '../../errors.ts';
import type { EngineGroupInfo, MemoryLayout } from '../api.ts';
import {
  describeLayout,
  layoutTagOf,
  type ObjectGroupLayout,
  type ObjectLayout,
} from '../layout-registry.ts';
import {
  type DiscoveryOptions,
  discoverFormats,
  type FormattedTensors,
} from './format-discovery.ts';
import {
  buildKernelGroups,
  type KernelGroup,
  type LayerGeometry,
  type LayerPlane,
} from './kernel-groups.ts';
import { formatShapeText } from './kv-format.ts';
import { sortIntoObjectGroups } from './object-groups.ts';

export interface KvObjectGroup extends ObjectGroupLayout {
  /** Of `KvLayout.groups`, ascending: what its objects consist of. */
  readonly kernelGroupIndices: readonly number[];
  readonly plan: CopyPlan;
}

export interface KvLayout extends ObjectLayout {
  readonly groups: readonly KernelGroup[];
  /** Every kernel group is: then all tensor-parallel ranks read the same objects. */
  readonly isMla: boolean;
  readonly objectGroups: readonly KvObjectGroup[];
}

interface ObjectOptions {
  readonly chunkSizeTokens: number;
  /** Groups of different windows get objects of their own (object-groups.ts). */
  readonly hasSeparateObjects: boolean;
}

export interface KvLayoutOptions extends DiscoveryOptions, ObjectOptions {}

/** Throws `ERR_LAYOUT` with a message for the operator when the tensors cannot be served. */
export function discoverKvLayout(options: KvLayoutOptions): KvLayout {
  return buildKvLayout({ ...options, tensors: discoverFormats(options) });
}

export function buildKvLayout(
  options: ObjectOptions & {
    readonly tensors: FormattedTensors;
    readonly infos: readonly EngineGroupInfo[];
  },
): KvLayout {
  const { infos, chunkSizeTokens, hasSeparateObjects } = options;
  const groups = buildKernelGroups(options);
  const members = sortIntoObjectGroups({
    kernelGroupCount: groups.length,
    infos,
    chunkSizeTokens,
    isSeparate: hasSeparateObjects,
  });
  if (members.every(({ isAuxiliary }) => isAuxiliary)) {
    throw new KvdError(
      'ERR_LAYOUT',
      "every engine group is the connector's own (extra_object_group_tag), so nothing of a " +
        'prompt could be found again',
    );
  }
  return {
    groups,
    isMla: groups.every((group) => group.format.isMla),
    objectGroups: members.map((group, objectGroupId) => ({
      ...group,
      objectGroupId,
      ...buildObject(
        group.kernelGroupIndices.map((index) => groups[index] as KernelGroup),
        chunkSizeTokens,
      ),
    })),
  };
}

/** The objects that these kernel groups fill. */
function buildObject(groups: readonly KernelGroup[], chunkSizeTokens: number) {
  const plan = buildCopyPlan(groups);
  const { objectSizeBytes } = plan;
  if (objectSizeBytes === 0) {
    throw new KvdError('ERR_LAYOUT', 'the sliding windows of all groups of an object are empty');
  }
  if (objectSizeBytes > OBJECT_SIZE_MAX_BYTES) {
    throw new KvdError(
      'ERR_LAYOUT',
      `a chunk of ${chunkSizeTokens} tokens has ${objectSizeBytes} bytes, at most ` +
        `${OBJECT_SIZE_MAX_BYTES} can be stored: lower --chunk-size`,
    );
  }
  const memoryLayout = memoryLayoutOf(groups);
  const layoutText = describeLayout(memoryLayout, groups.map(blockTextOf));
  return { plan, objectSizeBytes, memoryLayout, layoutText, layoutTag: layoutTagOf(layoutText) };
}

function memoryLayoutOf(groups: readonly KernelGroup[]): MemoryLayout {
  return {
    shapes: groups.map((group) => [
      group.kvSize,
      group.layers.length,
      group.slotsPerObject,
      group.headCount * group.headSize,
    ]),
    dtypes: groups.map((group) => group.dtype),
  };
}

/** `16x128+16x4`: regions of the blocks, which are copied as they are. */
function blockTextOf({ format, slotsPerBlock }: KernelGroup): string {
  return (format.blockRegions ?? []).map((width) => `${slotsPerBlock}x${width}`).join('+');
}

/** True when jobs planned for one may run on the other. */
export function isSameLayout(a: KvLayout, b: KvLayout): boolean {
  return (
    JSON.stringify(a.objectGroups) === JSON.stringify(b.objectGroups) &&
    JSON.stringify(describeKvLayout(a)) === JSON.stringify(describeKvLayout(b))
  );
}

/** Names of the formats of all groups, each once, for people. */
export function formatNamesOf({ groups }: KvLayout): string {
  return [...new Set(groups.map((group) => group.format.name))].join(' and ');
}

/**
 * The dimension of each tensor that counts blocks, or null where some tensor has none. A tensor
 * that no group reads has the axis of the others if they agree on one.
 */
export function blockAxesOf({ groups }: KvLayout, tensorCount: number): number[] | null {
  const known = new Map<number, number>();
  for (const { format, layers } of groups) {
    if (format.blockAxis === null) return null;
    for (const plane of layers.flatMap(({ planes }) => planes)) {
      known.set(plane.tensorIndex, format.blockAxis);
    }
  }
  const [shared, ...others] = new Set(known.values());
  const axes = Array.from({ length: tensorCount }, (_, tensor) => {
    return known.get(tensor) ?? (others.length === 0 ? shared : undefined);
  });
  return axes.every((axis) => axis !== undefined) ? axes : null;
}

export function countLayers({ groups }: KvLayout): number {
  return groups.reduce((count, group) => count + group.layers.length, 0);
}

/** `kv_cache_layout` of `GET /status` (spec http 7.1); every reader of the peer knows the keys. */
export function describeKvLayout(layout: KvLayout): Record<string, unknown> {
  const { groups, objectGroups } = layout;
  const objectGroupOf = (kernelGroup: number) =>
    objectGroups.findIndex(({ kernelGroupIndices }) => kernelGroupIndices.includes(kernelGroup));
  return {
    num_layers: countLayers(layout),
    num_blocks: (groups[0] as KernelGroup).blockCount,
    cache_size_per_token: groups.reduce((bytes, group) => bytes + bytesPerToken(group), 0),
    kernel_groups: groups.map((group, index) => ({
      kernel_group_idx: index,
      engine_group_idx: group.engineGroupId,
      object_group_idx: objectGroupOf(index),
      num_layers: group.layers.length,
      layer_indices: group.layerIndices,
      tokens_per_block: group.tokensPerBlock,
      slots_per_block: group.slotsPerBlock,
      dtype: `torch.${group.dtype}`,
      engine_kv_concrete_shape: concreteShapeText(group),
      is_mla: group.format.isMla,
      engine_kv_format: group.format.name,
      engine_kv_shape: formatShapeText(group.format),
      attention_backend: group.format.backend,
    })),
  };
}

function bytesPerToken(group: KernelGroup): number {
  const bytesPerSlot =
    group.kvSize * group.layers.length * group.headCount * group.headSize * group.itemSizeBytes;
  return Math.floor((bytesPerSlot * group.slotsPerBlock) / group.tokensPerBlock);
}

function concreteShapeText(group: KernelGroup): string {
  const { format } = group;
  const shape = `[${(group.layers[0] as LayerGeometry).shape.join(', ')}]`;
  if (format.role === 'cache') return shape;
  const count = `${group.layers.length} x ${shape}`;
  return format.role === 'layer' ? count : `2 x ${count}`;
}

function buildCopyPlan(groups: readonly KernelGroup[]): CopyPlan {
  let objectSizeBytes = 0;
  const plans = groups.map((group) => {
    const plan = buildGroupPlan(group, objectSizeBytes);
    objectSizeBytes += group.kvSize * group.layers.length * planeSizeBytes(group);
    return plan;
  });
  return { groups: plans, objectSizeBytes };
}

function planeSizeBytes(group: KernelGroup): number {
  return group.slotsPerObject * group.headCount * group.headSize * group.itemSizeBytes;
}

function buildGroupPlan(group: KernelGroup, groupOffsetBytes: number): KernelGroupPlan {
  const itemSize = group.itemSizeBytes;
  const layerCount = group.layers.length;
  const planes = Array.from({ length: group.kvSize * layerCount }, (_, index) => {
    const kv = Math.floor(index / layerCount);
    const plane = (group.layers[index % layerCount] as LayerGeometry).planes[kv] as LayerPlane;
    return {
      tensorIndex: plane.tensorIndex,
      engineOffsetBytes: plane.offsetElements * itemSize,
      engineBlockStrideBytes: plane.blockStrideElements * itemSize,
      objectOffsetBytes: groupOffsetBytes + index * planeSizeBytes(group),
    };
  });
  return {
    planes,
    objectBlockStrideBytes: group.slotsPerBlock * group.headCount * group.headSize * itemSize,
    ...copyLoops(group),
    objectBlockCount: group.blocksPerWindow,
    engineBlockCount: group.blockCount,
  };
}

interface Loop {
  readonly count: number;
  readonly engineStrideBytes: number;
  readonly objectStrideBytes: number;
}

type CopyLoops = Pick<
  KernelGroupPlan,
  | 'outerCount'
  | 'engineOuterStrideBytes'
  | 'objectOuterStrideBytes'
  | 'innerCount'
  | 'engineInnerStrideBytes'
  | 'objectInnerStrideBytes'
  | 'runBytes'
>;

/**
 * The runs inside one block. Dimensions that follow each other on both sides melt into the run:
 * a token-major block is a single run, an HND block is one run of a head per (head, slot). The
 * loop with the larger engine stride is the outer one, so the engine's side is read in order.
 */
function copyLoops(group: KernelGroup): CopyLoops {
  const { headStrideElements, slotStrideElements } = group.layers[0] as LayerGeometry;
  const headBytes = group.headSize * group.itemSizeBytes;
  let runBytes = headBytes;
  const loops: Loop[] = [];
  const dimensions: Loop[] = [
    {
      count: group.headCount,
      engineStrideBytes: headStrideElements * group.itemSizeBytes,
      objectStrideBytes: headBytes,
    },
    {
      count: group.slotsPerBlock,
      engineStrideBytes: slotStrideElements * group.itemSizeBytes,
      objectStrideBytes: group.headCount * headBytes,
    },
  ];
  dimensions.sort((a, b) => a.engineStrideBytes - b.engineStrideBytes);
  for (const loop of dimensions) {
    if (loop.count === 1) continue;
    const isAdjacent = loop.engineStrideBytes === runBytes && loop.objectStrideBytes === runBytes;
    if (loops.length === 0 && isAdjacent) runBytes *= loop.count;
    else loops.unshift(loop);
  }
  const once: Loop = { count: 1, engineStrideBytes: 0, objectStrideBytes: 0 };
  const inner = loops.at(-1) ?? once;
  const outer = loops.length > 1 ? (loops[0] as Loop) : once;
  return {
    outerCount: outer.count,
    engineOuterStrideBytes: outer.engineStrideBytes,
    objectOuterStrideBytes: outer.objectStrideBytes,
    innerCount: inner.count,
    engineInnerStrideBytes: inner.engineStrideBytes,
    objectInnerStrideBytes: inner.objectStrideBytes,
    runBytes,
  };
}
