/** Digests of blocks, against a slice that is built element by element: a part of device.ts. */
import { createHash } from 'node:crypto';
import * as assert from 'uvu/assert';
import {
  type CpuShmWrapper,
  DTYPE_SIZE_BYTES,
  type DtypeName,
} from '../../src/device/tensor-wrapper.ts';
import { patternBytes, wrapperOf } from '../support/device-house.ts';
import { refuses } from '../support/rejects.ts';
import type { Check, DeviceSetup } from './device.ts';

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

async function openLayers(setup: DeviceSetup, layers: readonly Layer[]) {
  const opened = layers.map((layer, index) => {
    const full: Required<Layer> = {
      dtype: 'uint8',
      stride: layer.shape.map((_, d) => layer.shape.slice(d + 1).reduce((a, b) => a * b, 1)),
      ...layer,
    };
    const reach = full.shape.reduce((sum, size, d) => sum + (size - 1) * full.stride[d]!, 1);
    const content = patternBytes(reach * DTYPE_SIZE_BYTES[full.dtype], index);
    const place = { name: setup.segment(content).name, sizeBytes: content.length };
    return { full, content, wrapper: wrapperOf(place, full) };
  });
  const wrappers: CpuShmWrapper[] = opened.map(({ wrapper }) => wrapper);
  const instance = await setup.device.openInstance(wrappers);
  const slice = (index: number, axis: number, ids: number[]) =>
    sliceBytes(opened[index]!.content, opened[index]!.full, axis, ids);
  return { instance, slice };
}

const md5 = (...parts: Uint8Array[]): string => {
  const hash = createHash('md5');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
};

const IDS = [5, 0, 1, 3, 3];
const JOINED = { blockIds: IDS, blocksPerChecksum: 2, blockAxes: [0], isLayerwise: false };

export function checksumTests(check: Check): void {
  digestTests(check);
  refusalTests(check);
}

function digestTests(check: Check): void {
  check('one digest per run of block ids covers all layers in order', async (setup) => {
    const shape = [2, 6, 4, 3];
    const { instance, slice } = await openLayers(setup, [{ shape }, { shape, dtype: 'float16' }]);
    const sums = await instance.checksumBlocks({ ...JOINED, blockAxes: [1, 1] });
    const expected = [[5, 0], [1, 3], [3]].map((ids) => md5(slice(0, 1, ids), slice(1, 1, ids)));
    assert.equal(sums, [expected]);
  });

  check('layerwise digests are one list per layer, each along its own axis', async (setup) => {
    const layers = [{ shape: [6, 7] }, { shape: [2, 6, 3] }];
    const { instance, slice } = await openLayers(setup, layers);
    const sums = await instance.checksumBlocks({
      ...JOINED,
      blocksPerChecksum: 3,
      blockAxes: [0, 1],
      isLayerwise: true,
    });
    const runs = [
      [5, 0, 1],
      [3, 3],
    ];
    assert.equal(
      sums,
      [0, 1].map((layer) => runs.map((ids) => md5(slice(layer, layer, ids)))),
    );
  });

  const layers: Record<string, Layer> = {
    'bfloat16 is widened to float32 and padding between blocks left out': {
      shape: [6, 4, 8],
      stride: [50, 8, 1],
      dtype: 'bfloat16',
    },
    'rows with gaps inside a block are read without the gaps': {
      shape: [6, 3, 2, 4],
      stride: [100, 30, 8, 1],
    },
  };
  for (const [title, layer] of Object.entries(layers)) {
    check(title, async (setup) => {
      const { instance, slice } = await openLayers(setup, [layer]);
      const sums = await instance.checksumBlocks(JOINED);
      const expected = [[5, 0], [1, 3], [3]].map((ids) => md5(slice(0, 0, ids)));
      assert.equal(sums, [expected]);
      assert.is(instance.jobCountInFlight, 0);
    });
  }
}

function refusalTests(check: Check): void {
  check(
    'block ids, axes and counts of a checksum that make no sense are refused',
    async (setup) => {
      const { instance } = await openLayers(setup, [{ shape: [6, 4] }]);
      const cases = [
        [{ ...JOINED, blockIds: [6] }, 'ERR_BAD_REQUEST', /block id 6 of 6/],
        [{ ...JOINED, blockIds: [-1] }, 'ERR_BAD_REQUEST', /block id -1/],
        [{ ...JOINED, blocksPerChecksum: 0 }, 'ERR_BAD_REQUEST', /expected ≥ 1/],
        [{ ...JOINED, blockAxes: [2] }, 'ERR_UNSUPPORTED', /block axis 2/],
        [{ ...JOINED, blockAxes: [] }, 'ERR_UNSUPPORTED', /block axis undefined/],
      ] as const;
      for (const [options, code, expected] of cases) {
        await refuses(instance.checksumBlocks(options), code, expected);
      }
    },
  );

  check('a closed instance takes no checksums', async (setup) => {
    const { instance } = await openLayers(setup, [{ shape: [6, 4] }]);
    await instance.close();
    await refuses(instance.checksumBlocks(JOINED), 'ERR_SHUTTING_DOWN');
  });
}
