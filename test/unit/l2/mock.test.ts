import * as assert from 'uvu/assert';
import { backendType } from '../../../src/l2/adapters/mock.ts';
import { GIB, MIB } from '../../../src/units.ts';
import { openBackend } from '../../support/l2-context.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import { refuses, rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const never = new AbortController().signal;
const clock = new VirtualClock();
const open = (json: Readonly<Record<string, unknown>>) =>
  openBackend(backendType, json, {}, { clock });
const objectOf = (index: number, sizeBytes = MIB) => ({
  key: l2Key(index),
  bytes: l2Value(sizeBytes, index),
});

suite('mock store', (test) => {
  test('takes as long as the bytes of a batch take', async () => {
    // 1 MiB per millisecond.
    const store = await open({ max_size_gb: 1, mock_bandwidth_gb: 1000 / 1024 });
    let isDone = false;
    const storing = store.store([objectOf(1), objectOf(2)], never).then((results) => {
      isDone = true;
      return results;
    });
    clock.advance(1.9);
    await Promise.resolve();
    assert.is(isDone, false);
    clock.advance(0.2);
    assert.equal(await storing, ['stored', 'stored']);
  });

  test('refuses what does not fit, and has room again after deletes', async () => {
    const store = await open({ max_size_gb: MIB / GIB, mock_bandwidth_gb: 1 });
    const run = async (index: number) => {
      const storing = store.store([objectOf(index, MIB - 10)], never);
      clock.advance(1000);
      return (await storing)[0];
    };
    assert.is(await run(1), 'stored');
    assert.is(await run(1), 'present');
    assert.match(`${await run(2)}`, /full/);
    await store.delete([l2Key(1)], never);
    assert.is(await run(2), 'stored');
    assert.equal(store.status(), {
      type: 'MockL2Adapter',
      stored_object_count: 1,
      current_size_bytes: MIB - 10,
      max_capacity_bytes: MIB,
    });
  });

  test('a load that is broken off does not touch its buffer', async () => {
    const store = await open({ max_size_gb: 1, mock_bandwidth_gb: 1 });
    const storing = store.store([objectOf(1)], never);
    clock.advance(1000);
    await storing;
    const abort = new AbortController();
    const target = { key: l2Key(1), bytes: new Uint8Array(MIB) };
    const loading = store.load([target], abort.signal);
    abort.abort(new Error('enough'));
    await rejects(loading, /broken off/);
    clock.advance(1000);
    assert.ok(target.bytes.every((byte) => byte === 0));
  });

  test('needs a size and a speed', async () => {
    const opening = async (json: Readonly<Record<string, unknown>>) => open(json);
    await refuses(opening({ mock_bandwidth_gb: 1 }), 'ERR_CONFIG', /max_size_gb/);
    await refuses(opening({ max_size_gb: 0, mock_bandwidth_gb: 1 }), 'ERR_CONFIG', /max_size_gb/);
  });
});
