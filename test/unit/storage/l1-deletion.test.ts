/** Deletion of L1 objects by name, and changes of L1's limits (spec http 5.5, issue "runtime"). */
import * as assert from 'uvu/assert';
import { kvRank } from '../../../src/core/namespaces.ts';
import type { ObjectKeys } from '../../../src/core/object-table.ts';
import type { ObjectKey } from '../../../src/l2/object-key.ts';
import type { EventCatalogue } from '../../../src/observability/events.ts';
import { L1Deletion } from '../../../src/storage/l1-deletion.ts';
import { ALIGN_BYTES, buildL1House, RULES } from '../../support/l1-house.ts';
import { suite } from '../../support/suite.ts';

const CHUNK_COUNT = 3;

function deletionHouse() {
  const house = buildL1House({ sizeBytes: 64 * ALIGN_BYTES });
  const { table, namespaces, hasher } = house.core;
  const { hashSizeBytes } = hasher;
  const deletion = new L1Deletion({
    ...{ ...house, table, namespaces, hashSizeBytes },
    reports: house.l1.reports,
  });
  const nameOf = (keys: ObjectKeys, chunk: number, rest: Partial<ObjectKey> = {}): ObjectKey => ({
    chunkHash: keys.hashes.bytes.subarray(chunk * 32, (chunk + 1) * 32),
    modelName: 'm',
    kvRank: kvRank(1, 0),
    objectGroupId: 0,
    cacheSalt: '',
    ...rest,
  });
  const keys = house.keysOf(1, CHUNK_COUNT);
  house.store(keys);
  return { ...house, deletion, keys, nameOf };
}

suite('L1 deletion', (test) => {
  test('objects are found by their names, and only those', () => {
    const { deletion, keys, nameOf, hitChunks, core, bus } = deletionHouse();
    const evicted: EventCatalogue['l1.keys.evicted'][] = [];
    bus.subscribe('l1.keys.evicted', (event) => evicted.push(event));
    const strangers: Partial<ObjectKey>[] = [
      { modelName: 'other' },
      { cacheSalt: 'a' },
      { objectGroupId: 1 },
      { kvRank: kvRank(2, 0) },
      { kvRank: 0 },
      { kvRank: 2 ** 40 },
      { chunkHash: new Uint8Array(4) },
      { chunkHash: new Uint8Array(32) },
    ];
    const names = strangers.map((rest) => nameOf(keys, 1, rest));
    assert.equal(deletion.delete(names, true), { deletedCount: 0, lockedCount: 0 });
    assert.is(core.namespaces.count, 1, 'strange names make no entries');
    assert.equal(evicted, []);
    const mine = [nameOf(keys, 1), nameOf(keys, 1)];
    assert.equal(deletion.delete(mine, false), { deletedCount: 1, lockedCount: 0 });
    assert.is(hitChunks(keys), 1);
    const [left] = evicted;
    assert.is(evicted.length, 1);
    assert.equal(
      [left?.cause, left?.keyCount, left?.bytes, [...(left?.countBySalt ?? [])]],
      ['delete', 1, ALIGN_BYTES, [['', 1]]],
    );
  });

  test('each rank has its own objects', () => {
    const { deletion, keysOf, store, nameOf, hitChunks } = deletionHouse();
    const keys = keysOf(2, 2, 2);
    store(keys);
    const second = nameOf(keys, 0, { kvRank: kvRank(2, 1) });
    assert.is(deletion.delete([second], false).deletedCount, 1);
    assert.is(hitChunks(keys), 0);
  });

  test('what somebody holds stays, unless it is forced; then its memory goes with the hold', () => {
    const { deletion, keys, nameOf, l1, hitChunks } = deletionHouse();
    const held = l1.hold(keys, 1, RULES);
    const names = [0, 1, 2].map((chunk) => nameOf(keys, chunk));
    assert.equal(deletion.delete(names, false), { deletedCount: 0, lockedCount: 3 });
    assert.is(hitChunks(keys), 3);
    assert.equal(deletion.delete(names, true), { deletedCount: 3, lockedCount: 0 });
    assert.is(hitChunks(keys), 0);
    assert.is(l1.usedBytes, 3 * ALIGN_BYTES);
    l1.releaseHolds(held, 1);
    assert.is(l1.usedBytes, 0);
  });
});

suite('L1 limits', (test) => {
  test('a lowered watermark evicts at once, and shows', () => {
    const { storage, l1, clock, keysOf, store } = buildL1House({ sizeBytes: 10 * ALIGN_BYTES });
    for (let prompt = 0; prompt < 7; prompt += 1) store(keysOf(prompt));
    clock.advance(2000);
    assert.is(l1.usedBytes, 7 * ALIGN_BYTES);
    const now = storage.changeEviction({ watermarkRatio: 0.5 });
    assert.equal(now, { watermarkRatio: 0.5, evictionRatio: 0.2 });
    clock.advance(1);
    assert.is(l1.usedBytes, 3 * ALIGN_BYTES);
    const status = storage.status()['l1_eviction_controller'] as Record<string, unknown>;
    assert.is(status['trigger_watermark'], 0.5);
  });
});
