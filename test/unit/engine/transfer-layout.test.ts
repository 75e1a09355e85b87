/** KV layouts: the bytes of objects (vectors/engine.json, spec engine 5.5) */
import { readFileSync } from 'node:fs';
import * as assert from 'uvu/assert';
import type { CopyJob, MappedTensor } from '../../../src/device/device.ts';
import type { DtypeName } from '../../../src/device/tensor-wrapper.ts';
import type { EngineType, LayoutHints } from '../../../src/engine/api.ts';
import { KV_FORMATS } from '../../../src/engine/transfer/kv-format.ts';
import {
  buildKvLayout,
  type KvLayout,
  type KvLayoutOptions,
} from '../../../src/engine/transfer/kv-layout.ts';
import { runCopyJob } from '../../support/copy-plan.ts';
import { contiguous, layoutOf, objectOf, times } from '../../support/kv-tensors.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

interface FormatVector {
  readonly format: string;
  readonly value: number;
  readonly tensor_count: number;
  readonly tensor_shape: readonly number[];
  readonly object_shape: readonly number[];
  readonly objects: readonly (readonly number[])[];
  readonly scatter_skip_1_block_into_minus_ones: readonly (readonly number[])[];
}

const vectors = JSON.parse(
  readFileSync(new URL('../../vectors/engine.json', import.meta.url), 'utf8'),
) as {
  layouts: { chunk_tokens: number; block_ids: number[]; formats: FormatVector[] };
};

/** How each format crosses the wire: engine, shape of each tensor, hints. */
function wireForm(vector: FormatVector): {
  engineType: EngineType;
  shape: readonly number[];
  hints: LayoutHints;
  hasAccelerator: boolean;
} {
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0] = vector.tensor_shape;
  const vllm = { engineType: 'vllm' as const, shape: vector.tensor_shape, hints: {} };
  switch (vector.value) {
    case 4:
    case 5:
      return { ...vllm, engineType: 'sglang', hints: { tokensPerBlock: 2 }, hasAccelerator: true };
    case 9: {
      const form = { engineType: 'sglang' as const, shape: [a * b, c, d] };
      return { ...form, hints: { tokensPerBlock: b }, hasAccelerator: false };
    }
    case 8: {
      const hints = { numKvHeads: d, tokensPerBlock: e, headDim: f };
      const shape = [a, b, c, d * e * f];
      return { engineType: 'trtllm', shape, hints, hasAccelerator: false };
    }
    case 10:
      return { ...vllm, shape: [a, b, c, d * e], hasAccelerator: true };
    case 6:
      return { ...vllm, hints: { kvLayout: 'NHD' }, hasAccelerator: false };
    case 7:
      return { ...vllm, hints: { kvLayout: 'HND' }, hasAccelerator: true };
    default:
      return { ...vllm, hasAccelerator: true };
  }
}

function vectorLayout(vector: FormatVector): KvLayout {
  if (vector.value === 0) {
    const tensors = [{ format: KV_FORMATS[0], view: contiguous(vector.tensor_shape) }];
    return buildKvLayout({ tensors, infos: [], chunkSizeTokens: 4, hasSeparateObjects: false });
  }
  const { shape, ...form } = wireForm(vector);
  return layoutOf({ ...form, tensors: times(vector.tensor_count, contiguous(shape)) });
}

