import * as assert from 'uvu/assert';
import type { KvdError } from '../../../src/errors.ts';
import { layoutRecordKey } from '../../../src/l2/layout-record.ts';
import {
  emptyObject,
  hasSettled,
  L2AdapterHouse,
  objectOf,
  TASK_TIMEOUT_MS,
  turns,
} from '../../support/l2-adapter-house.ts';
import { l2Key } from '../../support/l2-objects.ts';
import { suite } from '../../support/suite.ts';

const codeOf = (result: unknown): string | undefined => (result as KvdError).code;

suite('L2 adapter: tasks', (test) => {
  test('stores, finds and loads', async () => {
    const { adapter, told } = new L2AdapterHouse();
    const objects = [objectOf(1), objectOf(2)];
    assert.equal(await adapter.store(objects).outcome, ['stored', 'stored']);
    const keys = [l2Key(1), l2Key(9), l2Key(2)];
    assert.equal([...(await adapter.lookup(keys, [100, 100, 100]))], [1, 0, 1]);
    const target = emptyObject(2);
    assert.equal(await adapter.load([target]).outcome, ['loaded']);
    assert.equal(target.bytes, (objects[1] as typeof target).bytes);
    assert.equal(told, ['stored 1 2', 'accessed 2']);
    assert.is(adapter.isHealthy, true);
  });

  test('a backend that is silent costs its caller the deadline and keeps its buffers', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    backend.conduct = 'wait';
    const task = adapter.load([emptyObject(1)]);
    await turns();
    clock.advance(TASK_TIMEOUT_MS - 1);
    assert.is(await hasSettled(task.outcome), false);
    clock.advance(1);
    const [result] = await task.outcome;
    assert.is(codeOf(result), 'ERR_L2_TIMEOUT');
    assert.is(backend.calls[0]?.signal.aborted, true);
    assert.is(await hasSettled(task.released), false);
    assert.is(adapter.inFlightTaskCount, 1);
    backend.calls[0]?.answer();
    await task.released;
    assert.is(adapter.inFlightTaskCount, 0);
    assert.is(adapter.counters.failures.get('load/timeout'), 1);
    assert.is(adapter.counters.loadedCount, 0);
  });

  test('a caller may set a sooner deadline', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    backend.conduct = 'wait';
    const hits = adapter.lookup([l2Key(1)], [100], 500);
    await turns();
    clock.advance(500);
    assert.equal([...(await hits)], [0]);
  });

  test('a store that ends late has failed for its caller and counts in the usage', async () => {
    const { adapter, backend, clock, told } = new L2AdapterHouse();
    backend.conduct = 'wait';
    const task = adapter.store([objectOf(1)]);
    await turns();
    clock.advance(TASK_TIMEOUT_MS);
    assert.is(codeOf((await task.outcome)[0]), 'ERR_L2_TIMEOUT');
    assert.is(adapter.usage().usedBytes, 0);
    backend.calls[0]?.answer();
    await task.released;
    assert.is(adapter.usage().usedBytes, 100);
    assert.equal(told, ['stored 1']);
  });

  test('a rejection is an error of each object, and so is an answer that is none', async () => {
    const { adapter, backend } = new L2AdapterHouse();
    const objects = [objectOf(1), objectOf(2)];
    const lies: (() => unknown)[] = [
      () => ['stored'],
      () => undefined,
      () => ['stored', 'well stored'],
      () => ['loaded', -1],
    ];
    backend.conduct = { reject: new Error('disk on fire') };
    const results = await adapter.store(objects).outcome;
    assert.ok(results.every((result) => (result as Error).message === 'disk on fire'));
    for (const lie of lies) {
      const house = new L2AdapterHouse();
      house.backend.conduct = { lie };
      const answers = await house.adapter.store(objects).outcome;
      assert.is(codeOf(answers[1]), 'ERR_L2_STORE', String(lie));
      assert.is(house.adapter.usage().objectCount <= 1, true);
    }
  });

  test('a look-up that gets nonsense misses', async () => {
    for (const answer of [[true], ['100'], [Number.NaN], [-100], null, [new Error('no')]]) {
      const { adapter, backend } = new L2AdapterHouse();
      backend.conduct = { lie: () => answer };
      assert.equal([...(await adapter.lookup([l2Key(1)], [100]))], [0], String(answer));
      assert.is(adapter.status()['locked_object_count'], 0);
    }
  });

  test('a value of another size is no hit, and is deleted', async () => {
    const { adapter, backend } = new L2AdapterHouse();
    backend.plant(l2Key(1), new Uint8Array(99));
    backend.plant(l2Key(2), new Uint8Array(100));
    assert.equal([...(await adapter.lookup([l2Key(1), l2Key(2)], [100, 100]))], [0, 1]);
    await turns();
    assert.is(backend.values.size, 1);
    assert.is(adapter.counters.failures.get('lookup/wrong_size'), 1);
  });

  test('in a store that others use, too, such a value stays', async () => {
    const { adapter, backend } = new L2AdapterHouse({ isShared: true });
    backend.plant(l2Key(1), new Uint8Array(99));
    assert.equal([...(await adapter.lookup([l2Key(1)], [100]))], [0]);
    await turns();
    assert.is(backend.values.size, 1);
  });

  test('no more bytes than the bound are in flight, and every store gets its turn', async () => {
    const { adapter, backend } = new L2AdapterHouse({ inFlightMaxBytes: 250 });
    backend.conduct = 'wait';
    const tasks = [1, 2, 3, 4].map((id) => adapter.store([objectOf(id)]));
    await turns();
    assert.is(backend.waiting().length, 2);
    assert.is(adapter.inFlightBytes, 200);
    for (let left = 4; left > 0; left -= 1) {
      backend.waiting()[0]?.answer();
      await turns();
      assert.ok(backend.waiting().length <= 2);
    }
    for (const { outcome } of tasks) assert.equal(await outcome, ['stored']);
    assert.is(adapter.inFlightBytes, 0);
  });

  test('what waits for its turn when its time is over never reaches the backend', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse({ inFlightMaxBytes: 100 });
    backend.conduct = 'wait';
    const first = adapter.load([emptyObject(1)]);
    const second = adapter.load([emptyObject(2)]);
    await turns();
    clock.advance(TASK_TIMEOUT_MS);
    assert.is(codeOf((await second.outcome)[0]), 'ERR_L2_TIMEOUT');
    await second.released;
    assert.is(await hasSettled(first.released), false);
    assert.is(backend.calls.length, 1);
  });

  test('nor does it when another part of the same task made way for it', async () => {
    const mib = 1024 * 1024;
    const { adapter, backend, clock } = new L2AdapterHouse({ inFlightMaxBytes: 80 * mib });
    backend.conduct = 'wait';
    const first = adapter.load([emptyObject(1, 40 * mib)]);
    const second = adapter.load([emptyObject(2, 60 * mib), emptyObject(3, 10 * mib)]);
    await turns();
    assert.is(backend.calls.length, 1);
    clock.advance(TASK_TIMEOUT_MS);
    await turns();
    assert.is(backend.calls.length, 1);
    await second.released;
    assert.is(await hasSettled(first.released), false);
    assert.is(adapter.inFlightBytes, 40 * mib);
  });
});

