/** Registrations as layout discovery sees them, in the fewest words. */
import type { MappedTensor } from '../../src/device/device.ts';
import type { DtypeName } from '../../src/device/tensor-wrapper.ts';
import type { EngineGroupInfo } from '../../src/engine/api.ts';
import {
  discoverKvLayout,
  type KvLayout,
  type KvLayoutOptions,
} from '../../src/engine/transfer/kv-layout.ts';

export function contiguous(shape: readonly number[], dtype: DtypeName = 'int16'): MappedTensor {
  const stride = shape.map((_, d) => shape.slice(d + 1).reduce((a, b) => a * b, 1));
  return { dtype, shape, stride };
}

export const times = <T>(count: number, value: T): T[] => new Array<T>(count).fill(value);

export function layoutOf(
  options: Partial<KvLayoutOptions> & Pick<KvLayoutOptions, 'tensors'>,
): KvLayout {
  return discoverKvLayout({
    engineType: 'vllm',
    hints: {},
    infos: [],
    chunkSizeTokens: 4,
    hasAccelerator: true,
    ...options,
  });
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
    ...rest,
  };
}
