/** KV formats per layer, by the rules of each client (vectors/layouts-*.json, spec engine 5.3) */
import * as assert from 'uvu/assert';
import type { MappedTensor } from '../../../src/device/device.ts';
import type { EngineType, LayoutHints } from '../../../src/engine/api.ts';
import {
  type DiscoveryOptions,
  discoverFormats,
} from '../../../src/engine/transfer/format-discovery.ts';
import {
  blockAxesOf,
  describeKvLayout,
  formatNamesOf,
} from '../../../src/engine/transfer/kv-layout.ts';
import {
  contiguous,
  info,
  layoutOf,
  objectOf,
  PER_LAYER,
  times,
} from '../../support/kv-tensors.ts';
import {
  type DiscoveryVector,
  type FoundFormats,
  LAYOUTS_054,
  LAYOUTS_056,
  type TensorVector,
} from '../../support/layout-vectors.ts';
import { suite } from '../../support/suite.ts';

const mapped = ({ shape, dtype = 'int16', stride }: TensorVector): MappedTensor =>
  stride ? { dtype, shape, stride } : contiguous(shape, dtype);

function hintsOf(hints: DiscoveryVector['hints']): LayoutHints {
  return {
    kvLayout: hints['kv_layout'],
    kvListLayout: hints['kv_list_layout'],
    tokensPerBlock: hints['tokens_per_block'],
    numKvHeads: hints['num_kv_heads'],
    headDim: hints['head_dim'],
  } as LayoutHints;
}

/** Names of the formats as the vectors have them: per layer, or once for a whole cache. */
function find(one: DiscoveryVector, client: Partial<DiscoveryOptions>): FoundFormats {
  try {
    const found = discoverFormats({
      tensors: one.tensors.map(mapped),
      engineType: one.engine.toLowerCase() as EngineType,
      hints: hintsOf(one.hints),
      infos: one.groups.map((layers, engineGroupId) => info(layers, { engineGroupId })),
      hasAccelerator: true,
      ...PER_LAYER,
      ...client,
    });
    const names = found.map((tensor) => tensor?.format.name ?? null);
    return found[0]?.format.role === 'layer' ? names : [...new Set(names)];
  } catch (error) {
    return { error: (error as Error).message };
  }
}

function check(
  one: DiscoveryVector,
  found: FoundFormats,
  expected: FoundFormats,
  title: string,
): void {
  if ('error' in expected) {
    assert.ok('error' in found, `${title}: expected a refusal, got ${JSON.stringify(found)}`);
    return;
  }
  const isWhole = expected.every((name) => /^(TWO_X|NB_NL)/.test(name ?? ''));
  assert.equal(found, isWhole ? [...new Set(expected)] : expected, `${one.case}, ${title}`);
}

suite('formats of clients that discover them per layer, as in the reference', (test) => {
  for (const device of ['cpu', 'cuda'] as const) {
    test(`0.5.6 on ${device}`, () => {
      for (const one of LAYOUTS_056.discovery) {
        const found = find(one, { hasAccelerator: device === 'cuda' });
        check(one, found, one.formats[device], `${one.case}, ${device}`);
      }
    });

    test(`0.5.4 on ${device}, where it is not narrower`, () => {
      // What only newer clients send, and what newer servers serve in addition.
      const isNewer = /BLHNC|BLNHC|LHBNC|unified|k_v of one head|latent slots/;
      const isNarrower = /fused with gaps|one head before slots|indexer with a head/;
      const cases = LAYOUTS_054.discovery.filter(
        (one) => !isNewer.test(one.case) && !isNarrower.test(one.case),
      );
      assert.ok(cases.length > 50);
      for (const one of cases) {
        const found = find(one, { hasAccelerator: device === 'cuda', reportsKvLayout: false });
        check(one, found, one.formats[device], `${one.case}, ${device}`);
      }
    });
  }
});