suite('L2 adapter: locks', (test) => {
  test('a hit is locked until it is unlocked as often as it was found', async () => {
    const { adapter, backend, told } = new L2AdapterHouse();
    await adapter.store([objectOf(1), objectOf(2)]).outcome;
    await adapter.lookup([l2Key(1)], [100]);
    await adapter.lookup([l2Key(1)], [100]);
    const both = [l2Key(1), l2Key(2)];
    assert.equal(
      (await adapter.delete(both)).map((r) => codeOf(r) ?? r),
      ['ERR_L2_LOCKED', 'deleted'],
    );
    adapter.unlock([l2Key(1)]);
    assert.is(codeOf((await adapter.delete([l2Key(1)]))[0]), 'ERR_L2_LOCKED');
    adapter.unlock([l2Key(1), l2Key(5)]);
    adapter.unlock([l2Key(5)]);
    assert.equal(await adapter.delete([l2Key(1)]), ['deleted']);
    assert.is(backend.values.size, 0);
    assert.equal(told, ['stored 1 2', 'deleted 2', 'deleted 1']);
  });

  test('a look-up that answers too late leaves no lock', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    await adapter.store([objectOf(1)]).outcome;
    backend.conduct = 'wait';
    const hits = adapter.lookup([l2Key(1)], [100]);
    await turns();
    clock.advance(TASK_TIMEOUT_MS);
    assert.equal([...(await hits)], [0]);
    backend.waiting()[0]?.answer();
    await turns();
    assert.is(adapter.status()['locked_object_count'], 0);
  });
});

