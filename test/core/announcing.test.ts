/** What the table tells of announced chunks, one by one and against a search through all of it. */

import * as assert from 'uvu/assert';
import { NO_SLOT, type ObjectTable } from '../../src/core/object-table.ts';
import { RESULT } from '../../src/core/result.ts';
import {
  keysOf,
  namespaceKey,
  openCoreTable,
  openRanks,
  UNIT_BYTES,
  WRITER,
} from '../support/core-table.ts';
import fc from '../support/property.ts';
import { suite } from '../support/suite.ts';

const { SUCCESS, ALREADY_ANNOUNCED, KEY_NOT_EXIST } = RESULT;

/** What a follower believes, and every message that made it believe so. */
class Follower {
  readonly messages: string[] = [];
  readonly believed = new Set<string>();
  readonly #scopeOf: (namespaceId: number) => number;

  constructor(table: ObjectTable, scopeOf: (namespaceId: number) => number = () => 0) {
    this.#scopeOf = scopeOf;
    table.removals.listen({
      removed: ({ hashes, namespaceIds }) => {
        for (const [i, hash] of hashes.entries()) {
          assert.is(hash.length, 4);
          const chunk = new DataView(hash.buffer, hash.byteOffset).getUint32(0);
          this.#remove(`${this.#scopeOf(namespaceIds[i]!)}:${chunk}`);
        }
      },
      cleared: () => {
        this.messages.push('cleared');
        this.believed.clear();
      },
      lost: () => {
        this.messages.push('lost');
        this.believed.clear();
      },
    });
  }

  stored(scope: number, chunk: number): void {
    const name = `${scope}:${chunk}`;
    assert.not(this.believed.has(name), `${name} is stored twice`);
    this.believed.add(name);
  }

  #remove(name: string): void {
    assert.ok(this.believed.has(name), `${name} is removed and was not stored`);
    this.believed.delete(name);
    this.messages.push(`removed ${name}`);
  }
}

function openTwoRanks() {
  const house = openRanks(2);
  const follower = new Follower(house.table);
  const storeRank = (rank: number, chunks: readonly number[], isTemporary = false) => {
    const keys = keysOf(chunks, [house.ranks[rank]!]);
    const { slots } = house.table.reserveWrite(keys, UNIT_BYTES, WRITER, 0, isTemporary);
    house.table.finishWrite(slots, 0);
    return slots;
  };
  const announce = (chunks: readonly number[]): number[] => {
    const codes = [...house.table.announce(keysOf(chunks, house.ranks))];
    for (const [i, code] of codes.entries()) if (code === SUCCESS) follower.stored(0, chunks[i]!);
    return codes;
  };
  return { ...house, follower, storeRank, announce };
}

suite('announced chunks', (test) => {
  test('are those of which every rank is resident, once each', () => {
    const { storeRank, announce } = openTwoRanks();
    storeRank(0, [1, 2, 3]);
    assert.equal(announce([1, 2, 3]), [KEY_NOT_EXIST, KEY_NOT_EXIST, KEY_NOT_EXIST]);
    storeRank(1, [1, 3]);
    assert.equal(announce([1, 2, 3]), [SUCCESS, KEY_NOT_EXIST, SUCCESS]);
    assert.equal(announce([1, 2, 3]), [ALREADY_ANNOUNCED, KEY_NOT_EXIST, ALREADY_ANNOUNCED]);
  });

  test('end when the first of their objects is deleted, once', () => {
    const { table, ranks, storeRank, announce, follower } = openTwoRanks();
    storeRank(0, [1, 2]);
    storeRank(1, [1, 2]);
    announce([1, 2]);
    table.deleteObjects(keysOf([1], [ranks[1]!]), false, 0);
    table.deleteObjects(keysOf([1], [ranks[0]!]), false, 0);
    assert.equal(follower.messages, ['removed 0:1']);
    assert.equal([...follower.believed], ['0:2']);
  });

  test('may be announced again when they are whole again', () => {
    const { table, ranks, storeRank, announce, follower } = openTwoRanks();
    storeRank(0, [1]);
    storeRank(1, [1]);
    announce([1]);
    table.deleteObjects(keysOf([1], [ranks[1]!]), false, 0);
    assert.equal(announce([1]), [KEY_NOT_EXIST]);
    storeRank(1, [1]);
    assert.equal(announce([1]), [SUCCESS]);
    assert.equal([...follower.believed], ['0:1']);
  });

  test('end by eviction, as whole families', () => {
    const { table, storeRank, announce, follower } = openTwoRanks();
    storeRank(0, [1, 2, 3]);
    storeRank(1, [1, 2, 3]);
    announce([1, 2, 3]);
    assert.is(table.evict(3 * UNIT_BYTES, 100, 0).familyCount, 2);
    assert.is(follower.messages.length, 2);
    assert.is(follower.believed.size, 1);
  });

  test('end with the last reader of a temporary object', () => {
    const { table, storeRank, announce, follower, ranks } = openTwoRanks();
    storeRank(0, [1]);
    storeRank(1, [1], true);
    announce([1]);
    const slots = table.holdPrefix(keysOf([1], ranks), 1);
    table.releaseHolds(slots, 1);
    assert.equal(follower.messages, ['removed 0:1']);
  });

  test('end together in one message when everything is cleared', () => {
    const { table, storeRank, announce, follower } = openTwoRanks();
    storeRank(0, [1, 2]);
    storeRank(1, [1, 2]);
    announce([1, 2]);
    table.clear(true, 0);
    storeRank(0, [1]);
    storeRank(1, [1]);
    assert.equal(announce([1]), [SUCCESS]);
    assert.equal(follower.messages, ['cleared']);
  });

  test('that nobody has announced end without a word', () => {
    const { table, storeRank, follower } = openTwoRanks();
    storeRank(0, [1]);
    storeRank(1, [1]);
    table.evict(UNIT_BYTES, 100, 0);
    table.clear(true, 0);
    assert.equal(follower.messages, []);
  });

  test('of two scopes with one hash are two chunks', () => {
    const { core, table, storeRank, announce, follower, ranks } = openTwoRanks();
    const other = core.namespaces.intern(namespaceKey({ worldSize: 2, cacheSalt: 'a' }));
    storeRank(0, [1]);
    storeRank(1, [1]);
    announce([1]);
    assert.equal([...table.announce(keysOf([1], [other]))], [KEY_NOT_EXIST]);
    assert.throws(() => table.announce(keysOf([1], [ranks[0]!, other])), /INVALID_ARGUMENT/);
    assert.equal(follower.messages, []);
  });

  test('are told to be lost when one walk ends more of them than there is room for', () => {
    const units = 70_000;
    const { core, table, ranks, store } = openRanks(1, { units, objectCountMax: units });
    const follower = new Follower(table, (id) => core.namespaces.describe(id).scope);
    const chunks = Array.from({ length: units }, (_, chunk) => chunk);
    for (let first = 0; first < units; first += 10_000) store(chunks.slice(first, first + 10_000));
    table.announce(keysOf(chunks, ranks));
    table.clear(false, 0);
    assert.equal(follower.messages, ['lost']);
    store([1]);
    table.announce(keysOf([1], ranks));
    follower.stored(0, 1);
    table.evict(UNIT_BYTES, 10, 0);
    assert.equal(follower.messages, ['lost', 'removed 0:1']);
  });
});

