/** Contract of L2 backends: what is stored comes back, whole and under its key. */
import * as assert from 'uvu/assert';
import type { L2Object } from '../../src/l2/backend.ts';
import { l2Key, l2Value } from '../support/l2-objects.ts';
import type { TestFunction } from '../support/suite.ts';
import {
  expectAbsent,
  expectLoaded,
  type InHouse,
  isKept,
  keysUpTo,
  never,
  OBJECT_BYTES,
  objectsOf,
  sameBytes,
  storeAll,
} from './l2-backend-house.ts';

export function defineValueTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'what is stored is looked up with its size and loaded byte for byte',
    inHouse(async (house) => {
      const keys = keysUpTo(5);
      const objects = objectsOf(house.arena, keys);
      await storeAll(house.backend, objects);
      assert.equal(
        await house.backend.lookup(keys, never),
        keys.map(() => OBJECT_BYTES),
      );
      await expectLoaded(house, objects);
    }),
  );

  test(
    'what was never stored is absent',
    inHouse(async (house) => {
      const keys = keysUpTo(3);
      await expectAbsent(house, keys);
      assert.equal(
        await house.backend.delete(keys, never),
        keys.map(() => 'absent'),
      );
    }),
  );

  test(
    'results stand in the order of the batch',
    inHouse(async ({ backend, arena }) => {
      const keys = keysUpTo(7);
      const present = keys.filter((_, i) => i % 3 === 1);
      await storeAll(backend, objectsOf(arena, present));
      const sizes = keys.map((_, i) => (i % 3 === 1 ? OBJECT_BYTES : null));
      assert.equal(await backend.lookup(keys, never), sizes);
      const targets = keys.map((key) => arena.object(key, OBJECT_BYTES));
      assert.equal(
        await backend.load(targets, never),
        sizes.map((size) => (size === null ? 'missing' : 'loaded')),
      );
      for (const [i, { bytes }] of targets.entries()) {
        if (i % 3 === 1) assert.ok(sameBytes(bytes, l2Value(OBJECT_BYTES, (i - 1) / 3)));
      }
    }),
  );

  test(
    'a batch of nothing does nothing',
    inHouse(async ({ backend }) => {
      assert.equal(await backend.store([], never), []);
      assert.equal(await backend.lookup([], never), []);
      assert.equal(await backend.load([], never), []);
      assert.equal(await backend.delete([], never), []);
    }),
  );
}

export function defineSizeTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'sizes need not fit blocks of the store',
    inHouse(async (house) => {
      const sizes = [1, 511, 4095, 4096, 4097, 100_003];
      const objects = sizes.map((size, i) => house.arena.object(l2Key(i), l2Value(size, i)));
      await storeAll(house.backend, objects);
      const keys = objects.map(({ key }) => key);
      assert.equal(await house.backend.lookup(keys, never), sizes);
      await expectLoaded(house, objects);
    }),
  );

  test(
    'a value of another size is missing, and nothing is written outside of the buffer',
    inHouse(async ({ backend, arena }) => {
      const keys = keysUpTo(4);
      await storeAll(backend, objectsOf(arena, keys));
      arena.reset();
      const sizes = [OBJECT_BYTES - 1, OBJECT_BYTES + 1, 1, 4 * OBJECT_BYTES];
      const targets = keys.map((key, i) => arena.object(key, sizes[i] as number));
      assert.equal(
        await backend.load(targets, never),
        keys.map(() => 'missing'),
      );
      assert.ok(arena.guardsHold(targets.map(({ bytes }) => bytes)), 'bytes outside have changed');
    }),
  );

  test(
    'storing again what is there keeps it',
    inHouse(async (house) => {
      const objects = objectsOf(house.arena, keysUpTo(3));
      await storeAll(house.backend, objects);
      await storeAll(house.backend, objects);
      await expectLoaded(house, objects);
    }),
  );

  test(
    'a deleted value is gone and can be stored again; others stay',
    inHouse(async (house) => {
      const objects = objectsOf(house.arena, keysUpTo(4));
      await storeAll(house.backend, objects);
      const [first, second, third, fourth] = objects as [L2Object, L2Object, L2Object, L2Object];
      const keys = [second.key, l2Key(99), fourth.key];
      const results = await house.backend.delete(keys, never);
      assert.equal(results, ['deleted', 'absent', 'deleted']);
      await expectAbsent(house, [second.key, fourth.key]);
      await expectLoaded(house, [first, third]);
      await storeAll(house.backend, [second]);
      await expectLoaded(house, [first, second, third]);
    }),
  );

  test(
    'the status is plain data without secrets of its own making',
    inHouse(async ({ backend }) => {
      const status = backend.status();
      assert.equal(JSON.parse(JSON.stringify(status)), status);
    }),
  );
}