function bytesOf(values: Int16Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

suite('KV layout against the vectors of the reference', (test) => {
  const { block_ids: ids, formats } = vectors.layouts;
  const blockIds = [Uint32Array.from(ids)];
  for (const vector of formats) {
    const size = vector.tensor_shape.reduce((a, b) => a * b, 1);
    const objectCount = vector.objects.length;
    const objectOffsets = (layout: KvLayout) =>
      Float64Array.from({ length: objectCount }, (_, o) => o * objectOf(layout).objectSizeBytes);

    test(`${vector.format}: gather writes the object bytes of the reference`, () => {
      const layout = vectorLayout(vector);
      if (vector.value !== 4) assert.is(layout.groups[0]?.format.name, vector.format);
      const tensors = Array.from({ length: vector.tensor_count }, (_, t) =>
        Int16Array.from({ length: size }, (_, i) => t * size + i),
      );
      const l1 = new Int16Array((objectOf(layout).objectSizeBytes * objectCount) / 2);
      const job = { direction: 'gather', objectOffsets: objectOffsets(layout), blockIds } as const;
      runCopyJob(objectOf(layout).plan, { engine: tensors.map(bytesOf), l1: bytesOf(l1) }, job);
      assert.equal([...l1], vector.objects.flat());
      assert.equal(objectOf(layout).memoryLayout, {
        shapes: [vector.object_shape],
        dtypes: ['int16'],
      });
    });

    test(`${vector.format}: scatter with a skipped block writes the reference's blocks`, () => {
      const layout = vectorLayout(vector);
      const tensors = Array.from({ length: vector.tensor_count }, () =>
        new Int16Array(size).fill(-1),
      );
      const job: CopyJob = {
        direction: 'scatter',
        objectOffsets: objectOffsets(layout),
        blockIds,
        skipBlocks: [Uint32Array.of(1, 0)],
      };
      const l1 = Int16Array.from(vector.objects.flat());
      runCopyJob(objectOf(layout).plan, { engine: tensors.map(bytesOf), l1: bytesOf(l1) }, job);
      assert.equal(
        tensors.map((tensor) => [...tensor]),
        vector.scatter_skip_1_block_into_minus_ones,
      );
    });
  }
});

suite('KV layout bytes', (test) => {
  const geometry = fc.record({
    layerCount: fc.integer({ min: 1, max: 3 }),
    heads: fc.integer({ min: 1, max: 3 }),
    headSize: fc.integer({ min: 1, max: 4 }),
    slots: fc.integer({ min: 1, max: 4 }),
    blocksPerChunk: fc.integer({ min: 1, max: 3 }),
    dtype: fc.constantFrom<DtypeName>('uint8', 'bfloat16', 'float32', 'float64'),
  });
  type Geometry = typeof geometry extends fc.Arbitrary<infer T> ? T : never;

  /** NB = 7 keeps it apart from the axis of keys and values. */
  const forms: Record<string, (g: Geometry) => Partial<KvLayoutOptions> & { count: number }> = {
    NL_X_TWO_NB_BS_NH_HS: ({ layerCount, slots, heads, headSize, dtype }) => ({
      count: layerCount,
      tensors: times(layerCount, contiguous([2, 7, slots, heads, headSize], dtype)),
    }),
    NL_X_NB_TWO_NH_BS_HS: ({ layerCount, slots, heads, headSize, dtype }) => ({
      count: layerCount,
      tensors: times(layerCount, contiguous([7, 2, heads, slots, headSize], dtype)),
      hints: { kvLayout: 'HND' },
    }),
    NL_X_NB_NH_BS_TWO_HS: ({ layerCount, slots, heads, headSize, dtype }) => ({
      count: layerCount,
      tensors: times(layerCount, contiguous([7, heads, slots, 2 * headSize], dtype)),
    }),
    NL_X_NB_BS_NH_TWO_HS: ({ layerCount, slots, heads, headSize, dtype }) => ({
      count: layerCount,
      tensors: times(layerCount, contiguous([7, slots, heads, 2 * headSize], dtype)),
      hints: { kvLayout: 'NHD' },
    }),
    NL_X_TWO_NB_NH_ONE_BS_HS: ({ layerCount, slots, heads, headSize, dtype }) => ({
      count: layerCount,
      tensors: times(layerCount, contiguous([2, 7, heads, 1, slots, headSize], dtype)),
      layoutRules: 'per-layer',
    }),
    NB_NL_TWO_NH_BS_HS: ({ layerCount, slots, heads, headSize, dtype }) => ({
      count: 1,
      engineType: 'trtllm',
      tensors: [contiguous([7, layerCount, 2, heads * slots * headSize], dtype)],
      hints: { numKvHeads: heads, tokensPerBlock: slots, headDim: headSize },
    }),
  };

  test('an object stored through one format is read back through any other', () => {
    const names = Object.keys(forms);
    fc.assert(
      fc.property(
        geometry,
        fc.constantFrom(...names),
        fc.constantFrom(...names),
        fc.shuffledSubarray([0, 1, 2, 3, 4, 5, 6], { minLength: 6 }),
        (g, sourceName, targetName, blocks) => {
          const chunkSizeTokens = g.slots * g.blocksPerChunk;
          const [source, target] = [sourceName, targetName].map((name) => {
            const { count, ...form } = (forms[name] as (typeof forms)[string])(g);
            const options = { ...form, chunkSizeTokens } as Parameters<typeof layoutOf>[0];
            const layout = layoutOf(options);
            assert.is(layout.groups[0]?.format.name, name);
            return { layout, count, tensors: options.tensors };
          }) as [Side, Side];
          assert.is(
            objectOf(source.layout).objectSizeBytes,
            objectOf(target.layout).objectSizeBytes,
          );
          const ids = blocks.slice(0, g.blocksPerChunk * 2);
          const objectCount = Math.floor(ids.length / g.blocksPerChunk);
          fc.pre(objectCount > 0);
          const sizes = {
            objectOffsets: Float64Array.from(
              { length: objectCount },
              (_, o) => o * objectOf(source.layout).objectSizeBytes,
            ),
            blockIds: [Uint32Array.from(ids.slice(0, objectCount * g.blocksPerChunk))],
          };
          const l1 = new Uint8Array(objectOf(source.layout).objectSizeBytes * objectCount);
          const from = fill(source);
          const to = fill(target).map((bytes) => bytes.fill(0));
          runCopyJob(
            objectOf(source.layout).plan,
            { engine: from, l1 },
            { direction: 'gather', ...sizes },
          );
          runCopyJob(
            objectOf(target.layout).plan,
            { engine: to, l1 },
            { direction: 'scatter', ...sizes },
          );
          const again = new Uint8Array(l1.length);
          runCopyJob(
            objectOf(target.layout).plan,
            { engine: to, l1: again },
            { direction: 'gather', ...sizes },
          );
          assert.equal(again, l1);
          const scattered = to.reduce((n, bytes) => n + bytes.filter((b) => b !== 0).length, 0);
          assert.is(scattered, l1.length, 'every byte of the objects reached the engine once');
        },
      ),
      { numRuns: 60 },
    );
  });

  interface Side {
    layout: KvLayout;
    count: number;
    tensors: readonly MappedTensor[];
  }

  /** Buffers without a zero byte, so that a zero means "not written". */
  function fill(side: Side): Uint8Array[] {
    let seed = 1;
    return side.tensors.map(({ shape, dtype }) => {
      const itemSize = { uint8: 1, bfloat16: 2, float32: 4, float64: 8 }[dtype as 'uint8'];
      const bytes = new Uint8Array(shape.reduce((a, b) => a * b, itemSize));
      for (let i = 0; i < bytes.length; i += 1) {
        seed = (seed * 48_271) % 2_147_483_647;
        bytes[i] = (seed % 255) + 1;
      }
      return bytes;
    });
  }

  test('groups of different shape lie one after the other in the object', () => {
    const layout = layoutOf({
      tensors: [
        ...times(2, contiguous([2, 24, 4, 3, 8], 'float32')),
        contiguous([2, 24, 4, 2, 8], 'float32'),
      ],
      chunkSizeTokens: 16,
    });
    assert.is(objectOf(layout).objectSizeBytes, 8192);
    assert.equal(objectOf(layout).memoryLayout.shapes, [
      [2, 2, 16, 24],
      [2, 1, 16, 16],
    ]);
    const offsets = objectOf(layout).plan.groups.map((group) =>
      group.planes.map((p) => p.objectOffsetBytes),
    );
    assert.equal(offsets, [
      [0, 1536, 3072, 4608],
      [6144, 7168],
    ]);
  });

  test('a padded block stride of an MLA cache is followed', () => {
    const tensor = { dtype: 'bfloat16', shape: [5, 4, 8], stride: [40, 8, 1] } as const;
    const layout = layoutOf({ tensors: [tensor] });
    assert.is(layout.groups[0]?.format.name, 'NL_X_NB_BS_HS');
    assert.is(objectOf(layout).plan.groups[0]?.planes[0]?.engineBlockStrideBytes, 80);
    assert.is(objectOf(layout).plan.groups[0]?.runBytes, 64);
  });

  test('a permuted view is read in the order of its memory', () => {
    // vLLM with HND: memory [2, NB, NH, BS, HS], seen as [2, NB, BS, NH, HS].
    const tensor = {
      dtype: 'float16',
      shape: [2, 5, 4, 3, 8],
      stride: [480, 96, 8, 32, 1],
    } as const;
    const layout = layoutOf({ tensors: [tensor], hints: { kvLayout: 'HND' } });
    assert.is(layout.groups[0]?.headCount, 3);
    assert.is(layout.groups[0]?.slotsPerBlock, 4);
    const plan = objectOf(layout).plan.groups[0];
    assert.equal([plan?.outerCount, plan?.innerCount, plan?.runBytes], [3, 4, 16]);
  });

  test('a token-major block is copied as a single run', () => {
    const plan = objectOf(layoutOf({ tensors: [contiguous([2, 5, 4, 3, 8])] })).plan.groups[0];
    assert.equal([plan?.outerCount, plan?.innerCount, plan?.runBytes], [1, 1, 4 * 3 * 8 * 2]);
  });
});
