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
import type { CopyPlan, KernelGroupPlan, MappedTensor } from '../../device/device.ts';
import { KvdError } from '../../errors.ts';
import type { EngineGroupInfo, EngineType, LayoutHints, MemoryLayout } from '../api.ts';
import { layoutTagOf } from '../layout-registry.ts';
import {
  buildKernelGroups,
  type KernelGroup,
  type LayerGeometry,
  type LayerPlane,
} from './kernel-groups.ts';
import { discoverFormat, formatShapeText, type KvFormat, type TensorView } from './kv-format.ts';

export interface KvLayout {
  readonly format: KvFormat;
  readonly groups: readonly KernelGroup[];
  readonly plan: CopyPlan;
  /** Logical length of an object; the allocation may be longer. */
  readonly objectSizeBytes: number;
  readonly isMla: boolean;
  /** One shape and dtype per kernel group: what the layout registry and L2 see. */
  readonly memoryLayout: MemoryLayout;
  /** `layoutTagOf` the memory layout. */
  readonly layoutTag: number;
}

export interface KvLayoutOptions {
  readonly tensors: readonly MappedTensor[];
  readonly engineType: EngineType;
  readonly hints: LayoutHints;
  readonly infos: readonly EngineGroupInfo[];
  readonly chunkSizeTokens: number;
  readonly hasAccelerator: boolean;
}

/** Throws `ERR_LAYOUT` with a message for the operator when the tensors cannot be served. */
export function discoverKvLayout(options: KvLayoutOptions): KvLayout {
  const { format, views } = discoverFormat(options);
  return buildKvLayout({ ...options, format, views });
}

export function buildKvLayout(options: {
  readonly format: KvFormat;
  readonly views: readonly TensorView[];
  readonly infos: readonly EngineGroupInfo[];
  readonly chunkSizeTokens: number;
}): KvLayout {
  const groups = buildKernelGroups(options);
  const plan = buildCopyPlan(groups);
  if (plan.objectSizeBytes === 0) {
    throw new KvdError('ERR_LAYOUT', 'the sliding windows of all groups are empty');
  }
  if (plan.objectSizeBytes > OBJECT_SIZE_MAX_BYTES) {
    throw new KvdError(
      'ERR_LAYOUT',
      `a chunk of ${options.chunkSizeTokens} tokens has ${plan.objectSizeBytes} bytes, at most ` +
        `${OBJECT_SIZE_MAX_BYTES} can be stored: lower --chunk-size`,
    );
  }
  const memoryLayout: MemoryLayout = {
    shapes: groups.map((group) => [
      group.kvSize,
      group.layers.length,
      group.slotsPerObject,
      group.headCount * group.headSize,
    ]),
    dtypes: groups.map((group) => group.dtype),
  };
  return {
    format: options.format,
    groups,
    plan,
    objectSizeBytes: plan.objectSizeBytes,
    isMla: options.format.kvSize === 1,
    memoryLayout,
    layoutTag: layoutTagOf(memoryLayout),
  };
}

/** True when jobs planned for one may run on the other. */
export function isSameLayout(a: KvLayout, b: KvLayout): boolean {
  return (
    a.format === b.format &&
    JSON.stringify(a.plan) === JSON.stringify(b.plan) &&
    JSON.stringify(describeKvLayout(a)) === JSON.stringify(describeKvLayout(b))
  );
}

export function countLayers({ groups }: KvLayout): number {
  return groups.reduce((count, group) => count + group.layers.length, 0);
}

/** `kv_cache_layout` of `GET /status` (spec http 7.1); every reader of the peer knows the keys. */
export function describeKvLayout(layout: KvLayout): Record<string, unknown> {
  const { groups, format } = layout;
  return {
    num_layers: countLayers(layout),
    num_blocks: (groups[0] as KernelGroup).blockCount,
    cache_size_per_token: groups.reduce((bytes, group) => bytes + bytesPerToken(group), 0),
    kernel_groups: groups.map((group, index) => ({
      kernel_group_idx: index,
      engine_group_idx: group.engineGroupId,
      object_group_idx: 0,
      num_layers: group.layers.length,
      layer_indices: group.layerIndices,
      tokens_per_block: group.tokensPerBlock,
      slots_per_block: group.slotsPerBlock,
      dtype: `torch.${group.dtype}`,
      engine_kv_concrete_shape: concreteShapeText(format, group),
      is_mla: layout.isMla,
      engine_kv_format: format.name,
      engine_kv_shape: formatShapeText(format),
      attention_backend: format.backend,
    })),
  };
}

function bytesPerToken(group: KernelGroup): number {
  const bytesPerSlot =
    group.kvSize * group.layers.length * group.headCount * group.headSize * group.itemSizeBytes;
  return Math.floor((bytesPerSlot * group.slotsPerBlock) / group.tokensPerBlock);
}

function concreteShapeText(format: KvFormat, group: KernelGroup): string {
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
