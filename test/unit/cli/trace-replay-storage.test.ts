import * as assert from 'uvu/assert';
import type { ReplayCall } from '../../../src/cli/trace-replay-calls.ts';
import { blocksOf } from '../../../src/cli/trace-replay-keys.ts';
import { StorageReplay } from '../../../src/cli/trace-replay-storage.ts';
import { kvRank } from '../../../src/core/namespaces.ts';
import { NO_SLOT } from '../../../src/core/object-table.ts';
import { storageArguments } from '../../../src/observability/trace-file/storage-calls.ts';
import type { ObjectKeyFields } from '../../../src/observability/trace-file/values.ts';
import type { TracedCall } from '../../../src/storage/trace-recording.ts';
import { ALIGN_BYTES, buildL1House, RULES, shapeOf } from '../../support/l1-house.ts';
import { turns } from '../../support/l2-house.ts';
import { rejects } from '../../support/rejects.ts';
import { ScriptedStore } from '../../support/scripted-store.ts';
import { suite } from '../../support/suite.ts';

const LAYOUT = { shapes: [[2, 1024]], dtypes: ['torch.float16'] };

function keyOf(chunk: number, of: Partial<ObjectKeyFields> = {}): ObjectKeyFields {
  const chunkHash = new Uint8Array(32).fill(chunk);
  return {
    chunkHash,
    modelName: 'm',
    kvRank: kvRank(1, 0),
    objectGroupId: 0,
    cacheSalt: '',
    ...of,
  };
}

function replayHouse(units = 16) {
  const house = buildL1House({ sizeBytes: units * ALIGN_BYTES, watermarkRatio: 1 });
  const { storage, bytes, l1, core } = house;
  const warnings: string[] = [];
  const replay = new StorageReplay({
    ...{ storage, hashSizeBytes: 32, warn: (text) => warnings.push(text) },
    memory: { view: (offset, length) => bytes.subarray(offset, offset + length) },
    closeHouse: async () => {},
  });
  const make = async (call: ReplayCall) => {
    const prepared = await replay.prepare(call);
    prepared.run();
    prepared.after();
  };
  const reserve = (keys: readonly ObjectKeyFields[], layout = LAYOUT) =>
    make({ operation: 'reserve_write', keys, layout });
  const finish = (keys: readonly ObjectKeyFields[]) => make({ operation: 'finish_write', keys });
  const store = async (keys: readonly ObjectKeyFields[]) => {
    await reserve(keys);
    await finish(keys);
  };
  const lookup = (
    keys: readonly ObjectKeyFields[],
    of: { extraCount?: number; isPrefix?: boolean; skipsL2?: boolean } = {},
  ) =>
    make({
      ...{ operation: 'submit_prefetch_task', keys, layout: LAYOUT },
      ...{ extraCount: 0, isPrefix: true, skipsL2: false, ...of },
    });
  const enter = (keys: readonly ObjectKeyFields[]) =>
    make({ operation: 'read_prefetched_results.__enter__', keys });
  const exit = (keys: readonly ObjectKeyFields[]) =>
    make({ operation: 'read_prefetched_results.__exit__', keys });
  const release = (keys: readonly ObjectKeyFields[], extraCount = 0) =>
    make({ operation: 'finish_read_prefetched', keys, extraCount });
  const counts = () => {
    core.table.checkConsistency();
    const { objectCount, stagingCount, pinnedCount, readLockedCount } = l1.statistics();
    return { objectCount, stagingCount, pinnedCount, readLockedCount };
  };
  return {
    ...{ ...house, replay, warnings, make, reserve, finish, store, lookup, enter, exit },
    ...{ release, counts },
  };
}