suite('L2 adapter: usage and capacity', (test) => {
  const usedBytes = (house: L2AdapterHouse): number => house.adapter.usage().usedBytes;

  test('an object counts once, whoever stores it again', async () => {
    const house = new L2AdapterHouse();
    const salted = objectOf(2, 50, l2Key(2, { cacheSalt: 'a' }));
    for (let i = 0; i < 3; i += 1) await house.adapter.store([objectOf(1), salted]).outcome;
    assert.is(usedBytes(house), 150);
    assert.equal(
      [...house.adapter.usage().bytesBySalt],
      [
        ['', 100],
        ['a', 50],
      ],
    );
    await house.adapter.delete([salted.key, salted.key]);
    assert.equal([...house.adapter.usage().bytesBySalt], [['', 100]]);
    await house.adapter.delete([l2Key(77)]);
    assert.is(usedBytes(house), 100);
  });

  test('a store that replaces values does not count them twice', async () => {
    const house = new L2AdapterHouse();
    house.backend.conduct = { lie: (truth) => truth.map(() => 'stored') };
    for (let i = 0; i < 3; i += 1) await house.adapter.store([objectOf(1)]).outcome;
    assert.is(usedBytes(house), 100);
    assert.is(house.adapter.usage().objectCount, 1);
  });

  test('a store that ends during a deletion counts; what it only found does not', async () => {
    const house = new L2AdapterHouse();
    const { adapter, backend } = house;
    await adapter.store([objectOf(1), objectOf(2)]).outcome;
    backend.conduct = (operation) => (operation === 'delete' ? 'wait' : 'answer');
    const deletion = adapter.delete([l2Key(1), l2Key(2)]);
    await turns();
    backend.values.delete([...backend.values.keys()][0] as string);
    assert.equal(await adapter.store([objectOf(1), objectOf(2)]).outcome, ['stored', 'present']);
    backend.conduct = 'answer';
    backend.calls.at(-2)?.answer();
    assert.equal(await deletion, ['deleted', 'deleted']);
    assert.is(adapter.usage().objectCount, 1);
    assert.is(usedBytes(house), 100);
  });

  test('what a look-up finds or misses corrects what is known', async () => {
    const house = new L2AdapterHouse();
    const { adapter, backend } = house;
    backend.plant(l2Key(1), new Uint8Array(100));
    await adapter.lookup([l2Key(1)], [100]);
    assert.is(usedBytes(house), 100);
    backend.values.clear();
    adapter.unlock([l2Key(1)]);
    await adapter.lookup([l2Key(1)], [100]);
    assert.is(usedBytes(house), 0);
    assert.equal(house.told, ['stored 1', 'deleted 1']);
  });

  test('a miss that is older than a store does not undo it', async () => {
    const house = new L2AdapterHouse();
    house.backend.conduct = (operation) =>
      operation === 'lookup' ? { lie: () => [null] } : 'answer';
    const early = house.adapter.lookup([l2Key(1)], [100]);
    await house.adapter.store([objectOf(1)]).outcome;
    await early;
    assert.is(usedBytes(house), 100);
  });

  test('what does not fit is refused, and is counted', async () => {
    const house = new L2AdapterHouse({ capacityBytes: 250 });
    const results = await house.adapter.store([objectOf(1), objectOf(2), objectOf(3)]).outcome;
    assert.equal(
      results.map((r) => codeOf(r) ?? r),
      ['stored', 'stored', 'ERR_L2_FULL'],
    );
    assert.is(house.adapter.counters.failures.get('store/full'), 1);
    assert.equal(await house.adapter.store([objectOf(1)]).outcome, ['present']);
    assert.is(house.adapter.isHealthy, true);
  });

  test('stores in flight count, too', async () => {
    const house = new L2AdapterHouse({ capacityBytes: 250 });
    house.backend.conduct = 'wait';
    const tasks = [1, 2, 3].map((id) => house.adapter.store([objectOf(id)]));
    assert.is(codeOf((await tasks[2]?.outcome)?.[0]), 'ERR_L2_FULL');
    for (const call of house.backend.waiting()) call.reject(new Error('no'));
    await turns();
    house.backend.conduct = 'answer';
    assert.equal(await house.adapter.store([objectOf(4), objectOf(5)]).outcome, [
      'stored',
      'stored',
    ]);
  });

  test('eviction is asked for room first', async () => {
    const house = new L2AdapterHouse({ capacityBytes: 250 });
    const { adapter } = house;
    await adapter.store([objectOf(1), objectOf(2)]).outcome;
    const asked: number[] = [];
    adapter.onFull(async (neededBytes) => {
      asked.push(neededBytes);
      await adapter.delete([l2Key(1)]);
    });
    assert.equal(await adapter.store([objectOf(3)]).outcome, ['stored']);
    assert.equal(asked, [50]);
    adapter.onFull(() => Promise.reject(new Error('nothing to evict')));
    assert.is(codeOf((await adapter.store([objectOf(4)]).outcome)[0]), 'ERR_L2_FULL');
  });

  test('what was there before is counted in the order of its age', async () => {
    const house = new L2AdapterHouse({ capacityBytes: 1000, scansOnStart: true });
    const { adapter, backend, told } = house;
    for (const id of [3, 1, 2]) {
      backend.storedMs = id;
      backend.plant(l2Key(id), new Uint8Array(100));
    }
    const record = layoutRecordKey({ modelName: 'm', kvRank: 0, objectGroupId: 0 });
    backend.plant(record, new Uint8Array(4096));
    adapter.start();
    // Stores wait for it: until then nobody knows what fits.
    const tooMuch = Array.from({ length: 8 }, (_, i) => objectOf(10 + i));
    const results = await adapter.store(tooMuch).outcome;
    assert.is(results.filter((result) => codeOf(result) === 'ERR_L2_FULL').length, 1);
    assert.is(told[0], 'found 1 2 3');
    assert.is(usedBytes(house), 1000);
    assert.is(adapter.status()['is_scanning'], false);
  });

  test('only what was deleted during the scan is none of its findings', async () => {
    const house = new L2AdapterHouse({ scansOnStart: true });
    const { adapter, backend } = house;
    const { promise: isListed, resolve: goOn } = Promise.withResolvers<void>();
    const list = backend.list.bind(backend);
    backend.list = async (options) => {
      const page = await list(options);
      await isListed;
      return page;
    };
    for (const id of [1, 2, 3]) backend.plant(l2Key(id), new Uint8Array(100));
    adapter.start();
    await turns();
    await adapter.delete([l2Key(1)]);
    // Most of what is looked up is not there, and a scan may take an hour: none of it is kept.
    backend.conduct = { lie: () => [null] };
    await adapter.lookup([l2Key(2)], [100]);
    goOn();
    await turns();
    assert.equal(house.told, ['found 2 3']);
  });

  test('a list that fails is asked for again', async () => {
    const house = new L2AdapterHouse({ scansOnStart: true });
    const list = house.backend.list.bind(house.backend);
    let isDown = true;
    house.backend.list = (options) => (isDown ? Promise.reject(new Error('down')) : list(options));
    house.backend.plant(l2Key(1), new Uint8Array(100));
    house.adapter.start();
    await turns();
    assert.is(usedBytes(house), 0);
    isDown = false;
    house.clock.advance(10_000);
    await turns();
    assert.is(usedBytes(house), 100);
  });
});
