/** Contract of L2 backends: damaged values, refused objects, calls that are broken off. */
import * as assert from 'uvu/assert';
import type { L2Object } from '../../src/l2/backend.ts';
import { KIB } from '../../src/units.ts';
import { l2Key, l2Value } from '../support/l2-objects.ts';
import type { TestFunction } from '../support/suite.ts';
import {
  expectLoaded,
  type InHouse,
  ignoreRejection,
  isKept,
  isMiss,
  keysUpTo,
  never,
  OBJECT_BYTES,
  objectsOf,
  sameBytes,
  storeAll,
} from './l2-backend-house.ts';

export function defineFailureTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'a value that was cut or grew in the store is missing; its neighbours are not',
    inHouse(async (house) => {
      const { store, backend, arena } = house;
      if (!store.plant) return;
      const objects = objectsOf(arena, keysUpTo(5));
      await storeAll(backend, objects);
      const [first, cut, third, grown, fifth] = objects as [L2Object, ...L2Object[]];
      await store.plant((cut as L2Object).key, l2Value(100, 0));
      await store.plant((grown as L2Object).key, l2Value(5000, 0));
      arena.reset();
      const targets = objects.map(({ key }) => arena.object(key, OBJECT_BYTES));
      const results = await backend.load(targets, never);
      assert.ok(isMiss(results[1]) && isMiss(results[3]), `${results}`);
      assert.equal([results[0], results[2], results[4]], ['loaded', 'loaded', 'loaded']);
      assert.ok(arena.guardsHold(targets.map(({ bytes }) => bytes)), 'bytes outside have changed');
      assert.ok(first && third && fifth);
      // Whole values again, by storing or after deleting.
      await backend.delete([(cut as L2Object).key, (grown as L2Object).key], never);
      arena.reset();
      const again = objectsOf(arena, keysUpTo(5));
      await storeAll(backend, again);
      await expectLoaded(house, again);
    }),
  );

  test(
    'an object that cannot be stored fails alone',
    inHouse(async (house) => {
      const { store, backend, arena } = house;
      if (!store.spoil) return;
      const keys = keysUpTo(4);
      await store.spoil(l2Key(2));
      const objects = objectsOf(arena, keys);
      const results = await backend.store(objects, never);
      assert.instance(results[2], Error);
      assert.ok([0, 1, 3].every((i) => isKept(results[i])));
      const [size] = await backend.lookup([l2Key(2)], never);
      assert.ok(size === null || size instanceof Error);
      await expectLoaded(
        house,
        objects.filter((_, i) => i !== 2),
      );
    }),
  );

  test(
    'calls under a signal that is over settle, and the backend works on',
    inHouse(async (house) => {
      const { backend, arena } = house;
      const objects = objectsOf(arena, keysUpTo(3));
      const over = AbortSignal.abort(new Error('over'));
      const keys = objects.map(({ key }) => key);
      await backend.store(objects, over).catch(ignoreRejection);
      await backend.lookup(keys, over).catch(ignoreRejection);
      await backend.load(objectsOf(arena, keys), over).catch(ignoreRejection);
      await backend.delete([l2Key(50)], over).catch(ignoreRejection);
      await storeAll(backend, objects);
      await expectLoaded(house, objects);
    }),
  );
}

export function defineAbortTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'a store that is broken off leaves whole values or none',
    inHouse(async (house) => {
      const { backend, arena } = house;
      const objects = objectsOf(arena, keysUpTo(16), 256 * KIB);
      const abort = new AbortController();
      const running = backend.store(objects, abort.signal).catch(ignoreRejection);
      setImmediate(() => abort.abort(new Error('broken off')));
      await running;
      const expected = objects.map(({ bytes }) => Uint8Array.from(bytes));
      for (const { bytes } of objects) bytes.fill(0); // the caller's again
      const sizes = await backend.lookup(
        objects.map(({ key }) => key),
        never,
      );
      const there = objects.filter((_, i) => sizes[i] !== null);
      assert.ok(sizes.every((size) => size === null || size === 256 * KIB));
      const targets = there.map(({ key }) => arena.object(key, 256 * KIB));
      assert.ok((await backend.load(targets, never)).every((result) => result === 'loaded'));
      for (const [i, { key }] of there.entries()) {
        const index = objects.findIndex((object) => object.key === key);
        assert.ok(sameBytes((targets[i] as L2Object).bytes, expected[index]));
      }
    }),
  );

  test(
    'a load that is broken off leaves its buffers alone once it has settled',
    inHouse(async (house) => {
      const { backend, arena } = house;
      const objects = objectsOf(arena, keysUpTo(8), 256 * KIB);
      await storeAll(backend, objects);
      const targets = objects.map(({ key }) => arena.object(key, 256 * KIB));
      const abort = new AbortController();
      const running = backend.load(targets, abort.signal).catch(ignoreRejection);
      setImmediate(() => abort.abort(new Error('broken off')));
      const results = (await running) ?? [];
      for (const [i, result] of results.entries()) {
        if (result !== 'loaded') continue;
        assert.ok(sameBytes((targets[i] as L2Object).bytes, (objects[i] as L2Object).bytes));
      }
      for (const { bytes } of targets) bytes.fill(0x77);
      await expectLoaded(house, objects); // as long as this takes, late data would arrive
      assert.ok(targets.every(({ bytes }) => bytes.every((byte) => byte === 0x77)));
    }),
  );
}