suite('the storage room of a replay', (test) => {
  test('objects of the recorded size are placed and written', async () => {
    const { bytes, l1, store, reserve, finish, counts } = replayHouse();
    await store([keyOf(1), keyOf(2)]);
    assert.is(l1.usedBytes, 2 * ALIGN_BYTES);
    const large = { shapes: [[3, 4096], [100]], dtypes: ['torch.uint8', 'torch.float32'] };
    await reserve([keyOf(3)], large);
    await finish([keyOf(3)]);
    assert.is(l1.usedBytes, 6 * ALIGN_BYTES);
    const written = [1, 2, 3].map((chunk) => bytes.reduce((n, b) => n + Number(b === chunk), 0));
    assert.equal(written, [4096, 4096, 3 * 4096 + 400]);
    assert.equal(counts(), { objectCount: 3, stagingCount: 0, pinnedCount: 0, readLockedCount: 0 });
  });

  test('tenants, ranks and models stay apart', async () => {
    const { store, counts } = replayHouse();
    await store([keyOf(1), keyOf(1, { cacheSalt: 'a' }), keyOf(1, { modelName: 'n' })]);
    await store([keyOf(1, { kvRank: kvRank(2, 0) }), keyOf(1, { kvRank: kvRank(2, 1) })]);
    await store([keyOf(1, { objectGroupId: 1 })]);
    assert.is(counts().objectCount, 6);
  });

  test('a lookup holds the prefix that is there, until it is given back', async () => {
    const { store, lookup, release, counts } = replayHouse();
    await store([keyOf(1), keyOf(2), keyOf(4)]);
    const keys = [1, 2, 3, 4].map((chunk) => keyOf(chunk));
    await lookup(keys, { extraCount: 1 });
    assert.is(counts().readLockedCount, 2);
    await release(keys);
    assert.is(counts().readLockedCount, 2);
    await release(keys);
    assert.is(counts().readLockedCount, 0);
    // One time too often: the recording had other hits.
    await release(keys);
    assert.is(counts().readLockedCount, 0);
  });

  test('a lookup that is no prefix holds what is behind a gap, too', async () => {
    const { store, lookup, counts } = replayHouse();
    await store([keyOf(1), keyOf(4)]);
    await lookup(
      [1, 2, 3, 4].map((chunk) => keyOf(chunk)),
      { isPrefix: false },
    );
    assert.is(counts().readLockedCount, 2);
  });

  test('reads of the same keys end in the order in which they began', async () => {
    const { store, enter, exit, counts, warnings } = replayHouse();
    const keys = [keyOf(1), keyOf(2)];
    await store(keys);
    await enter(keys);
    await enter(keys);
    assert.is(counts().pinnedCount, 2);
    await exit(keys);
    assert.is(counts().pinnedCount, 2);
    await exit(keys);
    assert.is(counts().pinnedCount, 0);
    assert.equal(warnings, []);
    await exit(keys);
    await exit([keyOf(1)]);
    assert.equal(warnings.length, 2);
    assert.match(warnings[0] as string, /end of a read of 2 keys that has no beginning/);
  });

  test('a read of what is not there has an end all the same', async () => {
    const { enter, exit, counts, warnings } = replayHouse();
    await enter([keyOf(9)]);
    await exit([keyOf(9)]);
    assert.equal([counts().pinnedCount, warnings], [0, []]);
  });

  test('what the trace leaves open is given back at the end', async () => {
    const { replay, store, reserve, lookup, enter, counts, warnings } = replayHouse();
    const keys = [keyOf(1), keyOf(2)];
    await store(keys);
    await lookup(keys, { extraCount: 2 });
    await enter(keys);
    await reserve([keyOf(3)]);
    await replay.close();
    assert.equal(counts(), { objectCount: 2, stagingCount: 0, pinnedCount: 0, readLockedCount: 0 });
    assert.equal(warnings, ['1 reads were still open at the end of the trace']);
  });

  test('a reservation that its writer has left is the next one’s', async () => {
    const { clock, reserve, finish, counts } = replayHouse();
    await reserve([keyOf(1)]);
    clock.advance(60_000);
    await reserve([keyOf(1)]);
    assert.is(counts().stagingCount, 1);
    await finish([keyOf(1)]);
    await finish([keyOf(1)]);
    assert.equal(counts(), { objectCount: 1, stagingCount: 0, pinnedCount: 0, readLockedCount: 0 });
  });

  test('a key that a call names twice is stored once', async () => {
    const { store, counts } = replayHouse();
    await store([keyOf(1), keyOf(1), keyOf(2)]);
    assert.equal(counts(), { objectCount: 2, stagingCount: 0, pinnedCount: 0, readLockedCount: 0 });
  });

  test('a read waits for the load that its lookup has begun', async () => {
    const { storage, clock, store, lookup, enter, release, counts } = replayHouse();
    const run = async () => {
      for (let i = 0; i < 4; i += 1) {
        clock.advance(10);
        await turns();
      }
    };
    const l2 = new ScriptedStore();
    storage.l2.adapters.attach(l2);
    const keys = [keyOf(1), keyOf(2)];
    await store(keys);
    await run();
    storage.clear(true);
    l2.holds.add('load');
    await lookup(keys);
    await run();
    let isRead = false;
    const reading = enter(keys).then(() => {
      isRead = true;
    });
    await run();
    assert.is(isRead, false);
    l2.releaseAll();
    await run();
    await reading;
    assert.is(counts().pinnedCount, 2);
    await release(keys);
    assert.is(counts().readLockedCount, 0);
  });

  test('a lookup without slower tiers does not ask them', async () => {
    const { storage, lookup } = replayHouse();
    const l2 = new ScriptedStore();
    storage.l2.adapters.attach(l2);
    await lookup([keyOf(1)], { skipsL2: true });
    await turns();
    assert.equal(l2.callsOf('lookup'), []);
    await lookup([keyOf(1)]);
    await turns();
    assert.is(l2.callsOf('lookup').length, 1);
  });

  test('what no room of ours can have fails with the reason', async () => {
    const { reserve, counts } = replayHouse();
    const faults = [
      [reserve([keyOf(1, { chunkHash: new Uint8Array(8) })]), /chunk hashes of 32 bytes, got 8/],
      [reserve([keyOf(1, { kvRank: 77 })]), /kv_rank 77 is of no world/],
      [reserve([keyOf(1)], { shapes: [[1]], dtypes: ['torch.float7'] }), /unknown dtype "float7"/],
      [reserve([keyOf(1)], { shapes: [[1]], dtypes: [] }), /one dtype for each shape/],
      [reserve([keyOf(1)], { shapes: [[0]], dtypes: ['torch.int8'] }), /object of 1 to/],
      [reserve([keyOf(1)], { shapes: [[2 ** 40]], dtypes: ['torch.int8'] }), /object of 1 to/],
    ] as const;
    for (const [call, expected] of faults) await rejects(call, expected);
    assert.is(counts().stagingCount, 0);
  });

  test('what was recorded of one room has the same hits in another', async () => {
    const calls: TracedCall[] = [];
    const trace = { record: (call: TracedCall) => void calls.push(call) };
    const origin = buildL1House({ sizeBytes: 16 * ALIGN_BYTES, watermarkRatio: 1, trace });
    const held = driveRoom(origin);
    const { make, counts } = replayHouse();
    for (const call of calls) await make(replayable(call));
    const { objectCount, readLockedCount, pinnedCount } = origin.l1.statistics();
    assert.ok(objectCount > 8 && readLockedCount > 0 && pinnedCount > 0);
    assert.is(readLockedCount, held.length);
    assert.equal(counts(), { objectCount, readLockedCount, pinnedCount, stagingCount: 0 });
  });
});

