/** STORE and RETRIEVE of the LMCache-driven path (spec engine 5.6, 5.7) */
import * as assert from 'uvu/assert';
import { KvdError, RefusedTransferError } from '../../../src/errors.ts';
import type { EventCatalogue } from '../../../src/observability/events.ts';
import { AbandonableAttempt } from '../../support/attempts.ts';
import { STUB_EVENT } from '../../support/memory-device.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import {
  blockOf,
  EVENT,
  keyOf,
  OBJECT_SIZE_BYTES,
  retrieve,
  store,
  TransferHouse,
  VLLM_ID,
} from '../../support/transfer-house.ts';

const range = (count: number, first = 0) => Array.from({ length: count }, (_, i) => first + i);

suite('STORE and RETRIEVE', (test) => {
  test('stored chunks come back in other blocks, byte for byte', async () => {
    const house = new TransferHouse();
    const tensors = await house.register();
    const ids = [3, 1, 4, 0, 9, 2];
    const stored = await house.call('STORE', store(12, ids));
    assert.equal(stored, { event: STUB_EVENT, ok: true });
    assert.is(house.storage.residentCount, 3);
    const want = ids.map((id) => blockOf(tensors, id));
    const untouched = blockOf(tensors, 15);
    const target = [5, 6, 7, 8, 10, 11];
    const reply = await house.call('RETRIEVE', retrieve(12, target));
    assert.equal(reply, { event: STUB_EVENT, ok: true });
    assert.equal(
      target.map((id) => blockOf(tensors, id)),
      want,
    );
    assert.equal(blockOf(tensors, 15), untouched);
    assert.is(house.storage.pinCount, 0);
  });

  test('a chunk is named by its whole prefix, wherever the range starts', async () => {
    const house = new TransferHouse();
    const tensors = await house.register();
    await house.call('STORE', store(12, [1, 2], { startToken: 8 }));
    assert.is(house.storage.residentCount, 1);
    const want = [1, 2].map((id) => blockOf(tensors, id));
    await house.call('RETRIEVE', retrieve(12, [13, 14], { startToken: 8 }));
    assert.equal(
      [13, 14].map((id) => blockOf(tensors, id)),
      want,
    );
    await rejects(house.call('RETRIEVE', retrieve(8, [13, 14], { startToken: 4 })), /not all/);
  });

  test('a STORE that outlives its reservation is no failure, but counted and logged', async () => {
    const house = new TransferHouse();
    await house.register();
    house.storage.hasExpired = true;
    const stored = await house.call('STORE', store(12, [3, 1, 4, 0, 9, 2]));
    assert.equal(stored, { event: STUB_EVENT, ok: true });
    assert.is(house.storage.residentCount, 0);
    assert.is(house.storage.pinCount, 0);
    assert.is(house.status()['lost_object_count'], 3);
    assert.is(
      house.log.lines.filter(({ message }) => /3 objects are not kept/.test(message)).length,
      1,
    );
  });

  test('salt, model, world size and rank keep objects apart', async () => {
    const house = new TransferHouse();
    await house.register();
    const scopes = [
      {},
      { cacheSalt: 'a' },
      { modelName: 'other' },
      { worldSize: 2 },
      { worldSize: 2, workerId: 1 },
    ];
    for (const [index, scope] of scopes.entries()) {
      await house.call('STORE', store(4, [0, 1], scope));
      assert.is(house.storage.residentCount, index + 1);
    }
  });

  test('chunks that are cached already are not copied again', async () => {
    const house = new TransferHouse();
    const tensors = await house.register();
    await house.call('STORE', store(8, range(4)));
    const first = house.device.l1.slice();
    for (const bytes of tensors) bytes.fill(0xee);
    const ended: EventCatalogue['mp.store.end'][] = [];
    house.bus.subscribe('mp.store.end', (event) => ended.push(event));
    assert.ok((await house.call('STORE', store(12, range(6)))).ok);
    assert.equal(house.device.l1.subarray(0, 128), first.subarray(0, 128));
    assert.equal(
      ended.map(({ tokenCount, totalBytes }) => [tokenCount, totalBytes]),
      [[12, OBJECT_SIZE_BYTES]],
    );
  });

  test('a full L1 stores nothing and is no failure', async () => {
    const house = new TransferHouse({ capacityBytes: OBJECT_SIZE_BYTES });
    await house.register();
    assert.ok((await house.call('STORE', store(8, range(4)))).ok);
    assert.is(house.storage.residentCount, 0);
  });

  test('STORE of an empty range succeeds, RETRIEVE of one does not', async () => {
    const house = new TransferHouse();
    await house.register();
    assert.ok((await house.call('STORE', store(8, [], { startToken: 8 }))).ok);
    const error = await rejects(
      house.call('RETRIEVE', retrieve(8, [], { startToken: 8 })),
      /empty range/,
    );
    assert.instance(error, RefusedTransferError);
  });

  test('objects are invisible until their bytes have arrived', async () => {
    const house = new TransferHouse();
    await house.register();
    const release = house.device.hold();
    const storing = house.call('STORE', store(4, [0, 1]));
    await house.settle();
    assert.equal([house.storage.stagingCount, house.storage.residentCount], [1, 0]);
    release();
    await storing;
    assert.equal([house.storage.stagingCount, house.storage.residentCount], [0, 1]);
  });

  test('a failed copy publishes nothing and leaves nothing behind', async () => {
    const house = new TransferHouse();
    await house.register();
    house.device.failNextJob = 'the worker is gone';
    const error = await rejects(house.call('STORE', store(8, range(4))), /the worker is gone/);
    assert.instance(error, RefusedTransferError);
    assert.equal([house.storage.stagingCount, house.storage.residentCount], [0, 0]);
    assert.is(house.storage.pinCount, 0);
    assert.ok((await house.call('STORE', store(8, range(4)))).ok);
    assert.is(house.storage.residentCount, 2);
  });

  test('a copy keeps its memory until it has ended, also when no event can be made', async () => {
    const house = new TransferHouse();
    await house.register();
    const { handle } = house.instances.lookup(VLLM_ID) ?? {};
    Object.assign(handle as object, {
      completionEvent: () => {
        throw new KvdError('ERR_UNSUPPORTED', 'no event');
      },
    });
    const release = house.device.hold();
    const storing = rejects(house.call('STORE', store(4, [0, 1])), /no event/);
    await house.settle();
    assert.is(house.storage.stagingCount, 1);
    release();
    await storing;
    assert.is(house.storage.stagingCount, 0);
  });

  test('the skipped tokens of a RETRIEVE are not written', async () => {
    const house = new TransferHouse();
    const tensors = await house.register();
    await house.call('STORE', store(12, range(6)));
    const want = range(6).map((id) => blockOf(tensors, id));
    const before = range(6, 8).map((id) => blockOf(tensors, id));
    await house.call('RETRIEVE', retrieve(12, range(6, 8), {}, 7));
    const after = range(6, 8).map((id) => blockOf(tensors, id));
    assert.equal(after, [...before.slice(0, 3), ...want.slice(3)]);
  });

  test('both wait for the event of the client', async () => {
    const house = new TransferHouse();
    await house.register();
    await house.call('STORE', store(4, [0, 1]));
    await house.call('RETRIEVE', retrieve(4, [2, 3]));
    assert.equal(house.device.awaitedEvents, [EVENT, EVENT]);
  });

  test('RETRIEVE releases one reader per object from its request, on its connection', async () => {
    const house = new TransferHouse();
    await house.register();
    await house.call('STORE', store(8, range(4)), { connectionId: 4 });
    await house.call('RETRIEVE', retrieve(8, range(4)), { connectionId: 5 });
    assert.equal(house.sessions.consumed, [
      { requestId: 'request', connectionId: 5, slotCount: 2 },
    ]);
    assert.equal(
      house.sessions.recorded.map(({ chunkCount }) => chunkCount),
      [2, 2],
    );
  });

  test('a RETRIEVE that fails while it copies gives pins and readers back', async () => {
    const house = new TransferHouse();
    await house.register();
    await house.call('STORE', store(8, range(4)));
    house.device.failNextJob = 'gone';
    await rejects(house.call('RETRIEVE', retrieve(8, range(4))), /gone/);
    assert.is(house.storage.pinCount, 0);
    assert.is(house.sessions.consumed.length, 1);
  });

  test('a missing chunk in the middle fails the RETRIEVE and changes no byte', async () => {
    const house = new TransferHouse();
    const tensors = await house.register();
    const { key } = store(16, range(8));
    await house.call('STORE', store(16, range(8)));
    house.storage.forget(house.hasher.hashChunks(key.tokens), 2);
    for (const bytes of tensors) bytes.fill(0xaa);
    await rejects(house.call('RETRIEVE', retrieve(16, range(8))), /not all of 4 chunks/);
    assert.ok(tensors.every((bytes) => bytes.every((byte) => byte === 0xaa)));
    assert.is(house.storage.pinCount, 0);
  });

  test('objects of another size are missing, not misread', async () => {
    const house = new TransferHouse();
    await house.register();
    await house.call('STORE', store(4, [0, 1]));
    const { wrappers } = house.newTensors(2);
    await house.register({ instanceId: VLLM_ID + 1n, wrappers: wrappers.slice(0, 1) });
    const request = { ...retrieve(4, [0, 1]), instanceId: VLLM_ID + 1n };
    const error = await rejects(house.call('RETRIEVE', request), /not all of 1 chunks/);
    assert.is((error as KvdError).code, 'ERR_DATA_MISSING');
  });

  test('a very long prompt is hashed in slices', async () => {
    const house = new TransferHouse();
    await house.register();
    house.hasher.isSliced = true;
    const key = keyOf(8, { startToken: 4 });
    assert.ok((await house.call('STORE', { ...store(0, [0, 1]), key })).ok);
    assert.is(house.hasher.slicedCount, 1);
  });

  test('an instance that leaves while its prompt is hashed is unknown afterwards', async () => {
    const house = new TransferHouse();
    await house.register();
    house.hasher.isSliced = true;
    const key = keyOf(8, { startToken: 4 });
    const storing = house.call('STORE', { ...store(0, [0, 1]), key });
    await house.instances.drop(VLLM_ID, 'dropped');
    await rejects(storing, /not registered/);
    assert.is(house.storage.stagingCount, 0);
  });

  test('a STORE whose client was told of its failure publishes nothing', async () => {
    const house = new TransferHouse();
    await house.register();
    const attempt = new AbandonableAttempt();
    const storing = house.call('STORE', store(4, [0, 1]), {}, attempt);
    attempt.abandon();
    await rejects(storing, /told that this transfer failed/);
    assert.is(house.storage.stagingCount, 0);
    const again = await house.call('STORE', store(4, [0, 1]));
    assert.ok(again.ok, 'the instance is well again once its copy has ended');
  });

  test('a transfer that arrived before a false PING does not start after it', async () => {
    const house = new TransferHouse();
    await house.register();
    await house.call('STORE', store(4, [0, 1]));
    house.instances.oweFalsePing(VLLM_ID);
    assert.is(house.instances.ping(VLLM_ID), false);
    const early = new AbandonableAttempt(house.clock.preciseMs());
    await rejects(house.call('RETRIEVE', retrieve(4, [2, 3]), {}, early), /told that this/);
    house.clock.advance(1);
    const late = new AbandonableAttempt(house.clock.preciseMs());
    const reply = await house.call('RETRIEVE', retrieve(4, [2, 3]), {}, late);
    assert.ok(reply.ok);
  });

  test('while a given-up copy runs, its instance refuses at once', async () => {
    const house = new TransferHouse();
    await house.register();
    const attempt = new AbandonableAttempt();
    const storing = house.call('STORE', store(4, [0, 1]), {}, attempt);
    await Promise.resolve();
    await Promise.resolve();
    attempt.abandon();
    await rejects(house.call('STORE', store(8, [2, 3, 4, 5])), /does not end/);
    await rejects(storing, /told that this transfer failed/);
  });

  test('while one of several given-up copies runs, too', async () => {
    const house = new TransferHouse();
    await house.register();
    const attempts = [new AbandonableAttempt(), new AbandonableAttempt()] as const;
    const releaseFirst = house.device.hold();
    const [first, second] = attempts.map((attempt, salt) => {
      const request = { ...store(4, [0, 1]), key: keyOf(4, { cacheSalt: `${salt}` }) };
      return house.call('STORE', request, {}, attempt);
    }) as [Promise<unknown>, Promise<unknown>];
    await house.settle();
    for (const attempt of attempts) attempt.abandon();
    releaseFirst();
    const releaseSecond = house.device.hold();
    await rejects(first, /told that this transfer failed/);
    assert.equal(house.status()['stuck_instance_ids'], [VLLM_ID]);
    releaseSecond();
    await rejects(second, /told that this transfer failed/);
    assert.equal(house.status()['stuck_instance_ids'], []);
  });
});
