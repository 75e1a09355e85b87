import * as assert from 'uvu/assert';
import { NO_SLOT } from '../../../src/core/object-table.ts';
import { ALIGN_BYTES, buildL1House, RULES, shapeOf, WRITE_TTL_MS } from '../../support/l1-house.ts';
import { suite } from '../../support/suite.ts';

const units = (count: number) => count * ALIGN_BYTES;

suite('storage: store and read', (test) => {
  test('an object is invisible until it is finished', () => {
    const { storage, l1, keysOf, hitChunks } = buildL1House({ sizeBytes: units(16) });
    const keys = keysOf(1, 4);
    const { slots } = storage.reserveStore(keys, shapeOf());
    assert.is(hitChunks(keys), 0);
    assert.is(storage.acquireForRead(keys, shapeOf()), null);
    assert.is(storage.finishStore(slots), 4);
    assert.is(hitChunks(keys), 4);
    assert.is(l1.usedBytes, units(4));
  });

  test('a discarded store leaves nothing, and the same keys can be stored again', () => {
    const { storage, l1, keysOf, store, hitChunks } = buildL1House({ sizeBytes: units(16) });
    const keys = keysOf(1, 4);
    storage.discardStore(storage.reserveStore(keys, shapeOf()).slots);
    assert.is(l1.usedBytes, 0);
    assert.is(l1.statistics().writeLockedCount, 0);
    assert.is(store(keys), 4);
    assert.is(hitChunks(keys), 4);
  });

  test('only the chunks that nobody has are reserved', () => {
    const { storage, keysOf, store } = buildL1House({ sizeBytes: units(16) });
    store(keysOf(1, 2));
    const { slots, offsets } = storage.reserveStore(keysOf(1, 4), shapeOf());
    assert.equal(
      [...slots].map((slot) => slot === NO_SLOT),
      [true, true, false, false],
    );
    assert.equal(
      [...offsets].map((offset) => offset < 0),
      [true, true, false, false],
    );
    storage.finishStore(slots);
  });

  test('a copy that outlives its reservation publishes nothing, and frees its memory', () => {
    const { storage, l1, clock, keysOf, hitChunks } = buildL1House({ sizeBytes: units(16) });
    const keys = keysOf(1, 2);
    const { slots } = storage.reserveStore(keys, shapeOf());
    clock.advance(WRITE_TTL_MS + 2000);
    assert.is(l1.usedBytes, units(2), 'pinned: the copy still writes there');
    assert.is(storage.finishStore(slots), 0);
    assert.is(hitChunks(keys), 0);
    clock.advance(2000);
    assert.is(l1.usedBytes, 0);
  });

  test("17.2 an object of another shape is no hit, and makes way for the reader's own", () => {
    const { storage, keysOf, store, hitChunks } = buildL1House({ sizeBytes: units(16) });
    for (const other of [shapeOf(4000), shapeOf(ALIGN_BYTES, 8)]) {
      const keys = keysOf(other.layoutTag, 2);
      assert.is(store(keys, other), 2);
      assert.is(hitChunks(keys), other.layoutTag === 8 ? 0 : 2, 'LOOKUP knows the tag');
      assert.is(storage.acquireForRead(keys, shapeOf()), null);
      assert.is(hitChunks(keys), 0);
      assert.is(store(keys), 2);
      assert.is(hitChunks(keys), 2);
    }
  });

  test('an object of another shape that somebody holds stays until it is let go', () => {
    const { storage, l1, keysOf, store } = buildL1House({ sizeBytes: units(16) });
    const keys = keysOf(1);
    store(keys);
    const held = l1.hold(keys, 1, RULES);
    assert.is(store(keys, shapeOf(ALIGN_BYTES, 8)), 0);
    storage.releaseHolds(held, 1);
    assert.is(store(keys, shapeOf(ALIGN_BYTES, 8)), 1);
  });

  test('a prefix ends before the first chunk that no layout can read, and holds only that', () => {
    const { l1, keysOf, store } = buildL1House({ sizeBytes: units(16) });
    const keys = keysOf(1, 3, 2);
    store({ ...keys, chunkCount: 1 });
    const second = { ...keys, firstChunk: 1, chunkCount: 1 };
    store({ ...second, namespaceIds: [keys.namespaceIds[0] as number] });
    store({ ...second, namespaceIds: [keys.namespaceIds[1] as number] }, shapeOf(ALIGN_BYTES, 8));
    assert.is(l1.hold(keys, 1, RULES).length, 2);
    assert.is(l1.statistics().readLockedCount, 2);
    const both = {
      ...RULES[0]!,
      layoutTags: new Map([
        [7, 1],
        [8, 1],
      ]),
    };
    assert.is(l1.hold(keys, 1, [both]).length, 4, 'pipeline stages differ in their layout');
  });

  test('a forced clear hides pinned objects at once and frees them with their last pin', () => {
    const { storage, l1, keysOf, store, hitChunks } = buildL1House({ sizeBytes: units(16) });
    const keys = keysOf(1, 3);
    store(keys);
    const places = storage.acquireForRead(keys, shapeOf())!;
    const { removedCount, deferredCount } = l1.clearAll();
    assert.equal([removedCount, deferredCount], [3, 3]);
    assert.is(hitChunks(keys), 0);
    assert.is(l1.usedBytes, units(3));
    assert.is(store(keys), 3, 'the keys are free for a new store');
    storage.releaseRead(places.slots);
    assert.is(l1.usedBytes, units(3), 'only the new objects are left');
    l1.clearAll();
    assert.is(l1.usedBytes, 0);
  });

  test('an unforced clear leaves what somebody holds', async () => {
    const { storage, l1, keysOf, store, hitChunks } = buildL1House({ sizeBytes: units(16) });
    store(keysOf(1));
    store(keysOf(2, 2));
    const held = l1.hold(keysOf(1), 1, RULES);
    const { removedCount, deferredCount } = await l1.clearIdle();
    assert.equal([removedCount, deferredCount], [2, 0]);
    assert.is(hitChunks(keysOf(1)), 1);
    assert.is(hitChunks(keysOf(2, 2)), 0);
    storage.releaseHolds(held, 1);
  });

  test('memory is prepared ahead of the highest object, and only when it rises', () => {
    const { prepared, keysOf, store } = buildL1House({ sizeBytes: units(16) });
    store(keysOf(1, 2));
    store(keysOf(1, 2));
    store(keysOf(2, 1));
    assert.equal(prepared, [units(2), units(3)]);
  });
});

