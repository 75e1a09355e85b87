import * as assert from 'uvu/assert';
import { NO_SLOT } from '../../src/core/object-table.ts';
import { RESULT } from '../../src/core/result.ts';
import { keysOf, namespaceKey, openRanks, UNIT_BYTES, WRITER } from '../support/core-table.ts';
import { suite } from '../support/suite.ts';

const OTHER_WRITER = 2;

suite('object table, writing', (test) => {
  test('shows an object to readers only after it is finished', () => {
    const { table, ranks } = openRanks(1);
    const keys = keysOf([1, 2], ranks);
    const { slots, codes } = table.reserveWrite(keys, 5000, WRITER, 0);
    assert.equal([...codes], [0, 0]);
    assert.equal(
      [...slots].map((slot) => table.offsetOf(slot)),
      [0, 2 * UNIT_BYTES],
    );
    assert.is(table.sizeOf(slots[0]!), 5000);
    assert.equal([...table.find(keys)], [NO_SLOT, NO_SLOT]);
    table.finishWrite(slots, 0);
    assert.equal(table.find(keys), slots);
    table.checkConsistency();
  });

  test('places all missing objects of a call or none', () => {
    const { table, ranks, store } = openRanks(1, { units: 4 });
    store([1, 2]);
    const { slots, codes } = table.reserveWrite(keysOf([1, 3, 4, 5], ranks), 4096, WRITER, 0);
    const { KEY_NOT_WRITABLE, OUT_OF_MEMORY } = RESULT;
    assert.equal([...codes], [KEY_NOT_WRITABLE, OUT_OF_MEMORY, OUT_OF_MEMORY, OUT_OF_MEMORY]);
    assert.equal([...slots], [NO_SLOT, NO_SLOT, NO_SLOT, NO_SLOT]);
    assert.is(table.countOutOfMemory(codes), 3);
    assert.is(table.usedBytes, 2 * UNIT_BYTES);
    assert.is(table.statistics().stagingCount, 0);
    table.checkConsistency();
  });

  test('answers TABLE_FULL when the slots run out, and takes nothing', () => {
    const { table, ranks } = openRanks(1, { objectCountMax: 3 });
    const { codes } = table.reserveWrite(keysOf([1, 2, 3, 4], ranks), 4096, WRITER, 0);
    assert.equal(new Set(codes), new Set([RESULT.TABLE_FULL]));
    assert.is(table.countOutOfMemory(codes), 4);
    assert.is(table.usedBytes, 0);
    assert.is(table.reserveWrite(keysOf([1, 2, 3], ranks), 4096, WRITER, 0).codes[2], 0);
    table.checkConsistency();
  });

  test('treats a key that is named twice as one object', () => {
    const { table, ranks } = openRanks(1);
    const { slots, codes } = table.reserveWrite(keysOf([7, 8, 7], ranks), 4096, WRITER, 0);
    assert.equal([...codes], [0, 0, 0]);
    assert.is(slots[0], slots[2]);
    assert.is(table.usedBytes, 2 * UNIT_BYTES);
    table.pin(slots);
    assert.equal([...table.finishWrite(slots, 0)], [0, 0, 0]);
    table.unpin(slots);
    assert.is(table.statistics().pinnedCount, 0);
    table.checkConsistency();
  });

  test('keeps the copy that was finished first and drops the other', () => {
    const { table, ranks } = openRanks(1);
    const keys = keysOf([1], ranks);
    const first = table.reserveWrite(keys, 4096, WRITER, 0);
    const second = table.reserveWrite(keys, 4096, OTHER_WRITER, 0);
    table.pin(second.slots);
    assert.is(table.finishWrite(first.slots, 0)[0], RESULT.SUCCESS);
    assert.is(table.finishWrite(second.slots, 0)[0], RESULT.ALREADY_RESIDENT);
    assert.is(table.usedBytes, 2 * UNIT_BYTES, 'the second copy is still pinned');
    table.unpin(second.slots);
    assert.is(table.usedBytes, UNIT_BYTES);
    assert.equal(table.find(keys), first.slots);
    table.checkConsistency();
  });

  test('never admits a reservation that has expired', () => {
    const { table, ranks } = openRanks(1, { writeTtlMs: 100 });
    const keys = keysOf([1], ranks);
    const { slots } = table.reserveWrite(keys, 4096, WRITER, 0);
    table.pin(slots);
    assert.is(table.finishWrite(slots, 100)[0], RESULT.KEY_IN_WRONG_STATE);
    assert.equal([...table.find(keys)], [NO_SLOT]);
    assert.is(table.sweepExpired(10, 100).result, 'nothing-to-do');
    assert.is(table.usedBytes, UNIT_BYTES, 'a copy may still be running');
    table.unpin(slots);
    assert.is(table.sweepExpired(10, 100).result, 'done');
    assert.is(table.usedBytes, 0);
    table.checkConsistency();
  });

  test('does not hand over an expired reservation that a copy still writes to', () => {
    const { table, ranks } = openRanks(1, { writeTtlMs: 100 });
    const keys = keysOf([1], ranks);
    const first = table.reserveWrite(keys, 4096, WRITER, 0);
    table.pin(first.slots);
    assert.is(table.reserveWrite(keys, 4096, WRITER, 100).codes[0], RESULT.KEY_NOT_WRITABLE);
    table.unpin(first.slots);
    const second = table.reserveWrite(keys, 4096, WRITER, 100);
    assert.equal(second.slots, first.slots);
    const { generations } = first;
    const late = table.finishWrite(first.slots, 100, { generations });
    assert.is(late[0], RESULT.KEY_IN_WRONG_STATE, 'the first writer is refused');
    assert.is(table.finishWrite(second.slots, 100, { generations: second.generations })[0], 0);
    table.checkConsistency();
  });

  test('makes a new object where an expired reservation has another size', () => {
    const { table, ranks } = openRanks(1, { writeTtlMs: 100 });
    const keys = keysOf([1], ranks);
    table.reserveWrite(keys, UNIT_BYTES, WRITER, 0);
    const { slots, codes } = table.reserveWrite(keys, 3 * UNIT_BYTES, WRITER, 100);
    assert.is(codes[0], RESULT.SUCCESS);
    assert.is(table.sizeOf(slots[0]!), 3 * UNIT_BYTES);
    assert.is(table.usedBytes, 3 * UNIT_BYTES);
    table.checkConsistency();
  });

  test('refuses what a client must not ask for', () => {
    const { table, ranks } = openRanks(1);
    for (const sizeBytes of [0, -1, Number.NaN, 2 ** 32]) {
      assert.throws(() => table.reserveWrite(keysOf([1], ranks), sizeBytes, WRITER, 0), /bytes/);
    }
    const many = Array.from({ length: 65_537 }, (_, chunk) => chunk);
    assert.throws(() => table.reserveWrite(keysOf(many, ranks), 4096, WRITER, 0), /at most 65536/);
    assert.throws(() => table.find(keysOf([1], [])), /1 to 4096/);
    table.checkConsistency();
  });
});

