/** PREPARE and COMMIT over slots in shared memory, row by row (spec engine 6.3, 9.3) */
import * as assert from 'uvu/assert';
import type { RequestContext } from '../../../src/engine/client-traits.ts';
import type { EventCatalogue } from '../../../src/observability/events.ts';
import {
  CHUNK_BYTES,
  CHUNK_SHAPE,
  CHUNK_TOKENS,
  chunkBytes,
  EngineDrivenHouse,
  WORKER,
} from '../../support/engine-driven-house.ts';
import { suite } from '../../support/suite.ts';

const OTHER = WORKER + 1n;

async function open(options: ConstructorParameters<typeof EngineDrivenHouse>[0] = {}) {
  const house = new EngineDrivenHouse(options);
  await house.register();
  return house;
}

suite('PREPARE_STORE over slots', (test) => {
  test('a slot per chunk, in order, inside the pool, of the registered shape', async () => {
    const house = await open();
    const { context } = await house.prepareStore(house.key(1, 3));
    assert.equal(context.chunk_indices, [0, 1, 2]);
    assert.equal(
      context.slots,
      [0, 4096, 8192].map((offset) => ({
        offset,
        length: CHUNK_BYTES,
        shape: [...CHUNK_SHAPE],
        dtype: 'float16',
      })),
    );
  });

  test('an MLA worker gets slots of one vector per token', async () => {
    const house = new EngineDrivenHouse();
    await house.register({ usesMla: true });
    const { context } = await house.prepareStore(house.key(1, 1));
    assert.equal(context.slots?.[0]?.shape, [1, 16, 8]);
    assert.is(context.slots?.[0]?.length, CHUNK_BYTES / 2);
  });

  test('cached chunks get no slot; indices count from the start of the range', async () => {
    const house = await open();
    await house.store(house.key(1, 2), 1);
    const suffix = house.key(1, 4, { startToken: CHUNK_TOKENS });
    const { context } = await house.prepareStore(suffix);
    assert.equal(context.chunk_indices, [1, 2]);
    await house.commitStore(suffix);
    assert.is(await house.hits(house.key(1, 4)), 4);
    house.assertClean();
  });

  test('all cached: both lists are empty and nothing is pending', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.store(key, 1);
    assert.equal(await house.prepareStore(key), { context: { slots: [], chunk_indices: [] } });
    assert.is(await house.commitStore(key), false);
    house.assertClean();
  });

  test('no room: both lists are empty and nothing is pending', async () => {
    const house = await open({ units: 2 });
    const held = house.key(1, 2);
    await house.store(held, 1);
    await house.call('LOOKUP', { key: { ...held, workerId: null }, tpSize: 1 });
    const key = house.key(2, 1);
    assert.equal(await house.prepareStore(key), { context: { slots: [], chunk_indices: [] } });
    assert.is(await house.commitStore(key), false);
    await house.call('END_SESSION', { requestId: held.requestId });
    house.assertClean();
  });

  test('unheld objects make room', async () => {
    const house = await open({ units: 2 });
    await house.store(house.key(1, 2), 1);
    assert.is(await house.store(house.key(2, 2), 2), true);
    assert.is(await house.hits(house.key(2, 2)), 2);
    house.assertClean();
  });

  test('an empty range prepares nothing', async () => {
    const house = await open();
    const key = house.key(1, 2, { endToken: 0 });
    assert.equal(await house.prepareStore(key), { context: { slots: [], chunk_indices: [] } });
    house.assertClean();
  });
});

