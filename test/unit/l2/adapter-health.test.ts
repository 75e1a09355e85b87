import * as assert from 'uvu/assert';
import type { KvdError } from '../../../src/errors.ts';
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

suite('L2 adapter: health', (test) => {
  const failing = { reject: new Error('connection refused') };

  test('a store that fails all the time is left alone, and found again', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    await adapter.store([objectOf(1)]).outcome;
    backend.conduct = failing;
    for (let i = 0; i < 4; i += 1) await adapter.lookup([l2Key(1)], [100]);
    assert.is(adapter.isHealthy, false);
    const callCount = backend.calls.length;
    assert.equal([...(await adapter.lookup([l2Key(1)], [100]))], [0]);
    assert.is(backend.calls.length, callCount);
    clock.advance(5_000); // asks by itself, in vain
    await turns();
    assert.is(backend.calls.length, callCount + 1);
    backend.conduct = 'answer';
    clock.advance(9_999);
    await turns();
    assert.is(adapter.isHealthy, false);
    clock.advance(1);
    await turns();
    assert.is(adapter.isHealthy, true);
    assert.equal([...(await adapter.lookup([l2Key(1)], [100]))], [1]);
  });

  test('the back-off ends at a minute', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    backend.conduct = failing;
    for (let i = 0; i < 4; i += 1) await adapter.lookup([l2Key(1)], [100]);
    for (let i = 0; i < 10; i += 1) {
      clock.advance(60_000);
      await turns();
    }
    const callCount = backend.calls.length;
    clock.advance(60_000);
    await turns();
    assert.is(backend.calls.length, callCount + 1);
  });

  test('a folder that cannot be written to still serves hits, and can be emptied', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    await adapter.store([objectOf(1)]).outcome;
    backend.conduct = (operation) => (operation === 'store' ? failing : 'answer');
    for (let i = 0; i < 4; i += 1) await adapter.store([objectOf(2)]).outcome;
    const callCount = backend.calls.length;
    const [result] = await adapter.store([objectOf(2)]).outcome;
    assert.is(codeOf(result), 'ERR_L2_UNAVAILABLE');
    assert.is(backend.calls.length, callCount);
    assert.is(adapter.isHealthy, false);
    assert.equal([...(await adapter.lookup([l2Key(1)], [100]))], [1]);
    assert.equal(await adapter.load([emptyObject(1)]).outcome, ['loaded']);
    adapter.unlock([l2Key(1)]);
    assert.equal(await adapter.delete([l2Key(1)]), ['deleted']);
    // After the back-off one store may try.
    backend.conduct = 'wait';
    clock.advance(5_000);
    const tries = [adapter.store([objectOf(3)]), adapter.store([objectOf(4)])];
    assert.is(codeOf((await tries[1]?.outcome)?.[0]), 'ERR_L2_UNAVAILABLE');
    backend.waiting()[0]?.answer();
    assert.equal(await tries[0]?.outcome, ['stored']);
    assert.is(adapter.isHealthy, true);
  });

  test('two calls without an answer are enough', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    backend.conduct = 'wait';
    const hits = [adapter.lookup([l2Key(1)], [100]), adapter.lookup([l2Key(2)], [100])];
    await turns();
    clock.advance(TASK_TIMEOUT_MS);
    await Promise.all(hits);
    assert.equal([...(await adapter.lookup([l2Key(3)], [100]))], [0]);
    assert.is(backend.calls.length, 2);
  });

  test('one object that is refused says nothing about the store', async () => {
    const { adapter, backend } = new L2AdapterHouse({ capacityBytes: 10 });
    for (let i = 0; i < 20; i += 1) await adapter.store([objectOf(1)]).outcome;
    assert.is(adapter.isHealthy, true);
    assert.is(backend.calls.length, 0);
    assert.is(adapter.counters.failureCount('store'), 20);
  });
});

suite('L2 adapter: integrity', (test) => {
  test('a value that has changed in the store is a failure, and is deleted', async () => {
    const { adapter, backend } = new L2AdapterHouse({ hasChecksum: true });
    await adapter.store([objectOf(1), objectOf(2)]).outcome;
    const damaged = objectOf(1).bytes;
    damaged[50] = (damaged[50] as number) ^ 1;
    backend.plant(l2Key(1), damaged);
    const keys = [l2Key(1), l2Key(2)];
    await adapter.lookup(keys, [100, 100]);
    const results = await adapter.load([emptyObject(1), emptyObject(2)]).outcome;
    assert.equal(
      results.map((r) => codeOf(r) ?? r),
      ['ERR_L2_CORRUPT', 'loaded'],
    );
    await turns();
    assert.is(backend.values.size, 1);
    assert.is(adapter.usage().objectCount, 1);
    assert.is(adapter.counters.failures.get('load/corrupt'), 1);
  });

  test('a value of somebody else is unchecked', async () => {
    const { adapter, backend } = new L2AdapterHouse({ hasChecksum: true });
    backend.plant(l2Key(1), objectOf(5).bytes);
    assert.equal(await adapter.load([emptyObject(1)]).outcome, ['loaded']);
    assert.equal(await adapter.store([objectOf(1)]).outcome, ['present']);
    assert.equal(await adapter.load([emptyObject(1)]).outcome, ['loaded']);
  });
});

suite('L2 adapter: end', (test) => {
  test('a drained adapter finishes what runs and takes nothing new', async () => {
    const { adapter, backend } = new L2AdapterHouse();
    backend.conduct = 'wait';
    const running = adapter.store([objectOf(1)]);
    const drained = adapter.drain();
    assert.is(codeOf((await adapter.store([objectOf(2)]).outcome)[0]), 'ERR_L2_UNAVAILABLE');
    assert.equal([...(await adapter.lookup([l2Key(1)], [100]))], [0]);
    assert.is(await hasSettled(drained), false);
    backend.waiting()[0]?.answer();
    await drained;
    assert.equal(await running.outcome, ['stored']);
  });

  test('a backend that never lets go cannot keep the server from stopping', async () => {
    const { adapter, backend, clock, log } = new L2AdapterHouse();
    backend.conduct = 'wait';
    const task = adapter.store([objectOf(1)]);
    await turns();
    const closed = adapter.close();
    await turns();
    clock.advance(10_000);
    await turns();
    assert.is(codeOf((await task.outcome)[0]), 'ERR_SHUTTING_DOWN');
    clock.advance(5_000);
    await closed;
    assert.is(backend.isClosed, true);
    assert.ok(log.has(/1 tasks hold on to their buffers/));
  });

  test('when the time for a stop is over, closing takes few seconds', async () => {
    const { adapter, backend, clock } = new L2AdapterHouse();
    backend.conduct = 'wait';
    adapter.store([objectOf(1)]);
    await turns();
    const closed = adapter.close(false);
    clock.advance(0);
    await turns();
    clock.advance(2_000);
    assert.is(await hasSettled(closed), true);
  });
});
