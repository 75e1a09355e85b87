/**
 * Random operations against the object table and against a plain model of it. After every step the
 * answers agree, every key is found or absent alike, the figures are the sums over the live
 * objects, no two objects share memory, and the table is consistent in itself.
 */

import * as assert from 'uvu/assert';
import type { Core } from '../../src/core/core.ts';
import { NO_SLOT } from '../../src/core/object-table.ts';
import { RESULT } from '../../src/core/result.ts';
import { keysOf, namespaceKey, openCoreTable, UNIT_BYTES } from '../support/core-table.ts';
import fc from '../support/property.ts';
import { suite } from '../support/suite.ts';
import { type Handle, type ModelKey, TableModel } from '../support/table-model.ts';

const UNITS = 24;
const CHUNKS = 6;
const WRITE_TTL_MS = 1000;
const READ_TTL_MS = 500;

const OPERATIONS = [
  'reserve',
  'reserve',
  'finish',
  'finish',
  'discard',
  'hold',
  'holdFound',
  'release',
  'pin',
  'unpin',
  'lease',
  'finishRead',
  'touch',
  'delete',
  'clear',
  'sweep',
  'evict',
  'advance',
] as const;

interface Step {
  operation: (typeof OPERATIONS)[number];
  chunks: number[];
  ranks: number;
  tag: number;
  units: number;
  count: number;
  pick: number;
  isForced: boolean;
  isTemporary: boolean;
  deltaMs: number;
}

const step: fc.Arbitrary<Step> = fc.record({
  operation: fc.constantFrom(...OPERATIONS),
  chunks: fc.array(fc.integer({ min: 0, max: CHUNKS - 1 }), { minLength: 1, maxLength: 4 }),
  ranks: fc.integer({ min: 0, max: 3 }),
  tag: fc.integer({ min: 1, max: 2 }),
  units: fc.integer({ min: 1, max: 3 }),
  count: fc.integer({ min: 1, max: 3 }),
  pick: fc.nat(),
  // A forced clear ends most stories; let it be rare.
  isForced: fc.integer({ min: 0, max: 9 }).map((n) => n === 9),
  isTemporary: fc.boolean(),
  deltaMs: fc.constantFrom(0, 1, 499, 500, 999, 1000, 5000),
});

class Story {
  readonly #core: Core;
  readonly #model: TableModel;
  /** Two ranks of one model, one of another. */
  readonly #namespaceIds: number[];
  readonly #reservations: Handle[] = [];
  readonly #leases: Handle[] = [];
  readonly #holds: { slot: number; count: number }[] = [];
  readonly #pins: number[] = [];
  #nowMs: number;