suite('COMMIT_STORE of slots', (test) => {
  test('what was prepared is invisible until the commit, and readable after it', async () => {
    const house = await open();
    const key = house.key(1, 3);
    const { context } = await house.prepareStore(key);
    house.fill(context, 4);
    assert.is(await house.hits(key), 0);
    assert.is(await house.commitStore(key), true);
    assert.is(await house.hits(key), 3);
    const { slots } = (await house.prepareRetrieve(key)).context;
    assert.equal(
      house.read(slots),
      [0, 1, 2].map((chunk) => chunkBytes(4, chunk)),
    );
    await house.commitRetrieve(key);
    house.assertClean();
  });

  test('without PREPARE: false', async () => {
    const house = await open();
    assert.is(await house.commitStore(house.key(1, 2)), false);
    house.assertClean();
  });

  test('twice: true, then false', async () => {
    const house = await open();
    const key = house.key(1, 2);
    house.fill((await house.prepareStore(key)).context, 1);
    assert.is(await house.commitStore(key), true);
    assert.is(await house.commitStore(key), false);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('for another request id than the PREPARE: false, nothing becomes visible', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    assert.is(await house.commitStore({ ...key, requestId: 'other' }), false);
    assert.is(await house.hits(key), 0);
    assert.is(await house.commitStore(key), true);
    house.assertClean();
  });

  test('from another worker than that of the PREPARE: false, nothing becomes visible', async () => {
    const house = await open();
    await house.register({ instanceId: OTHER });
    const key = house.key(1, 2);
    await house.prepareStore(key);
    assert.is(await house.commitStore(key, undefined, OTHER), false);
    assert.is(await house.hits(key), 0);
    await house.unregister();
    house.assertClean();
  });

  test('after a forced clear: false, and the memory is free', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    await house.storage.clear(true);
    assert.is(await house.commitStore(key), false);
    assert.is(await house.hits(key), 0);
    house.assertClean();
  });

  test('workers that store the same prompt at once: one copy, both succeed', async () => {
    const house = await open();
    await house.register({ instanceId: OTHER });
    const key = house.key(1, 3);
    const mine = await house.prepareStore(key);
    const theirs = await house.prepareStore(key, OTHER);
    assert.equal(theirs.context, { slots: [], chunk_indices: [] });
    house.fill(mine.context, 1);
    assert.is(await house.commitStore(key), true);
    assert.is(await house.hits(key), 3);
    house.assertClean();
  });
});

