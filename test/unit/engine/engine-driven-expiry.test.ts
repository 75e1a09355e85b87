/** Slots whose time is over: late commits, live but slow workers, quarantine (spec engine 9.3) */
import * as assert from 'uvu/assert';
import { PENDING_COUNT_MAX } from '../../../src/engine/transfer/worker-slots.ts';
import {
  ALIGN_BYTES,
  chunkBytes,
  EngineDrivenHouse,
  READ_TTL_MS,
  WORKER,
  WRITE_TTL_MS,
} from '../../support/engine-driven-house.ts';
import { suite } from '../../support/suite.ts';

const OTHER = WORKER + 1n;
/** 5 % of this is one object of 4096 bytes and a bit. */
const UNITS_FOR_ONE = 24;

async function open(options: ConstructorParameters<typeof EngineDrivenHouse>[0] = {}) {
  const house = new EngineDrivenHouse(options);
  await house.register();
  await house.register({ instanceId: OTHER });
  return house;
}

/** Lets `totalMs` pass while the worker pings every second. */
function pingFor(house: EngineDrivenHouse, totalMs: number): void {
  for (let ms = 0; ms < totalMs; ms += 1000) {
    house.clock.advance(1000);
    house.instances.ping(WORKER);
  }
}

const pinned = (house: EngineDrivenHouse) =>
  house.core.table.statistics(house.clock.nowMs()).pinnedCount;

suite('a write whose time is over', (test) => {
  test('never becomes a hit, and its keys can be stored by others at once', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    house.clock.advance(WRITE_TTL_MS);
    assert.is(await house.hits(key), 0);
    const { context } = await house.prepareStore(key, OTHER);
    assert.is(context.slots?.length, 2);
    house.fill(context, 2);
    assert.is(await house.commitStore(key, undefined, OTHER), true);
    assert.is(await house.hits(key), 2);
    await house.unregister();
    house.assertClean();
  });

  test('one millisecond before it is over the commit still counts', async () => {
    const house = await open();
    const key = house.key(1, 2);
    house.fill((await house.prepareStore(key)).context, 1);
    house.clock.advance(WRITE_TTL_MS - 1);
    assert.is(await house.commitStore(key), true);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('a late commit is false and gives the memory back', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    house.clock.advance(WRITE_TTL_MS);
    assert.is(house.status['quarantined_bytes'], 1024);
    assert.is(pinned(house), 2);
    assert.is(await house.commitStore(key), false);
    assert.is(await house.hits(key), 0);
    assert.is(house.status['late_commit_count'], 1);
    house.assertClean();
  });

  test('a late commit does not publish what the same request has reserved since', async () => {
    const house = await open();
    const key = house.key(1, 1);
    await house.prepareStore(key);
    house.clock.advance(WRITE_TTL_MS);
    // state: first reservation in quarantine; a second one is pending and unwritten
    assert.is((await house.prepareStore(key)).context.slots?.length, 1);
    assert.is(await house.commitStore(key), false);
    assert.is(await house.hits(key), 0);
    // state: quarantine empty; the second one can still be committed
    assert.is(await house.commitStore(key), true);
    assert.is(await house.hits(key), 1);
    house.assertClean();
  });

  test('its memory is nobody else’s until one more TTL has passed', async () => {
    const house = await open({ units: 40 });
    const key = house.key(1, 2);
    const { slots } = (await house.prepareStore(key)).context;
    house.clock.advance(WRITE_TTL_MS);
    const stranger = await house.prepareStore(house.key(2, 30), OTHER);
    const taken = new Set(slots?.map(({ offset }) => offset));
    assert.not.ok(stranger.context.slots?.some(({ offset }) => taken.has(offset)));
    house.clock.advance(WRITE_TTL_MS - 1);
    assert.is(house.status['quarantined_transfer_count'], 1);
    house.clock.advance(1);
    assert.is(house.status['quarantined_transfer_count'], 0);
    await house.unregister(OTHER);
    house.assertClean();
  });

  test('a worker that registers again has let go of it', async () => {
    const house = await open();
    await house.prepareStore(house.key(1, 2));
    house.clock.advance(WRITE_TTL_MS);
    assert.is(pinned(house), 2);
    await house.register();
    house.assertClean();
  });
});

suite('a live but slow worker', (test) => {
  test('keeps its write as long as it pings', async () => {
    const house = await open();
    const key = house.key(1, 2);
    house.fill((await house.prepareStore(key)).context, 1);
    pingFor(house, 3 * WRITE_TTL_MS);
    assert.is(house.status['extension_count'], 3);
    assert.equal((await house.prepareStore(key, OTHER)).context.slots, []);
    assert.is(await house.commitStore(key), true);
    assert.is(await house.hits(key), 2);
    house.assertClean();
  });

  test('loses it when the pings stop', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    pingFor(house, 2 * WRITE_TTL_MS);
    house.clock.advance(2 * WRITE_TTL_MS);
    assert.is(await house.commitStore(key), false);
    assert.is(await house.hits(key), 0);
    house.assertClean();
  });

  test('a lost commit ends after a bounded number of extensions', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    pingFor(house, 6 * WRITE_TTL_MS);
    assert.is(house.status['extension_count'], 5);
    assert.is(house.status['pending_write_count'], 0);
    assert.is(await house.store({ ...key, requestId: 'again' }, 2), true);
    assert.is(await house.hits(key), 2);
  });

  test('requests alone extend nothing: only its heartbeat shows that a worker lives', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.prepareStore(key);
    for (let ms = 0; ms < WRITE_TTL_MS; ms += 1000) {
      house.clock.advance(1000);
      await house.store(house.key(10 + ms / 1000, 1), 1);
    }
    assert.is(await house.hits(key), 0);
    assert.is(house.status['pending_write_count'], 0);
    assert.is(await house.commitStore(key), false);
    house.assertClean();
  });

  test('keeps its reads as long as it pings', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.store(key, 1);
    await house.prepareRetrieve(key);
    pingFor(house, 2 * READ_TTL_MS);
    assert.is(house.status['pending_read_count'], 1);
    assert.is(house.status['abandoned_transfer_count'], 0);
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });
});

