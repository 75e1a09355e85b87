import * as assert from 'uvu/assert';
import {
  type CacheGeometry,
  fitCacheShape,
  type LayerGroup,
} from '../../../../src/client/load/cache-shape.ts';
import { suite } from '../../../support/suite.ts';

const GROUP: LayerGroup = {
  kvSize: 2,
  headCount: 2,
  headSize: 16,
  dtype: 'float16',
  itemSizeBytes: 2,
  layerCount: 3,
};

const geometryOf = (part: Partial<CacheGeometry> = {}): CacheGeometry => ({
  blockCount: null,
  slotsPerBlock: 8,
  groups: [GROUP],
  ...part,
});

const CHUNKS = { chunkSizeTokens: 16, tokenCountMax: 50 };

suite('shape of a benchmark cache', (test) => {
  test('takes whole chunks of the prompt and twice their blocks', () => {
    const shape = fitCacheShape(geometryOf(), CHUNKS);
    assert.equal(
      [shape.chunkCount, shape.tokenCount, shape.blocksPerChunk, shape.blockCount],
      [3, 48, 2, 6],
    );
    assert.is(shape.cacheBlockCount, 12);
    assert.is(shape.requestBytes, 2 * 3 * 48 * 2 * 16 * 2);
    assert.is(fitCacheShape(geometryOf({ blockCount: 100 }), CHUNKS).cacheBlockCount, 100);
  });

  test('planes are layer after layer, keys before values, MLA has one', () => {
    const mla: LayerGroup = { ...GROUP, kvSize: 1, layerCount: 1 };
    const { planes } = fitCacheShape(geometryOf({ groups: [GROUP, mla] }), CHUNKS);
    assert.equal(
      planes.map(({ layerIndex, kvIndex }) => [layerIndex, kvIndex]),
      [
        [0, 0],
        [0, 1],
        [1, 0],
        [1, 1],
        [2, 0],
        [2, 1],
        [3, 0],
      ],
    );
    assert.ok(planes.every(({ pieceBytes }) => pieceBytes === 8 * 2 * 16 * 2));
  });

  test('groups of one shape are one kernel group for the server', () => {
    const countOf = (...groups: LayerGroup[]) =>
      fitCacheShape(geometryOf({ groups }), CHUNKS).kernelGroupCount;
    assert.is(countOf(GROUP, { ...GROUP, layerCount: 1 }), 1);
    assert.is(countOf(GROUP, { ...GROUP, headCount: 4 }, { ...GROUP, dtype: 'bfloat16' }), 3);
    const mla: LayerGroup = { ...GROUP, kvSize: 1, headCount: 1, headSize: 64 };
    assert.is(countOf(mla, { ...mla, headCount: 2, headSize: 32 }), 1, 'MLA knows no heads');
  });

  test('what does not fit the chunks of the server is refused with both numbers', () => {
    const fit = (part: Partial<CacheGeometry>, tokenCountMax = 50) =>
      assert.throws.bind(null, () =>
        fitCacheShape(geometryOf(part), { chunkSizeTokens: 16, tokenCountMax }),
      );
    fit({}, 15)(/at least one chunk of 16 tokens, got 15/);
    fit({ slotsPerBlock: 12 })(/blocks of 12 tokens do not divide chunks of 16/);
    fit({ blockCount: 11 })(/a cache of at least 12 blocks, got 11/);
  });
});