export function defineLargeValueTest(
  test: TestFunction,
  inHouse: InHouse,
  largeSizeBytes: number,
): void {
  test(
    'a large value comes back as it was',
    inHouse(async (house) => {
      const object = house.arena.object(l2Key(1), l2Value(largeSizeBytes, 1));
      await storeAll(house.backend, [object]);
      assert.equal(await house.backend.lookup([object.key], never), [largeSizeBytes]);
      await expectLoaded(house, [object]);
    }),
  );
}

/** Names that have confused some file system, protocol or parser. */
const HOSTILE_MODELS = [
  'org/x',
  'org-SEP-x',
  'org--x',
  '..',
  '../../../etc/passwd',
  '/',
  '.',
  '~',
  'a b',
  'a\r\nSET x y\r\n',
  'a\u0000b',
  'a%2Fb',
  'a?b#c&d=e',
  'modèle-ü-漢字-🦜',
  '-rf',
  'C:\\models\\x',
  'm'.repeat(300),
  `${'deep/'.repeat(40)}x`,
  '__proto__',
  '',
];
const HOSTILE_SALTS = [
  's',
  'S',
  '.',
  '..',
  ' ',
  'a\r\nb',
  'x.data',
  'sél-漢字',
  's'.repeat(128),
  '0',
  '%40',
];

export function defineKeyTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'keys that differ in one part only are different objects',
    inHouse(async (house) => {
      const keys = [
        l2Key(1),
        l2Key(2),
        l2Key(1, { modelName: 'org/model-8b' }),
        l2Key(1, { kvRank: 0x0100_0101 }),
        l2Key(1, { objectGroupId: 1 }),
        l2Key(1, { cacheSalt: 'tenant-a' }),
        l2Key(1, { cacheSalt: 'tenant-b' }),
      ];
      const objects = objectsOf(house.arena, keys);
      for (const [i, object] of objects.entries()) {
        await expectAbsent(house, keys.slice(i));
        await storeAll(house.backend, [object]);
      }
      await expectLoaded(house, objects);
    }),
  );

  test(
    'keys of unusual length and range are kept apart',
    inHouse(async (house) => {
      const keys = [
        l2Key(0, { chunkHash: Uint8Array.of(1) }),
        l2Key(0, { chunkHash: Uint8Array.of(0, 1) }),
        l2Key(0, { chunkHash: new Uint8Array(64).fill(255) }),
        l2Key(0, { kvRank: 0 }),
        l2Key(0, { kvRank: 0xff_ffff_ffff }),
        l2Key(0, { kvRank: 0xffff_ffff }),
        l2Key(0, { objectGroupId: 0x11 }),
        l2Key(0, { objectGroupId: 65_535 }),
      ];
      const objects = objectsOf(house.arena, keys);
      await storeAll(house.backend, objects);
      await expectLoaded(house, objects);
    }),
  );

  test(
    'hostile names are kept apart, or refused without harm',
    inHouse(async (house) => {
      const { backend, arena } = house;
      const keys = [
        ...HOSTILE_MODELS.map((modelName) => l2Key(7, { modelName })),
        ...HOSTILE_SALTS.map((cacheSalt) => l2Key(7, { cacheSalt })),
      ];
      const objects = objectsOf(arena, keys, 64);
      const results = await backend.store(objects, never);
      const kept = objects.filter((_, i) => isKept(results[i]));
      const refused = objects.filter((_, i) => !isKept(results[i]));
      assert.ok(kept.length >= keys.length - 4, `${refused.length} keys were refused`);
      await expectLoaded(house, kept);
      for (const size of await backend.lookup(
        refused.map(({ key }) => key),
        never,
      )) {
        assert.ok(size === null || size instanceof Error, 'a refused key has a value');
      }
    }),
  );
}
