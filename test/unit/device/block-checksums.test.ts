/** Digests against a slice built element by element. */
import { createHash } from 'node:crypto';
import * as assert from 'uvu/assert';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../../src/device/tensor-wrapper.ts';
import type { KvdError } from '../../../src/errors.ts';
import {
  type DeviceHouse,
  openDeviceHouse,
  patternBytes,
  wrapperOf,
} from '../../support/device-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

interface Layer {
  readonly shape: readonly number[];
  readonly stride?: readonly number[];
  readonly dtype?: DtypeName;
}

/** All index tuples of `sizes` in C order. */
function indexTuples(sizes: readonly (readonly number[])[]): number[][] {
  return sizes.reduce<number[][]>(
    (tuples, indexes) => tuples.flatMap((tuple) => indexes.map((index) => [...tuple, index])),
    [[]],
  );
}

function sliceBytes(content: Uint8Array, layer: Required<Layer>, axis: number, ids: number[]) {
  const itemBytes = DTYPE_SIZE_BYTES[layer.dtype];
  const sizes = layer.shape.map((size, d) =>
    d === axis ? ids : Array.from({ length: size }, (_, i) => i),
  );
  const items = indexTuples(sizes).map((tuple) => {
    const at = tuple.reduce((sum, index, d) => sum + index * (layer.stride[d] as number), 0);
    const item = content.subarray(at * itemBytes, (at + 1) * itemBytes);
    return layer.dtype === 'bfloat16' ? Buffer.concat([Buffer.alloc(2), item]) : item;
  });
  return Buffer.concat(items);
}

async function openLayers(house: DeviceHouse, layers: readonly Layer[]) {
  const full = layers.map(
    (layer): Required<Layer> => ({
      dtype: 'uint8',
      stride: layer.shape.map((_, d) => layer.shape.slice(d + 1).reduce((a, b) => a * b, 1)),
      ...layer,
    }),
  );
  const contents = full.map(({ shape, stride, dtype }, index) => {
    const reach = shape.reduce((sum, size, d) => sum + (size - 1) * (stride[d] as number), 1);
    return patternBytes(reach * DTYPE_SIZE_BYTES[dtype], index);
  });
  const wrappers = full.map((layer, index) => {
    const content = contents[index] as Uint8Array;
    return wrapperOf({ name: house.segment(content).name, sizeBytes: content.length }, layer);
  });
  const instance = await house.device.openInstance(wrappers);
  const slice = (index: number, axis: number, ids: number[]) =>
    sliceBytes(contents[index] as Uint8Array, full[index] as Required<Layer>, axis, ids);
  return { instance, slice };
}

const md5 = (...parts: Uint8Array[]): string => {
  const hash = createHash('md5');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
};

async function inHouse(body: (house: DeviceHouse) => Promise<void>): Promise<void> {
  const house = await openDeviceHouse();
  try {
    await body(house);
  } finally {
    await house.close();
  }
}

const IDS = [5, 0, 1, 3, 3];

suite('block checksums', (test) => {
  test('one digest per run of ids covers all layers in order', () =>
    inHouse(async (house) => {
      const shape = [2, 6, 4, 3];
      const { instance, slice } = await openLayers(house, [{ shape }, { shape, dtype: 'float16' }]);
      const sums = await instance.checksumBlocks({
        blockIds: IDS,
        blocksPerChecksum: 2,
        blockAxis: 1,
        isLayerwise: false,
      });
      const expected = [[5, 0], [1, 3], [3]].map((ids) => md5(slice(0, 1, ids), slice(1, 1, ids)));
      assert.equal(sums, [expected]);
    }));

  test('layerwise digests are one list per layer', () =>
    inHouse(async (house) => {
      const { instance, slice } = await openLayers(house, [
        { shape: [6, 7] },
        { shape: [6, 2, 3] },
      ]);
      const sums = await instance.checksumBlocks({
        blockIds: IDS,
        blocksPerChecksum: 3,
        blockAxis: 0,
        isLayerwise: true,
      });
      const expected = [0, 1].map((layer) =>
        [
          [5, 0, 1],
          [3, 3],
        ].map((ids) => md5(slice(layer, 0, ids))),
      );
      assert.equal(sums, expected);
    }));

  test('bfloat16 is widened to float32, and padding between blocks is left out', () =>
    inHouse(async (house) => {
      const layer: Layer = { shape: [6, 4, 8], stride: [50, 8, 1], dtype: 'bfloat16' };
      const { instance, slice } = await openLayers(house, [layer]);
      const sums = await instance.checksumBlocks({
        blockIds: IDS,
        blocksPerChecksum: 10,
        blockAxis: 0,
        isLayerwise: false,
      });
      assert.equal(sums, [[md5(slice(0, 0, IDS))]]);
    }));

  test('rows with gaps inside a block are read without the gaps', () =>
    inHouse(async (house) => {
      const layer: Layer = { shape: [6, 3, 2, 4], stride: [100, 30, 8, 1] };
      const { instance, slice } = await openLayers(house, [layer]);
      const sums = await instance.checksumBlocks({
        blockIds: IDS,
        blocksPerChecksum: 1,
        blockAxis: 0,
        isLayerwise: false,
      });
      assert.equal(sums, [IDS.map((id) => md5(slice(0, 0, [id])))]);
    }));

  test('more blocks than the buffer holds give the same digest as one stream', () =>
    inHouse(async (house) => {
      const content = patternBytes(96 * 8192, 3);
      const segment = house.segment(content);
      const instance = await house.device.openInstance([
        wrapperOf({ name: segment.name, sizeBytes: content.length }, { shape: [96, 8192] }),
      ]);
      const blockIds = Array.from({ length: 96 }, (_, i) => i);
      const options = { blockIds, blocksPerChecksum: 96, blockAxis: 0, isLayerwise: false };
      assert.equal(await instance.checksumBlocks(options), [[md5(content)]]);
      assert.is(instance.jobCountInFlight, 0);
    }));

  test('ids, axes and counts that make no sense are refused', () =>
    inHouse(async (house) => {
      const { instance } = await openLayers(house, [{ shape: [6, 4] }]);
      const good = { blockIds: [0], blocksPerChecksum: 1, blockAxis: 0, isLayerwise: false };
      const cases = [
        [{ ...good, blockIds: [6] }, /block id 6 of 6/, 'ERR_BAD_REQUEST'],
        [{ ...good, blockIds: [-1] }, /block id -1/, 'ERR_BAD_REQUEST'],
        [{ ...good, blocksPerChecksum: 0 }, /expected ≥ 1/, 'ERR_BAD_REQUEST'],
        [{ ...good, blockAxis: 2 }, /block axis 2/, 'ERR_UNSUPPORTED'],
      ] as const;
      for (const [options, expected, code] of cases) {
        const error = await rejects(instance.checksumBlocks(options), expected);
        assert.is((error as KvdError).code, code);
      }
    }));

  test('closing the instance in the middle ends the reading with a refusal', () =>
    inHouse(async (house) => {
      const { instance } = await openLayers(house, [{ shape: [64, 4096] }]);
      const blockIds = Array.from({ length: 6400 }, (_, i) => i % 64);
      const options = { blockIds, blocksPerChecksum: 6400, blockAxis: 0, isLayerwise: false };
      const sums = instance.checksumBlocks(options);
      await Promise.all([rejects(sums, /closing/), instance.close()]);
    }));
});
