/** KV format discovery and kernel groups (spec engine 5.3, 5.4; field lesson 18.3) */
import * as assert from 'uvu/assert';
import type { EngineGroupInfo } from '../../../src/engine/api.ts';
import { describeKvLayout } from '../../../src/engine/transfer/kv-layout.ts';
import { contiguous, info, layoutOf, objectOf, times } from '../../support/kv-tensors.ts';
import { suite } from '../../support/suite.ts';

suite('KV format discovery', (test) => {
  const nameOf = (options: Parameters<typeof layoutOf>[0]) =>
    layoutOf(options).groups[0]?.format.name;

  test('keys and values outermost win when the block count is 2 as well', () => {
    const tensors = [contiguous([2, 2, 4, 3, 8])];
    assert.is(nameOf({ tensors }), 'NL_X_TWO_NB_BS_NH_HS');
  });

  test('without an accelerator vLLM is read as HND whatever it says', () => {
    const tensors = [contiguous([2, 5, 3, 4, 8])];
    const hints = { kvLayout: 'NHD' } as const;
    assert.is(nameOf({ tensors, hints, hasAccelerator: false }), 'NL_X_TWO_NB_NH_BS_HS');
    assert.is(
      nameOf({ tensors, hints, hasAccelerator: true, chunkSizeTokens: 3 }),
      'NL_X_TWO_NB_BS_NH_HS',
    );
  });

  const trtllm = {
    engineType: 'trtllm',
    hints: { numKvHeads: 1, tokensPerBlock: 1, headDim: 8 },
  } as const;

  test('the largest number of planes and the largest object are served', () => {
    const many = layoutOf({ ...trtllm, tensors: [contiguous([1, 2048, 2, 8])] });
    assert.is(objectOf(many).plan.groups[0]?.planes.length, 4096);
    const large = { tensors: [contiguous([4, 2 ** 20, 2 ** 11 - 1])], chunkSizeTokens: 2 ** 20 };
    assert.is(objectOf(layoutOf(large)).objectSizeBytes, 2 ** 21 * (2 ** 11 - 1));
  });

  const refused: [string, Parameters<typeof layoutOf>[0], RegExp][] = [
    ['no tensors', { tensors: [] }, /without tensors/],
    ['an empty dimension', { tensors: [contiguous([2, 0, 4, 3, 8])] }, /empty dimensions/],
    ['an unknown vLLM shape', { tensors: [contiguous([3, 5, 4, 3, 8])] }, /no vLLM layout/],
    ['an odd fused head', { tensors: [contiguous([5, 3, 4, 7])] }, /2\*HS/],
    [
      'layers of different rank',
      { tensors: [contiguous([2, 5, 4, 3, 8]), contiguous([5, 4, 8])] },
      /tensor 1: shape \[5, 4, 8\] does not fit NL x \[2, NB, BS, NH, HS\]/,
    ],
    [
      'padding where only MLA may have it',
      { tensors: [{ dtype: 'int16', shape: [5, 2, 4, 3, 8], stride: [999, 96, 24, 8, 1] }] },
      /gaps between outermost elements/,
    ],
    [
      'memory with gaps inside',
      { tensors: [{ dtype: 'int16', shape: [5, 4, 8], stride: [64, 16, 1] }] },
      /neither contiguous nor padded/,
    ],
    [
      'broadcast memory',
      { tensors: [{ dtype: 'int16', shape: [5, 4, 8], stride: [0, 8, 1] }] },
      /neither contiguous nor padded/,
    ],
    ['a mock engine', { tensors: [contiguous([5, 4, 8])], engineType: 'mock' }, /expected vllm/],
    [
      'SGLang without tokens_per_block',
      { tensors: times(2, contiguous([8, 3, 8])), engineType: 'sglang' },
      /tokens_per_block must be a positive integer, got none/,
    ],
    [
      'SGLang slots that are no whole blocks',
      {
        tensors: times(2, contiguous([9, 3, 8])),
        engineType: 'sglang',
        hints: { tokensPerBlock: 2 },
      },
      /multiple of tokens_per_block 2/,
    ],
    [
      'SGLang keys without values',
      {
        tensors: times(3, contiguous([8, 3, 8])),
        engineType: 'sglang',
        hints: { tokensPerBlock: 2 },
      },
      /as many value tensors; got 3/,
    ],
    [
      'SGLang keys and values of different shape',
      {
        tensors: [contiguous([8, 3, 8]), contiguous([8, 2, 8])],
        engineType: 'sglang',
        hints: { tokensPerBlock: 2 },
      },
      /layer 0: keys are/,
    ],
    [
      'TensorRT-LLM with hints that do not multiply up',
      {
        tensors: [contiguous([5, 2, 2, 24])],
        engineType: 'trtllm',
        hints: { numKvHeads: 3, tokensPerBlock: 2, headDim: 8 },
      },
      /3\*2\*8 = 48/,
    ],
    [
      'more layers than any model has, before anything is made for each',
      { ...trtllm, tensors: [contiguous([1, 2 ** 40, 2, 8])] },
      /1099511627776 layers of 2 planes, at most 4096 planes/,
    ],
    [
      'one plane too many',
      { ...trtllm, tensors: [contiguous([1, 2049, 2, 8])] },
      /2049 layers of 2 planes/,
    ],
    [
      'more tensors than any model has layers',
      { tensors: times(2049, contiguous([2, 5, 4, 3, 8])) },
      /2049 layers of 2 planes/,
    ],
    [
      'objects beyond what the core can hold, naming the chunk size',
      { tensors: [contiguous([4, 2 ** 20, 2 ** 11])], chunkSizeTokens: 2 ** 20 },
      /a chunk of 1048576 tokens has 4294967296 bytes, at most 4294967295 .* lower --chunk-size/,
    ],
  ];
  for (const [title, options, message] of refused) {
    test(`refuses ${title}`, () => {
      assert.throws(() => layoutOf(options), message);
    });
  }
});

