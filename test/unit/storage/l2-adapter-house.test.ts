/** Real adapters behind the storage room, from their JSON to their end (spec storage 12) */
import * as assert from 'uvu/assert';
import { loadSpecReader } from '../../../src/config/l2-adapters.ts';
import { readAdapterSpec } from '../../../src/l2/adapter-spec.ts';
import { AdapterHouse } from '../../../src/storage/l2/adapter-house.ts';
import { ALIGN_BYTES } from '../../support/l1-house.ts';
import { buildL2House } from '../../support/l2-house.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';

suite('storage: L2 adapters', (test) => {
  async function setUp() {
    const house = buildL2House({ adapterCount: 0 });
    const reader = await loadSpecReader(() => {});
    const events: string[] = [];
    const adapters = new AdapterHouse({
      adapters: house.storage.l2.adapters,
      eviction: {
        add: ({ id }) => void events.push(`follows ${id}`),
        remove: (id) => void events.push(`lets go of ${id}`),
      },
      reader,
      alignBytes: ALIGN_BYTES,
      lockFile: () => true,
      clock: house.clock,
      log: house.log,
    });
    const add = (json: Record<string, unknown>) =>
      adapters.add(readAdapterSpec(json, 'the adapter', reader));
    return { ...house, adapters, add, events };
  }
  const MOCK = { type: 'mock', max_size_gb: 1, mock_bandwidth_gb: 1000 };

  test('what is stored comes back from an adapter after L1 has lost it', async () => {
    const house = await setUp();
    await house.add(MOCK);
    const keys = house.keysOf(1, 4);
    house.storeInL1(keys);
    for (let i = 0; i < 20; i += 1) await house.run(10);
    const [status] = house.storage.status()['l2_adapters'] as Record<string, unknown>[];
    assert.is(status?.['total_bytes_used'], 4 * ALIGN_BYTES, 'without the layout record');
    house.storage.clear(true);
    const task = house.prefetch(keys);
    for (let i = 0; i < 20; i += 1) await house.run(10);
    assert.is(task.result?.chunkCount, 4);
    assert.equal(house.wrongBytes(keys, task), []);
    house.release(task);
    assert.is(house.leaks(), 0);
    assert.is(house.adapters.adapters[0]?.status()['locked_object_count'], 0);
    assert.is(await house.storage.close(1000), true);
    await house.adapters.close();
  });

  test('ids are never used again, and a removed adapter is gone', async () => {
    const house = await setUp();
    const first = await house.add(MOCK);
    const second = await house.add(MOCK);
    assert.equal([first.id, second.id], [0, 1]);
    assert.is(await house.adapters.remove(0, 1000), true);
    const third = await house.add(MOCK);
    assert.is(third.id, 2);
    assert.equal(
      house.adapters.adapters.map(({ id }) => id),
      [1, 2],
    );
    assert.equal(house.events, ['follows 0', 'follows 1', 'lets go of 0', 'follows 2']);
    await rejects(house.adapters.remove(0, 1000), /No L2 adapter with id 0/);
    await house.adapters.close();
  });

  test('an adapter that cannot be opened leaves nothing', async () => {
    const house = await setUp();
    await rejects(house.add({ type: 'fs', base_path: '/dev/null/folder' }), /folder/);
    assert.equal(house.adapters.adapters, []);
    assert.equal(house.events, []);
    assert.is(house.storage.l2.adapters.all.length, 0);
  });
});
