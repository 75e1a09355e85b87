/** Workers that keep several transfers of one connection going, and locks of reads that fail */

import * as assert from 'uvu/assert';
import type { RequestContext } from '../../../src/engine/client-traits.ts';
import { OverdueStores } from '../../../src/engine/transfer/overdue-stores.ts';
import { LIVE_ATTEMPT } from '../../support/attempts.ts';
import { NEW_CLIENT } from '../../support/client-traits.ts';
import {
  CHUNK_TOKENS,
  chunkBytes,
  EngineDrivenHouse,
  tensorOf,
  WORKER,
} from '../../support/engine-driven-house.ts';
import fc from '../../support/property.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

const lockedCount = (house: EngineDrivenHouse) => house.l1.statistics().readLockedCount;

suite('engine-driven pairs of one connection', (test) => {
  test('interleave in any order: each COMMIT ends what its own PREPARE has reserved', async () => {
    const order = fc.shuffledSubarray([0, 1, 2, 3, 4, 5], { minLength: 6 });
    await fc.assert(
      fc.asyncProperty(order, order, async (prepares, commits) => {
        const house = new EngineDrivenHouse();
        await house.register();
        // Requests 0 and 1 store the same prompt, all others one of their own.
        const keys = [0, 1, 2, 3, 4, 5].map((request) =>
          house.key(request === 1 ? 0 : request, 2, { requestId: `thread ${request}` }),
        );
        const slotCounts = new Map<number, number>();
        for (const request of prepares) {
          const { context } = await house.prepareStore(keys[request]!);
          slotCounts.set(request, context.slots?.length ?? 0);
          house.fill(context, request === 1 ? 0 : request);
        }
        assert.equal([slotCounts.get(0)! + slotCounts.get(1)!, slotCounts.get(5)], [2, 2]);
        for (const request of commits) {
          const isStored = await house.commitStore(keys[request]!);
          assert.is(isStored, slotCounts.get(request)! > 0);
        }
        for (const request of [0, 2, 5]) {
          const reply = await house.prepareRetrieve(keys[request]!);
          const want = [0, 1].map((chunk) => chunkBytes(request, chunk));
          assert.equal(house.read(reply.context.slots), want);
          await house.commitRetrieve(keys[request]!);
        }
        house.assertClean();
      }),
      { numRuns: 30 },
    );
  });

  test('a range that overlaps one in hand gets the rest; each COMMIT has its own', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    const long = house.key(1, 4, { requestId: 'long' });
    const short = house.key(1, 4, { requestId: 'short', endToken: 2 * CHUNK_TOKENS });
    const first = (await house.prepareStore(short)).context;
    const second = (await house.prepareStore(long)).context;
    assert.equal(
      [first.chunk_indices, second.chunk_indices],
      [
        [0, 1],
        [2, 3],
      ],
    );
    house.fill(second, 1);
    assert.is(await house.commitStore(long), true);
    assert.is(await house.hits(long), 0, 'the first chunks are still being written');
    house.fill(first, 1);
    assert.is(await house.commitStore(short), true);
    assert.is(await house.hits(long), 4);
    house.assertClean();
  });
});