/** Stores of two tenants and two ranks, more than there is room for, and readers of some. */
function driveRoom({ storage, keysOf }: ReturnType<typeof buildL1House>): Uint32Array {
  const shape = shapeOf(ALIGN_BYTES, 9);
  const rules = [{ ...RULES[0]!, layoutTags: new Set([9]), shape }];
  let held = new Uint32Array(0);
  for (let prompt = 0; prompt < 8; prompt += 1) {
    const salt = prompt % 2 === 0 ? '' : 'tenant';
    const keys = keysOf(prompt % 5, 2, prompt % 3 === 0 ? 2 : 1, salt);
    storage.releaseHolds(held, 1);
    const reservation = storage.reserveStore(keys, shape);
    storage.finishStore(reservation.slots.filter((slot) => slot !== NO_SLOT));
    held = Uint32Array.from(storage.submitPrefetch(keys, 1, rules).result!.slots);
    const read = storage.acquireForRead(keys, shape);
    if (read && prompt < 6) storage.releaseRead(read.slots);
  }
  return held;
}

/** As it comes out of a file. */
function replayable({ operation, keys, layout, extraCount = 0 }: TracedCall): ReplayCall {
  const args = storageArguments({ operation, keys });
  const typed = args.get('keys') as unknown as { value: ObjectKeyFields }[];
  const call = { operation, keys: typed.map(({ value }) => value), layout, extraCount };
  return { ...call, isPrefix: true, skipsL2: false } as ReplayCall;
}

suite('keys of a trace', (test) => {
  const ranks = [0, 1].map((rank) => kvRank(2, rank));
  const shapesOf = (keys: readonly ObjectKeyFields[]) =>
    blocksOf(keys, 32).map(({ start, columns, chunkCount }) => [start, columns.length, chunkCount]);

  test('chunk by chunk they are one block, rank by rank one for each', () => {
    const byChunk = [1, 2, 3].flatMap((chunk) =>
      ranks.map((rank) => keyOf(chunk, { kvRank: rank })),
    );
    assert.equal(shapesOf(byChunk), [[0, 2, 3]]);
    const byRank = ranks.flatMap((rank) =>
      [1, 2, 3].map((chunk) => keyOf(chunk, { kvRank: rank })),
    );
    assert.equal(shapesOf(byRank), [
      [0, 1, 3],
      [3, 1, 3],
    ]);
  });

  test('a block that is not whole falls into its parts', () => {
    const keys = [keyOf(1, { kvRank: ranks[0]! }), keyOf(1, { kvRank: ranks[1]! })];
    assert.equal(shapesOf([...keys, keyOf(2, { kvRank: ranks[0]! })]), [
      [0, 1, 1],
      [1, 1, 1],
      [2, 1, 1],
    ]);
    assert.equal(shapesOf([]), []);
  });

  test('a rank says of what world it is', () => {
    for (const [worldSize, workerId] of [
      [1, 0],
      [8, 7],
      [255, 254],
    ] as const) {
      const [block] = blocksOf([keyOf(1, { kvRank: kvRank(worldSize, workerId) })], 32);
      const [column] = block!.columns;
      assert.equal([column?.worldSize, column?.workerId], [worldSize, workerId]);
    }
  });
});
