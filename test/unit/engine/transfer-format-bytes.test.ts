/** Bytes of the newer KV formats, and what tells objects apart (spec engine 5.3, 5.5) */

import * as assert from 'uvu/assert';
import type { CopyJob } from '../../../src/device/device.ts';
import type { DtypeName } from '../../../src/device/tensor-wrapper.ts';
import { describeLayout, layoutTagOf } from '../../../src/engine/layout-registry.ts';
import type { KvLayout } from '../../../src/engine/transfer/kv-layout.ts';
import { runCopyJob } from '../../support/copy-plan.ts';
import { contiguous, layoutOf, objectOf, PER_LAYER, times } from '../../support/kv-tensors.ts';
import { LAYOUTS_054, LAYOUTS_056, type LayoutVector } from '../../support/layout-vectors.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

function vectorLayout(vector: LayoutVector): KvLayout {
  const { dtype, tensor_count: count, tensor_shape: shape } = vector;
  const isNhd = /BS_NH/.test(vector.format);
  const isUnified = vector.format === 'NL_X_NB_BS_NH_HS';
  return layoutOf({
    ...PER_LAYER,
    tensors: times(count, contiguous(shape, dtype)),
    engineType: isUnified ? 'sglang' : 'vllm',
    hints: isUnified ? { kvListLayout: 'unified' } : { kvLayout: isNhd ? 'NHD' : 'HND' },
  });
}

const bytesOf = ({ buffer, byteOffset, byteLength }: Int16Array | Uint8Array) =>
  new Uint8Array(buffer, byteOffset, byteLength);

const offsetsOf = (layout: KvLayout, count: number) =>
  Float64Array.from({ length: count }, (_, o) => o * objectOf(layout).objectSizeBytes);

suite('object bytes of newer formats against the reference', (test) => {
  const blockIds = [Uint32Array.from(LAYOUTS_056.block_ids)];
  for (const vector of LAYOUTS_056.layouts) {
    const newArray = (length: number) =>
      vector.dtype === 'uint8' ? new Uint8Array(length) : new Int16Array(length);
    const wrap = vector.dtype === 'uint8' ? 251 : 1 << 15;
    const size = vector.tensor_shape.reduce((a, b) => a * b, 1);

    test(`${vector.format}: gather`, () => {
      const layout = vectorLayout(vector);
      assert.is(layout.groups[0]?.format.name, vector.format);
      assert.equal(objectOf(layout).memoryLayout.shapes, [vector.object_shape]);
      const tensors = Array.from({ length: vector.tensor_count }, (_, t) =>
        newArray(size).map((_, i) => (t * size + i) % wrap),
      );
      const l1 = newArray(vector.objects.flat().length);
      const job = { direction: 'gather', objectOffsets: offsetsOf(layout, 2), blockIds } as const;
      runCopyJob(objectOf(layout).plan, { engine: tensors.map(bytesOf), l1: bytesOf(l1) }, job);
      assert.equal([...l1], vector.objects.flat());
    });

    test(`${vector.format}: scatter with a skipped block`, () => {
      const layout = vectorLayout(vector);
      const tensors = times(vector.tensor_count, 0).map(() => newArray(size).fill(-1));
      const job: CopyJob = {
        direction: 'scatter',
        objectOffsets: offsetsOf(layout, 2),
        blockIds,
        skipBlocks: [Uint32Array.of(1, 0)],
      };
      const values = vector.objects.flat();
      const l1 = newArray(values.length);
      l1.set(values);
      runCopyJob(objectOf(layout).plan, { engine: tensors.map(bytesOf), l1: bytesOf(l1) }, job);
      assert.equal(
        tensors.map((tensor) => [...tensor]),
        vector.scatter_skip_1_block_into_filled,
      );
    });
  }

  test('0.5.4 has the same bytes', () => {
    const older = new Map(LAYOUTS_054.layouts.map((vector) => [vector.format, vector]));
    assert.ok(older.size >= 4);
    for (const vector of LAYOUTS_056.layouts.filter(({ format }) => older.has(format))) {
      assert.equal(vector, older.get(vector.format));
    }
  });
});

suite('fused heads', (test) => {
  const geometry = fc.record({
    layers: fc.integer({ min: 1, max: 3 }),
    heads: fc.integer({ min: 2, max: 4 }),
    content: fc.integer({ min: 1, max: 5 }),
    slots: fc.integer({ min: 2, max: 4 }),
    gap: fc.integer({ min: 0, max: 40 }),
  });

  test('mean the same bytes in every order and with any gaps between blocks', () => {
    fc.assert(
      fc.property(geometry, fc.boolean(), ({ layers, heads, content, slots, gap }, isNhd) => {
        const blockSize = heads * slots * content;
        const shape = isNhd ? [7, slots, heads, content] : [7, heads, slots, content];
        const tight = contiguous(shape, 'uint8');
        const padded = { ...tight, stride: [blockSize + gap, ...tight.stride.slice(1)] };
        const layout = layoutOf({
          ...PER_LAYER,
          tensors: times(layers, padded),
          hints: { kvLayout: isNhd ? 'BLNHC' : 'BLHNC' },
          chunkSizeTokens: 2 * slots,
        });
        const memory = (fill: (layer: number, address: number) => number) =>
          Array.from({ length: layers }, (_, layer) =>
            Uint8Array.from({ length: 7 * (blockSize + gap) }, (_, i) => fill(layer, i)),
          );
        const engine = memory((layer, i) => 1 + ((layer * 31 + i * 7) % 255));
        const l1 = new Uint8Array(objectOf(layout).objectSizeBytes);
        const ids = [5, 2];
        const move = { objectOffsets: Float64Array.of(0), blockIds: [Uint32Array.from(ids)] };
        runCopyJob(objectOf(layout).plan, { engine, l1 }, { direction: 'gather', ...move });

        const expected: number[] = [];
        for (let layer = 0; layer < layers; layer += 1) {
          for (let slot = 0; slot < 2 * slots; slot += 1) {
            for (let head = 0; head < heads; head += 1) {
              const inBlock = slot % slots;
              const row = isNhd ? inBlock * heads + head : head * slots + inBlock;
              const block = ids[Math.floor(slot / slots)] as number;
              const at = block * (blockSize + gap) + row * content;
              expected.push(...(engine[layer] as Uint8Array).subarray(at, at + content));
            }
          }
        }
        assert.equal([...l1], expected);

        const back = memory(() => 0);
        runCopyJob(objectOf(layout).plan, { engine: back, l1 }, { direction: 'scatter', ...move });
        const isMoved = (i: number) =>
          ids.includes(Math.floor(i / (blockSize + gap))) && i % (blockSize + gap) < blockSize;
        assert.equal(
          back,
          engine.map((bytes) => bytes.map((byte, i) => (isMoved(i) ? byte : 0))),
        );
      }),
      { numRuns: 60 },
    );
  });
});

