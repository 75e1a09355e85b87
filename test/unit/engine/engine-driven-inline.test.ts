/** Bytes that travel inside messages, and how a worker's kind is learnt (spec engine 6.4, 9.3) */
import * as assert from 'uvu/assert';
import type { HostTensor } from '../../../src/engine/api.ts';
import {
  CHUNK_TOKENS,
  chunkBytes,
  EngineDrivenHouse,
  tensorOf,
  tensorsIn,
  WORKER,
} from '../../support/engine-driven-house.ts';
import { suite } from '../../support/suite.ts';

async function open(options: ConstructorParameters<typeof EngineDrivenHouse>[0] = {}) {
  const house = new EngineDrivenHouse(options);
  await house.register();
  return house;
}

const tensors = (seed: number, count: number): HostTensor[] =>
  Array.from({ length: count }, (_, chunk) => tensorOf(chunkBytes(seed, chunk)));

const expected = (seed: number, count: number): Uint8Array[] =>
  Array.from({ length: count }, (_, chunk) => chunkBytes(seed, chunk));

suite('a server without a segment', (test) => {
  const inline = () => open({ shmName: null });

  test('tells workers that there is none', async () => {
    const house = new EngineDrivenHouse({ shmName: null });
    assert.equal(await house.register(), { shmName: '', poolSizeBytes: 0 });
    assert.is(house.status['transport'], 'inline');
    assert.ok(house.log.has(/engine-driven transport: inline/));
  });

  test('PREPARE_STORE answers an empty context and keeps no state', async () => {
    const house = await inline();
    assert.equal(await house.prepareStore(house.key(1, 2)), { context: {} });
    house.assertClean();
  });

  test('the bytes of a COMMIT_STORE come back, and nothing stays open', async () => {
    const house = await inline();
    const key = house.key(1, 3);
    assert.is(await house.commitStore(key, tensors(1, 3)), true);
    assert.is(await house.hits(key), 3);
    const reply = await house.prepareRetrieve(key);
    assert.is(reply.success, true);
    assert.equal(reply.context, {});
    assert.equal(tensorsIn(reply.data), expected(1, 3));
    house.assertClean();
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });

  test('a retrieve takes its readers off the lookup at once', async () => {
    const house = await inline();
    const key = house.key(1, 2);
    await house.commitStore(key, tensors(1, 2));
    await house.call('LOOKUP', { key: { ...key, workerId: null }, tpSize: 1 });
    await house.prepareRetrieve(key);
    house.assertClean();
  });

  test('chunks that are cached already are skipped; all of them cached is true', async () => {
    const house = await inline();
    await house.commitStore(house.key(1, 2), tensors(1, 2));
    const key = house.key(1, 3);
    assert.is(await house.commitStore(key, tensors(2, 3)), true);
    assert.is(await house.commitStore(key, tensors(3, 3)), true);
    const { data } = await house.prepareRetrieve(key);
    assert.equal(tensorsIn(data), [...expected(1, 2), chunkBytes(2, 2)]);
    house.assertClean();
  });

  test('missing tensors: false, the rest is stored, and a correct retry completes it', async () => {
    const house = await inline();
    const key = house.key(1, 4);
    assert.is(await house.commitStore(key, tensors(1, 2)), false);
    assert.is(await house.hits(key), 2);
    house.assertClean();
    assert.is(await house.commitStore(key, tensors(1, 4)), true);
    assert.is(await house.hits(key), 4);
    house.assertClean();
  });

  test('500 rounds of short commits cost nothing', async () => {
    const house = await inline();
    const key = house.key(1, 4);
    for (let round = 0; round < 500; round += 1) {
      assert.is(await house.commitStore(key, tensors(1, 2)), false);
      assert.is(house.l1.usedBytes, 2 * 4096);
    }
    house.assertClean();
  });

  const misfits: readonly [string, Partial<HostTensor>][] = [
    ['another shape', { shape: [2, 1, 16, 4], stride: [64, 64, 4, 1] }],
    ['another rank', { shape: [2, 16, 8], stride: [128, 8, 1] }],
    ['another dtype of the same size', { dtype: 'bfloat16' }],
    ['another dtype', { dtype: 'uint8' }],
  ];
  for (const [what, rest] of misfits) {
    test(`a tensor of ${what}: false, its chunk is free again, the others are stored`, async () => {
      const house = await inline();
      const key = house.key(1, 2);
      const [first] = tensors(1, 1) as [HostTensor];
      assert.is(await house.commitStore(key, [first, tensorOf(chunkBytes(1, 1), rest)]), false);
      assert.is(await house.hits(key), 1);
      house.assertClean();
      assert.is(await house.commitStore(key, tensors(1, 2)), true);
      house.assertClean();
    });
  }

  test('a strided view is stored as its elements', async () => {
    const house = await inline();
    const key = house.key(1, 1);
    // [8, 16, 1, 2] in memory, seen as [2, 1, 16, 8].
    const bytes = new Uint8Array(3 + 512);
    const source = new DataView(bytes.buffer, 3);
    for (let i = 0; i < 256; i += 1) source.setUint16(i * 2, i, true);
    const view = tensorOf(bytes, { offsetBytes: 3, stride: [1, 2, 2, 32] });
    assert.is(await house.commitStore(key, [view]), true);
    const [stored] = tensorsIn((await house.prepareRetrieve(key)).data) as [Uint8Array];
    const words = Uint16Array.from(
      { length: 256 },
      (_, i) => (stored[2 * i + 1] ?? 0) * 256 + (stored[2 * i] ?? 0),
    );
    // Element (kv, 0, token, h) lies at kv + 2 * token + 32 * h.
    const wanted = Uint16Array.from({ length: 256 }, (_, i) => {
      const [kv, token, h] = [i >> 7, (i >> 3) & 15, i & 7];
      return kv + 2 * token + 32 * h;
    });
    assert.equal(words, wanted);
  });

  test('a malformed payload is refused and reserves nothing', async () => {
    const house = await inline();
    const key = house.key(1, 1);
    const data = { kind: 'malformed', reason: 'no list' } as const;
    const request = { key, instanceId: WORKER, data };
    assert.is(await house.answer('COMMIT_STORE', request), 'ERR_WIRE_PAYLOAD');
    house.assertClean();
  });

  test('a commit without data has nothing to commit', async () => {
    const house = await inline();
    assert.is(await house.commitStore(house.key(1, 1)), false);
    house.assertClean();
  });

  test('an empty list for an empty range is true', async () => {
    const house = await inline();
    assert.is(await house.commitStore(house.key(1, 1, { endToken: 0 }), []), true);
    house.assertClean();
  });

  test('a copy that fails stores nothing and leaves nothing', async () => {
    const house = await inline();
    const key = house.key(1, 2);
    house.device.failNextJob = 'memory vanished';
    const data = { kind: 'tensors', tensors: tensors(1, 2) } as const;
    assert.is(
      await house.answer('COMMIT_STORE', { key, instanceId: WORKER, data }),
      'ERR_DEVICE_COPY',
    );
    assert.is(await house.hits(key), 0);
    house.assertClean();
    await house.commitStore(key, tensors(1, 2));
    house.device.failNextJob = 'memory vanished';
    const read = { key, instanceId: WORKER };
    assert.is(await house.answer('PREPARE_RETRIEVE', read), 'ERR_DEVICE_COPY');
    house.assertClean();
  });

  test('no room: nothing is stored, and nothing went wrong', async () => {
    const house = await open({ shmName: null, units: 2 });
    const held = house.key(1, 2);
    await house.commitStore(held, tensors(1, 2));
    await house.call('LOOKUP', { key: { ...held, workerId: null }, tpSize: 1 });
    const key = house.key(2, 1);
    assert.is(await house.commitStore(key, tensors(2, 1)), true);
    assert.is(await house.hits(key), 0);
    await house.call('END_SESSION', { requestId: held.requestId });
    house.assertClean();
  });
});

