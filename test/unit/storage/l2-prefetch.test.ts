/** L2 → L1 (spec storage 9, 18.6 to 18.11; field lessons 1.5, 10) */
import * as assert from 'uvu/assert';
import { NO_SLOT } from '../../../src/core/object-table.ts';
import { ALIGN_BYTES, RULES, shapeOf } from '../../support/l1-house.ts';
import { buildL2House } from '../../support/l2-house.ts';
import { suite } from '../../support/suite.ts';

suite('storage: prefetch from L2', (test) => {
  test('the leading chunks that an adapter has become readable, with their own bytes', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 5);
    for (const chunk of [0, 1, 3]) house.put(house.store0, house.chunks(keys, chunk));
    const task = house.prefetch(keys);
    assert.is(task.result, null, 'a LOOKUP does not wait for it');
    await house.run();
    assert.is(task.result?.chunkCount, 2);
    assert.equal(house.wrongBytes(keys, task), []);
    assert.equal(house.store0.callsOf('load'), [house.namesOf(house.chunks(keys, 0, 2))]);
    house.release(task);
    assert.is(house.leaks(), 0);
    assert.is(house.l1.usedBytes, 0, 'under the default policy they go with their reader');
  });

  test('an object whose load fails ends the prefix, and nothing of it is left', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 5);
    house.put(house.store0, keys);
    const bad = house.namesOf(keys)[2];
    house.store0.failure = (kind, name) =>
      kind === 'load' && name === bad ? new Error('unreadable') : null;
    const task = house.prefetch(keys);
    await house.run();
    assert.is(task.lookupHits, 5);
    assert.is(task.result?.chunkCount, 2);
    house.release(task);
    assert.is(house.leaks(), 0);
    assert.is(house.l1.usedBytes, 0);
    await house.run(1000);
    assert.equal(house.store0.callsOf('store'), [], 'what was loaded is not stored again');
  });

  test('each object comes from the first adapter that has it', async () => {
    const house = buildL2House({ adapterCount: 2 });
    const [a, b] = house.stores as [typeof house.store0, typeof house.store0];
    const keys = house.keysOf(1, 5);
    for (const chunk of [0, 2, 4]) house.put(a, house.chunks(keys, chunk));
    house.put(b, house.chunks(keys, 0, 4));
    b.holds.add('load');
    const task = house.prefetch(keys);
    await house.run();
    const names = house.namesOf(keys);
    assert.equal(a.callsOf('load'), [[names[0], names[2], names[4]]]);
    assert.equal(b.callsOf('load'), [[names[1], names[3]]]);
    assert.equal([...b.locks.keys()], [names[1], names[3]], 'the others were given back at once');
    assert.is(task.lookupHits, 5, 'known before the loads end');
    assert.is(task.result, null);
    b.releaseAll();
    await house.run();
    assert.is(task.result?.chunkCount, 5);
    assert.equal(house.wrongBytes(keys, task), []);
    house.release(task);
    assert.is(house.leaks(), 0);
  });

  test('what L1 has behind a gap counts when the gap is closed, and is not loaded', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 3);
    house.storeInL1(house.chunks(keys, 2));
    house.put(house.store0, house.chunks(keys, 0, 2));
    const task = house.prefetch(keys);
    assert.is(house.l1.evict(ALIGN_BYTES, 10, false).objectCount, 0, 'it is held meanwhile');
    await house.run();
    assert.is(task.result?.chunkCount, 3);
    assert.equal(house.store0.callsOf('load'), [house.namesOf(house.chunks(keys, 0, 2))]);
    house.release(task);
    assert.is(house.leaks(), 0);
    assert.is(house.hitChunks(house.chunks(keys, 2)), 1, 'the engine has stored it: it stays');
  });

  test('an engine that stores during the lookup saves the load', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    house.store0.holds.add('lookup');
    const task = house.prefetch(keys);
    await house.run();
    house.storeInL1(house.chunks(keys, 0));
    house.store0.releaseAll();
    await house.run();
    assert.is(task.result?.chunkCount, 2);
    assert.equal(house.store0.callsOf('load'), [house.namesOf(house.chunks(keys, 1))]);
    house.release(task);
    assert.is(house.leaks(), 0);
  });

  test('an engine that stores during the load wins, and its object is held', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    house.store0.holds.add('load');
    const task = house.prefetch(keys);
    await house.run();
    assert.is(house.storeInL1(keys), 2);
    house.store0.releaseAll();
    await house.run();
    assert.is(task.result?.chunkCount, 2);
    assert.equal(house.wrongBytes(keys, task), []);
    house.release(task);
    assert.is(house.leaks(), 0);
    assert.is(house.hitChunks(keys), 2);
  });

  test('equal prefetches read each object once and hold it for all of them', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 4);
    house.put(house.store0, keys);
    house.store0.holds.add('load');
    const tasks = [house.prefetch(keys, 1), house.prefetch(keys, 4)];
    await house.run();
    tasks.push(house.prefetch(house.chunks(keys, 0, 2), 2));
    await house.run();
    house.store0.releaseAll();
    await house.run();
    assert.equal(
      tasks.map((task) => task.result?.chunkCount),
      [4, 4, 2],
    );
    assert.equal(house.store0.callsOf('load'), [house.namesOf(keys)]);
    house.release(tasks[0]!, 1);
    house.release(tasks[2]!, 2);
    assert.equal(house.wrongBytes(keys, tasks[1]!), [], 'four readers are left');
    for (let reader = 0; reader < 4; reader += 1) house.release(tasks[1]!, 1);
    assert.is(house.leaks(), 0);
    assert.is(house.l1.usedBytes, 0);
  });

  test('retain: what was loaded stays in L1', async () => {
    const house = buildL2House({ l2: { prefetchPolicy: 'retain' } });
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    const task = house.prefetch(keys);
    await house.run();
    house.release(task);
    assert.is(house.hitChunks(keys), 2);
    assert.is(house.leaks(), 0);
  });

  test('without readers it is loaded to stay, and nothing is held', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    const task = house.prefetch(keys, 0);
    await house.run();
    assert.is(task.result?.chunkCount, 2);
    assert.is(house.leaks(), 0);
    assert.is(house.hitChunks(keys), 2);
  });

  test('a prompt that does not fit is loaded as far as it does', async () => {
    const house = buildL2House({ units: 12 });
    const busy = house.keysOf(2, 2);
    house.storeInL1(busy);
    house.l1.hold(busy, 1, RULES);
    house.storeInL1(house.keysOf(3, 3));
    await house.run();
    const keys = house.keysOf(1, 40);
    house.put(house.store0, keys);
    const task = house.prefetch(keys);
    await house.run();
    assert.is(task.result?.chunkCount, 10, 'all but what is held has made way');
    assert.equal(house.wrongBytes(keys, task), []);
    assert.is(task.lookupHits, 10);
    house.release(task);
    assert.is(house.l1.usedBytes, 2 * ALIGN_BYTES);
    assert.is(house.store0.lockCount, 0);
  });

  test('an adapter that does not say what it has is a miss at the deadline', async () => {
    const house = buildL2House({ adapterCount: 2, l2: { lookupTimeoutMs: 2000 } });
    const [silent, good] = house.stores as [typeof house.store0, typeof house.store0];
    const keys = house.keysOf(1, 3);
    house.put(silent, keys);
    house.put(good, house.chunks(keys, 0));
    silent.holds.add('lookup');
    const task = house.prefetch(keys);
    await house.run(1999);
    assert.is(task.lookupHits, null);
    await house.run(1);
    assert.is(task.result?.chunkCount, 1);
    house.release(task);
    silent.releaseAll();
    await house.run();
    assert.is(house.leaks(), 0, 'the late answer has been unlocked');
  });

  test('waiting for a place costs no more time than the lookup may take', async () => {
    const house = buildL2House({ l2: { lookupTimeoutMs: 2000, prefetchMaxInFlight: 2 } });
    house.store0.holds.add('lookup');
    house.storeInL1(house.keysOf(2, 1));
    const tasks = [1, 2, 3, 4].map((prompt) => house.prefetch(house.keysOf(prompt, 3)));
    await house.run();
    assert.is(house.store0.callsOf('lookup').length, 2);
    await house.run(2000);
    assert.equal(
      tasks.map((task) => task.result?.chunkCount),
      [0, 1, 0, 0],
    );
    house.store0.releaseAll();
    await house.run();
    for (const task of tasks) house.release(task);
    assert.is(house.leaks(), 0);
  });

  test('a load that hangs ends at its deadline; late bytes reach nobody', async () => {
    const house = buildL2House({ units: 6, l2: { loadTimeoutMs: 3000 } });
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    house.store0.holds.add('load');
    const task = house.prefetch(keys);
    await house.run();
    await house.run(3000);
    assert.is(task.result?.chunkCount, 0);
    assert.is(house.l1.usedBytes, 2 * ALIGN_BYTES, 'the adapter still has the memory');
    assert.is(house.store0.lockCount, 2);
    const others = house.keysOf(2, 5);
    assert.is(house.storage.reserveStore(others, shapeOf()).outOfMemoryCount, 5);
    house.storeInL1(keys);
    assert.is(house.hitChunks(keys), 2, 'the keys are free');
    house.store0.releaseAll();
    await house.run();
    assert.is(house.leaks(), 0);
    assert.is(house.l1.usedBytes, 2 * ALIGN_BYTES);
    const again = house.prefetch(keys);
    assert.equal(house.wrongBytes(keys, again), []);
  });

  test('an adapter whose own deadline passes is the same', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    house.store0.holds.add('load');
    const task = house.prefetch(keys);
    await house.run();
    house.store0.held[0]!.timeOut();
    await house.run();
    assert.is(task.result?.chunkCount, 0);
    assert.is(house.l1.usedBytes, 2 * ALIGN_BYTES);
    house.store0.releaseAll();
    await house.run();
    assert.is(house.leaks(), 0);
    assert.is(house.l1.usedBytes, 0);
  });

  test('an adapter that lies about what it has costs hits', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 3);
    house.put(house.store0, house.chunks(keys, 0));
    house.store0.claimsAll = true;
    const task = house.prefetch(keys);
    await house.run();
    assert.is(task.result?.chunkCount, 1);
    house.release(task);
    assert.is(house.leaks(), 0);
  });

  test('a value of another size is none', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys, ALIGN_BYTES + 1);
    const task = house.prefetch(keys);
    await house.run();
    assert.is(task.result?.chunkCount, 0);
    assert.is(house.leaks(), 0);
  });

  test('a clear while it loads leaves nothing, neither now nor later', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 3);
    house.storeInL1(house.chunks(keys, 0));
    house.put(house.store0, house.chunks(keys, 1, 2));
    house.store0.holds.add('load');
    const task = house.prefetch(keys);
    await house.run();
    house.storage.clear(true);
    house.store0.releaseAll();
    await house.run();
    assert.is(task.result?.chunkCount, 1, 'held since before the clear');
    house.release(task);
    assert.is(house.leaks(), 0);
    assert.is(house.l1.usedBytes, 0);
  });

  test('all ranks of a chunk count, or none; only the missing rank is loaded', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2, 2);
    const rank0 = { ...keys, namespaceIds: [keys.namespaceIds[0] as number] };
    house.storeInL1(rank0);
    await house.run();
    const { values } = house.store0;
    for (const name of house.namesOf(keys)) values.delete(name);
    house.put(house.store0, house.chunks({ ...keys, namespaceIds: [keys.namespaceIds[1]!] }, 0));
    const task = house.prefetch(keys);
    await house.run();
    assert.is(task.result?.chunkCount, 1);
    assert.is(task.result?.slots.length, 2);
    assert.equal(house.wrongBytes(keys, task), []);
    house.release(task);
    assert.is(house.leaks(), 0);
  });

  test('of a group with a window only its end is loaded', async () => {
    const house = buildL2House();
    const full = house.keysOf(1, 5);
    const namespace = { modelName: 'm', worldSize: 1, workerId: 0, cacheSalt: '' };
    const windowed = house.l1.internNamespace({ ...namespace, objectGroupId: 1 });
    const keys = { ...full, namespaceIds: [...full.namespaceIds, windowed] };
    house.put(house.store0, keys);
    house.store0.values.delete(house.namesOf(keys)[1]!);
    house.storeInL1(house.chunks(full, 0, 3));
    await house.run();
    const rules = [RULES[0]!, { ...RULES[0]!, windowChunks: 2 }];
    const task = house.prefetch(keys, 1, rules);
    await house.run();
    assert.is(task.result?.chunkCount, 5);
    const cells = [...task.result!.slots].map((slot) => Number(slot !== NO_SLOT));
    assert.equal(cells, [1, 0, 1, 0, 1, 0, 1, 1, 1, 1]);
    assert.is(house.store0.callsOf('load').flat().length, 4);
    assert.equal(house.wrongBytes(keys, task), []);
    house.release(task);
    assert.is(house.leaks(), 0);
  });

  test('objects of a foreign layout make way, unless somebody holds them', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 3);
    house.put(house.store0, keys);
    house.l1.finishStore(house.l1.reserveStore(keys, shapeOf(ALIGN_BYTES, 99)).slots);
    const theirs = [{ ...RULES[0]!, layoutTags: new Set([99]) }];
    house.l1.hold(house.chunks(keys, 2), 1, theirs);
    const task = house.prefetch(keys);
    await house.run();
    assert.is(task.result?.chunkCount, 2);
    assert.equal(house.wrongBytes(keys, task), []);
  });

  test('without a shape to ask for there is nothing to load', async () => {
    const house = buildL2House();
    const keys = house.keysOf(1, 2);
    house.put(house.store0, keys);
    const { shape: _, ...rule } = RULES[0]!;
    const task = house.prefetch(keys, 1, [rule]);
    await house.run();
    assert.is(task.result?.chunkCount, 0);
    assert.is(house.leaks(), 0);
  });

  test('a draining adapter is not asked, and is done when its load is', async () => {
    const house = buildL2House({ adapterCount: 2 });
    const [old, other] = house.stores as [typeof house.store0, typeof house.store0];
    const keys = house.keysOf(1, 2);
    house.put(old, keys);
    old.holds.add('load');
    const task = house.prefetch(keys);
    await house.run();
    const { adapters } = house.storage.l2;
    const first = adapters.drain(0, 1000);
    await house.run(1000);
    assert.is(await first, false, 'it may be asked again');
    const second = adapters.drain(0, 1000);
    old.releaseAll();
    await house.run();
    assert.is(await second, true);
    adapters.detach(0);
    assert.is(task.result?.chunkCount, 2);
    house.release(task);
    const next = house.prefetch(keys);
    await house.run();
    assert.is(next.result?.chunkCount, 0);
    assert.is(old.callsOf('lookup').length, 1);
    assert.is(other.callsOf('lookup').length, 2);
    assert.is(house.leaks(), 0);
  });
});
