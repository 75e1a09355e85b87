/** Registrations as layout discovery sees them, in the fewest words. */
import type { MappedTensor } from '../../src/device/device.ts';
import type { DtypeName } from '../../src/device/tensor-wrapper.ts';
import type { EngineGroupInfo } from '../../src/engine/api.ts';
import {
  discoverKvLayout,
  type KvLayout,
  type KvLayoutOptions,
  type KvObjectGroup,
} from '../../src/engine/transfer/kv-layout.ts';

export function contiguous(shape: readonly number[], dtype: DtypeName = 'int16'): MappedTensor {
  const stride = shape.map((_, d) => shape.slice(d + 1).reduce((a, b) => a * b, 1));
  return { dtype, shape, stride };
}

export const times = <T>(count: number, value: T): T[] => new Array<T>(count).fill(value);

/** The rules of clients since 0.5.5. */
export const PER_LAYER = { layoutRules: 'per-layer', reportsKvLayout: true } as const;

export function layoutOf(
  options: Partial<KvLayoutOptions> & Pick<KvLayoutOptions, 'tensors'>,
): KvLayout {
  return discoverKvLayout({
    engineType: 'vllm',
    hints: {},
    infos: [],
    chunkSizeTokens: 4,
    hasAccelerator: true,
    layoutRules: 'first-tensor',
    reportsKvLayout: false,
    hasSeparateObjects: false,
    ...options,
  });
}

/** What a chunk is stored as where all groups share one object. */
export function objectOf({ objectGroups }: KvLayout): KvObjectGroup {
  return objectGroups[0] as KvObjectGroup;
}

export function info(
  layers: readonly number[],
  rest: Partial<EngineGroupInfo> = {},
): EngineGroupInfo {
  return {
    engineGroupId: 0,
    layerIndices: layers,
    tokensPerBlock: 0,
    slidingWindowTokens: -1,
    extraObjectGroupTag: 0,
    isRecurrentState: false,
    ...rest,
  };
}
