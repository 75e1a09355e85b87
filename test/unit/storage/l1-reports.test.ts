import * as assert from 'uvu/assert';
import type { EventCatalogue, KeyReport } from '../../../src/observability/events.ts';
import { ALIGN_BYTES, buildL1House, RULES, shapeOf } from '../../support/l1-house.ts';
import { suite } from '../../support/suite.ts';

const ALL = 2 ** 32;

type Evicted = EventCatalogue['l1.keys.evicted'];

/** A house of which everything is heard. */
function openHouse(sampleThreshold = ALL, units = 64) {
  const house = buildL1House({
    sizeBytes: units * ALIGN_BYTES,
    sampleThreshold,
    watermarkRatio: 1,
  });
  const written: KeyReport[] = [];
  const read: KeyReport[] = [];
  const evicted: Evicted[] = [];
  house.bus.subscribe('l1.write.finished', (event) => written.push(event));
  house.bus.subscribe('l1.read.finished', (event) => read.push(event));
  house.bus.subscribe('l1.keys.evicted', (event) => evicted.push(event));
  return { ...house, written, read, evicted };
}

const salts = ({ countBySalt }: KeyReport) => Object.fromEntries(countBySalt);
const hexOf = ({ sampledKeys }: KeyReport) =>
  sampledKeys.map(({ chunkHash }) => Buffer.from(chunkHash, 'latin1').toString('hex'));

suite('reports of L1', (test) => {
  test('written objects are counted by tenant and named in full', () => {
    const { keysOf, store, written } = openHouse();
    const keys = keysOf(7, 2, 2, 'tenant');
    store(keys);
    const [report] = written;
    assert.is(report?.keyCount, 4);
    assert.equal(salts(report as KeyReport), { tenant: 4 });
    const [first] = report?.sampledKeys ?? [];
    const hash = Buffer.from(keys.hashes.bytes.subarray(0, 32));
    assert.equal(first?.chunkHash, hash.toString('latin1'));
    assert.equal([first?.modelName, first?.cacheSalt, first?.objectGroupId], ['m', 'tenant', 0]);
    assert.is(new Set(report?.sampledKeys.map(({ kvRank }) => kvRank)).size, 2);
  });

  test('the threshold takes the same objects when they are written, read and removed', () => {
    const threshold = 2 ** 31;
    const { keysOf, store, storage, core, written, read, evicted } = openHouse(threshold);
    // The house makes hashes that begin with the number of the prompt, big-endian.
    const low = keysOf(1);
    const high = keysOf(threshold + 1);
    for (const keys of [low, high]) {
      store(keys);
      const places = storage.acquireForRead(keys, shapeOf());
      storage.releaseRead(places?.slots ?? new Uint32Array(0));
    }
    core.table.deleteObjects(low, false, 0);
    core.table.deleteObjects(high, false, 0);
    storage.l1.reports.removed('delete');
    for (const reports of [written, read]) {
      assert.equal(
        reports.map(({ keyCount, sampledKeys }) => [keyCount, sampledKeys.length]),
        [
          [1, 1],
          [1, 0],
        ],
      );
    }
    assert.equal(evicted.map(hexOf), [hexOf(written[0] as KeyReport)]);
    assert.is(evicted[0]?.keyCount, 2);
  });

  test('a threshold of 0 names nothing, and still counts', () => {
    const { keysOf, store, written } = openHouse(0);
    store(keysOf(1, 3));
    assert.is(written[0]?.keyCount, 3);
    assert.equal(written[0]?.sampledKeys, []);
  });

  test('what eviction takes away is told with its tenants and bytes', () => {
    const { keysOf, store, evicted } = openHouse(ALL, 4);
    for (const salt of ['a', 'b']) store(keysOf(1, 2, 1, salt));
    store(keysOf(2, 2, 1, 'c'));
    assert.equal(
      evicted.map((event) => [event.cause, salts(event), event.bytes, event.isEverything]),
      [['eviction', { a: 2 }, 2 * ALIGN_BYTES, false]],
    );
    assert.is(evicted[0]?.sampledKeys.length, 2);
  });

  test('a forced clear is told as the end of everything, exact by tenant', () => {
    const { keysOf, store, storage, evicted } = openHouse();
    store(keysOf(1, 3, 1, 'a'));
    store(keysOf(2, 1, 1, 'b'));
    storage.clear(true);
    assert.equal(
      evicted.map((event) => [event.cause, salts(event), event.isEverything, event.sampledKeys]),
      [['clear', { a: 3, b: 1 }, true, []]],
    );
    storage.clear(true);
    assert.is(evicted.length, 1, 'there was nothing left to tell of');
  });

  test('a clear in slices names what it takes', async () => {
    const { keysOf, store, storage, evicted } = openHouse();
    store(keysOf(1, 3));
    await storage.clear(false);
    assert.is(evicted.length, 1);
    assert.is(evicted[0]?.sampledKeys.length, 3);
  });

  test('holds that are freed unread count as read, those of a transfer do not', () => {
    const { keysOf, store, storage, l1, read } = openHouse();
    const keys = keysOf(1, 2);
    store(keys);
    const held = l1.hold(keys, 2, RULES);
    storage.releaseHolds(held, 1);
    assert.is(read.length, 0);
    storage.freeHolds(held, 1);
    assert.is(read[0]?.keyCount, 2);
  });

  test('a reader that misses something says whether it is absent or being written', () => {
    const { keysOf, storage, bus } = openHouse();
    const failed: unknown[] = [];
    bus.subscribe('l1.read.failed', ({ during, reason, countByModel }) =>
      failed.push([during, reason, Object.fromEntries(countByModel)]),
    );
    const keys = keysOf(1, 3);
    storage.reserveStore({ ...keys, chunkCount: 1 }, shapeOf());
    assert.is(storage.acquireForRead(keys, shapeOf()), null);
    assert.equal(failed, [
      ['l1_retrieve', 'write_locked', { m: 1 }],
      ['l1_retrieve', 'not_found', { m: 2 }],
    ]);
  });

  test('a read that outlives its objects and their namespace gives its pins back', () => {
    const { keysOf, store, storage, core, l1 } = openHouse();
    const keys = keysOf(1, 2, 1, 'gone');
    store(keys);
    const slots = storage.acquireForRead(keys, shapeOf())?.slots ?? new Uint32Array(0);
    storage.clear(true);
    // Until the id of the tenant's namespace belongs to nobody.
    for (
      let i = 0;
      core.namespaces.lookup(keys.namespaceIds[0] as number)?.cacheSalt === 'gone';
    ) {
      l1.internNamespace({
        ...{ modelName: 'm', worldSize: 1, workerId: 0, objectGroupId: 0 },
        cacheSalt: `${i++}`,
      });
    }
    storage.releaseRead(slots);
    assert.is(core.table.statistics().pinnedCount, 0);
  });

  test('more names than there is room for are counted', () => {
    const { keysOf, store, storage, core, evicted } = openHouse(ALL, 10_000);
    for (let prompt = 0; prompt < 100; prompt += 1) store(keysOf(prompt, 100));
    for (let prompt = 0; prompt < 100; prompt += 1) {
      core.table.deleteObjects(keysOf(prompt, 100), false, 0);
    }
    storage.l1.reports.removed('delete');
    assert.is(evicted[0]?.keyCount, 10_000);
    assert.is(evicted[0]?.sampledKeys.length, 8192);
    assert.is(storage.l1.reports.unfollowedCount, 10_000 - 8192);
  });
});
