/** What the choice of `--eviction-policy` means for L1 (field lessons 2.1, 2.4; storage 18.16). */
import * as assert from 'uvu/assert';
import { EVICTION_POLICIES, type EvictionPolicy } from '../../../src/core/policy.ts';
import { ALIGN_BYTES, buildL1House } from '../../support/l1-house.ts';
import { suite } from '../../support/suite.ts';

const units = (count: number) => count * ALIGN_BYTES;
const L1_UNITS = 400;
const HOT_PROMPTS = 50;
const CHUNKS = 4;

/**
 * Field lesson 2.4: every round reads the hot half of L1 and then stores as many one-time chunks as
 * L1 has room for. Every store is touched at the end of its session, as placed, not as used.
 * Returns the part of the hot chunks that the last round still found.
 */
function hotHitRatio(evictionPolicy: EvictionPolicy): number {
  const house = buildL1House({ sizeBytes: units(L1_UNITS), evictionPolicy });
  const { storage, keysOf, store, hitChunks, clock } = house;
  const storeSession = (prompt: number) => {
    const keys = keysOf(prompt, CHUNKS);
    store(keys);
    storage.touch(keys, 0);
    clock.advance(10);
  };
  for (let prompt = 0; prompt < HOT_PROMPTS; prompt += 1) storeSession(prompt);
  let hitCount = 0;
  let next = HOT_PROMPTS;
  for (let round = 0; round < 5; round += 1) {
    hitCount = 0;
    for (let prompt = 0; prompt < HOT_PROMPTS; prompt += 1) {
      const keys = keysOf(prompt, CHUNKS);
      const count = hitChunks(keys);
      hitCount += count;
      storage.touch({ ...keys, chunkCount: count });
    }
    for (let i = 0; i < L1_UNITS / CHUNKS; i += 1) storeSession(next++);
  }
  house.core.table.checkConsistency();
  return hitCount / (HOT_PROMPTS * CHUNKS);
}

suite('storage: eviction policies of L1', (test) => {
  for (const policy of EVICTION_POLICIES) {
    if (policy === 'noop') continue;
    test(`2.1 ${policy} makes room for every store`, () => {
      const house = buildL1House({
        sizeBytes: units(20),
        evictionPolicy: policy,
        watermarkRatio: 0.5,
      });
      for (let prompt = 0; prompt < 40; prompt += 1) {
        assert.is(house.store(house.keysOf(prompt)), 1, `store ${prompt}`);
        house.clock.advance(120);
      }
      assert.ok(house.l1.usedBytes <= units(10), 'L1 is below its watermark again');
      house.core.table.checkConsistency();
    });
  }

  for (const policy of ['S3FIFO', 'ARC'] as const) {
    test(`2.4 ${policy} keeps what is used again against chunks that come once`, () => {
      assert.ok(hotHitRatio(policy) >= 0.95);
    });
  }

  test('2.4 LRU does not, which is why there are others', () => {
    assert.ok(hotHitRatio('LRU') < 0.5);
  });

  test('ranks of one chunk are one use, whoever stores the rest of them', () => {
    const house = buildL1House({ sizeBytes: units(40), evictionPolicy: 'ARC' });
    const { storage, keysOf, store, l1 } = house;
    for (let prompt = 0; prompt < 4; prompt += 1) store(keysOf(prompt, 1, 4));
    // The four ranks of chunk 0 are used once, then everything but it goes first.
    storage.touch(keysOf(0, 1, 4));
    assert.is(l1.evict(1, 10, false).objectCount, 4);
    assert.is(house.hitChunks(keysOf(1, 1, 4)), 0);
    assert.is(house.hitChunks(keysOf(0, 1, 4)), 1);
  });

  test('IsolatedLRU takes from every tenant, in proportion', () => {
    const house = buildL1House({
      sizeBytes: units(200),
      evictionPolicy: 'IsolatedLRU',
      evictionRatio: 0.4,
    });
    const { keysOf, store, hitChunks, clock } = house;
    for (let prompt = 0; prompt < 20; prompt += 1) store(keysOf(prompt, 1, 1, 'small'));
    for (let prompt = 0; prompt < 160; prompt += 1) store(keysOf(prompt, 1, 1, 'big'));
    clock.advance(2000);
    const left = (salt: string, count: number) =>
      Array.from({ length: count }, (_, prompt) => hitChunks(keysOf(prompt, 1, 1, salt))).reduce(
        (sum, hits) => sum + hits,
        0,
      );
    const [small, big] = [left('small', 20), left('big', 160)];
    assert.ok(small >= 7 && small <= 10, `small keeps ${small} of 20`);
    assert.ok(big >= 70 && big <= 73, `big keeps ${big} of 160`);
    house.core.table.checkConsistency();
  });

  test('IsolatedLRU begins with tenants over their quota', () => {
    const house = buildL1House({ sizeBytes: units(100), evictionPolicy: 'IsolatedLRU' });
    const { keysOf, store, hitChunks, clock } = house;
    house.core.namespaces.limitTenants((salt) => (salt === 'greedy' ? units(10) : null));
    for (let prompt = 0; prompt < 45; prompt += 1) {
      store(keysOf(prompt, 1, 1, 'modest'));
      store(keysOf(prompt, 1, 1, 'greedy'));
    }
    clock.advance(2000);
    for (let prompt = 0; prompt < 45; prompt += 1) {
      assert.is(hitChunks(keysOf(prompt, 1, 1, 'modest')), 1, 'nothing of the other tenant left');
    }
    assert.ok(house.core.namespaces.tenantBytes('greedy') <= units(25));
  });
});