suite('fingerprint of an object', (test) => {
  const textOf = (options: Parameters<typeof layoutOf>[0]) =>
    objectOf(layoutOf({ chunkSizeTokens: 16, ...options })).layoutText;
  const workerText = (shape: number[], dtype: DtypeName = 'float16') =>
    describeLayout({ shapes: [shape], dtypes: [dtype] });
  const layers = (...shape: number[]) => times(2, contiguous(shape, 'float16'));
  const [NHD, HND] = [{ kvLayout: 'NHD' }, { kvLayout: 'HND' }] as const;

  test('is the same for the same bytes through any format, path and generation', () => {
    const split = [
      workerText([2, 2, 16, 24]),
      textOf({ tensors: layers(2, 5, 4, 3, 8), hints: NHD }),
      textOf({ tensors: layers(2, 5, 3, 4, 8), hints: HND }),
      textOf({ tensors: layers(5, 2, 8, 3, 8), hints: NHD, ...PER_LAYER }),
      textOf({ tensors: layers(5, 3, 4, 16), hints: HND }),
      textOf({ tensors: layers(5, 4, 3, 16), hints: NHD }),
      textOf({ tensors: layers(2, 5, 3, 1, 4, 8), hints: NHD, ...PER_LAYER }),
      textOf({
        tensors: times(4, contiguous([8, 3, 8], 'float16')),
        engineType: 'sglang',
        hints: { tokensPerBlock: 4, kvListLayout: 'k_v' },
        ...PER_LAYER,
      }),
    ];
    assert.equal(new Set(split), new Set(['float16[2,2,16,24]']));
    const fused = [
      workerText([2, 16, 48]),
      textOf({ tensors: layers(5, 3, 4, 16), hints: HND, ...PER_LAYER }),
      textOf({ tensors: layers(5, 4, 3, 16), hints: NHD, ...PER_LAYER }),
    ];
    assert.equal(new Set(fused), new Set(['float16[2,16,48]']));
    const latent = [
      workerText([2, 16, 8]),
      textOf({ tensors: layers(5, 4, 8) }),
      textOf({ tensors: layers(5, 4, 8), ...PER_LAYER }),
      textOf({ tensors: layers(8, 1, 8), engineType: 'sglang', hints: { tokensPerBlock: 4 } }),
    ];
    assert.equal(new Set(latent), new Set(['float16[2,16,8]']));
  });

  test('keeps keys and values apart from fused heads of the same size', () => {
    const tensors = layers(5, 3, 4, 16);
    const [apart, fused] = [{}, PER_LAYER].map((rules) =>
      objectOf(layoutOf({ tensors, hints: HND, ...rules })),
    );
    assert.is(apart?.objectSizeBytes, fused?.objectSizeBytes);
    assert.is.not(apart?.layoutText, fused?.layoutText);
    assert.is.not(apart?.layoutTag, fused?.layoutTag);
  });

  test('names the regions of blocks that keep their own order, whose size then counts', () => {
    const indexer = (slots: number) =>
      textOf({ tensors: [contiguous([5, slots, 132], 'uint8')], ...PER_LAYER });
    assert.is(indexer(8), 'uint8[16,132]{8x128+8x4}');
    assert.is(indexer(16), 'uint8[16,132]{16x128+16x4}');
    assert.is.not(indexer(16), workerText([16, 132], 'uint8'));
  });

  test('tells one layer of keys and values from two layers', () => {
    assert.is(workerText([2, 1, 16, 8]), 'float16[2,1,16,8]');
    assert.is(workerText([1, 2, 16, 8]), 'float16[2,16,8]');
    assert.is(workerText([1, 1, 1, 1]), 'float16[1,1,1,1]');
  });

  test('joins the groups of an object in their order', () => {
    const text = textOf({
      tensors: [contiguous([2, 5, 4, 3, 8], 'bfloat16'), contiguous([5, 4, 132], 'uint8')],
      ...PER_LAYER,
    });
    assert.is(text, 'bfloat16[2,1,16,24];uint8[16,132]{4x128+4x4}');
  });

  test('has a number that never changes for a text', () => {
    assert.is(layoutTagOf('float16[2,4,16,64]'), 0x89c2_d94f);
    assert.is(layoutTagOf(''), 0x811c_9dc5);
  });
});
