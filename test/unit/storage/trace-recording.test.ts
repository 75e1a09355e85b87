import * as assert from 'uvu/assert';
import { NO_SLOT, type ObjectKeys } from '../../../src/core/object-table.ts';
import type { StoreGroup } from '../../../src/storage/storage-manager.ts';
import { CallTracer, type TracedCall } from '../../../src/storage/trace-recording.ts';
import { ALIGN_BYTES, buildL1House, RULES, shapeOf } from '../../support/l1-house.ts';
import { turns } from '../../support/l2-house.ts';
import { ScriptedStore } from '../../support/scripted-store.ts';
import { suite } from '../../support/suite.ts';

function tracedHouse(units = 16) {
  const calls: TracedCall[] = [];
  const trace = { record: (call: TracedCall) => void calls.push(call) };
  const house = buildL1House({ sizeBytes: units * ALIGN_BYTES, trace });
  /** What was recorded since the last time. */
  const take = () => calls.splice(0).map(textOf);
  return { ...house, calls, take, trace };
}

/** `finish_write 7:0 7:1`, each key with its prompt and chunk, and its tenant. */
function textOf({ operation, keys, extraCount }: TracedCall): string {
  const named = keys.map(({ chunkHash, namespace }) => {
    const view = new DataView(chunkHash.buffer, chunkHash.byteOffset);
    const { cacheSalt, workerId } = namespace;
    const rank = workerId > 0 ? `/${workerId}` : '';
    return `${view.getUint32(0)}:${view.getUint32(4)}${rank}${cacheSalt && `@${cacheSalt}`}`;
  });
  const extra = extraCount === undefined ? [] : [`+${extraCount}`];
  return [operation, ...named, ...extra].join(' ');
}

