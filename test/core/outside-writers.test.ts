/** Writers outside of this process: their reservations are pinned, extended, given up. */
import * as assert from 'uvu/assert';
import { NO_SLOT } from '../../src/core/object-table.ts';
import { RESULT } from '../../src/core/result.ts';
import { keysOf, namespaceKey, openCoreTable, UNIT_BYTES } from '../support/core-table.ts';
import { suite } from '../support/suite.ts';

const WRITER = 1;
const TTL_MS = 1000;

/** Chunks 1 and 2, reserved at time 0 and pinned. */
function reserved() {
  const { table, namespaces } = openCoreTable({ writeTtlMs: TTL_MS });
  const namespaceIds = [namespaces.intern(namespaceKey())];
  const keys = keysOf([1, 2], namespaceIds);
  const { slots, generations } = table.reserveWrite(keys, UNIT_BYTES, WRITER, 0);
  table.pin(slots);
  const isWritable = (nowMs: number) =>
    !table.reserveWrite(keys, UNIT_BYTES, WRITER, nowMs).slots.includes(NO_SLOT);
  return { table, keys, slots, generations, namespaceIds, isWritable };
}

suite('object table, extended reservations', (test) => {
  test('a live reservation gets its time anew', () => {
    const { table, keys, slots } = reserved();
    table.extendWrite(slots, TTL_MS - 1);
    assert.equal([...table.finishWrite(slots, 2 * TTL_MS - 2)], [RESULT.SUCCESS, RESULT.SUCCESS]);
    table.unpin(slots);
    assert.equal(table.find(keys), slots);
    table.checkConsistency();
  });

  test('an expired one, too, as long as it is pinned', () => {
    const { table, keys, slots } = reserved();
    assert.is(table.statistics(5 * TTL_MS).expiredCount, 2);
    table.extendWrite(slots, 5 * TTL_MS);
    const { expiredCount, writeLockedCount } = table.statistics(5 * TTL_MS);
    assert.equal([expiredCount, writeLockedCount], [0, 2]);
    assert.equal([...table.finishWrite(slots, 6 * TTL_MS - 1)], [RESULT.SUCCESS, RESULT.SUCCESS]);
    table.unpin(slots);
    assert.equal(table.find(keys), slots);
    table.checkConsistency();
  });

  test('its new time ends as the first one did', () => {
    const { table, slots } = reserved();
    table.extendWrite(slots, 500);
    const codes = table.finishWrite(slots, 500 + TTL_MS);
    assert.equal(new Set(codes), new Set([RESULT.KEY_IN_WRONG_STATE]));
    table.checkConsistency();
  });

  test('handles of before it are still good', () => {
    const { table, slots, generations } = reserved();
    table.extendWrite(slots, 5 * TTL_MS);
    const codes = table.finishWrite(slots, 5 * TTL_MS, { generations });
    assert.equal(new Set(codes), new Set([RESULT.SUCCESS]));
  });

  test('an expired one without pins is not the writer’s any more', () => {
    const { table, keys, slots } = reserved();
    table.unpin(slots);
    table.extendWrite(slots, TTL_MS);
    const codes = table.finishWrite(slots, TTL_MS);
    assert.equal(new Set(codes), new Set([RESULT.KEY_IN_WRONG_STATE]));
    assert.is(table.find(keys).includes(NO_SLOT), true);
    table.checkConsistency();
  });

  test('what is resident or cleared is left alone', () => {
    const { table, slots } = reserved();
    table.finishWrite(slots.subarray(0, 1), 0);
    table.clear(true, 0);
    table.extendWrite(slots, 10);
    assert.is(table.statistics(10).writeLockedCount, 0);
    table.discardWrite(slots);
    table.unpin(slots);
    assert.is(table.usedBytes, 0);
    table.checkConsistency();
  });
});

suite('object table, reservations that are given up', (test) => {
  for (const [when, nowMs] of [
    ['live', 10],
    ['expired', 5 * TTL_MS],
  ] as const) {
    test(`${when}: the keys are free at once, the memory with the last pin`, () => {
      const { table, slots, isWritable } = reserved();
      assert.is(isWritable(nowMs), false);
      table.abandonWrite(slots, nowMs);
      assert.is(table.usedBytes, 2 * UNIT_BYTES);
      assert.is(table.statistics(nowMs).deferredCount, 2);
      assert.is(isWritable(nowMs), true);
      assert.is(table.usedBytes, 4 * UNIT_BYTES);
      table.unpin(slots);
      assert.is(table.usedBytes, 2 * UNIT_BYTES);
      table.checkConsistency();
    });
  }

  test('it can never be finished', () => {
    const { table, keys, slots } = reserved();
    table.abandonWrite(slots, 0);
    const codes = table.finishWrite(slots, 0);
    assert.equal(new Set(codes), new Set([RESULT.KEY_NOT_EXIST]));
    assert.equal([...table.find(keys)], [NO_SLOT, NO_SLOT]);
    table.unpin(slots);
    table.checkConsistency();
  });

  test('what was cleared before is only waiting for its pins', () => {
    const { table, slots } = reserved();
    table.clear(true, 0);
    table.abandonWrite(slots, 0);
    table.unpin(slots);
    assert.is(table.usedBytes, 0);
    table.checkConsistency();
  });

  test('what nobody pins may not be given up: its memory could be somebody else’s', () => {
    const { table, slots } = reserved();
    table.unpin(slots);
    assert.throws(() => table.abandonWrite(slots, 0), /INVALID_ARGUMENT/);
  });
});