suite('formats, by the rules of the client', (test) => {
  const fused = [contiguous([5, 3, 4, 8])];
  const table: [string, Partial<DiscoveryOptions>, string][] = [
    ['first-tensor, no hint', {}, 'NL_X_NB_NH_BS_TWO_HS'],
    ['first-tensor, HND', { hints: { kvLayout: 'HND' } }, 'NL_X_NB_NH_BS_TWO_HS'],
    ['first-tensor, NHD', { hints: { kvLayout: 'NHD' } }, 'NL_X_NB_BS_NH_TWO_HS'],
    [
      'first-tensor, NHD from the CPU',
      { hints: { kvLayout: 'NHD' }, hasAccelerator: false },
      'NL_X_NB_NH_BS_TWO_HS',
    ],
    ['per-layer, no hint', PER_LAYER, 'NL_X_NB_BS_NH_CS'],
    [
      'per-layer, no hint from the CPU',
      { ...PER_LAYER, hasAccelerator: false },
      'NL_X_NB_NH_BS_CS',
    ],
    [
      'per-layer, NHD from the CPU',
      { ...PER_LAYER, hasAccelerator: false, hints: { kvLayout: 'NHD' } },
      'NL_X_NB_BS_NH_CS',
    ],
    [
      'per-layer, NHD from a CPU that misreports it',
      {
        ...PER_LAYER,
        reportsKvLayout: false,
        hasAccelerator: false,
        hints: { kvLayout: 'NHD' },
      },
      'NL_X_NB_NH_BS_CS',
    ],
  ];
  for (const [title, options, name] of table) {
    test(`fused heads: ${title}`, () => {
      const layout = layoutOf({ tensors: fused, chunkSizeTokens: 12, ...options });
      assert.is(layout.groups[0]?.format.name, name);
    });
  }

  test('old SGLang clients do not say which list it is: the head count decides', () => {
    const slots = { engineType: 'sglang', hints: { tokensPerBlock: 2 } } as const;
    for (const layoutRules of ['first-tensor', 'per-layer'] as const) {
      const heads = layoutOf({ ...slots, layoutRules, tensors: times(4, contiguous([8, 3, 8])) });
      assert.is(heads.groups[0]?.format.name, 'TWO_X_NL_X_NB_BS_NH_HS');
    }
    const latent = times(2, contiguous([8, 1, 8]));
    const old = layoutOf({ ...slots, tensors: latent });
    const recent = layoutOf({ ...slots, ...PER_LAYER, tensors: latent });
    assert.equal([old, recent].map(formatNamesOf), ['NL_X_NBBS_ONE_HS', 'NL_X_NB_BS_HS']);
    assert.equal(objectOf(old).plan, objectOf(recent).plan, 'they mean the same bytes');
  });

  const refused: [string, Parameters<typeof layoutOf>[0], RegExp][] = [
    [
      'a layer of a shape that no layer has, by its place',
      { tensors: [contiguous([2, 5, 4, 3, 8]), contiguous([5, 4])] },
      /tensor 1: no vLLM layout has the shape \[5, 4\]; expected \[2, NB, \.\.\]/,
    ],
    [
      'a layout name that nobody knows',
      { tensors: fused, hints: { kvLayout: 'LHBNC' } as unknown as LayoutHints },
      /kv_layout LHBNC is unknown; expected NHD, HND, BLHNC or BLNHC/,
    ],
    [
      'gaps between keys and values',
      { tensors: [{ dtype: 'int16', shape: [2, 5, 4, 3, 8], stride: [999, 96, 24, 8, 1] }] },
      /tensor 0: gaps between outermost elements are not supported for NL_X_TWO_NB_BS_NH_HS/,
    ],
    [
      'gaps between slots',
      {
        tensors: [{ dtype: 'int16', shape: [8, 1, 8], stride: [16, 8, 1] }],
        engineType: 'sglang',
        hints: { tokensPerBlock: 2 },
      },
      /tensor 0: gaps between outermost elements are not supported/,
    ],
    [
      'a latent list with heads in it',
      {
        tensors: [contiguous([8, 1, 8]), contiguous([8, 2, 8])],
        engineType: 'sglang',
        hints: { tokensPerBlock: 2 },
      },
      /tensor 1: shape \[8, 2, 8\] does not fit NL x \[NB, BS, HS\], which tensor 0 decided/,
    ],
    [
      'a list of keys and values without the slots of a block',
      {
        tensors: times(2, contiguous([8, 3, 8])),
        engineType: 'sglang',
        hints: { kvListLayout: 'k_v' },
      },
      /tokens_per_block must be a positive integer, got none/,
    ],
    [
      'fused heads of ATOM',
      { tensors: [contiguous([5, 2, 3, 8])], engineType: 'atom' },
      /no ATOM layout has the shape \[5, 2, 3, 8\]; expected \[NB, BS, HS\]/,
    ],
    [
      'ATOM from a client that has no such engine',
      {
        tensors: [contiguous([5, 4, 8])],
        engineType: 'atom',
        layoutRules: 'first-tensor',
      },
      /engine type atom has no known cache layout/,
    ],
    [
      'seven dimensions of the first-tensor rules',
      { tensors: [contiguous([2, 5, 3, 1, 4, 8])], layoutRules: 'first-tensor' },
      /no vLLM layout has the shape \[2, 5, 3, 1, 4, 8\]/,
    ],
    [
      'a registration whose layers are all left out',
      { tensors: fused, infos: [info([])] },
      /leave out every layer/,
    ],
  ];
  for (const [title, options, message] of refused) {
    test(`refuses ${title}`, () => {
      assert.throws(() => layoutOf({ ...PER_LAYER, ...options }), message);
    });
  }
});

