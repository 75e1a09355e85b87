/** Block ids of transfers, readers per object (vectors/engine.json, spec engine 3.5, 5.6, 5.7) */
import { readFileSync } from 'node:fs';
import * as assert from 'uvu/assert';
import type { CacheKey } from '../../../src/engine/api.ts';
import { countReaders } from '../../../src/engine/lookup.ts';
import {
  BLOCK_IDS_PER_REQUEST_MAX,
  countSkippedBlocks,
  cutBlockIds,
  skipBlocksPerObject,
} from '../../../src/engine/transfer/block-lists.ts';
import { buildKernelGroups, type KernelGroup } from '../../../src/engine/transfer/kernel-groups.ts';
import { KV_FORMATS } from '../../../src/engine/transfer/kv-format.ts';
import { contiguous } from '../../support/kv-tensors.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

const vectors = JSON.parse(
  readFileSync(new URL('../../vectors/engine.json', import.meta.url), 'utf8'),
) as {
  extra_read_locks: { tp_size: number; world_size: number; extra: number }[];
  blocks_to_skip: {
    blocks_per_chunk: number;
    blocks_per_window: number;
    blocks_to_skip: number;
    result: number;
  }[];
  downsample_block_ids: {
    chunk_tokens: number;
    groups: { tokens_per_block: number; sw_size_tokens: number }[];
    block_ids: number[][];
    kept: number[][];
  }[];
};

interface GroupSpec {
  readonly tokensPerBlock: number;
  readonly slidingWindowTokens: number;
  readonly slotsPerBlock?: number;
}

/** One MLA layer of 128 blocks per group. */
function groupsOf(chunkSizeTokens: number, specs: readonly GroupSpec[]): KernelGroup[] {
  return buildKernelGroups({
    tensors: specs.map(({ tokensPerBlock, slotsPerBlock = tokensPerBlock }) => ({
      format: KV_FORMATS[3],
      view: contiguous([128, slotsPerBlock, 8], 'uint8'),
    })),
    infos: specs.map(({ tokensPerBlock, slidingWindowTokens }, index) => ({
      engineGroupId: index,
      layerIndices: [index],
      tokensPerBlock,
      slidingWindowTokens,
      extraObjectGroupTag: 0,
      isRecurrentState: false,
    })),
    chunkSizeTokens,
  });
}

suite('block ids against the vectors of the reference', (test) => {
  for (const [index, vector] of vectors.downsample_block_ids.entries()) {
    test(`window cut ${index}`, () => {
      const groups = groupsOf(
        vector.chunk_tokens,
        vector.groups.map((group) => ({
          tokensPerBlock: group.tokens_per_block,
          slidingWindowTokens: group.sw_size_tokens,
        })),
      );
      const [first] = groups as [KernelGroup];
      const chunkCount = (vector.block_ids[0] as number[]).length / first.blocksPerChunk;
      const kept = cutBlockIds(vector.block_ids, groups, chunkCount);
      assert.equal(
        kept.map((ids) => [...ids]),
        vector.kept,
      );
    });
  }

  test('blocks to skip', () => {
    assert.ok(vectors.blocks_to_skip.length > 0);
    for (const vector of vectors.blocks_to_skip) {
      const group = {
        blocksPerChunk: vector.blocks_per_chunk,
        blocksPerWindow: vector.blocks_per_window,
      };
      assert.is(countSkippedBlocks(group, vector.blocks_to_skip), vector.result);
    }
  });

  test('extra readers', () => {
    assert.ok(vectors.extra_read_locks.length > 0);
    for (const { tp_size, world_size, extra } of vectors.extra_read_locks) {
      const key = { worldSize: world_size, readerCount: null } as CacheKey;
      assert.is(countReaders(key, tp_size, false), 1 + extra, `tp ${tp_size} world ${world_size}`);
    }
  });
});