suite('object table, reading', (test) => {
  test('holds the longest prefix of chunks that every rank has', () => {
    const { table, ranks, store } = openRanks(2);
    store([1, 2, 4]);
    const [rank0 = 0] = ranks;
    const half = table.reserveWrite(keysOf([3], [rank0]), 4096, WRITER, 0);
    table.finishWrite(half.slots, 0);
    const slots = table.holdPrefix(keysOf([1, 2, 3, 4], ranks), 3);
    assert.is(slots.length, 4, 'two chunks of two ranks');
    assert.is(table.statistics().readLockedCount, 4);
    table.releaseHolds(slots, 2);
    assert.is(table.statistics().readLockedCount, 4);
    table.releaseHolds(slots, 1);
    assert.is(table.statistics().readLockedCount, 0);
    table.checkConsistency();
  });

  test('holds any resident objects that were found, and no others', () => {
    const { table, ranks, store } = openRanks(1);
    store([1, 2, 3]);
    const [first = 0, , third = 0] = table.find(keysOf([1, 2, 3], ranks));
    table.hold(Uint32Array.of(third, first), 2);
    assert.is(table.statistics().readLockedCount, 2);
    table.deleteObjects(keysOf([1, 2, 3], ranks), false, 0);
    assert.equal([...table.find(keysOf([1, 2, 3], ranks))], [first, NO_SLOT, third]);
    const staged = table.reserveWrite(keysOf([4], ranks), 4096, WRITER, 0).slots[0] ?? 0;
    assert.throws(() => table.hold(Uint32Array.of(first, staged), 1), /table_hold/);
    table.releaseHolds(Uint32Array.of(first, third), 2);
    assert.is(table.statistics().readLockedCount, 0, 'the refused call held nothing');
    table.checkConsistency();
  });

  test('answers an unknown namespace like an empty one', () => {
    const { core, table, store } = openRanks(1);
    store([1]);
    const unknown = core.namespaces.find(namespaceKey({ modelName: 'other' }));
    assert.equal([...table.find(keysOf([1], [unknown]))], [NO_SLOT]);
    assert.is(table.holdPrefix(keysOf([1], [unknown]), 1).length, 0);
    assert.equal([...table.deleteObjects(keysOf([1], [unknown]), true, 0)], [-1]);
  });

  test('refuses the release of a lease that is over, and counts it', () => {
    const { table, ranks, store } = openRanks(1, { readTtlMs: 100 });
    store([1]);
    const first = table.reserveRead(keysOf([1], ranks), 1, 0);
    const second = table.reserveRead(keysOf([1], ranks), 1, 100);
    const { slots, generations } = first;
    assert.is(table.finishRead(slots, 1, 150, generations)[0], RESULT.KEY_IN_WRONG_STATE);
    assert.is(table.statistics().readLockedCount, 1, 'the second lease is untouched');
    assert.is(table.statistics().lateReleaseCount, 1);
    assert.is(table.finishRead(slots, 1, 150, second.generations)[0], RESULT.SUCCESS);
    assert.is(table.statistics().readLockedCount, 0);
  });

  test('removes a temporary object with its last holder, of whatever kind', () => {
    const { table, ranks } = openRanks(1);
    const keys = keysOf([1], ranks);
    const { slots } = table.reserveWrite(keys, 4096, WRITER, 0, true);
    table.finishWrite(slots, 0, { leaseCount: 1, holdCount: 2 });
    table.pin(slots);
    table.releaseHolds(slots, 2);
    assert.equal(table.find(keys), slots, 'a lease is left');
    table.finishRead(slots, 1, 0);
    assert.equal([...table.find(keys)], [NO_SLOT], 'the last reader is gone');
    assert.is(table.statistics().deferredBytes, UNIT_BYTES, 'a copy is still running');
    table.unpin(slots);
    assert.is(table.usedBytes, 0);
    table.checkConsistency();
  });

  test('cuts long lists into calls and keeps their order', () => {
    // 65536 objects fit into one call; this makes two calls of it.
    const chunks = Array.from({ length: 40_000 }, (_, chunk) => chunk);
    const { table, ranks, store, resident } = openRanks(2, { objectCountMax: 64 });
    store([0, 1]);
    const slots = table.find(keysOf(chunks, ranks));
    assert.is(slots.length, 80_000);
    assert.is(slots.filter((slot) => slot !== NO_SLOT).length, 4);
    table.touchSlots(slots);
    // Touched last to first: chunk 0 is the youngest.
    table.evict(1, 10, 0);
    assert.equal(resident([0, 1]), [0]);
  });
});