suite('repeated PREPARE_STORE', (test) => {
  test('while the first is pending: reported as cached, the first commit counts', async () => {
    const house = await open();
    const key = house.key(1, 2);
    const { context } = await house.prepareStore(key);
    assert.equal((await house.prepareStore(key)).context, { slots: [], chunk_indices: [] });
    house.fill(context, 1);
    assert.is(await house.commitStore(key), true);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('a commit ends the newest: slots that only an older reply named stay unseen', async () => {
    const house = await open({ units: 3 });
    const key = house.key(1, 3);
    // state: chunks 0, 1 resident
    await house.store(house.key(1, 2), 1);
    // state: chunk 2 pending, its reply got lost
    assert.equal((await house.prepareStore(key)).context.chunk_indices, [2]);
    // state: chunks 0, 1 gone again
    await house.storage.clear(false);
    const { context } = await house.prepareStore(key);
    assert.equal(context.chunk_indices, [0, 1]);
    house.fill(context, 2);
    assert.is(await house.commitStore(key), true);
    // Chunk 2 was never written, so it must not be a hit.
    assert.is(await house.hits(key), 2);
    await house.unregister();
    house.assertClean();
  });

  test('two keys of one request are two transfers', async () => {
    const house = await open();
    const all = house.key(1, 4);
    const first = { ...all, endToken: 2 * CHUNK_TOKENS };
    const second = { ...all, startToken: 2 * CHUNK_TOKENS };
    house.fill((await house.prepareStore(first)).context, 1);
    house.fill((await house.prepareStore(second)).context, 1);
    assert.is(await house.commitStore(second), true);
    assert.is(await house.hits(all), 0);
    assert.is(await house.commitStore(first), true);
    assert.is(await house.hits(all), 4);
    house.assertClean();
  });

  test('salts are different keys', async () => {
    const house = await open();
    const key = house.key(1, 1);
    const salted = { ...key, cacheSalt: 'a' };
    house.fill((await house.prepareStore(key)).context, 1);
    house.fill((await house.prepareStore(salted)).context, 2);
    assert.is(await house.commitStore(salted), true);
    assert.is(await house.hits(key), 0);
    assert.is(await house.hits(salted), 1);
    assert.is(await house.commitStore(key), true);
    house.assertClean();
  });
});

suite('PREPARE_RETRIEVE and COMMIT_RETRIEVE over slots', (test) => {
  /** A worker that is known to use slots, and three stored chunks. */
  async function stored() {
    const house = await open();
    const key = house.key(1, 3);
    await house.store(key, 1);
    return { house, key };
  }

  test('a slot per chunk and no data, without a LOOKUP, too', async () => {
    const { house, key } = await stored();
    const reply = await house.prepareRetrieve(key);
    assert.is(reply.success, true);
    assert.is(reply.data.length, 0);
    assert.is(reply.context.slots?.length, 3);
    assert.not.ok('chunk_indices' in reply.context);
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });

  test('slots stay put until the commit: neither eviction nor a clear takes them', async () => {
    const house = await open({ units: 3 });
    const key = house.key(1, 3);
    await house.store(key, 1);
    const { slots } = (await house.prepareRetrieve(key)).context;
    await house.storage.clear(true);
    assert.equal((await house.prepareStore(house.key(2, 1))).context.slots, []);
    assert.equal(
      house.read(slots),
      [0, 1, 2].map((chunk) => chunkBytes(1, chunk)),
    );
    assert.is(await house.commitRetrieve(key), true);
    assert.is((await house.prepareStore(house.key(2, 3))).context.slots?.length, 3);
    await house.unregister();
    house.assertClean();
  });

  test('each commit takes one reader off the lookup of its request', async () => {
    const { house, key } = await stored();
    const asked = { ...key, workerId: null };
    await house.call('LOOKUP', { key: asked, tpSize: 2 });
    const held = () => house.core.table.statistics(house.clock.nowMs()).readLockedCount;
    assert.is(held(), 3);
    for (const expected of [3, 0]) {
      await house.prepareRetrieve(key);
      await house.commitRetrieve(key);
      assert.is(held(), expected);
    }
    await house.call('END_SESSION', { requestId: key.requestId });
    house.assertClean();
  });

  test('the commit may come over another connection than the prepare', async () => {
    const { house, key } = await stored();
    await house.prepareRetrieve(key);
    const context: Partial<RequestContext> = { connectionId: 7 };
    const request = { key, instanceId: WORKER };
    assert.is(await house.call('COMMIT_RETRIEVE', request, context), true);
    house.assertClean();
  });

  test('a commit without PREPARE is true', async () => {
    const { house, key } = await stored();
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });

  test('repeated: each PREPARE has its own pins, and each COMMIT gives one back', async () => {
    const { house, key } = await stored();
    await house.prepareRetrieve(key);
    await house.prepareRetrieve(key);
    assert.is(house.status['pending_read_count'], 2);
    assert.is(await house.commitRetrieve(key), true);
    assert.is(house.status['pending_read_count'], 1);
    assert.is(house.core.table.statistics(0).pinnedCount, 3);
    assert.is(await house.commitRetrieve(key), true);
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });

  test('one missing chunk: refused, nothing is pinned', async () => {
    const { house } = await stored();
    const key = house.key(1, 4);
    assert.is(
      await house.answer('PREPARE_RETRIEVE', { key, instanceId: WORKER }),
      'ERR_DATA_MISSING',
    );
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });

  test('objects that another layout wrote are missing', async () => {
    const { house, key } = await stored();
    await house.register({ instanceId: OTHER, hiddenSize: 16 });
    assert.is(
      await house.answer('PREPARE_RETRIEVE', { key, instanceId: OTHER }),
      'ERR_DATA_MISSING',
    );
    house.assertClean();
  });

  test('a transfer is reported from its PREPARE to its COMMIT, as on the other path', async () => {
    const house = await open();
    const seen: [string, EventCatalogue['mp.store.end' | 'mp.retrieve.end']][] = [];
    house.bus.subscribe('mp.store.end', (event) => seen.push(['store', event]));
    house.bus.subscribe('mp.retrieve.end', (event) => seen.push(['retrieve', event]));
    const key = house.key(1, 2);
    house.fill((await house.prepareStore(key)).context, 1);
    house.clock.advance(250);
    await house.commitStore(key);
    await house.prepareRetrieve(key);
    house.clock.advance(500);
    await house.commitRetrieve(key);
    const shown = seen.map(
      ([kind, { sessionId, device, engineId, tokenCount, totalBytes, seconds, error }]) => [
        ...[kind, sessionId, device, engineId, tokenCount, totalBytes, seconds, error],
      ],
    );
    const common = ['r1', 'cpu', `${WORKER}`, 32, 1024];
    assert.equal(shown, [
      ['store', ...common, 0.25, null],
      ['retrieve', ...common, 0.5, null],
    ]);
  });
});
