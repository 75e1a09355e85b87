/** Objects of several object groups of the same chunks: hits, holds, room (spec engine 2.4) */
import * as assert from 'uvu/assert';
import { NO_SLOT, type ObjectKeys } from '../../../src/core/object-table.ts';
import { ALIGN_BYTES, buildL1House, RULES, shapeOf } from '../../support/l1-house.ts';
import { suite } from '../../support/suite.ts';

const units = (count: number) => count * ALIGN_BYTES;

suite('storage: object groups', (test) => {
  /** Chunks of one prompt in two groups: the first is needed whole, the second at the end. */
  function twoGroups(count: number, sizeUnits = 64, windowChunks = 2) {
    const house = buildL1House({ sizeBytes: units(sizeUnits), watermarkRatio: 1 });
    const { keysOf, l1 } = house;
    const namespace = { modelName: 'm', worldSize: 1, workerId: 0, cacheSalt: '' };
    const [full, windowed] = [0, 1].map((objectGroupId) => ({
      ...keysOf(1, count),
      namespaceIds: [l1.internNamespace({ ...namespace, objectGroupId })],
    })) as unknown as [ObjectKeys, ObjectKeys];
    const both = { ...full, namespaceIds: [...full.namespaceIds, ...windowed.namespaceIds] };
    const rules = [RULES[0]!, { ...RULES[0]!, windowChunks }];
    return { ...house, full, windowed, both, rules };
  }
  const chunk = (keys: ObjectKeys, first: number, count = 1) => ({
    ...keys,
    firstChunk: first,
    chunkCount: count,
  });
  const heldCells = (slots: Uint32Array) => [...slots].map((slot) => Number(slot !== NO_SLOT));

  test('a prefix is a hit without what its windows do not need, and only the rest is held', () => {
    const { l1, store, full, windowed, both, rules } = twoGroups(5);
    store(full);
    store(chunk(windowed, 2, 2));
    const slots = l1.hold(both, 3, rules);
    assert.equal(heldCells(slots), [1, 0, 1, 0, 1, 1, 1, 1], 'four chunks of two groups');
    assert.is(l1.statistics().readLockedCount, 6);
    l1.releaseHolds(
      slots.filter((slot) => slot !== NO_SLOT),
      3,
    );
    assert.is(l1.statistics().readLockedCount, 0);
  });

  test('an object of a foreign layout is a gap in its own group only', () => {
    const { l1, store, full, windowed, both, rules } = twoGroups(4);
    store(full);
    store(windowed);
    l1.evict(0, 0, false);
    store(chunk(full, 0), shapeOf(ALIGN_BYTES, 7));
    const stranger = [rules[0]!, { layoutTags: new Map([[8, 1]]), windowChunks: 2 }];
    assert.is(l1.hold(both, 1, stranger).length, 0);
    assert.is(l1.statistics().readLockedCount, 0);
  });

  test('a chunk leaves as a whole, also when only one of its groups is held', async () => {
    const { l1, storage, store, full, windowed, both, rules } = twoGroups(4, 12);
    store(full);
    store(windowed);
    const held = l1.hold(both, 1, rules).filter((slot) => slot !== NO_SLOT);
    assert.is(held.length, 6);
    assert.is(l1.evict(units(12), 100, false).objectCount, 0, 'every chunk has a held object');
    await storage.clear(false);
    assert.is(l1.hold(both, 1, rules).length, 8, 'idle objects outside the window are not needed');
    l1.releaseHolds(held, 2);
    assert.is(l1.evict(units(12), 100, false).result, 'nothing-to-do');
    assert.is(l1.usedBytes, 0);
  });

  test('a chunk for which one group has no room is stored by none', () => {
    const { l1, storage, store, keysOf, full, windowed } = twoGroups(4, 8);
    store(keysOf(9, 2));
    const others = l1.hold(keysOf(9, 2), 1, RULES);
    const parts = storage.reserveStoreGroups([
      { keys: full, shape: shapeOf(), isLeftOut: null },
      { keys: windowed, shape: shapeOf(units(1) + 1), isLeftOut: Uint8Array.of(1, 1, 1, 0) },
    ]);
    // Six units: four of the first group, and the last chunk of the second takes two more.
    assert.equal(
      parts.map(({ slots }) => heldCells(slots)),
      [
        [1, 1, 1, 1],
        [0, 0, 0, 1],
      ],
    );
    for (const { slots } of parts) storage.discardStore(slots);
    const tight = storage.reserveStoreGroups([
      { keys: full, shape: shapeOf(), isLeftOut: null },
      { keys: windowed, shape: shapeOf(units(1) + 1), isLeftOut: Uint8Array.of(1, 1, 0, 0) },
    ]);
    assert.equal(
      tight.map(({ slots }) => heldCells(slots)),
      [
        [1, 1, 0, 0],
        [0, 0, 0, 0],
      ],
    );
    assert.equal(
      [...(tight[0]?.offsets ?? [])].map((at) => at >= 0),
      [true, true, false, false],
    );
    for (const { slots } of tight) storage.finishStore(slots);
    assert.is(l1.usedBytes, units(4), 'the two chunks that are whole, and the held prompt');
    l1.releaseHolds(others, 1);
  });

  test('of a prompt that is larger than L1 the chunks that fit in all groups are stored', () => {
    const { l1, storage, full, windowed, both, rules } = twoGroups(9, 8);
    const parts = storage.reserveStoreGroups([
      { keys: full, shape: shapeOf(), isLeftOut: null },
      { keys: windowed, shape: shapeOf(), isLeftOut: null },
    ]);
    for (const { slots } of parts) storage.finishStore(slots);
    assert.is(l1.hold(both, 1, rules).length / 2, 4);
  });

  test('chunks that a group has no bytes of are left out of it', () => {
    const { storage, l1, full, both, rules, windowed } = twoGroups(4, 16, 1);
    const parts = storage.reserveStoreGroups([
      { keys: full, shape: shapeOf(), isLeftOut: null },
      { keys: windowed, shape: shapeOf(), isLeftOut: Uint8Array.of(1, 0, 1, 0) },
    ]);
    for (const { slots } of parts) storage.finishStore(slots);
    assert.is(l1.usedBytes, units(6));
    assert.is(l1.hold(both, 1, rules).length / 2, 4);
    assert.is(l1.hold(chunk(both, 0, 3), 1, rules).length / 2, 2, 'a shorter prompt ends earlier');
  });
});