suite('kernel groups', (test) => {
  const layers = (count: number) => times(count, contiguous([2, 24, 16, 2, 8], 'float16'));

  test('layers that no info names are left out', () => {
    const layout = layoutOf({
      tensors: layers(3),
      infos: [info([0, 2])],
      chunkSizeTokens: 64,
    });
    assert.equal(layout.groups[0]?.layerIndices, [0, 2]);
    assert.equal(
      objectOf(layout).plan.groups[0]?.planes.map((plane) => plane.tensorIndex),
      [0, 2, 0, 2],
    );
  });

  test('a window inside a chunk keeps its blocks only', () => {
    const layout = layoutOf({
      tensors: layers(2),
      infos: [info([0]), info([1], { engineGroupId: 1, slidingWindowTokens: 32 })],
      chunkSizeTokens: 64,
    });
    const counts = layout.groups.map((g) => [
      g.blocksPerChunk,
      g.blocksPerWindow,
      g.slotsPerObject,
    ]);
    assert.equal(counts, [
      [4, 4, 64],
      [4, 2, 32],
    ]);
    assert.is(objectOf(layout).objectSizeBytes, 2 * (64 + 32) * 16 * 2);
  });

  test('a window of a chunk or more changes nothing', () => {
    for (const slidingWindowTokens of [64, 4096, -1]) {
      const infos = [info([0], { slidingWindowTokens })];
      const layout = layoutOf({ tensors: layers(1), infos, chunkSizeTokens: 64 });
      assert.is(layout.groups[0]?.blocksPerWindow, 4);
    }
  });

  test('a compressed cache holds fewer slots than tokens', () => {
    const infos = [info([0], { tokensPerBlock: 32 })];
    const layout = layoutOf({ tensors: layers(1), infos, chunkSizeTokens: 64 });
    assert.equal([layout.groups[0]?.blocksPerChunk, layout.groups[0]?.slotsPerObject], [2, 32]);
  });

  test('the smallest layer bounds the block ids of its group', () => {
    const tensors = [contiguous([2, 24, 4, 2, 8]), contiguous([2, 20, 4, 2, 8])];
    const layout = layoutOf({ tensors });
    assert.is(layout.groups.length, 1);
    assert.is(objectOf(layout).plan.groups[0]?.engineBlockCount, 20);
  });

  test('the dtype and the engine group split layers of one geometry', () => {
    const tensors = [
      contiguous([2, 24, 4, 2, 8], 'float16'),
      contiguous([2, 24, 4, 2, 8], 'bfloat16'),
      contiguous([2, 24, 4, 2, 8], 'float16'),
    ];
    assert.equal(
      layoutOf({ tensors }).groups.map((group) => group.layerIndices),
      [[0, 2], [1]],
    );
    const infos = [info([0], { engineGroupId: 3 }), info([1]), info([2])];
    assert.equal(
      layoutOf({ tensors, infos }).groups.map((group) => group.engineGroupId),
      [3, 0, 0],
    );
  });

  test('a chunk size that fits no block names the valid ones', () => {
    const tensors = [contiguous([2, 8, 16, 2, 8])];
    const infos = [info([0], { tokensPerBlock: 784 })];
    assert.throws(
      () => layoutOf({ tensors, infos, chunkSizeTokens: 256 }),
      /chunk size of 256 tokens .* block size of 784 tokens .* multiples of 784: 784, 1568, 2352/,
    );
  });

  test('valid chunk sizes fit all groups at once', () => {
    const infos = [
      info([0], { tokensPerBlock: 48 }),
      info([1], { tokensPerBlock: 32, engineGroupId: 1 }),
    ];
    assert.throws(
      () => layoutOf({ tensors: layers(2), infos, chunkSizeTokens: 64 }),
      /block size of 48 tokens \(kernel group 0\).* multiples of 96/,
    );
  });

  const refused: [string, EngineGroupInfo[], RegExp][] = [
    ['a layer index out of range', [info([0, 2])], /layer index 2 is outside the 2 registered/],
    ['a negative layer index', [info([-1])], /layer index -1/],
    ['fewer infos than groups', [info([0])].concat(info([0])), /form 1 groups .*reports 2/],
    [
      'infos in another order than the layers',
      [info([1], { engineGroupId: 1 }), info([0])],
      /form/,
    ],
    ['infos without layers', [info([])], /leave out every layer/],
    [
      'slots that do not divide the tokens',
      [info([0, 1], { tokensPerBlock: 24 })],
      /multiples of 24/,
    ],
    [
      'a window inside a block',
      [info([0, 1], { slidingWindowTokens: 24 })],
      /sliding window of 24/,
    ],
    ['a window of nothing', [info([0, 1], { slidingWindowTokens: 0 })], /are empty/],
  ];
  for (const [title, infos, message] of refused) {
    test(`refuses ${title}`, () => {
      assert.throws(() => layoutOf({ tensors: layers(2), infos, chunkSizeTokens: 64 }), message);
    });
  }

  test('refuses slots that do not divide the tokens of a block', () => {
    const infos = [info([0], { tokensPerBlock: 24 })];
    assert.throws(
      () => layoutOf({ tensors: layers(1), infos, chunkSizeTokens: 48 }),
      /24 tokens per block do not divide evenly over the 16 slots/,
    );
  });
});

