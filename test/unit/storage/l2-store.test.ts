/** L1 → L2 (spec storage 8, 18.12 to 18.14, 18.30; field lessons 1.6, 17.2) */
import * as assert from 'uvu/assert';
import { KvdError } from '../../../src/errors.ts';
import { ALIGN_BYTES, RULES, shapeOf } from '../../support/l1-house.ts';
import { buildL2House, type L2House } from '../../support/l2-house.ts';
import type { ScriptedStore } from '../../support/scripted-store.ts';
import { suite } from '../../support/suite.ts';

const counts = ({ storage }: L2House, index = 0) => storage.l2.stores.lanes[index]!.counts;

suite('storage: stores to L2', (test) => {
  test('what an engine stores goes to every adapter, as it is, in later turns', async () => {
    const house = buildL2House({ adapterCount: 2 });
    const keys = house.keysOf(1, 3);
    house.storeInL1(keys);
    assert.equal(house.store0.calls, [], 'the store itself asks nobody');
    await house.run();
    for (const store of house.stores) {
      assert.equal(store.callsOf('store'), [house.namesOf(keys)]);
      for (const name of house.namesOf(keys)) {
        assert.equal(store.values.get(name), house.contentOf(name));
      }
    }
    assert.is(house.leaks(), 0);
    assert.is(house.hitChunks(keys), 3, 'L1 keeps it');
  });

  test('one call has the objects of one model, rank and object group', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2, 2);
    house.storeInL1(keys);
    house.storeInL1(house.keysOf(2, 1, 1, 'tenant'));
    await house.run();
    assert.equal(
      house.store0.callsOf('store').map((names) => names.length),
      [2, 2, 1],
    );
  });

  test('objects are pinned while the adapter reads them, and only then', async () => {
    const house = buildL2House({ units: 4 });
    const keys = house.keysOf(1, 2);
    house.store0.holds.add('store');
    house.storeInL1(keys);
    await house.run();
    assert.is(house.l1.statistics().pinnedCount, 2);
    assert.is(house.l1.evict(4 * ALIGN_BYTES, 10, false).objectCount, 0);
    house.store0.held[0]!.timeOut();
    await house.run();
    assert.is(house.l1.statistics().pinnedCount, 2, 'it has not let go yet');
    house.store0.releaseAll();
    await house.run();
    assert.is(house.leaks(), 0);
  });

  test('what is evicted before its turn is not stored', async () => {
    const house = buildL2House();
    house.storeInL1(house.keysOf(1, 2));
    house.l1.evict(8 * ALIGN_BYTES, 10, false);
    house.storeInL1(house.keysOf(2, 1));
    await house.run();
    assert.equal(house.store0.callsOf('store').flat(), house.namesOf(house.keysOf(2, 1)));
  });

  test('no more bytes are in flight than the adapter bears', async () => {
    const house = buildL2House();
    house.store0.settings.inFlightMaxBytes = 3 * ALIGN_BYTES;
    house.store0.holds.add('store');
    house.storeInL1(house.keysOf(1, 8));
    await house.run();
    assert.is(house.store0.callsOf('store').flat().length, 3);
    house.store0.held.shift()?.release();
    await house.run();
    assert.is(house.store0.callsOf('store').flat().length, 6);
    house.store0.releaseAll();
    await house.run();
    assert.is(house.store0.callsOf('store').flat().length, 8);
    assert.is(house.leaks(), 0);
  });

  test('an object larger than that goes alone', async () => {
    const house = buildL2House();
    house.store0.settings.inFlightMaxBytes = 10;
    house.storeInL1(house.keysOf(1, 3));
    await house.run();
    assert.equal(
      house.store0.callsOf('store').map((names) => names.length),
      [1, 1, 1],
    );
  });

  test('a failed store is tried three times, and nothing is pinned in between', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    const [bad, good] = house.namesOf(keys);
    house.store0.failure = (kind, name) =>
      kind === 'store' && name === bad ? new Error('disk full') : null;
    const failures: number[] = [];
    house.bus.subscribe('l2.store.completed', ({ failedCount }) => failures.push(failedCount));
    house.storeInL1(keys);
    await house.run();
    assert.is(house.leaks(), 0);
    await house.run(1000);
    await house.run(4000);
    await house.run(60_000);
    assert.equal(house.store0.callsOf('store'), [[bad, good], [bad], [bad]]);
    assert.equal(failures, [0, 0, 1]);
    assert.is(counts(house).stored, 1);
    assert.is(counts(house).failed, 1);
    assert.is(house.l1.evict(8 * ALIGN_BYTES, 10, false).objectCount, 2);
  });

  test('an adapter that is left alone is waited for; another one is not held up', async () => {
    const house = buildL2House({ adapterCount: 2 });
    house.store0.canStore = false;
    house.storeInL1(house.keysOf(1, 8));
    await house.run(10_000);
    assert.is(house.store0.calls.length, 0);
    assert.is(house.stores[1]!.callsOf('store').flat().length, 8);
    house.store0.canStore = true;
    await house.run(1000);
    assert.is(house.store0.callsOf('store').flat().length, 8);
    assert.is(house.leaks(), 0);
  });

  test('a refusal by an adapter that is left alone is no try', async () => {
    const house = buildL2House();
    const refusal = new KvdError('ERR_L2_UNAVAILABLE', 'it is left alone after failures');
    house.store0.failure = (kind) => (kind === 'store' ? refusal : null);
    house.storeInL1(house.keysOf(1, 1));
    for (let second = 0; second < 10; second += 1) await house.run(1000);
    assert.is(counts(house).failed, 0);
    house.store0.failure = () => null;
    await house.run(1000);
    assert.is(counts(house).stored, 1);
  });

  test('what an adapter refuses for good is not offered again', async () => {
    const house = buildL2House();
    const full = new KvdError('ERR_L2_FULL', 'no room');
    house.store0.failure = (kind, name) =>
      kind === 'store' && house.namesOf(keys).includes(name) ? full : null;
    const keys = house.keysOf(1, 2);
    house.storeInL1(keys);
    await house.run();
    await house.run(60_000);
    assert.is(house.store0.callsOf('store').length, 1);
    assert.is(counts(house).failed, 2);
  });

  test('what waits for a slow adapter is bounded: the oldest goes', async () => {
    const house = buildL2House({ units: 512 });
    house.store0.settings.inFlightMaxBytes = ALIGN_BYTES;
    house.store0.holds.add('store');
    const { stores } = house.storage.l2;
    house.storeInL1(house.keysOf(1, 1));
    await house.run();
    const slots = house.l1.hold(house.keysOf(1, 1), 1, RULES);
    for (let i = 0; i < 1025; i += 1) stores.noteStored(new Uint32Array(256).fill(slots[0]!));
    assert.is(counts(house).dropped, 256);
    assert.is(stores.lanes[0]!.queuedCount, 262_144);
  });

  test('skip_l1: an object leaves L1 when all adapters have answered and one has it', async () => {
    const house = buildL2House({ adapterCount: 2, l2: { storePolicy: 'skip_l1' } });
    const [fast, slow] = house.stores as [ScriptedStore, ScriptedStore];
    const keys = house.keysOf(1, 2);
    slow.holds.add('store');
    house.storeInL1(keys);
    await house.run();
    assert.is(fast.callsOf('store').length, 1);
    assert.is(house.hitChunks(keys), 2);
    slow.failure = (kind) => (kind === 'store' ? new Error('no') : null);
    slow.releaseAll();
    await house.run();
    await house.run(1000);
    assert.is(house.hitChunks(keys), 2, 'it has one try left');
    await house.run(4000);
    assert.is(house.hitChunks(keys), 0);
    assert.is(house.l1.usedBytes, 0);
  });

  test('skip_l1: what no adapter has taken stays and is offered again', async () => {
    const house = buildL2House({ l2: { storePolicy: 'skip_l1' } });
    const keys = house.keysOf(1, 2);
    const bad = house.namesOf(keys)[1];
    house.store0.failure = (kind, name) =>
      kind === 'store' && name === bad ? new Error('no') : null;
    house.storeInL1(keys);
    await house.run();
    await house.run(1000);
    await house.run(4000);
    assert.is(house.l1.statistics().objectCount, 1);
    house.store0.failure = () => null;
    await house.run(60_000);
    assert.is(house.l1.statistics().objectCount, 0);
    assert.equal(
      [...house.store0.values.keys()].filter((name) => name === bad),
      [bad],
    );
  });

  test('skip_l1: an object that is held stays', async () => {
    const house = buildL2House({ l2: { storePolicy: 'skip_l1' } });
    const keys = house.keysOf(1, 1);
    house.storeInL1(keys);
    const held = house.l1.hold(keys, 1, RULES);
    await house.run();
    house.l1.releaseHolds(held, 1);
    assert.is(house.hitChunks(keys), 1);
  });

  test('the shutdown stores what waits and waits for buffers, within its time', async () => {
    const house = buildL2House();
    house.store0.settings.inFlightMaxBytes = ALIGN_BYTES;
    house.storeInL1(house.keysOf(1, 3));
    const closing = house.storage.close(5000);
    await house.run();
    await house.run();
    assert.is(await closing, true);
    assert.is(house.store0.callsOf('store').flat().length, 3);
  });

  test('the shutdown says when an adapter still has a buffer', async () => {
    const house = buildL2House();
    house.store0.holds.add('store');
    house.storeInL1(house.keysOf(1, 3));
    await house.run();
    const closing = house.storage.close(5000);
    await house.run(5000);
    await house.run();
    assert.is(await closing, false);
    house.store0.releaseAll();
  });

  test('a draining adapter gets nothing more, and its queue is let go', async () => {
    const house = buildL2House({ adapterCount: 2 });
    house.store0.settings.inFlightMaxBytes = ALIGN_BYTES;
    house.store0.holds.add('store');
    house.storeInL1(house.keysOf(1, 3));
    await house.run();
    const drained = house.storage.l2.adapters.drain(0, 1000);
    house.storeInL1(house.keysOf(2, 1));
    house.store0.releaseAll();
    await house.run();
    assert.is(await drained, true);
    assert.is(house.store0.callsOf('store').flat().length, 1);
    assert.is(house.stores[1]!.callsOf('store').flat().length, 4);
    assert.is(house.leaks(), 0);
  });
});

