import { readFileSync } from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { backendType, bucketOf, droppedPositions } from '../../../src/l2/adapters/fault-inject.ts';
import { backendType as mock } from '../../../src/l2/adapters/mock.ts';
import type { ObjectKey } from '../../../src/l2/object-key.ts';
import { GIB } from '../../../src/units.ts';
import { openBackend } from '../../support/l2-context.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import { refuses } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

interface Case {
  rate: number;
  seed: number;
  gap_indices: number[];
  gap_tail_ratios: number[];
  dropped: Record<string, number[]>;
}

const VECTORS: { cases: Case[]; hash_example: { bucket: number } } = JSON.parse(
  readFileSync(path.join(import.meta.dirname, '../../vectors/l2/fault_inject.json'), 'utf8'),
);

function keyOf(index: number): ObjectKey {
  const chunkHash = new Uint8Array(4);
  new DataView(chunkHash.buffer).setUint32(0, index);
  const names = { modelName: 'opt', kvRank: 0x0100_0100, objectGroupId: 0, cacheSalt: '' };
  return { ...names, chunkHash };
}

const open = (json: Readonly<Record<string, unknown>>) =>
  openBackend(
    backendType,
    { inner: {}, ...json },
    {},
    {
      openInner: () => openBackend(mock, { max_size_gb: 1, mock_bandwidth_gb: 1000 }),
    },
  );

suite('fault injection', (test) => {
  test('drops the positions that the reference drops', () => {
    for (const { dropped, rate, seed, gap_indices, gap_tail_ratios } of VECTORS.cases) {
      const plan = { rate, seed, gapIndices: gap_indices, gapTailRatios: gap_tail_ratios };
      for (const [count, expected] of Object.entries(dropped)) {
        const keys = Array.from({ length: Number(count) }, (_, index) => keyOf(index));
        const positions = [...droppedPositions(keys, plan)].sort((a, b) => a - b);
        assert.equal(positions, expected, `${count} keys, ${JSON.stringify(plan)}`);
      }
    }
  });

  test('puts a key into the bucket of the reference', () => {
    const key = {
      chunkHash: Uint8Array.from({ length: 32 }, (_, index) => index),
      modelName: 'meta-llama/Llama-3.1-8B',
      kvRank: 0x0100_0100,
      objectGroupId: 0,
      cacheSalt: 'tenant-a',
    };
    assert.is(bucketOf(key, 0), VECTORS.hash_example.bucket);
  });

  test('changes loads and nothing else', async () => {
    const never = new AbortController().signal;
    const store = await open({ gap_indices: [1] });
    const objects = [1, 2, 3].map((index) => ({ key: l2Key(index), bytes: l2Value(100, index) }));
    const keys = objects.map(({ key }) => key);
    assert.equal(await store.store(objects, never), ['stored', 'stored', 'stored']);
    assert.equal(await store.lookup(keys, never), [100, 100, 100]);
    assert.equal(await store.load(objects, never), ['loaded', 'missing', 'loaded']);
    assert.equal(await store.delete(keys, never), ['deleted', 'deleted', 'deleted']);
    await store.close();
  });

  test('shows the status of the inner store and its plan', async () => {
    const store = await open({ rate: 0.5, seed: 7, gap_indices: [9, 1], gap_tail_ratios: [0.5] });
    const { type, fault_inject: plan } = store.status();
    assert.is(type, 'MockL2Adapter');
    const expected = { rate: 0.5, seed: 7, gap_indices: [1, 9], gap_tail_ratios: [0.5] };
    assert.equal(plan, expected);
    await store.close();
  });

  test('has the capacity of the inner store', () => {
    assert.is(backendType.capacityBytes({ inner: { type: 'fs', max_capacity_gb: 2 } }), 2 * GIB);
    assert.is(backendType.capacityBytes({ inner: { type: 'mock', max_size_gb: 1 } }), GIB);
    assert.is(backendType.capacityBytes({ inner: { type: 'fs' } }), 0);
  });

  test('refuses positions and ratios that are none', async () => {
    const opening = async (json: Readonly<Record<string, unknown>>) => open(json);
    await refuses(opening({ gap_indices: [-1] }), 'ERR_CONFIG', /gap_indices.*at least 0/);
    await refuses(opening({ gap_tail_ratios: [2] }), 'ERR_CONFIG', /gap_tail_ratios.*0 to 1/);
    await refuses(opening({ rate: 1.5 }), 'ERR_CONFIG', /rate/);
    await refuses(opening({ inner: 7 }), 'ERR_CONFIG', /inner/);
  });
});
