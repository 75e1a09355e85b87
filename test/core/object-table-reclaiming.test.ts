/** Eviction, clear, sweep and delete of the object table */
import * as assert from 'uvu/assert';
import { NO_SLOT } from '../../src/core/object-table.ts';
import { RESULT } from '../../src/core/result.ts';
import { keysOf, openRanks, UNIT_BYTES, WRITER } from '../support/core-table.ts';
import { suite } from '../support/suite.ts';

suite('object table, reclaiming', (test) => {
  test('evicts whole families, the last chunk of a batch first', () => {
    const { table, store, resident } = openRanks(2);
    store([1, 2, 3]);
    const { result, freedBytes, objectCount, familyCount } = table.evict(1, 10, 0);
    assert.equal(
      { result, freedBytes, objectCount, familyCount },
      {
        result: 'done',
        freedBytes: 2 * UNIT_BYTES,
        objectCount: 2,
        familyCount: 1,
      },
    );
    assert.equal(resident([1, 2, 3]), [1, 2]);
    table.checkConsistency();
  });

  for (const holder of ['lease', 'hold', 'pin'] as const) {
    test(`passes over a family with a ${holder} on one of its objects`, () => {
      const { table, ranks, store, resident } = openRanks(2);
      store([1]);
      store([2]);
      const [, rank1 = 0] = ranks;
      const keys = keysOf([1], [rank1]);
      const slots = table.find(keys);
      if (holder === 'lease') table.reserveRead(keys, 1, 0);
      else if (holder === 'hold') table.holdPrefix(keys, 1);
      else table.pin(slots);
      assert.is(table.evict(10 * UNIT_BYTES, 10, 0).result, 'nothing-to-do');
      assert.equal(resident([1, 2]), [1]);
      if (holder === 'lease') table.finishRead(slots, 1, 0);
      else if (holder === 'hold') table.releaseHolds(slots, 1);
      else table.unpin(slots);
      assert.is(table.evict(2 * UNIT_BYTES, 10, 0).result, 'done');
      assert.equal(resident([1, 2]), []);
      table.checkConsistency();
    });
  }

  test('passes over a family that another rank is being stored to', () => {
    const { table, ranks, resident } = openRanks(2);
    const [rank0 = 0, rank1 = 0] = ranks;
    const first = table.reserveWrite(keysOf([1], [rank0]), 4096, WRITER, 0);
    table.finishWrite(first.slots, 0);
    const second = table.reserveWrite(keysOf([1], [rank1]), 4096, WRITER, 0);
    assert.is(table.evict(1, 10, 0).objectCount, 0);
    table.finishWrite(second.slots, 0);
    assert.equal(resident([1]), [1]);
  });

  test('reclaims expired reservations before it evicts', () => {
    const { table, ranks, store, resident } = openRanks(1, { writeTtlMs: 100 });
    store([1]);
    table.reserveWrite(keysOf([2], ranks), 4096, WRITER, 0);
    assert.is(table.evict(1, 10, 100).freedBytes, UNIT_BYTES);
    assert.equal(resident([1]), [1]);
    assert.is(table.statistics().stagingCount, 0);
  });

  test('clears every key at once and frees memory that is held when it is let go', () => {
    const { table, ranks, store, resident } = openRanks(1);
    const slots = store([1, 2, 3]);
    const staged = table.reserveWrite(keysOf([4], ranks), 4096, WRITER, 0);
    table.pin(slots.subarray(0, 1));
    table.holdPrefix(keysOf([1, 2], ranks), 1);
    const outcome = table.clear(true, 0);
    assert.equal(outcome, { removedCount: 4, deferredCount: 3, freedBytes: UNIT_BYTES });
    assert.equal(resident([1, 2, 3]), []);
    // deferred: 1 (pin, hold), 2 (hold), 4 (its writer)
    assert.is(table.usedBytes, 3 * UNIT_BYTES);
    assert.equal([...store([1])].length, 1, 'a cleared key may be stored again at once');
    table.releaseHolds(slots.subarray(0, 2), 1);
    assert.is(table.statistics().deferredCount, 2);
    table.unpin(slots.subarray(0, 1));
    assert.is(table.finishWrite(staged.slots, 0)[0], RESULT.KEY_NOT_EXIST);
    assert.is(table.statistics().deferredCount, 0);
    assert.is(table.usedBytes, UNIT_BYTES);
    table.checkConsistency();
  });

  test('counts what a clear has taken away, not what earlier ones have left behind', () => {
    const many = { units: 4096, objectCountMax: 4096, writeTtlMs: 1000 };
    const { table, ranks, store } = openRanks(1, many);
    const abandoned = Array.from({ length: 3000 }, (_, i) => i);
    table.reserveWrite(keysOf(abandoned, ranks), UNIT_BYTES, WRITER, 0);
    assert.equal(table.clear(true, 0), { removedCount: 3000, deferredCount: 3000, freedBytes: 0 });
    store(Array.from({ length: 1000 }, (_, i) => 10_000 + i));
    // More locks have expired by now than one call lets go before its own work.
    assert.equal(table.clear(true, 5000), {
      removedCount: 1000,
      deferredCount: 0,
      freedBytes: 1000 * UNIT_BYTES,
    });
    assert.is(table.usedBytes, 0);
    table.checkConsistency();
  });

  for (const evictionPolicy of ['LRU', 'noop'] as const) {
    test(`clears in slices under ${evictionPolicy}: all that was there and nobody holds`, () => {
      const { table, ranks, store, resident } = openRanks(1, { evictionPolicy });
      const chunks = Array.from({ length: 10 }, (_, i) => i);
      store(chunks);
      table.holdPrefix(keysOf([0], ranks), 1);
      const first = table.clearSlice({ isForced: false, firstSlot: 1, slotCount: 4 }, 0);
      assert.equal(first, {
        removedCount: 3,
        deferredCount: 0,
        freedBytes: 3 * UNIT_BYTES,
        nextSlot: 5,
      });
      // Takes a place that the walk has passed already.
      store([20]);
      const second = table.clearSlice({ isForced: false, firstSlot: 5, slotCount: 6 }, 0);
      assert.is(second.removedCount, 6);
      assert.is(second.nextSlot, null);
      assert.equal(resident([...chunks, 20]), [0, 20]);
      table.checkConsistency();
    });
  }

  test('clears in slices with force, and memory follows with its holders', () => {
    const { table, ranks, store, resident } = openRanks(1);
    const slots = store([1, 2, 3]);
    table.holdPrefix(keysOf([1], ranks), 1);
    const outcome = table.clearSlice({ isForced: true, firstSlot: 1, slotCount: 100 }, 0);
    assert.equal(outcome, {
      removedCount: 3,
      deferredCount: 1,
      freedBytes: 2 * UNIT_BYTES,
      nextSlot: null,
    });
    assert.equal(resident([1, 2, 3]), []);
    table.releaseHolds(slots.subarray(0, 1), 1);
    assert.is(table.usedBytes, 0);
    table.checkConsistency();
  });

  test('leaves held objects alone when it clears without force', () => {
    const { table, ranks, store, resident } = openRanks(1);
    store([1, 2]);
    table.holdPrefix(keysOf([1], ranks), 1);
    assert.equal(table.clear(false, 0), {
      removedCount: 1,
      deferredCount: 0,
      freedBytes: UNIT_BYTES,
    });
    assert.equal(resident([1, 2]), [1]);
  });

  test('tells what is locked when it deletes', () => {
    const { table, ranks, store } = openRanks(1);
    store([1, 2]);
    table.holdPrefix(keysOf([1], ranks), 1);
    const { KEY_IS_LOCKED, SUCCESS, KEY_NOT_EXIST } = RESULT;
    const keys = keysOf([1, 2, 3], ranks);
    assert.equal([...table.deleteObjects(keys, false, 0)], [KEY_IS_LOCKED, SUCCESS, KEY_NOT_EXIST]);
    assert.equal([...table.deleteObjects(keys, true, 0)], [SUCCESS, KEY_NOT_EXIST, KEY_NOT_EXIST]);
    assert.is(table.statistics().deferredCount, 1);
  });

  test('evicts nothing with the noop policy', () => {
    const { table, store, resident } = openRanks(1, { evictionPolicy: 'noop' });
    store([1, 2]);
    assert.is(table.evict(1, 10, 0).result, 'nothing-to-do');
    assert.equal(resident([1, 2]), [1, 2]);
  });

  test('grows its arena at the end', () => {
    const { table, ranks } = openRanks(1, { units: 1 });
    const keys = keysOf([1, 2], ranks);
    assert.is(table.reserveWrite(keys, 4096, WRITER, 0).codes[0], RESULT.OUT_OF_MEMORY);
    table.growArena(UNIT_BYTES);
    assert.is(table.reserveWrite(keys, 4096, WRITER, 0).codes[0], RESULT.SUCCESS);
    assert.is(table.statistics().arenaBytes, 2 * UNIT_BYTES);
    table.checkConsistency();
  });

  test('ends the process for a slot that its caller does not own', () => {
    const { table, store } = openRanks(1);
    const slots = store([1]);
    assert.throws(() => table.unpin(slots), /table_unpin answers INVALID_ARGUMENT/);
    assert.throws(() => table.releaseHolds(slots, 1), /table_release_holds/);
    assert.throws(() => table.pin(Uint32Array.of(NO_SLOT)), /table_pin/);
    assert.throws(() => table.pin(Uint32Array.of(0)), /table_pin/);
    table.checkConsistency();
  });
});
