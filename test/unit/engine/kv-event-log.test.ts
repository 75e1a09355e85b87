import * as assert from 'uvu/assert';
import { KvEventLog } from '../../../src/engine/kv-events/kv-event-log.ts';
import { EventBus } from '../../../src/observability/event-bus.ts';
import { suite } from '../../support/suite.ts';

const ALL = { modelName: 'm', worldSize: null };
const CHUNK_TOKENS = 4;

const hash = (n: number): Uint8Array => new Uint8Array(32).fill(n);

function openLog(recordCountMax = 100, bytesMax?: number) {
  const bus = new EventBus();
  const log = new KvEventLog({ bus, recordCountMax, ...(bytesMax ? { bytesMax } : {}) });
  const scope = { modelName: 'm', worldSize: 1, cacheSalt: '' };
  /** Chunks `first` to `first + count - 1` of a prompt; the hash of each is its number. */
  const store = (first: number, count = 1, rest: Partial<typeof scope> = {}) =>
    bus.publish('l1.chunks.stored', {
      ...scope,
      ...rest,
      hashes: Array.from({ length: count }, (_, i) => hash(first + i)),
      parentHash: first > 1 ? hash(first - 1) : null,
      tokenIds: Uint32Array.from({ length: count * CHUNK_TOKENS }, (_, i) => first * 100 + i),
    });
  const remove = (chunks: readonly number[], rest: Partial<typeof scope> = {}) =>
    bus.publish('l1.chunks.removed', { ...scope, ...rest, hashes: chunks.map(hash) });
  return { bus, log, store, remove };
}

function seqs(log: KvEventLog, cursor: number, countMax = 1024): number[] {
  return log.read(ALL, cursor, countMax).events.map(({ seq }) => seq);
}

suite('KV event log', (test) => {
  test('numbers records from 1 and shows a chunk with its tokens and the chunk before', () => {
    const { log, store } = openLog();
    store(1, 2);
    const { events, nextCursor, isLost } = log.read(ALL, 0, 1024);
    assert.is(nextCursor, 2);
    assert.is(isLost, false);
    const common = { kind: 'stored', medium: 'CPU', modelName: 'm' };
    assert.equal(events, [
      {
        ...common,
        seq: 1,
        blockHashes: [hash(1)],
        parentBlockHash: null,
        tokenIds: [100, 101, 102, 103],
      },
      {
        ...common,
        seq: 2,
        blockHashes: [hash(2)],
        parentBlockHash: hash(1),
        tokenIds: [104, 105, 106, 107],
      },
    ]);
  });

  test('shows removals of several chunks as one record', () => {
    const { log, remove } = openLog();
    remove([1, 2, 3]);
    const [event] = log.read(ALL, 0, 1024).events;
    assert.equal(event?.blockHashes, [hash(1), hash(2), hash(3)]);
    assert.is(event?.kind, 'removed');
    assert.equal(event?.tokenIds, []);
    assert.is(event?.parentBlockHash, null);
  });

  test('gives what lies behind a cursor, in pages', () => {
    const { log, store } = openLog();
    store(1, 5);
    assert.equal(seqs(log, 2), [3, 4, 5]);
    assert.equal(seqs(log, 2, 2), [3, 4]);
    assert.is(log.read(ALL, 2, 2).nextCursor, 4);
    assert.equal(log.read(ALL, 5, 10), { nextCursor: 5, isLost: false, events: [] });
  });

  test('passes over records of other models and world sizes, and over them with the cursor', () => {
    const { log, store } = openLog();
    store(1, 1, { modelName: 'other' });
    store(1, 1, { worldSize: 2 });
    store(1);
    assert.equal(seqs(log, 0), [2, 3]);
    const page = log.read({ modelName: 'm', worldSize: 2 }, 0, 10);
    assert.equal(
      page.events.map(({ seq }) => seq),
      [2],
    );
    assert.is(page.nextCursor, 3);
  });

  test('keeps the newest records and tells who has lost some', () => {
    const { log, store } = openLog(3);
    store(1, 5);
    assert.is(log.depth, 3);
    assert.is(log.nextSeq, 6);
    assert.equal(seqs(log, 1), [3, 4, 5]);
    assert.is(log.read(ALL, 1, 10).isLost, true);
    assert.is(log.read(ALL, 2, 10).isLost, false);
    assert.is(log.read(ALL, 0, 10).isLost, true);
  });

  test('is bounded in bytes, too', () => {
    const recordBytes = 256 + 64 + CHUNK_TOKENS * 4;
    const { log, store } = openLog(1000, 10 * recordBytes);
    for (let i = 1; i <= 100; i += 1) store(i);
    assert.is(log.depth, 10);
    assert.ok(log.sizeBytes <= 10 * recordBytes);
    assert.equal(seqs(log, 98), [99, 100]);
  });

  test('tells a cursor from the future that it has lost everything', () => {
    const { log, store } = openLog();
    store(1, 2);
    assert.equal(log.read(ALL, 7, 10), { nextCursor: 2, isLost: true, events: [] });
  });

  for (const name of ['l1.chunks.cleared', 'l1.chunks.lost'] as const) {
    test(`takes back all earlier records after ${name}`, () => {
      const { log, bus, store } = openLog();
      store(1, 2);
      bus.publish(name, {});
      store(1);
      const page = log.read(ALL, 0, 10);
      assert.is(page.isLost, true);
      assert.equal(
        page.events.map(({ seq }) => seq),
        [4],
      );
      assert.is(log.read(ALL, 3, 10).isLost, false);
      assert.is(log.clearedMarkerCount, name === 'l1.chunks.cleared' ? 1 : 0);
      assert.is(log.lostMarkerCount, name === 'l1.chunks.lost' ? 1 : 0);
    });
  }

  test('tells equal tokens of two tenants apart, in all hashes of a record', () => {
    const { log, store, remove } = openLog();
    store(2);
    store(2, 1, { cacheSalt: 'a' });
    store(2, 1, { cacheSalt: 'b' });
    remove([2], { cacheSalt: 'a' });
    const [plain, a, b, removed] = log.read(ALL, 0, 10).events;
    const names = [plain, a, b].map((event) => Buffer.from(event!.blockHashes[0]!).toString('hex'));
    const parents = [plain, a, b].map((event) =>
      Buffer.from(event!.parentBlockHash!).toString('hex'),
    );
    assert.is(new Set(names).size, 3);
    assert.is(new Set(parents).size, 3);
    assert.is(names[0], Buffer.from(hash(2)).toString('hex'));
    assert.equal(removed?.blockHashes, a?.blockHashes);
  });

  test('names a tenant by chunk the same way as a parent', () => {
    const { log, store } = openLog();
    store(1, 2, { cacheSalt: 'a' });
    const [first, second] = log.read(ALL, 0, 10).events;
    assert.equal(second?.parentBlockHash, first?.blockHashes[0]);
  });

  test('does not follow anything when it has no size', () => {
    const { bus, log } = openLog(0);
    assert.is(log.isEnabled, false);
    assert.is(bus.hasListeners('l1.chunks.stored'), false);
  });
});
