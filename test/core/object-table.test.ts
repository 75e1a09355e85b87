import * as assert from 'uvu/assert';
import { NO_SLOT } from '../../src/core/object-table.ts';
import { RESULT } from '../../src/core/result.ts';
import { keysOf, namespaceKey, openCoreTable, UNIT_BYTES } from '../support/core-table.ts';
import { suite } from '../support/suite.ts';

const WRITER = 1;
const OTHER_WRITER = 2;

function openRanks(worldSize: number, options: Parameters<typeof openCoreTable>[0] = {}) {
  const core = openCoreTable(options);
  const ranks = Array.from({ length: worldSize }, (_, workerId) =>
    core.namespaces.intern(namespaceKey({ worldSize, workerId })),
  );
  const store = (chunks: readonly number[], sizeBytes = UNIT_BYTES, nowMs = 0): Uint32Array => {
    const { slots } = core.table.reserveWrite(keysOf(chunks, ranks), sizeBytes, WRITER, nowMs);
    core.table.finishWrite(slots, nowMs);
    return slots;
  };
  const resident = (chunks: readonly number[]): number[] =>
    chunks.filter((chunk) => !core.table.find(keysOf([chunk], ranks)).includes(NO_SLOT));
  return { core, table: core.table, ranks, store, resident };
}

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