suite('KV layout in /status', (test) => {
  test('it reads as in the reference', () => {
    const layout = layoutOf({
      tensors: times(4, contiguous([2, 256, 16, 2, 32], 'float16')),
      infos: [info([0, 1, 2, 3], { tokensPerBlock: 16 })],
      hasAccelerator: false,
      chunkSizeTokens: 256,
    });
    assert.equal(describeKvLayout(layout), {
      num_layers: 4,
      num_blocks: 256,
      cache_size_per_token: 1024,
      kernel_groups: [
        {
          kernel_group_idx: 0,
          engine_group_idx: 0,
          object_group_idx: 0,
          num_layers: 4,
          layer_indices: [0, 1, 2, 3],
          tokens_per_block: 16,
          slots_per_block: 2,
          dtype: 'torch.float16',
          engine_kv_concrete_shape: '4 x [2, 256, 16, 2, 32]',
          is_mla: false,
          engine_kv_format: 'NL_X_TWO_NB_NH_BS_HS',
          engine_kv_shape: 'NL x [2, NB, NH, BS, HS]',
          attention_backend: 'vLLM (HND)',
        },
      ],
    });
  });

  test('shapes of other lists of tensors are named as such', () => {
    const sglang = layoutOf({
      tensors: times(4, contiguous([8, 3, 8])),
      engineType: 'sglang',
      hints: { tokensPerBlock: 2 },
    });
    const [group] = describeKvLayout(sglang)['kernel_groups'] as Record<string, unknown>[];
    assert.is(group?.['engine_kv_concrete_shape'], '2 x 2 x [4, 2, 3, 8]');
    assert.is(group?.['engine_kv_shape'], '2 x NL x [NB, BS, NH, HS]');
    const mla = layoutOf({ tensors: [contiguous([5, 4, 8])] });
    assert.ok(mla.isMla);
  });
});