suite('layers of different formats', (test) => {
  const keysAndValues = contiguous([2, 5, 4, 3, 8], 'float16');
  const indexer = contiguous([5, 4, 132], 'uint8');
  const mixed = (tensors: readonly MappedTensor[], infos = [] as ReturnType<typeof info>[]) =>
    layoutOf({ ...PER_LAYER, tensors, infos, hints: { kvLayout: 'NHD' } });

  test('form kernel groups of their own, with their block ids and part of the object', () => {
    const layout = mixed([keysAndValues, indexer, keysAndValues, indexer]);
    const described = describeKvLayout(layout)['kernel_groups'] as Record<string, unknown>[];
    assert.equal(
      described.map((group) => [
        group['engine_kv_format'],
        group['engine_kv_shape'],
        group['engine_kv_concrete_shape'],
        group['is_mla'],
        group['layer_indices'],
      ]),
      [
        ['NL_X_TWO_NB_BS_NH_HS', 'NL x [2, NB, BS, NH, HS]', '2 x [2, 5, 4, 3, 8]', false, [0, 2]],
        ['NL_X_NB_BSV_BSS', 'NL x [NB, BSxVALS, BSxSCALES]', '2 x [5, 4, 132]', true, [1, 3]],
      ],
    );
    assert.is(formatNamesOf(layout), 'NL_X_TWO_NB_BS_NH_HS and NL_X_NB_BSV_BSS');
    assert.is(objectOf(layout).objectSizeBytes, 2 * 2 * 4 * 24 * 2 + 2 * 4 * 132);
  });

  test('split an engine group, and its infos have to say so', () => {
    const layout = mixed([keysAndValues, indexer], [info([0]), info([1])]);
    assert.equal(
      layout.groups.map((group) => group.engineGroupId),
      [0, 0],
    );
    assert.throws(() => mixed([keysAndValues, indexer], [info([0, 1])]), /form 2 groups/);
  });

  test('of one geometry are not mixed up either', () => {
    const plane = contiguous([5, 4, 132], 'uint8');
    const padded = { ...plane, shape: [5, 1, 4, 132], stride: [999, 528, 132, 1] };
    const layout = layoutOf({
      ...PER_LAYER,
      tensors: [plane, padded, contiguous([5, 4, 132], 'int8')],
      hints: { kvLayout: 'BLHNC' },
    });
    assert.equal(
      layout.groups.map((group) => [group.format.value, group.layerIndices]),
      [
        [14, [0, 1]],
        [3, [2]],
      ],
    );
    assert.equal(
      objectOf(layout).plan.groups[0]?.planes.map((p) => p.engineBlockStrideBytes),
      [528, 999],
    );
  });

  test('are latent as a whole only if each is', () => {
    assert.not.ok(mixed([keysAndValues, indexer]).isMla);
    assert.ok(mixed([contiguous([5, 4, 576], 'bfloat16'), indexer]).isMla);
    assert.not.ok(mixed([contiguous([5, 4, 3, 16])]).isMla, 'one plane alone does not mean MLA');
  });

  test('in no group may be anything', () => {
    const layout = mixed([contiguous([7]), keysAndValues, contiguous([3, 0])], [info([1])]);
    assert.equal(layout.groups[0]?.layerIndices, [1]);
  });

  test('have block axes of their own', () => {
    const alone = contiguous([5, 4, 8]);
    assert.equal(blockAxesOf(mixed([keysAndValues, indexer]), 2), [1, 0]);
    assert.equal(blockAxesOf(mixed([keysAndValues, keysAndValues], [info([0])]), 2), [1, 1]);
    const some = mixed([keysAndValues, indexer, alone], [info([0]), info([1])]);
    assert.is(blockAxesOf(some, 3), null, 'of a layer in no group it cannot be known');
    const sglang = { engineType: 'sglang', hints: { tokensPerBlock: 2 } } as const;
    const slots = layoutOf({ ...sglang, tensors: times(2, contiguous([8, 3, 8])) });
    assert.is(blockAxesOf(slots, 2), null);
  });
});