suite('calls of the storage room, recorded', (test) => {
  test('a store, a lookup and a read have the keys that they are about', () => {
    const { storage, keysOf, take } = tracedHouse();
    const keys = keysOf(7, 2, 1, 'tenant');
    const { slots } = storage.reserveStore(keys, shapeOf());
    assert.equal(take(), ['reserve_write 7:0@tenant 7:1@tenant']);
    storage.finishStore(slots);
    assert.equal(take(), ['finish_write 7:0@tenant 7:1@tenant']);
    const { result } = storage.submitPrefetch(keysOf(7, 3, 1, 'tenant'), 3, RULES);
    assert.equal(take(), ['submit_prefetch_task 7:0@tenant 7:1@tenant 7:2@tenant +2']);
    const places = storage.acquireForRead(keys, shapeOf());
    storage.releaseRead(places!.slots);
    assert.equal(take(), [
      'read_prefetched_results.__enter__ 7:0@tenant 7:1@tenant',
      'read_prefetched_results.__exit__ 7:0@tenant 7:1@tenant',
    ]);
    storage.releaseHolds(result!.slots.subarray(1), 1);
    storage.freeHolds(result!.slots, 2);
    assert.equal(take(), [
      'finish_read_prefetched 7:1@tenant +0',
      'finish_read_prefetched 7:0@tenant 7:1@tenant +1',
    ]);
  });

  test('keys of several ranks come chunk by chunk', () => {
    const { storage, keysOf, take } = tracedHouse();
    storage.submitPrefetch(keysOf(1, 2, 2), 1, RULES);
    assert.equal(take(), ['submit_prefetch_task 1:0 1:0/1 1:1 1:1/1 +0']);
  });

  test('a read that finds too little has an end all the same', () => {
    const { storage, keysOf, store, take } = tracedHouse();
    store(keysOf(1, 1));
    take();
    assert.is(storage.acquireForRead(keysOf(1, 2), shapeOf()), null);
    assert.equal(take(), [
      'read_prefetched_results.__enter__ 1:0 1:1',
      'read_prefetched_results.__exit__ 1:0 1:1',
    ]);
  });

  test('what is given back after a clear has its own key, whoever has its place now', () => {
    const { storage, keysOf, store, take } = tracedHouse();
    store(keysOf(1, 2));
    const places = storage.acquireForRead(keysOf(1, 2), shapeOf());
    storage.clear(true);
    store(keysOf(2, 4));
    take();
    storage.releaseRead(places!.slots);
    assert.equal(take(), ['read_prefetched_results.__exit__ 1:0 1:1']);
  });

  test('a lookup of a tenant that has stored nothing is recorded, too', () => {
    const { storage, calls } = tracedHouse();
    const namespace = { modelName: 'm', worldSize: 1, workerId: 0, objectGroupId: 0 };
    const id = storage.findNamespace({ ...namespace, cacheSalt: 'new' });
    const hashes = { bytes: new Uint8Array(32), count: 1, hashSizeBytes: 32 };
    const keys: ObjectKeys = { hashes, firstChunk: 0, chunkCount: 1, namespaceIds: [id] };
    storage.submitPrefetch(keys, 1, RULES);
    assert.is(calls[0]?.keys[0]?.namespace.cacheSalt, 'new');
  });

  test('a lookup that holds nothing gives back what the recorded one holds', () => {
    const { storage, keysOf, store, take } = tracedHouse();
    store(keysOf(1, 1));
    take();
    storage.submitPrefetch(keysOf(1, 2), 0, RULES);
    assert.equal(take(), ['submit_prefetch_task 1:0 1:1 +0', 'finish_read_prefetched 1:0 +0']);
  });

  test('what a slower tier loads is known when it is given back', async () => {
    const { storage, keysOf, store, take, clock } = tracedHouse();
    const l2 = new ScriptedStore();
    storage.l2.adapters.attach(l2);
    store(keysOf(1, 2));
    for (let i = 0; i < 4; i += 1) {
      clock.advance(10);
      await turns();
    }
    storage.clear(true);
    l2.holds.add('load');
    const task = storage.submitPrefetch(keysOf(1, 2), 1, RULES);
    await turns();
    assert.is(task.result, null);
    l2.releaseAll();
    for (let i = 0; i < 4; i += 1) {
      clock.advance(10);
      await turns();
    }
    take();
    storage.releaseHolds(task.result!.slots, 1);
    assert.equal(take(), ['finish_read_prefetched 1:0 1:1 +0']);
  });

  test('groups of a store are calls of their own, without the chunks that they leave out', () => {
    const { storage, keysOf, take } = tracedHouse();
    const whole: StoreGroup = { keys: keysOf(1, 3), shape: shapeOf(), isLeftOut: null };
    const part = { ...whole, keys: keysOf(2, 3), isLeftOut: Uint8Array.of(1, 0, 1) };
    const [, places] = storage.reserveStoreGroups([whole, part]);
    assert.equal(take(), ['reserve_write 1:0 1:1 1:2', 'reserve_write 2:1']);
    storage.finishStore(places!.slots);
    assert.equal(take(), ['finish_write 2:1']);
  });

  test('a reservation that is given up is not recorded as finished', () => {
    const { storage, keysOf, take } = tracedHouse();
    const { slots } = storage.reserveStore(keysOf(1, 2), shapeOf());
    take();
    storage.discardStore(slots);
    assert.equal(take(), []);
    storage.finishStore(storage.reserveStore(keysOf(2, 1), shapeOf()).slots);
    assert.equal(take(), ['reserve_write 2:0', 'finish_write 2:0']);
  });

  test('nothing is kept of slots that all of their holders have given back', () => {
    const { core, l1, trace, keysOf, store } = tracedHouse();
    store(keysOf(1, 2));
    const tracer = new CallTracer(trace, core.namespaces);
    const keys = keysOf(1, 2);
    for (let i = 0; i < 3; i += 1) {
      const places = l1.acquireForRead(keys, shapeOf());
      tracer.acquired(keys, places);
      assert.is(tracer.slotCount, 2);
      tracer.reserved({ keys, shape: shapeOf(), isLeftOut: null }, places!.slots);
      tracer.readReleased(places!.slots);
      assert.is(tracer.slotCount, 2);
      tracer.stored(Uint32Array.of(...places!.slots, NO_SLOT));
      assert.is(tracer.slotCount, 0);
      l1.releaseRead(places!.slots);
    }
  });

  test('a layout is told as shapes and dtypes, one that nobody can read as bytes', () => {
    const { storage, keysOf, calls } = tracedHouse();
    const layoutOf = (layoutText: string, objectSizeBytes: number) => {
      calls.length = 0;
      storage.reserveStore(keysOf(1, 1), { objectSizeBytes, layoutTag: 1, layoutText });
      return calls[0]?.layout;
    };
    assert.equal(layoutOf('float16[2,4,8];uint8[3]{16x4+16x1}', 131), {
      shapes: [[2, 4, 8], [3]],
      dtypes: ['torch.float16', 'torch.uint8'],
    });
    const bytes = { shapes: [[4096]], dtypes: ['torch.uint8'] };
    assert.equal(layoutOf('float16[2,4]', 4096), bytes);
    assert.equal(layoutOf('layout 7', 4096), bytes);
  });

  test('a server without a trace makes no names for lookups', () => {
    const { storage, core } = buildL1House({ sizeBytes: ALIGN_BYTES });
    storage.findNamespace({
      ...{ modelName: 'm', worldSize: 1, workerId: 0, objectGroupId: 0, cacheSalt: 'x' },
    });
    assert.is(core.namespaces.count, 0);
  });
});
