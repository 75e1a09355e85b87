/** Names of layouts in an adapter that is silent, and how much is kept of them. */
import * as assert from 'uvu/assert';
import type { L2Object } from '../../../../src/l2/backend.ts';
import { LayoutNames } from '../../../../src/storage/l2/layout-names.ts';
import { ScriptedStore } from '../../../support/scripted-store.ts';
import { silentLogger } from '../../../support/silent-logger.ts';
import { suite } from '../../../support/suite.ts';
import { VirtualClock } from '../../../support/virtual-clock.ts';

class WatchedStore extends ScriptedStore {
  readonly timeoutsMs: (number | undefined)[] = [];

  override load(objects: readonly L2Object[], timeoutMs?: number) {
    this.timeoutsMs.push(timeoutMs);
    return super.load(objects);
  }
}

function house() {
  const store = new WatchedStore();
  const clock = new VirtualClock();
  const options = { store, cacheNamespace: '', clock, log: silentLogger };
  return { store, clock, names: new LayoutNames(options), others: new LayoutNames(options) };
}

const ownerOf = (modelName: string) => ({ modelName, kvRank: 0x0100_0100, objectGroupId: 0 });

suite('L2 layout names', (test) => {
  test('a record is asked for with a deadline much shorter than that of a value', async () => {
    const { store, names } = house();
    assert.is(await names.forLoad(ownerOf('m'), 'layout'), null);
    assert.equal(store.timeoutsMs, [5000]);
  });

  test('a flushed store belongs to whoever stores there first, and that is found out', async () => {
    const { store, clock, names, others } = house();
    assert.is(await names.forStore(ownerOf('m'), 'layout'), null);
    store.values.clear();
    assert.is(await others.forStore(ownerOf('m'), 'another layout'), null);
    assert.is(names.forLoad(ownerOf('m'), 'layout'), null, 'remembered');
    clock.advance(30_000);
    assert.type(await names.forLoad(ownerOf('m'), 'layout'), 'string');
    assert.type(await names.forStore(ownerOf('m'), 'layout'), 'string');
  });

  test('a flushed store gets the record again with the next object', async () => {
    const { store, clock, names, others } = house();
    await names.forStore(ownerOf('m'), 'layout');
    store.values.clear();
    clock.advance(30_000);
    assert.is(await names.forStore(ownerOf('m'), 'layout'), null);
    assert.type(await others.forStore(ownerOf('m'), 'another layout'), 'string');
  });

  test('what is known of models is bounded: the oldest is asked for again', async () => {
    const { store, names } = house();
    for (let i = 0; i <= 16_384; i += 1) await names.forLoad(ownerOf(`m${i}`), 'layout');
    const readCount = store.timeoutsMs.length;
    await names.forLoad(ownerOf('m16384'), 'layout');
    assert.is(store.timeoutsMs.length, readCount);
    await names.forLoad(ownerOf('m0'), 'layout');
    assert.is(store.timeoutsMs.length, readCount + 1);
  });
});