suite('block id lists', (test) => {
  const [full, windowed] = [
    { tokensPerBlock: 4, slidingWindowTokens: -1 },
    { tokensPerBlock: 4, slidingWindowTokens: 8 },
  ];

  test('surplus ids behind the range are ignored, whatever they are', () => {
    const kept = cutBlockIds([[1, 2, 3, 4, 999, -5, 7]], groupsOf(16, [full]), 1);
    assert.equal([...(kept[0] as Uint32Array)], [1, 2, 3, 4]);
  });

  test('an empty range needs no ids', () => {
    assert.is((cutBlockIds([[]], groupsOf(16, [full]), 0)[0] as Uint32Array).length, 0);
  });

  test('a list for each kernel group is required', () => {
    const groups = groupsOf(16, [full, windowed]);
    assert.throws(() => cutBlockIds([[1, 2, 3, 4]], groups, 1), /lists for 2 kernel groups, got 1/);
    assert.throws(() => cutBlockIds([], groups, 1), /got 0/);
  });

  test('too few ids are refused with the counts', () => {
    assert.throws(
      () => cutBlockIds([[1, 2, 3, 4, 5, 6, 7]], groupsOf(16, [full]), 2),
      /kernel group 0: expected at least 8 block ids \(2 chunks of 4 blocks\), got 7/,
    );
  });

  test('an id outside the cache is refused, also where the window cuts it away', () => {
    for (const bad of [128, -1, 2 ** 31, 2 ** 32 + 1, 2 ** 40, 1.5, Number.NaN]) {
      for (const spec of [full, windowed]) {
        assert.throws(
          () => cutBlockIds([[bad, 2, 3, 4]], groupsOf(16, [spec]), 1),
          /kernel group 0: block id .* at position 0 is outside the engine's 128 blocks/,
        );
      }
    }
    assert.not.throws(() => cutBlockIds([[127, 0, 127, 0]], groupsOf(16, [full]), 1));
  });

  test('the number of ids in one request is bounded', () => {
    const chunkCount = BLOCK_IDS_PER_REQUEST_MAX / 4 + 1;
    assert.throws(
      () => cutBlockIds([[]], groupsOf(16, [full]), chunkCount),
      /the bound is 1048576/,
    );
  });
});

suite('skipped blocks of a RETRIEVE', (test) => {
  const skips = (spec: GroupSpec, skipFirstTokens: number, chunkCount = 3) =>
    skipBlocksPerObject(groupsOf(16, [spec]), { skipFirstTokens, chunkCount }).map((s) => [...s]);

  test('tokens inside a block are floored', () => {
    const spec = { tokensPerBlock: 4, slidingWindowTokens: -1 };
    assert.equal(skips(spec, 0), [[0, 0, 0]]);
    assert.equal(skips(spec, 7), [[1, 0, 0]]);
    assert.equal(skips(spec, 16), [[4, 0, 0]]);
    assert.equal(skips(spec, 27), [[4, 2, 0]]);
    assert.equal(skips(spec, 1_000_000), [[4, 4, 4]]);
    assert.equal(skips(spec, -8), [[0, 0, 0]]);
  });

  test('a window counts only the blocks that it keeps', () => {
    const spec = { tokensPerBlock: 4, slidingWindowTokens: 8 };
    assert.equal(skips(spec, 8), [[0, 0, 0]]);
    assert.equal(skips(spec, 12), [[1, 0, 0]]);
    assert.equal(skips(spec, 30), [[2, 1, 0]]);
  });

  test('blocks of a compressed cache stand for more tokens', () => {
    const spec = { tokensPerBlock: 8, slotsPerBlock: 2, slidingWindowTokens: -1 };
    assert.equal(skips(spec, 15), [[1, 0, 0]]);
    assert.equal(skips(spec, 24), [[2, 1, 0]]);
  });

  test('exactly the kept blocks that lie wholly before the border are skipped', () => {
    const spec = fc.record({
      tokensPerBlock: fc.constantFrom(1, 2, 4, 8),
      slidingWindowTokens: fc.constantFrom(-1, 8, 16),
    });
    fc.assert(
      fc.property(spec, fc.integer({ min: 0, max: 80 }), (group, skipFirstTokens) => {
        const [skipped] = skips(group, skipFirstTokens, 4) as [number[]];
        const window = group.slidingWindowTokens === 8 ? 8 : 16;
        for (let object = 0; object < 4; object += 1) {
          const firstKept = object * 16 + (16 - window);
          for (let k = 0; k < window / group.tokensPerBlock; k += 1) {
            const blockEnd = firstKept + (k + 1) * group.tokensPerBlock;
            const isSkipped = k < (skipped[object] as number);
            assert.is(isSkipped, blockEnd <= skipFirstTokens);
          }
        }
      }),
    );
  });
});