  constructor(startMs: number) {
    this.#core = openCoreTable({
      units: UNITS,
      writeTtlMs: WRITE_TTL_MS,
      readTtlMs: READ_TTL_MS,
    });
    const { namespaces } = this.#core;
    this.#namespaceIds = [
      namespaces.intern(namespaceKey({ worldSize: 2, workerId: 0 })),
      namespaces.intern(namespaceKey({ worldSize: 2, workerId: 1 })),
      namespaces.intern(namespaceKey({ modelName: 'other' })),
    ];
    this.#model = new TableModel({
      units: UNITS,
      writeTtlMs: WRITE_TTL_MS,
      readTtlMs: READ_TTL_MS,
      scopeOf: (namespaceId) => namespaces.describe(namespaceId).scope,
    });
    this.#nowMs = startMs;
    this.#model.advance(startMs);
    this.#core.table.statistics(startMs);
  }

  run(one: Step): void {
    this[one.operation](one);
    this.#compare();
  }

  /** The namespaces of a step: rank 0, rank 1, both, or the other model. */
  #ids(ranks: number): number[] {
    const [rank0 = 0, rank1 = 0, other = 0] = this.#namespaceIds;
    return [[rank0], [rank1], [rank0, rank1], [other]][ranks] ?? [];
  }

  #keys(one: Step): ModelKey[] {
    return one.chunks.flatMap((chunk) =>
      this.#ids(one.ranks).map((namespaceId) => ({ chunk, namespaceId })),
    );
  }

  #tableKeys(one: Step) {
    return keysOf(one.chunks, this.#ids(one.ranks));
  }

  reserve(one: Step): void {
    // Not a multiple of the unit, so that the rounding takes part.
    const sizeBytes = one.units * UNIT_BYTES - 100;
    const { tag, isTemporary } = one;
    const expected = this.#model.reserve(this.#keys(one), one.units, tag, isTemporary);
    const { table } = this.#core;
    const keys = this.#tableKeys(one);
    const actual = table.reserveWrite(keys, sizeBytes, tag, this.#nowMs, isTemporary);
    assert.equal([...actual.codes], expected.codes);
    for (const [i, object] of expected.objects.entries()) {
      const slot = actual.slots[i]!;
      assert.is(slot === NO_SLOT, object === null);
      if (!object) continue;
      if (object.slot === 0) this.#model.place(object, slot, table.offsetOf(slot) / UNIT_BYTES);
      assert.is(slot, object.slot);
      assert.is(actual.generations[i], this.#model.generationOf(slot));
      this.#reservations.push({ slot, generation: actual.generations[i]! });
    }
  }

  /** Takes up to `count` handles out of a list, sometimes leaving them in: used twice, then. */
  #take<T>(list: T[], one: Step): T[] {
    if (list.length === 0) return [];
    const first = one.pick % list.length;
    const taken = list.slice(first, first + one.count);
    if (one.pick % 5 !== 0) list.splice(first, one.count);
    return taken;
  }

  finish(one: Step): void {
    const handles = this.#take(this.#reservations, one);
    const leaseCount = one.isTemporary ? one.count : 0;
    const holdCount = one.pick % 2;
    const expected = this.#model.finish(handles, leaseCount, holdCount);
    const actual = this.#core.table.finishWriteAndHold(slotsOf(handles), this.#nowMs, {
      generations: generationsOf(handles),
      leaseCount,
      holdCount,
    });
    assert.equal([...actual.codes], expected);
    const seen = new Set<number>();
    for (const [i, code] of expected.entries()) {
      const slot = actual.slots[i]!;
      if (code < 0) continue;
      if (leaseCount > 0) this.#leases.push({ slot, generation: actual.generations[i]! });
      // A reservation that the call names twice is finished and held once.
      if (holdCount > 0 && !seen.has(handles[i]!.slot)) this.#holds.push({ slot, count: 1 });
      seen.add(handles[i]!.slot);
    }
  }

  discard(one: Step): void {
    const handles = this.#take(this.#reservations, one);
    const expected = this.#model.discard(handles);
    const actual = this.#core.table.discardWrite(slotsOf(handles), generationsOf(handles));
    assert.equal([...actual], expected);
  }

  hold(one: Step): void {
    const ids = this.#ids(one.ranks);
    const expected: number[] = [];
    for (const chunk of one.chunks) {
      const objects = ids.map((namespaceId) => this.#model.find({ chunk, namespaceId }, 0));
      if (objects.includes(undefined)) break;
      for (const object of objects) {
        object!.holds += one.count;
        expected.push(object!.slot);
      }
    }
    const actual = this.#core.table.holdPrefix(this.#tableKeys(one), one.count);
    assert.equal([...actual], expected);
    for (const slot of expected) this.#holds.push({ slot, count: one.count });
  }

  /** Holds some of what is there, as a reader under a window does. */
  holdFound(one: Step): void {
    const found = [...new Set(this.#core.table.find(this.#tableKeys(one)))];
    const slots = found.filter((slot) => slot !== NO_SLOT).slice(one.pick % 2);
    for (const object of this.#model.objects) {
      if (slots.includes(object.slot) && object.state === 'resident') object.holds += one.count;
    }
    this.#core.table.hold(Uint32Array.from(slots), one.count);
    for (const slot of slots) this.#holds.push({ slot, count: one.count });
  }

  release(one: Step): void {
    if (this.#holds.length === 0) return;
    const [held] = this.#holds.splice(one.pick % this.#holds.length, 1);
    const { slot, count } = held!;
    this.#model.releaseHolds(slot, count);
    this.#core.table.releaseHolds(Uint32Array.of(slot), count);
  }

  pin(one: Step): void {
    const live = [...this.#model.objects].filter(({ state }) => state !== 'detached');
    if (live.length === 0) return;
    const object = live[one.pick % live.length]!;
    object.pins += 1;
    this.#pins.push(object.slot);
    this.#core.table.pin(Uint32Array.of(object.slot));
  }

  unpin(one: Step): void {
    if (this.#pins.length === 0) return;
    const [slot] = this.#pins.splice(one.pick % this.#pins.length, 1);
    this.#model.unpin(slot!);
    this.#core.table.unpin(Uint32Array.of(slot!));
  }

  lease(one: Step): void {
    const leaseCount = one.count * 100 - 99;
    const expected = this.#keys(one).map((key) => {
      const object = this.#model.find(key, 0);
      if (object) this.#model.lease(object, leaseCount);
      return object;
    });
    const actual = this.#core.table.reserveRead(this.#tableKeys(one), leaseCount, this.#nowMs);
    for (const [i, object] of expected.entries()) {
      assert.is(actual.codes[i], object ? RESULT.SUCCESS : RESULT.KEY_NOT_EXIST);
      assert.is(actual.slots[i], object ? object.slot : NO_SLOT);
      if (object) this.#leases.push({ slot: object.slot, generation: actual.generations[i]! });
    }
  }

  finishRead(one: Step): void {
    const handles = this.#take(this.#leases, one);
    const expected = this.#model.finishRead(handles, one.count);
    const { table } = this.#core;
    const slots = slotsOf(handles);
    const actual = table.finishRead(slots, one.count, this.#nowMs, generationsOf(handles));
    assert.equal([...actual], expected);
  }

  touch(one: Step): void {
    this.#model.touch(this.#keys(one));
    this.#core.table.touch(this.#tableKeys(one));
  }

  delete(one: Step): void {
    const expected = this.#keys(one).map((key) => this.#model.delete(key, one.isForced));
    const { table } = this.#core;
    const actual = table.deleteObjects(this.#tableKeys(one), one.isForced, this.#nowMs);
    assert.equal([...actual], expected);
  }

  clear(one: Step): void {
    if (one.pick % 4 !== 0) return;
    const expected = this.#model.clear(one.isForced);
    const { table } = this.#core;
    if (one.isTemporary) {
      assert.is(table.clear(one.isForced, this.#nowMs).removedCount, expected);
      return;
    }
    let removedCount = 0;
    let firstSlot: number | null = 1;
    while (firstSlot !== null) {
      const range = { isForced: one.isForced, firstSlot, slotCount: one.count };
      const slice = table.clearSlice(range, this.#nowMs);
      removedCount += slice.removedCount;
      firstSlot = slice.nextSlot;
    }
    assert.is(removedCount, expected);
  }

  sweep(): void {
    const expected = this.#model.sweep();
    assert.is(this.#core.table.sweepExpired(1000, this.#nowMs).objectCount, expected);
  }

  evict(one: Step): void {
    const expected = this.#model.evict(one.units);
    const { table } = this.#core;
    const actual = table.evict(one.units * UNIT_BYTES, 1000, this.#nowMs);
    assert.is(actual.freedBytes, expected.freedUnits * UNIT_BYTES);
    assert.is(actual.familyCount, expected.families.length);
    const isDone = expected.freedUnits >= one.units;
    assert.is(actual.result, isDone ? 'done' : 'nothing-to-do');
  }

  advance(one: Step): void {
    this.#nowMs = Math.min(Number.MAX_SAFE_INTEGER, this.#nowMs + one.deltaMs);
    this.#model.advance(this.#nowMs);
    this.#core.table.statistics(this.#nowMs);
  }

  #compare(): void {
    const { table } = this.#core;
    const model = this.#model;
    for (const namespaceId of this.#namespaceIds) {
      const keys = Array.from({ length: CHUNKS }, (_, chunk) => ({ chunk, namespaceId }));
      const all = keysOf([...keys.keys()], [namespaceId]);
      for (const tag of [0, 1, 2]) {
        const slots = tag === 0 ? table.find(all) : table.findStaged(all, tag);
        const expected = keys.map((key) => model.find(key, tag)?.slot ?? NO_SLOT);
        assert.equal([...slots], expected, `namespace ${namespaceId}, writer ${tag}`);
      }
    }
    const objects = [...model.objects];
    const figures = table.statistics(this.#nowMs);
    assert.is(figures.usedBytes, model.usedUnits * UNIT_BYTES);
    assert.is(figures.objectCount, model.count('resident'));
    assert.is(figures.stagingCount, model.count('staged'));
    assert.is(figures.deferredCount, model.count('detached'));
    assert.is(figures.pinnedCount, objects.filter(({ pins }) => pins > 0).length);
    assert.is(figures.trackedFamilyCount, model.order.length);
    const isRead = objects.filter(
      (object) => object.state === 'resident' && (object.holds > 0 || model.isLocked(object)),
    );
    assert.is(figures.readLockedCount, isRead.length);
    const isWritten = objects.filter(
      (object) => object.state === 'staged' && model.isLocked(object),
    );
    assert.is(figures.writeLockedCount, isWritten.length);
    model.checkPlaces();
    table.checkConsistency();
  }
}

function slotsOf(handles: readonly Handle[]): Uint32Array {
  return Uint32Array.from(handles, ({ slot }) => slot);
}

function generationsOf(handles: readonly Handle[]): Uint32Array {
  return Uint32Array.from(handles, ({ generation }) => generation);
}

suite('object table against a plain model', (test) => {
  for (const startMs of [0, 2 ** 31 - 600, 2 ** 32 - 600, Number.MAX_SAFE_INTEGER - 1_000_000]) {
    test(`agrees in any order of operations, from ${startMs} ms on`, () => {
      fc.assert(
        fc.property(fc.array(step, { maxLength: 120, size: 'max' }), (steps) => {
          const story = new Story(startMs);
          for (const one of steps) story.run(one);
        }),
        { numRuns: 100 },
      );
    });
  }
});
