/** Warm prefetch (spec http 5.7) over the real core and L1. */
import * as assert from 'uvu/assert';
import { WarmPrefetcher } from '../../../src/engine/warm-prefetch.ts';
import { CHUNK, setUp, storePrompt } from '../../support/lookup-house.ts';
import { suite } from '../../support/suite.ts';

function prefetchHouse() {
  const house = setUp();
  const { storage, instances, clock, core } = house;
  const prefetcher = new WarmPrefetcher({ storage, instances, hasher: core.hasher, clock });
  return { ...house, house, prefetcher };
}

const prompt = (tokenCount: number, rest = {}) => ({
  modelName: 'm',
  worldSize: 1,
  tokenIds: Array.from({ length: tokenCount }, (_, token) => token),
  cacheSalt: '',
  ...rest,
});

suite('warm prefetch', (test) => {
  test('counts what is resident, hands it out once, and leaves no lock', async () => {
    const { house, prefetcher, l1 } = prefetchHouse();
    storePrompt(house, 2, 2);
    const job = await prefetcher.start(prompt(3 * CHUNK + 1, { worldSize: 2 }));
    assert.is(job?.chunkCount, 3);
    assert.match(job?.requestId ?? '', /^[0-9a-f]{32}$/);
    assert.equal(prefetcher.take(job?.requestId ?? ''), { foundKeyCount: 4, totalKeyCount: 6 });
    assert.is(prefetcher.take(job?.requestId ?? ''), null);
    assert.is(l1.statistics().readLockedCount, 0);
  });

  test('another salt or a prompt shorter than a chunk finds nothing', async () => {
    const { house, prefetcher } = prefetchHouse();
    storePrompt(house, 2);
    assert.is(await prefetcher.start(prompt(CHUNK - 1)), null);
    const job = await prefetcher.start(prompt(2 * CHUNK, { cacheSalt: 'alice' }));
    assert.equal(prefetcher.take(job?.requestId ?? ''), { foundKeyCount: 0, totalKeyCount: 2 });
  });

  test('knows which models have workers', () => {
    const { prefetcher } = prefetchHouse();
    assert.is(prefetcher.hasLayout('m', 1), true);
    assert.is(prefetcher.hasLayout('unknown', 1), false);
  });

  test('jobs that nobody asks for are forgotten by number and by time', async () => {
    const { prefetcher, clock } = prefetchHouse();
    const first = await prefetcher.start(prompt(CHUNK));
    for (let job = 0; job < 1024; job += 1) await prefetcher.start(prompt(CHUNK));
    assert.is(prefetcher.take(first?.requestId ?? ''), null);
    const last = await prefetcher.start(prompt(CHUNK));
    clock.advance(601_000);
    assert.is(prefetcher.take(last?.requestId ?? ''), null);
  });
});