suite('storage: eviction', (test) => {
  test('crossing the watermark evicts the oldest chunks down to watermark − ratio', () => {
    const { clock, l1, keysOf, store, hitChunks } = buildL1House({ sizeBytes: units(100) });
    for (let prompt = 0; prompt < 80; prompt += 1) store(keysOf(prompt));
    assert.is(l1.usedBytes, units(80));
    clock.advance(1);
    assert.is(l1.usedBytes, units(60));
    assert.is(hitChunks(keysOf(19)), 0);
    assert.is(hitChunks(keysOf(20)), 1);
  });

  test('below the watermark nothing leaves', () => {
    const { clock, l1, keysOf, store } = buildL1House({ sizeBytes: units(100) });
    for (let prompt = 0; prompt < 79; prompt += 1) store(keysOf(prompt));
    clock.advance(10_000);
    assert.is(l1.usedBytes, units(79));
  });

  test('2.5 held chunks are passed over; their neighbours leave', () => {
    const { clock, l1, keysOf, store, hitChunks } = buildL1House({ sizeBytes: units(100) });
    for (let prompt = 0; prompt < 70; prompt += 1) store(keysOf(prompt));
    const held = Array.from({ length: 56 }, (_, prompt) => l1.hold(keysOf(prompt), 1, RULES));
    for (let prompt = 70; prompt < 90; prompt += 1) store(keysOf(prompt));
    clock.advance(5000);
    assert.is(l1.usedBytes, units(60));
    assert.is(hitChunks(keysOf(0)), 1, 'held');
    assert.is(hitChunks(keysOf(56)), 0, 'the oldest that is not');
    for (const slots of held) l1.releaseHolds(slots, 1);
  });

  test('2.6 all ranks of a chunk leave together', () => {
    const { clock, keysOf, store, storage } = buildL1House({ sizeBytes: units(100) });
    for (let prompt = 0; prompt < 45; prompt += 1) store(keysOf(prompt, 1, 2));
    clock.advance(1000);
    for (let prompt = 0; prompt < 45; prompt += 1) {
      const found = storage.l1.hold(keysOf(prompt, 1, 2), 1, RULES);
      const single = keysOf(prompt, 1, 2);
      const first = { ...single, namespaceIds: single.namespaceIds.slice(0, 1) };
      const hasFirst = storage.l1.hold(first, 1, RULES);
      assert.is(hasFirst.length, found.length / 2, `prompt ${prompt} is whole or gone`);
      storage.releaseHolds(found, 1);
      storage.releaseHolds(hasFirst, 1);
    }
  });

  test('a store that finds L1 full evicts at once and succeeds', () => {
    const { l1, keysOf, store } = buildL1House({ sizeBytes: units(8), watermarkRatio: 1 });
    for (let prompt = 0; prompt < 8; prompt += 1) assert.is(store(keysOf(prompt)), 1);
    assert.is(store(keysOf(100, 3)), 3);
    assert.ok(l1.usedBytes <= units(8));
  });

  test('2.2 after a spell of full pinning the next stores succeed', () => {
    const { l1, keysOf, store, bus } = buildL1House({ sizeBytes: units(8), watermarkRatio: 1 });
    let failedCount = 0;
    bus.subscribe('l1.allocation.failed', ({ countByModel }) => {
      failedCount += countByModel.get('m') ?? 0;
    });
    for (let prompt = 0; prompt < 8; prompt += 1) store(keysOf(prompt));
    const held = Array.from({ length: 8 }, (_, prompt) => l1.hold(keysOf(prompt), 1, RULES));
    assert.is(store(keysOf(50)), 0);
    assert.is(failedCount, 1);
    for (const slots of held) l1.releaseHolds(slots, 1);
    for (let prompt = 60; prompt < 80; prompt += 1) assert.is(store(keysOf(prompt)), 1);
  });

  test('small holes do not stop a larger object when enough can be evicted', () => {
    const { keysOf, store } = buildL1House({ sizeBytes: units(64), watermarkRatio: 1 });
    for (let prompt = 0; prompt < 64; prompt += 1) store(keysOf(prompt));
    assert.is(store(keysOf(100), shapeOf(units(4))), 1);
  });

  test('a failed attempt keeps no pin on a reservation that it had taken over', () => {
    const { storage, l1, clock, keysOf, store, hitChunks } = buildL1House({
      sizeBytes: units(8),
      watermarkRatio: 1,
    });
    const { slots } = storage.reserveStore(keysOf(1), shapeOf());
    clock.advance(WRITE_TTL_MS + 1);
    storage.finishStore(slots);
    for (let prompt = 100; prompt < 107; prompt += 1) store(keysOf(prompt));
    storage.finishStore(storage.reserveStore(keysOf(1, 2), shapeOf()).slots);
    assert.is(hitChunks(keysOf(1, 2)), 2);
    assert.is(l1.statistics().pinnedCount, 0);
    l1.clearAll();
    assert.is(l1.usedBytes, 0);
  });

  test('of a prompt larger than L1 the prefix that fits is stored', () => {
    const { storage, keysOf, hitChunks } = buildL1House({
      sizeBytes: units(64),
      watermarkRatio: 1,
    });
    const keys = keysOf(1, 100);
    const { slots, offsets } = storage.reserveStore(keys, shapeOf());
    assert.equal([slots.length, offsets.length], [100, 100]);
    assert.is(storage.finishStore(slots), 64);
    assert.is(hitChunks(keys), 64);
  });

  test('2.5 a store finds room behind any number of held chunks', () => {
    const count = 6000;
    const house = buildL1House({ sizeBytes: units(count), watermarkRatio: 1 });
    for (let prompt = 0; prompt < count; prompt += 1) house.store(house.keysOf(prompt));
    const held = Array.from({ length: count - 10 }, (_, prompt) =>
      house.l1.hold(house.keysOf(prompt), 1, RULES),
    );
    assert.is(house.store(house.keysOf(count + 1, 3)), 3);
    for (const slots of held) house.l1.releaseHolds(slots, 1);
  });

  test('memory that cannot be prepared ahead costs a warning, nothing else', () => {
    const { l1, log, keysOf, store } = buildL1House({ sizeBytes: units(8) });
    l1.memory.prepareAhead = () => {
      throw new Error('no thread');
    };
    assert.is(store(keysOf(1)), 1);
    assert.ok(log.has(/not prepared ahead: Error: no thread/));
  });

  test('the policy noop never evicts: a full L1 refuses', () => {
    const { clock, l1, keysOf, store } = buildL1House({
      sizeBytes: units(8),
      evictionPolicy: 'noop',
    });
    for (let prompt = 0; prompt < 8; prompt += 1) store(keysOf(prompt));
    clock.advance(5000);
    assert.is(l1.usedBytes, units(8));
    assert.is(store(keysOf(9)), 0);
  });

  test('a slice that throws is counted and logged, and the loop goes on', () => {
    const { clock, storage, l1, log, keysOf, store } = buildL1House({ sizeBytes: units(10) });
    for (let prompt = 0; prompt < 7; prompt += 1) store(keysOf(prompt));
    const evict = l1.evict.bind(l1);
    let isBroken = true;
    l1.evict = (...args) => {
      if (isBroken) throw new Error('broken on purpose');
      return evict(...args);
    };
    store(keysOf(8));
    clock.advance(1000);
    assert.ok(log.has(/eviction slice failed: Error: broken on purpose/));
    const status = () => storage.status()['l1_eviction_controller'] as Record<string, unknown>;
    assert.ok((status()['failure_count'] as number) > 0);
    isBroken = false;
    clock.advance(1000);
    assert.is(l1.usedBytes, units(6));
    assert.equal(storage.healthProblems(), []);
  });

  test('a loop that does not tick is a health problem', () => {
    const { clock, storage } = buildL1House({ sizeBytes: units(10) });
    storage.close(0);
    clock.advance(29_000);
    assert.equal(storage.healthProblems(), []);
    clock.advance(2_000);
    assert.equal(storage.healthProblems(), ['the L1 eviction loop is stuck']);
  });
});