suite('engine-driven stores of a worker that may have given them up', (test) => {
  const overdue = { ...LIVE_ATTEMPT, isOverdue: true };

  test('get no slots, so that nothing is gathered from blocks of somebody else', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    const key = house.key(1, 2);
    await house.store(house.key(9, 1), 9);
    const { context } = await house.call('PREPARE_STORE', { key, instanceId: WORKER }, {}, overdue);
    assert.equal(context, { slots: [], chunk_indices: [] }, 'as if all was stored');
    house.assertClean();
    assert.is(house.status['overdue_store_count'], 1);
    assert.is(await house.store(key, 1), true, 'the next one is served');
    assert.is(await house.hits(key), 2);
  });

  for (const isKnownInline of [false, true]) {
    test(`their data is refused (known to send it: ${isKnownInline})`, async () => {
      const house = new EngineDrivenHouse();
      await house.register();
      if (isKnownInline) await house.commitStore(house.key(9, 1), [tensorOf(chunkBytes(9, 0))]);
      const key = house.key(1, 1);
      const tensors = [tensorOf(chunkBytes(1, 0))];
      await house.call('PREPARE_STORE', { key, instanceId: WORKER }, {}, overdue);
      await rejects(house.commitStore(key, tensors), /stood still/);
      assert.is(await house.hits(key), 0);
      await house.prepareStore(key);
      assert.is(await house.commitStore(key, tensors), true);
      assert.is(await house.hits(key), 1);
      house.assertClean();
    });
  }

  test('an overdue one says nothing of a later one of the same range', async () => {
    const house = new EngineDrivenHouse();
    await house.register();
    const key = house.key(1, 1);
    await house.call('PREPARE_STORE', { key, instanceId: WORKER }, {}, overdue);
    await house.prepareStore(key);
    assert.is(await house.commitStore(key, [tensorOf(chunkBytes(1, 0))]), true);
    assert.is(await house.hits(key), 1);
  });

  test('no more of them are remembered than can matter', () => {
    const stores = new OverdueStores();
    const request = (id: number) => ({
      key: { requestId: `r${id}`, startToken: 0, endToken: CHUNK_TOKENS },
      instanceId: WORKER,
    });
    for (let id = 0; id < 2000; id += 1) stores.add(request(id));
    assert.equal(
      [0, 975, 976, 1999, 1999].map((id) => stores.take(request(id))),
      [false, false, true, true, false],
    );
  });
});

suite('engine-driven reads that fail', (test) => {
  /** A scheduler's LOOKUP of all ranks on its own connection. */
  async function lookedUp(worldSize = 1) {
    const house = new EngineDrivenHouse();
    await house.register({ worldSize });
    const key = house.key(1, 3, { worldSize });
    for (let workerId = 0; workerId < worldSize; workerId += 1) {
      await house.store({ ...key, workerId }, 1);
    }
    const scheduler: Partial<RequestContext> = { connectionId: 7, client: NEW_CLIENT };
    const asked = { ...key, workerId: null, readerCount: 1 };
    await house.call('LOOKUP', { key: asked, tpSize: 1 }, scheduler);
    assert.is(lockedCount(house), 3 * worldSize);
    return { house, key };
  }

  test('of an unknown worker: its share of the lookup goes back, once', async () => {
    const { house, key } = await lookedUp(2);
    const read = { key, instanceId: WORKER + 5n };
    const context = { client: NEW_CLIENT };
    await rejects(house.call('PREPARE_RETRIEVE', read, context), /not registered/);
    assert.is(lockedCount(house), 3, 'rank 1 still holds its own');
    await rejects(house.call('PREPARE_RETRIEVE', read, context), /not registered/);
    assert.is(lockedCount(house), 3);
    await house.call('END_SESSION', { requestId: key.requestId });
    house.assertClean();
  });

  test('for a missing chunk: the locks of the others go back', async () => {
    const { house, key } = await lookedUp();
    const longer = house.key(1, 4);
    const read = { key: longer, instanceId: WORKER };
    await rejects(house.call('PREPARE_RETRIEVE', read, { client: NEW_CLIENT }), /not all/);
    assert.is(lockedCount(house), 0);
    await house.call('END_SESSION', { requestId: key.requestId });
    house.assertClean();
  });

  test('when the bytes cannot be sent: the locks go back', async () => {
    const { house, key } = await lookedUp();
    house.device.failNextJob = 'no memory';
    const read = { key, instanceId: WORKER };
    // The worker has only stored through slots so far; this one begins anew and gets data, too.
    await house.register();
    await rejects(house.call('PREPARE_RETRIEVE', read, { client: NEW_CLIENT }), /no memory/);
    assert.is(lockedCount(house), 0);
    await house.call('END_SESSION', { requestId: key.requestId });
    house.assertClean();
  });
});