suite('a worker that cannot map the segment it was offered', (test) => {
  test('COMMIT_STORE with data fills the slots of its PREPARE_STORE', async () => {
    const house = await open();
    const key = house.key(1, 3);
    assert.is((await house.prepareStore(key)).context.slots?.length, 3);
    assert.is(await house.commitStore(key, tensors(1, 3)), true);
    assert.is(await house.hits(key), 3);
    house.assertClean();
    assert.equal(tensorsIn((await house.prepareRetrieve(key)).data), expected(1, 3));
    house.assertClean();
  });

  test('... also when only some chunks were reserved, or others were evicted since', async () => {
    const house = await open();
    await house.commitStore(house.key(1, 1), tensors(1, 1));
    await house.register();
    const key = house.key(1, 3);
    // state: chunk 0 resident, chunks 1 and 2 pending
    assert.equal((await house.prepareStore(key)).context.chunk_indices, [1, 2]);
    await house.storage.clear(false);
    // state: chunk 0 gone
    assert.is(await house.commitStore(key, tensors(2, 3)), true);
    assert.is(await house.hits(key), 3);
    house.assertClean();
  });

  test('... also when all of it was cleared meanwhile', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    await house.storage.clear(true);
    assert.is(await house.commitStore(key, tensors(1, 2)), true);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('... and without a PREPARE_STORE', async () => {
    const house = await open();
    const key = house.key(1, 2);
    assert.is(await house.commitStore(key, tensors(1, 2)), true);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('is named in the log once, and counted', async () => {
    const house = await open();
    await house.commitStore(house.key(1, 1), tensors(1, 1));
    await house.commitStore(house.key(2, 1), tensors(2, 1));
    assert.is(
      house.log.lines.filter((line) => /sends its bytes inline/.test(line.message)).length,
      1,
    );
    assert.is(house.status['inline_fallback_count'], 1);
  });

  test('once known, PREPARE_STORE reserves nothing and PREPARE_RETRIEVE has no slots', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.commitStore(key, tensors(1, 2));
    assert.equal(await house.prepareStore(house.key(2, 2)), { context: {} });
    const reply = await house.prepareRetrieve(key);
    assert.equal(reply.context, {});
    assert.equal(tensorsIn(reply.data), expected(1, 2));
    house.assertClean();
  });

  test('until it is known, PREPARE_RETRIEVE has slots and data, held to the commit', async () => {
    const house = await open();
    const key = house.key(1, 2);
    const other = WORKER + 1n;
    await house.register({ instanceId: other });
    await house.store(key, 1, other);
    const reply = await house.prepareRetrieve(key);
    assert.equal(house.read(reply.context.slots), expected(1, 2));
    assert.equal(tensorsIn(reply.data), expected(1, 2));
    assert.is(house.status['pending_read_count'], 1);
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });

  test('a commit of slots settles it the other way', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.store(key, 1);
    const reply = await house.prepareRetrieve(key);
    assert.is(reply.data.length, 0);
    assert.is(reply.context.slots?.length, 2);
    await house.commitRetrieve(key);
    house.assertClean();
  });

  test('a commit without data does not make an inline worker one with slots', async () => {
    const house = await open();
    await house.commitStore(house.key(1, 1), tensors(1, 1));
    assert.is(await house.commitStore(house.key(2, 1)), false);
    assert.equal(await house.prepareStore(house.key(2, 1)), { context: {} });
  });

  test('registering again makes it unknown again', async () => {
    const house = await open();
    await house.commitStore(house.key(1, 1), tensors(1, 1));
    await house.register();
    assert.is((await house.prepareStore(house.key(2, 1))).context.slots?.length, 1);
    await house.unregister();
    house.assertClean();
  });

  test('short and malformed data give the reserved slots back', async () => {
    const house = await open();
    const key = house.key(1, 4);
    await house.prepareStore(key);
    assert.is(await house.commitStore(key, tensors(1, 2)), false);
    assert.is(await house.hits(key), 2);
    house.assertClean();
    await house.register();
    await house.prepareStore(key);
    const data = { kind: 'malformed', reason: 'no list' } as const;
    const request = { key, instanceId: WORKER, data };
    assert.is(await house.answer('COMMIT_STORE', request), 'ERR_WIRE_PAYLOAD');
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('data for a key whose reservation is over is stored all the same', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    house.clock.advance(60_000);
    assert.is(await house.commitStore(key, tensors(1, 2)), true);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('data that another worker writes right now is not needed: true', async () => {
    const house = await open();
    const other = WORKER + 1n;
    await house.register({ instanceId: other });
    const key = house.key(1, 2, { endToken: 2 * CHUNK_TOKENS });
    const { context } = await house.prepareStore(key, other);
    assert.is(await house.commitStore(key, tensors(1, 2)), true);
    assert.is(await house.hits(key), 0);
    house.fill(context, 2);
    assert.is(await house.commitStore(key, undefined, other), true);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('it is replaced while its data is read: refused, nothing stays open', async () => {
    const house = await open();
    const key = house.key(1, 1);
    const other = WORKER + 1n;
    await house.register({ instanceId: other });
    await house.store(key, 1, other);
    const release = house.device.hold();
    const running = house.answer('PREPARE_RETRIEVE', { key, instanceId: WORKER });
    await house.settle();
    await house.register({ blockSize: 32 });
    release();
    assert.is(await running, 'ERR_UNKNOWN_INSTANCE');
    house.assertClean();
  });
});
