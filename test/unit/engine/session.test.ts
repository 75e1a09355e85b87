import * as assert from 'uvu/assert';
import type { ChunkHashes } from '../../../src/core/chunk-hasher.ts';
import type { NamespaceKey } from '../../../src/core/namespaces.ts';
import { NO_SLOT, type ObjectKeys } from '../../../src/core/object-table.ts';
import type { LookupScope } from '../../../src/engine/lookup-share.ts';
import { SessionTable } from '../../../src/engine/session.ts';
import { PrefetchTask } from '../../../src/storage/prefetch-controller.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const IDLE_TTL_MS = 600_000;

/** Counts holds per slot, and fails on a release that nobody took. */
class HoldCounter {
  readonly held = new Map<number, number>();
  readonly touched: (ObjectKeys & { readonly usedChunkCount: number })[] = [];

  take(slots: readonly number[], count: number): void {
    for (const slot of slots) this.held.set(slot, (this.held.get(slot) ?? 0) + count);
  }

  releaseHolds(slots: Uint32Array, count: number): void {
    for (const slot of slots) {
      const left = (this.held.get(slot) ?? 0) - count;
      assert.ok(left >= 0, `slot ${slot} was released more often than held`);
      this.held.set(slot, left);
    }
  }

  freeHolds(slots: Uint32Array, count: number): void {
    this.releaseHolds(slots, count);
  }

  findNamespace({ workerId }: NamespaceKey): number {
    return workerId;
  }

  touch(keys: ObjectKeys, usedChunkCount = keys.chunkCount): void {
    this.touched.push({ ...keys, usedChunkCount });
  }

  get total(): number {
    let sum = 0;
    for (const count of this.held.values()) sum += count;
    return sum;
  }
}

const hashesOf = (count: number): ChunkHashes => ({
  bytes: new Uint8Array(count * 32),
  count,
  hashSizeBytes: 32,
});

/** Ten microseconds pass with every look at it, as if a session took that long. */
class BusyClock extends VirtualClock {
  #spentMs = 0;

  override preciseMs(): number {
    this.#spentMs += 0.01;
    return super.preciseMs() + this.#spentMs;
  }
}

function setUp(clock = new VirtualClock()) {
  const storage = new HoldCounter();
  const sessions = new SessionTable({ storage, clock, idleTtlMs: IDLE_TTL_MS });

  /** A lookup of `chunks` chunks over `ranks` ranks that hits all, slots from `first` on. */
  function lookup(
    requestId: string,
    options: {
      connection?: number;
      chunks: number;
      ranks?: number;
      readers?: number;
      first?: number;
    },
  ) {
    const { connection = 1, chunks, ranks = 1, readers = 1, first = 0 } = options;
    const scope: LookupScope = {
      connectionId: connection,
      modelName: 'm',
      worldSize: ranks,
      cacheSalt: '',
      chunkCount: chunks,
      ranks: Array.from({ length: ranks }, (_, r) => r),
      objectGroupIds: [0],
      readerCount: readers,
    };
    const task = new PrefetchTask();
    const hashes = chunks > 0 ? hashesOf(chunks) : null;
    const share = sessions.addLookup(requestId, { scope, hashes, task });
    const finish = () => {
      const slots = Array.from({ length: chunks * ranks }, (_, i) => first + i);
      storage.take(slots, readers);
      task.complete({ slots: Uint32Array.from(slots), chunkCount: chunks });
    };
    return { share, finish };
  }

  return { clock, storage, sessions, lookup };
}