suite('storage: layouts in L2', (test) => {
  /** Another process over the same stores. */
  function restart(house: L2House, options: Parameters<typeof buildL2House>[0] = {}) {
    const next = buildL2House(options);
    for (const [name, value] of house.store0.values) next.store0.values.set(name, value);
    return next;
  }
  const rulesOf = (layoutTag: number) => [
    { ...RULES[0]!, layoutTags: new Set([layoutTag]), shape: shapeOf(ALIGN_BYTES, layoutTag) },
  ];

  test('another layout of the same size is a miss, and both keep what they have', async () => {
    const first = buildL2House();
    const keys = first.keysOf(1, 2);
    first.storeInL1(keys);
    await first.run();
    const second = restart(first);
    const secondKeys = second.keysOf(1, 2);
    const miss = second.prefetch(secondKeys, 1, rulesOf(8));
    await second.run();
    assert.is(miss.result?.chunkCount, 0);
    second.storeInL1(second.chunks(secondKeys, 0), shapeOf(ALIGN_BYTES, 8));
    await second.run();
    assert.is(second.store0.values.size, 4, 'two, one of the other layout, one record');
    const third = restart(second);
    const thirdKeys = third.keysOf(1, 2);
    const other = third.prefetch(thirdKeys, 1, rulesOf(8));
    await third.run();
    assert.is(other.result?.chunkCount, 1);
    third.release(other);
    const own = third.prefetch(thirdKeys, 1, rulesOf(7));
    await third.run();
    assert.is(own.result?.chunkCount, 2);
    assert.equal(third.wrongBytes(thirdKeys, own), []);
  });

  test('the cache name space is part of it', async () => {
    const first = buildL2House({ l2: { cacheNamespace: 'a' } });
    const keys = first.keysOf(1, 2);
    first.storeInL1(keys);
    await first.run();
    const other = restart(first, { l2: { cacheNamespace: 'b' } });
    const miss = other.prefetch(other.keysOf(1, 2));
    const same = restart(first, { l2: { cacheNamespace: 'a' } });
    const hit = same.prefetch(same.keysOf(1, 2));
    await other.run();
    await same.run();
    assert.is(miss.result?.chunkCount, 0);
    assert.is(hit.result?.chunkCount, 2);
  });

  test('an adapter that cannot say whose its objects are has none', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    house.store0.failure = (kind) => (kind === 'load' ? new Error('timeout') : null);
    const task = house.prefetch(keys);
    await house.run();
    assert.is(task.result?.chunkCount, 0);
    assert.is(house.leaks(), 0);
    house.store0.failure = () => null;
    const next = house.prefetch(keys);
    await house.run();
    assert.is(next.result?.chunkCount, 2, 'without a record they are anybody’s');
  });
});