const CHUNKS = 5;
const step = fc.record({
  operation: fc.constantFrom('store', 'store', 'store', 'delete', 'evict', 'hold', 'clear', 'tick'),
  chunks: fc.array(fc.integer({ min: 0, max: CHUNKS - 1 }), { minLength: 1, maxLength: 3 }),
  model: fc.integer({ min: 0, max: 1 }),
  rank: fc.integer({ min: 0, max: 1 }),
  isForced: fc.boolean(),
  isTemporary: fc.integer({ min: 0, max: 3 }).map((n) => n === 0),
  pick: fc.nat(6),
});

suite('a follower of announced chunks', (test) => {
  test('knows after every operation exactly which chunks are whole', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 100, size: 'max' }), (steps) => {
        const { table, namespaces } = openCoreTable({ units: 12, readTtlMs: 5, writeTtlMs: 5 });
        const scopeOf = (id: number): number => namespaces.describe(id).scope;
        const follower = new Follower(table, scopeOf);
        const models = ['', 'a'].map((cacheSalt) =>
          [0, 1].map((workerId) =>
            namespaces.intern(namespaceKey({ worldSize: 2, workerId, cacheSalt })),
          ),
        );
        const holds: Uint32Array[] = [];
        let nowMs = 0;
        for (const one of steps) {
          const ranks = models[one.model]!;
          const chunks = [...new Set(one.chunks)];
          const keys = keysOf(chunks, [ranks[one.rank]!]);
          if (one.operation === 'store') {
            const { slots } = table.reserveWrite(keys, UNIT_BYTES, 1, nowMs, one.isTemporary);
            table.finishWrite(slots, nowMs);
            const codes = table.announce(keysOf(chunks, ranks));
            for (const [i, code] of codes.entries()) {
              if (code === SUCCESS) follower.stored(scopeOf(ranks[0]!), chunks[i]!);
            }
          }
          if (one.operation === 'delete') table.deleteObjects(keys, one.isForced, nowMs);
          if (one.operation === 'evict') table.evict(one.pick * UNIT_BYTES, one.pick, nowMs);
          if (one.operation === 'hold' && one.isForced) holds.push(table.holdPrefix(keys, 1));
          if (one.operation === 'hold' && !one.isForced) {
            for (const slots of holds.splice(0, one.pick)) table.releaseHolds(slots, 1);
          }
          if (one.operation === 'clear' && one.pick === 0) table.clear(one.isForced, nowMs);
          if (one.operation === 'clear' && one.pick === 1) {
            table.clearSlice({ isForced: one.isForced, firstSlot: 1, slotCount: 4 }, nowMs);
          }
          if (one.operation === 'tick') nowMs += one.pick;
          table.sweepExpired(10, nowMs);
          assert.equal(sorted(follower.believed), sorted(wholeChunks(table, models, scopeOf)));
          table.checkConsistency();
        }
      }),
      { numRuns: 300 },
    );
  });
});

function wholeChunks(
  table: ObjectTable,
  models: readonly (readonly number[])[],
  scopeOf: (namespaceId: number) => number,
): string[] {
  const whole: string[] = [];
  for (const ranks of models) {
    for (let chunk = 0; chunk < CHUNKS; chunk += 1) {
      const slots = table.find(keysOf([chunk], ranks));
      if (!slots.includes(NO_SLOT)) whole.push(`${scopeOf(ranks[0]!)}:${chunk}`);
    }
  }
  return whole;
}

function sorted(names: Iterable<string>): string[] {
  return [...names].sort();
}
