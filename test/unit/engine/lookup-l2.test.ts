/** LOOKUP of what only L2 has (spec engine 3.2 to 3.5, 9.3; field lessons 1.5, 10) */
import * as assert from 'uvu/assert';
import type { ReplyOf } from '../../../src/engine/api.ts';
import { layoutRecordKey } from '../../../src/l2/layout-record.ts';
import { LIVE_ATTEMPT } from '../../support/attempts.ts';
import { ALIGN_BYTES, RULES } from '../../support/l1-house.ts';
import { turns } from '../../support/l2-house.ts';
import {
  from,
  keyOf,
  type LookupHouse,
  look,
  query,
  REQUEST_ID,
  setUp,
  storePrompt,
} from '../../support/lookup-house.ts';
import { nameOf, ScriptedStore } from '../../support/scripted-store.ts';
import { suite } from '../../support/suite.ts';

suite('lookup in L2', (test) => {
  async function run(house: LookupHouse, deltaMs = 0): Promise<void> {
    for (let i = 0; i < 4; i += 1) {
      house.clock.advance(i === 0 ? deltaMs : 0);
      await turns();
    }
  }

  /** `chunkCount` chunks of the prompt 0, 1, 2, … that only an adapter has. */
  async function setUpStored(chunkCount: number) {
    const house = setUp();
    const store = new ScriptedStore();
    house.storage.l2.adapters.attach(store);
    storePrompt(house, chunkCount);
    await run(house);
    house.storage.clear(true);
    return { house, store };
  }

  const hits = (house: LookupHouse) =>
    house.lookup.handlers.QUERY_PREFETCH_LOOKUP_HITS!(
      { requestId: REQUEST_ID },
      from(1),
      LIVE_ATTEMPT,
    ) as ReplyOf<'QUERY_PREFETCH_LOOKUP_HITS'>;
  const free = (house: LookupHouse, tokenCount: number) =>
    house.lookup.handlers.FREE_LOOKUP_LOCKS!(
      { key: keyOf(house, { tokenCount }), tpSize: 1 },
      from(1),
      LIVE_ATTEMPT,
    );
  const lockedCount = (house: LookupHouse) => house.l1.statistics().readLockedCount;

  test('the hits are known before the load ends, the result after it', async () => {
    const { house, store } = await setUpStored(3);
    store.holds.add('lookup').add('load');
    look(house, { tokenCount: 64 });
    await run(house);
    assert.is(hits(house), null);
    store.held.shift()?.release();
    await run(house);
    assert.is(hits(house), 3);
    assert.is(query(house), null);
    store.releaseAll();
    await run(house);
    assert.is(query(house), 3);
    assert.is(query(house), 0, 'handed out once');
    assert.is(lockedCount(house), 3);
    house.sessions.end(REQUEST_ID);
    assert.is(lockedCount(house), 0);
    assert.is(house.l1.usedBytes, 0);
  });

  test('a restarted server finds what an earlier one has stored', async () => {
    const { store } = await setUpStored(3);
    const next = setUp();
    next.storage.l2.adapters.attach(store);
    look(next, { tokenCount: 64 });
    await run(next);
    assert.is(query(next), 3);
    const record = { modelName: 'm', kvRank: 0x1000100, objectGroupId: 0 };
    assert.is(store.values.get(nameOf(layoutRecordKey(record)))?.length, 4096);
  });

  test('a session that ends while it loads leaves nothing held', async () => {
    const { house, store } = await setUpStored(3);
    store.holds.add('load');
    look(house, { tokenCount: 64 });
    await run(house);
    house.sessions.end(REQUEST_ID);
    store.releaseAll();
    await run(house);
    assert.is(lockedCount(house), 0);
    assert.is(house.l1.usedBytes, 0);
    assert.is(store.lockCount, 0);
  });

  test('a FREE while it loads counts when it is done', async () => {
    const { house, store } = await setUpStored(3);
    store.holds.add('load');
    look(house, { tokenCount: 64 });
    await run(house);
    free(house, 32);
    store.releaseAll();
    await run(house);
    assert.is(lockedCount(house), 1);
    assert.is(query(house), 3);
  });

  test('all readers of a loaded chunk hold it', async () => {
    const { house } = await setUpStored(1);
    look(house, { tokenCount: 16, worldSize: 1, readerCount: 4 });
    await run(house);
    assert.is(query(house), 1);
    const slots = house.l1.hold(keysOfFirst(house), 1, RULES);
    house.l1.releaseHolds(slots, 1);
    for (let reader = 0; reader < 4; reader += 1) {
      assert.is(house.l1.evict(ALIGN_BYTES, 10, false).objectCount, 0);
      assert.is(lockedCount(house), 1);
      house.sessions.consumeHolds(REQUEST_ID, 1, slots);
    }
    assert.is(lockedCount(house), 0);
  });

  test('what was loaded is news for those who follow L1', async () => {
    const { house } = await setUpStored(2);
    const events: string[] = [];
    house.bus.subscribe('l1.chunks.stored', ({ hashes, tokenIds }) =>
      events.push(`stored ${hashes.length} of ${tokenIds.length} tokens`),
    );
    house.bus.subscribe('l1.chunks.removed', ({ hashes }) =>
      events.push(`removed ${hashes.length}`),
    );
    look(house, { tokenCount: 32 });
    await run(house);
    assert.equal(events, ['stored 2 of 32 tokens']);
    house.sessions.end(REQUEST_ID);
    assert.equal(events.slice(1), ['removed 2']);
  });

  function keysOfFirst(house: LookupHouse) {
    const hashes = house.core.hasher.hashChunks(keyOf(house, { tokenCount: 16 }).tokens);
    const namespace = { modelName: 'm', worldSize: 1, workerId: 0, objectGroupId: 0 };
    const namespaceIds = [house.storage.findNamespace({ ...namespace, cacheSalt: '' })];
    return { hashes, firstChunk: 0, chunkCount: 1, namespaceIds };
  }
});