suite('a read whose time is over', (test) => {
  test('keeps its bytes in place for one more TTL; the late commit is true', async () => {
    const house = await open({ units: 40 });
    const key = house.key(1, 2);
    await house.store(key, 1);
    const { slots } = (await house.prepareRetrieve(key)).context;
    house.clock.advance(READ_TTL_MS);
    assert.is(house.status['pending_read_count'], 0);
    assert.is(house.status['quarantined_transfer_count'], 1);
    await house.storage.clear(true);
    await house.prepareStore(house.key(2, 38), OTHER);
    assert.equal(
      house.read(slots),
      [0, 1].map((chunk) => chunkBytes(1, chunk)),
    );
    assert.is(await house.commitRetrieve(key), true);
    await house.unregister(OTHER);
    house.assertClean();
  });

  test('its commit is refused once, when the bytes may have been somebody else’s', async () => {
    const house = await open();
    const key = house.key(1, 2);
    await house.store(key, 1);
    await house.prepareRetrieve(key);
    house.clock.advance(READ_TTL_MS + WRITE_TTL_MS);
    assert.is(await house.answer('COMMIT_RETRIEVE', { key, instanceId: WORKER }), 'ERR_TIMEOUT');
    assert.is(await house.commitRetrieve(key), true);
    house.assertClean();
  });
});

suite('the quarantine', (test) => {
  test('is bounded to 5 % of L1: the oldest is let go, and counted', async () => {
    const house = await open({ units: UNITS_FOR_ONE * 20 });
    // Room for 24 objects; a slot counts with its 512 bytes.
    const max = house.status['quarantine_bytes_max'] as number;
    assert.is(max, Math.floor(UNITS_FOR_ONE * 20 * ALIGN_BYTES * 0.05));
    const perTransfer = 16 * 512;
    const count = Math.floor(max / perTransfer) + 2;
    for (let i = 0; i < count; i += 1) await house.prepareStore(house.key(i, 16));
    house.clock.advance(WRITE_TTL_MS);
    assert.is(house.status['quarantine_overflow_count'], 2);
    assert.is(house.status['quarantined_transfer_count'], count - 2);
    assert.ok((house.status['quarantined_bytes'] as number) <= max);
    // The oldest two were let go: their late commits are false, like all of them.
    for (let i = 0; i < count; i += 1) {
      assert.is(await house.commitStore(house.key(i, 16)), false, String(i));
    }
    assert.is(house.status['late_commit_count'], count - 2);
    house.assertClean();
  });

  test('a worker that leaves cleanly pushes nobody out of it', async () => {
    const house = await open({ units: UNITS_FOR_ONE * 20 });
    const max = house.status['quarantine_bytes_max'] as number;
    const perTransfer = 16 * 512;
    const fillingCount = Math.floor(max / perTransfer);
    await house.prepareStore(house.key(0, 16));
    house.clock.advance(WRITE_TTL_MS);
    assert.is(house.status['quarantined_transfer_count'], 1);
    for (let i = 1; i <= fillingCount; i += 1) await house.prepareStore(house.key(i, 16), OTHER);
    await house.unregister(OTHER);
    assert.is(house.status['quarantine_overflow_count'], 0);
    assert.is(house.status['quarantined_transfer_count'], 1, 'still out of use');
    const stored = await house.store(house.key(fillingCount, 16), 1);
    assert.is(stored, true, 'its own keys are free again');
    await house.unregister();
    house.assertClean();
  });

  test('a transfer larger than the bound is not kept at all', async () => {
    const house = await open({ units: 4 });
    await house.prepareStore(house.key(1, 4));
    house.clock.advance(WRITE_TTL_MS);
    assert.is(house.status['quarantine_overflow_count'], 1);
    house.assertClean();
  });
});

suite('the bound on open transfers of one worker', (test) => {
  test('beyond it requests are refused, and work again after a commit', async () => {
    const house = await open();
    const key = house.key(1, 1);
    await house.store(key, 1);
    for (let i = 0; i < PENDING_COUNT_MAX; i += 1) await house.prepareRetrieve(key);
    const request = { key, instanceId: WORKER };
    assert.is(await house.answer('PREPARE_RETRIEVE', request), 'ERR_OVERLOADED');
    assert.is(await house.answer('PREPARE_STORE', request), 'ERR_OVERLOADED');
    assert.is((await house.prepareRetrieve(key, OTHER)).success, true);
    await house.commitRetrieve(key);
    assert.is((await house.prepareRetrieve(key)).success, true);
    await house.unregister();
    await house.unregister(OTHER);
    house.assertClean();
  });
});