suite('session ledger', (test) => {
  test('END_SESSION gives back everything that the lookup holds, and touches its chunks', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('r', { chunks: 3, ranks: 2, readers: 4 }).finish();
    assert.is(storage.total, 24);
    assert.is(sessions.end('r'), true);
    assert.is(storage.total, 0);
    assert.is(storage.touched[0]?.chunkCount, 3);
    assert.is(sessions.sessionCount, 0);
    assert.is(sessions.end('r'), false, 'a second end finds nothing');
  });

  test('a retrieve of one rank takes one reader of its own slots only', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('r', { chunks: 2, ranks: 2, readers: 2 }).finish();
    // slots: c0r0=0 c0r1=1 c1r0=2 c1r1=3, two readers each
    sessions.consumeHolds('r', 9, Uint32Array.of(1, 3));
    assert.equal([...storage.held.values()], [2, 1, 2, 1]);
    sessions.consumeHolds('r', 9, Uint32Array.of(1, 3));
    sessions.consumeHolds('r', 9, Uint32Array.of(1, 3));
    assert.equal([...storage.held.values()], [2, 0, 2, 0], 'a third retrieve takes nothing');
    sessions.end('r');
    assert.is(storage.total, 0);
  });

  test('FREE releases all readers of a chunk range, once, and nothing of other requests', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('a', { chunks: 4, ranks: 2, readers: 3 }).finish();
    lookup('b', { chunks: 4, ranks: 2, readers: 1, first: 100 }).finish();
    sessions.freeHolds('a', 1, { startChunk: 1, endChunk: 3, rank: null });
    assert.is(storage.total, 4 * 3 + 8);
    sessions.freeHolds('a', 1, { startChunk: 1, endChunk: 3, rank: null });
    assert.is(storage.total, 4 * 3 + 8, 'a second free is harmless');
    sessions.freeHolds('nobody', 1, { startChunk: 0, endChunk: 4, rank: null });
    assert.is(storage.total, 4 * 3 + 8, 'an unknown request frees nothing');
    sessions.freeHolds('a', 1, { startChunk: 0, endChunk: 99, rank: 1 });
    assert.is(storage.total, 2 * 3 + 8, 'one rank of the two remaining chunks');
  });

  test('a read that is given up returns one reader of its rank and range, once per worker', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('r', { chunks: 3, ranks: 2, readers: 2 }).finish();
    const giveUp = (instanceId: bigint, rank: number, model = 'm', worldSize = 2) => {
      const read = { instanceId, rank, startChunk: 1, endChunk: 3 };
      sessions.giveUpRead('r', 9, { modelName: model, worldSize, read });
    };
    giveUp(1n, 1);
    // slots: c0r0=0 c0r1=1 c1r0=2 c1r1=3 c2r0=4 c2r1=5
    assert.equal([...storage.held.values()], [2, 2, 2, 1, 2, 1]);
    giveUp(1n, 1);
    assert.is(storage.total, 10, 'the same again changes nothing');
    giveUp(1n, 7);
    giveUp(1n, 0, 'another');
    giveUp(1n, 0, 'm', 4);
    assert.is(storage.total, 10, 'nor does what the lookup did not mean');
    giveUp(2n, 1);
    giveUp(3n, 1);
    assert.equal([...storage.held.values()], [2, 2, 2, 0, 2, 0], 'no more than it holds');
    sessions.end('r');
    assert.is(storage.total, 0);
  });

  test("under a window, cells that are not held are nobody's to release", () => {
    const { sessions, storage } = setUp();
    const scope: LookupScope = {
      connectionId: 1,
      modelName: 'm',
      worldSize: 1,
      cacheSalt: '',
      chunkCount: 3,
      ranks: [0],
      objectGroupIds: [0, 1],
      readerCount: 2,
    };
    const task = new PrefetchTask();
    const share = sessions.addLookup('r', { scope, hashes: hashesOf(3), task });
    storage.take([10, 11, 12, 13], 2);
    const slots = Uint32Array.of(10, NO_SLOT, 11, NO_SLOT, 12, 13);
    task.complete({ slots, chunkCount: 3 });
    assert.equal(share.remainingReaders, [2, 0, 2, 0, 2, 2]);
    sessions.consumeHolds('r', 9, Uint32Array.of(12, 13, NO_SLOT));
    sessions.freeHolds('r', 1, { startChunk: 0, endChunk: 1, rank: 0 });
    assert.equal([...storage.held.values()], [0, 2, 1, 1]);
    sessions.end('r');
    assert.is(storage.total, 0);
    assert.equal(storage.touched[0]?.namespaceIds, [0, 0], 'both groups are touched');
  });

  test('a retrieve without a lookup touches its chunks at the end, a store does not', () => {
    const { sessions, storage } = setUp();
    const scope = {
      modelName: 'm',
      worldSize: 2,
      cacheSalt: '',
      ranks: [0, 1],
      objectGroupIds: [0],
    };
    sessions.recordTransfer('r', hashesOf(5));
    assert.is(sessions.sessionCount, 0);
    sessions.recordRetrieve('r', hashesOf(2), () => scope);
    sessions.recordTransfer('r', hashesOf(3));
    assert.is(sessions.sessionCount, 1);
    assert.is(sessions.end('r'), true);
    assert.equal(
      storage.touched.map(({ chunkCount, namespaceIds }) => [chunkCount, namespaceIds]),
      [[3, [0, 1]]],
    );
    assert.is(storage.touched[0]?.usedChunkCount, 2);
    assert.is(sessions.sizeBytes, 0);
  });

  test('FREE before the result is in takes effect when it comes', () => {
    const { sessions, storage, lookup } = setUp();
    const { finish } = lookup('r', { chunks: 4 });
    sessions.freeHolds('r', 1, { startChunk: 0, endChunk: 2, rank: null });
    finish();
    assert.is(storage.total, 2);
  });

  test('a session that ended before the result is in keeps no hold', () => {
    const { sessions, storage, lookup } = setUp();
    const { finish } = lookup('r', { chunks: 4 });
    sessions.end('r');
    finish();
    assert.is(storage.total, 0);
  });

  test('a second lookup of the same connection releases the first, of another one does not', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('r', { connection: 1, chunks: 2 }).finish();
    lookup('r', { connection: 1, chunks: 3, first: 10 }).finish();
    assert.is(storage.total, 3);
    lookup('r', { connection: 2, chunks: 2, first: 20 }).finish();
    assert.is(storage.total, 5);
    sessions.end('r');
    assert.is(storage.total, 0);
  });

  test('each connection that looked up reads its own result, once', () => {
    const { sessions, lookup } = setUp();
    const first = lookup('r', { connection: 1, chunks: 2 });
    const second = lookup('r', { connection: 2, chunks: 2 });
    first.finish();
    second.finish();
    const own = sessions.findLookup('r', 1);
    assert.is(own, first.share);
    sessions.consumeResult('r', own!);
    assert.is(sessions.findLookup('r', 1), undefined, 'taken');
    assert.is(sessions.findLookup('r', 2), second.share, 'still there for the other rank');
    assert.is(sessions.findLookup('r', 3), second.share, 'a stranger gets what is left');
  });

  test('retrieve prefers the share of its own connection', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('r', { connection: 1, chunks: 1, first: 7 }).finish();
    lookup('r', { connection: 2, chunks: 1, first: 7 }).finish();
    assert.is(storage.total, 2, 'both ranks hold the same object');
    sessions.consumeHolds('r', 2, Uint32Array.of(7));
    lookup('r', { connection: 2, chunks: 1, first: 50 }).finish();
    assert.is(storage.held.get(7), 1, 'the share of connection 1 is untouched');
  });

  test('idle sessions are given up, used ones are not', () => {
    const { sessions, storage, lookup, clock } = setUp();
    lookup('idle', { chunks: 1 }).finish();
    lookup('used', { chunks: 1, first: 10 }).finish();
    clock.advance(IDLE_TTL_MS - 10_000);
    sessions.recordTransfer('used', hashesOf(1));
    clock.advance(20_000);
    assert.is(sessions.sessionCount, 1);
    assert.is(storage.held.get(0), 0);
    assert.is(storage.held.get(10), 1);
  });

  test('a transfer that comes after the end of its session begins none', () => {
    const { sessions, lookup } = setUp();
    lookup('r', { chunks: 1 }).finish();
    assert.is(sessions.end('r'), true);
    sessions.recordTransfer('r', hashesOf(1));
    assert.is(sessions.sessionCount, 0);
  });

  test('one sweep ends all idle sessions, in slices', () => {
    const { sessions, storage, lookup, clock } = setUp(new BusyClock());
    const count = 10_000;
    for (let i = 0; i < count; i += 1) lookup(`r${i}`, { chunks: 1, first: i }).finish();
    clock.advance(IDLE_TTL_MS - 1);
    assert.is(sessions.sessionCount, count);
    clock.advance(1);
    const firstSlice = count - sessions.sessionCount;
    assert.ok(firstSlice > 0 && firstSlice < 1000, `${firstSlice} in one turn of the loop`);
    clock.advance(100);
    assert.is(sessions.sessionCount, 0);
    assert.is(storage.total, 0);
  });

  test('the table is bounded: the least recently used session makes room', () => {
    const { sessions, storage, lookup, clock } = setUp();
    for (let i = 0; i < 65_536; i += 1) lookup(`r${i}`, { chunks: 1, first: i }).finish();
    clock.advance(1000);
    sessions.recordTransfer('r0', hashesOf(1));
    lookup('one more', { chunks: 1, first: 70_000 }).finish();
    assert.is(sessions.sessionCount, 65_536);
    assert.is(storage.held.get(0), 1, 'r0 was used');
    assert.is(storage.held.get(1), 0, 'r1 was the oldest');
    assert.is(sessions.overflowCount, 1);
  });

  test('when the last worker of a model leaves, its lookups let go', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('r', { chunks: 2, ranks: 2 }).finish();
    lookup('s', { chunks: 2, ranks: 1, first: 50 }).finish();
    sessions.releaseModel('m', 2);
    assert.is(storage.total, 2);
  });

  test('a lookup that found nothing to ask leaves no session once its result was taken', () => {
    const { sessions, lookup } = setUp();
    const { finish, share } = lookup('r', { chunks: 0 });
    finish();
    sessions.consumeResult('r', share);
    assert.is(sessions.sessionCount, 0);
  });

  test('polling for a result does not keep a session alive', () => {
    const { sessions, storage, lookup, clock } = setUp();
    lookup('r', { chunks: 1 }).finish();
    for (let minute = 0; minute < 11; minute += 1) {
      clock.advance(60_000);
      sessions.findLookup('r', 1);
    }
    assert.is(sessions.sessionCount, 0);
    assert.is(storage.total, 0);
  });

  test('a client that looks up on ever new connections keeps a bounded number of shares', () => {
    const { sessions, storage, lookup } = setUp();
    for (let connection = 0; connection < 1000; connection += 1) {
      lookup('r', { connection, chunks: 1, first: connection }).finish();
    }
    assert.is(storage.total, 128);
    sessions.end('r');
    assert.is(storage.total, 0);
  });

  test('the table is bounded in bytes: the oldest sessions make room', () => {
    const { sessions, storage, lookup } = setUp();
    for (let i = 0; i < 300; i += 1) lookup(`r${i}`, { chunks: 32_768, first: 0 });
    assert.ok(sessions.sizeBytes <= 256 * 1024 * 1024);
    assert.is(sessions.sessionCount, 256);
    assert.is(sessions.overflowCount, 44);
    sessions.close();
    assert.is(sessions.sizeBytes, 0);
    assert.is(storage.total, 0);
  });

  test('only chunks that were found or stored are touched at the end', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('miss', { chunks: 0 }).finish();
    lookup('open', { chunks: 8 });
    sessions.end('open');
    assert.equal(storage.touched, []);
    lookup('hit', { chunks: 3 }).finish();
    sessions.recordTransfer('hit', hashesOf(5));
    sessions.end('hit');
    assert.is(storage.touched[0]?.chunkCount, 5);
  });

  test('what a session has stored itself is placed at its end, not used', () => {
    const { sessions, storage, lookup } = setUp();
    lookup('r', { chunks: 3 }).finish();
    sessions.recordTransfer('r', hashesOf(5));
    sessions.end('r');
    assert.is(storage.touched[0]?.usedChunkCount, 3);
  });
});
