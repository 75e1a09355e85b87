/** Workers that leave between PREPARE and COMMIT, each in its way (spec engine 6.2, 9.3) */
import * as assert from 'uvu/assert';
import {
  chunkBytes,
  EngineDrivenHouse,
  tensorOf,
  WORKER,
  WRITE_TTL_MS,
} from '../../support/engine-driven-house.ts';
import { suite } from '../../support/suite.ts';

const OTHER = WORKER + 1n;

/** A worker with one write and one read open. */
async function openBoth(options: ConstructorParameters<typeof EngineDrivenHouse>[0] = {}) {
  const house = new EngineDrivenHouse(options);
  await house.register();
  const stored = house.key(1, 2);
  await house.store(stored, 1);
  const written = house.key(2, 2);
  await house.call('LOOKUP', { key: { ...stored, workerId: null }, tpSize: 1 });
  const { slots } = (await house.prepareRetrieve(stored)).context;
  await house.prepareStore(written);
  return { house, stored, written, slots };
}

suite('a worker that leaves between PREPARE and COMMIT', (test) => {
  test('UNREGISTER: all is given up and free at once, nothing unwritten is a hit', async () => {
    const { house, stored, written } = await openBoth();
    await house.unregister();
    house.assertClean();
    await house.register({ instanceId: OTHER });
    assert.is(await house.hits(written), 0);
    assert.is(await house.hits(stored), 2);
    house.assertClean();
  });

  test('its process has ended: free at once, too', async () => {
    const { house } = await openBoth();
    await house.instances.drop(WORKER, 'owner-gone');
    house.assertClean();
  });

  test('its late commit after UNREGISTER is refused', async () => {
    const { house, written } = await openBoth();
    await house.unregister();
    const request = { key: written, instanceId: WORKER, data: { kind: 'none' } } as const;
    assert.is(await house.answer('COMMIT_STORE', request), 'ERR_UNKNOWN_INSTANCE');
    house.assertClean();
  });

  for (const reason of ['reaped', 'dropped'] as const) {
    test(`${reason}: keys are free at once, memory one write TTL later`, async () => {
      const { house, written } = await openBoth();
      await house.instances.drop(WORKER, reason);
      assert.is(house.status['quarantined_transfer_count'], 2);
      assert.is(house.core.table.statistics(0).pinnedCount, 4);
      // The lookup's reader is gone with the worker that would have read.
      assert.is(house.core.table.statistics(0).readLockedCount, 0);
      await house.register({ instanceId: OTHER });
      assert.is((await house.prepareStore(written, OTHER)).context.slots?.length, 2);
      house.clock.advance(WRITE_TTL_MS);
      await house.unregister(OTHER);
      house.assertClean();
    });
  }

  test('reaped, but it goes on: its commits free what they name', async () => {
    const { house, stored, written, slots } = await openBoth();
    await house.instances.drop(WORKER, 'reaped');
    assert.equal(
      house.read(slots),
      [0, 1].map((chunk) => chunkBytes(1, chunk)),
    );
    const write = { key: written, instanceId: WORKER, data: { kind: 'none' } } as const;
    assert.is(await house.answer('COMMIT_STORE', write), 'ERR_UNKNOWN_INSTANCE');
    const read = { key: stored, instanceId: WORKER };
    assert.is(await house.answer('COMMIT_RETRIEVE', read), 'ERR_UNKNOWN_INSTANCE');
    house.assertClean();
  });

  test('reaped, then it says goodbye: everything is free', async () => {
    const { house } = await openBoth();
    await house.instances.drop(WORKER, 'reaped');
    await house.unregister();
    house.assertClean();
  });

  test('reaped by the registry after its silence', async () => {
    const { house, written } = await openBoth({ reapTimeoutSeconds: 30 });
    house.instances.ping(WORKER);
    house.clock.advance(40_000);
    assert.is(house.instances.lookupEngineDriven(WORKER), undefined);
    house.clock.advance(2 * WRITE_TTL_MS);
    house.assertClean();
    await house.register();
    assert.is(await house.hits(written), 0);
  });

  test('replaced by a registration with another layout: given up and free at once', async () => {
    const { house, written } = await openBoth();
    await house.register({ hiddenSize: 64 });
    house.assertClean();
    const { context } = await house.prepareStore(written);
    assert.equal(context.slots?.[0]?.shape, [2, 1, 16, 64]);
    assert.is(context.slots?.[0]?.length, 4096);
    await house.unregister();
    house.assertClean();
  });

  test('the same registration again keeps what is open', async () => {
    const { house, stored, written } = await openBoth();
    await house.register();
    assert.is(house.status['pending_write_count'], 1);
    assert.is(await house.commitStore(written), true);
    assert.is(await house.commitRetrieve(stored), true);
    house.assertClean();
  });

  test('the server shuts down: nothing is left', async () => {
    const { house } = await openBoth();
    await house.module.close();
    house.sessions.close();
    house.assertClean();
  });

  test('one worker’s end touches nobody else', async () => {
    const { house, stored } = await openBoth();
    await house.register({ instanceId: OTHER });
    const key = house.key(3, 1);
    house.fill((await house.prepareStore(key, OTHER)).context, 3);
    await house.prepareRetrieve(stored, OTHER);
    await house.unregister();
    assert.is(await house.commitStore(key, undefined, OTHER), true);
    assert.is(await house.commitRetrieve(stored, OTHER), true);
    house.assertClean();
  });

  test('it leaves while its inline copy runs: the copy ends, then its memory is free', async () => {
    const house = new EngineDrivenHouse({ shmName: null });
    await house.register();
    const key = house.key(1, 1);
    const release = house.device.hold();
    const running = house.commitStore(key, [tensorOf(chunkBytes(1, 0))]);
    await house.settle();
    await house.unregister();
    assert.is(house.core.table.statistics(0).pinnedCount, 1);
    release();
    assert.is(await running, true);
    house.assertClean();
  });
});
