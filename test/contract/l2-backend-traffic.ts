/** Contract of L2 backends: much at once, lists, and what outlives a backend. */
import * as assert from 'uvu/assert';
import type { L2Backend } from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { MIB } from '../../src/units.ts';
import { l2Key, l2Value } from '../support/l2-objects.ts';
import type { TestFunction } from '../support/suite.ts';
import {
  expectAbsent,
  expectLoaded,
  type InHouse,
  isKept,
  isMiss,
  keysUpTo,
  never,
  OBJECT_BYTES,
  objectsOf,
  sameBytes,
  storeAll,
} from './l2-backend-house.ts';

export function defineWriterTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'many writers of one key leave one whole value',
    inHouse(async (house) => {
      const { backend, arena } = house;
      const objects = Array.from({ length: 8 }, () => arena.object(l2Key(1), l2Value(MIB, 1)));
      const all = await Promise.all(objects.map((object) => backend.store([object], never)));
      assert.ok(all.some(([result]) => isKept(result)));
      assert.equal(await backend.lookup([l2Key(1)], never), [MIB]);
      await expectLoaded(house, objects.slice(0, 1));
    }),
  );

  test(
    'a reader beside a writer gets the whole value or none',
    inHouse(async ({ backend, arena }) => {
      const value = l2Value(MIB, 3);
      const object = arena.object(l2Key(3), value);
      const target = arena.object(l2Key(3), MIB);
      for (let round = 0; round < 8; round += 1) {
        target.bytes.fill(0);
        const [[stored], [loaded]] = await Promise.all([
          backend.store([object], never),
          backend.load([target], never),
        ]);
        assert.ok(isKept(stored), `${stored}`);
        if (loaded === 'loaded') assert.ok(sameBytes(target.bytes, value), 'a torn value');
        else assert.ok(isMiss(loaded));
        await backend.delete([l2Key(3)], never);
      }
    }),
  );

  test(
    'one key several times in a batch counts as what it is',
    inHouse(async (house) => {
      const { backend, arena } = house;
      const objects = [1, 2, 1, 1].map((id) => arena.object(l2Key(id), l2Value(OBJECT_BYTES, id)));
      await storeAll(backend, objects);
      await expectLoaded(house, objects);
      const keys = objects.map(({ key }) => key);
      assert.equal(
        await backend.lookup(keys, never),
        keys.map(() => OBJECT_BYTES),
      );
      const results = await backend.delete(keys, never);
      assert.is(results.filter((result) => result === 'deleted').length >= 2, true);
      await expectAbsent(house, [l2Key(1), l2Key(2)]);
    }),
  );
}

export function defineBatchTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'many batches of many objects run at once',
    inHouse(async (house) => {
      const { backend, arena } = house;
      const batches = Array.from({ length: 8 }, (_, batch) =>
        objectsOf(
          arena,
          keysUpTo(50).map((key) => ({ ...key, objectGroupId: batch })),
        ),
      );
      await Promise.all(batches.map((objects) => storeAll(backend, objects)));
      await Promise.all(batches.map((objects) => expectLoaded(house, objects)));
      const deletions = batches.slice(0, 4).map((objects) =>
        backend.delete(
          objects.map(({ key }) => key),
          never,
        ),
      );
      assert.ok((await Promise.all(deletions)).flat().every((result) => result === 'deleted'));
      await expectLoaded(house, batches.slice(4).flat());
    }),
  );
}

async function listAll(backend: L2Backend, modelName: string | null, pageSize: number) {
  const found: { key: ObjectKey; sizeBytes: number }[] = [];
  let token: string | null = null;
  let pageCount = 0;
  do {
    const page: Awaited<ReturnType<NonNullable<L2Backend['list']>>> | undefined =
      await backend.list?.({ modelName, pageSize, token, signal: never });
    assert.ok(page);
    assert.ok(page.objects.length <= pageSize, 'a page is larger than asked for');
    found.push(...page.objects);
    token = page.nextToken;
    pageCount += 1;
    assert.ok(pageCount < 1000, 'the list does not end');
  } while (token !== null);
  return found;
}

const keyText = ({ chunkHash, modelName, kvRank, objectGroupId, cacheSalt }: ObjectKey): string =>
  JSON.stringify([
    Buffer.from(chunkHash).toString('hex'),
    modelName,
    kvRank,
    objectGroupId,
    cacheSalt,
  ]);

export function defineListTests(test: TestFunction, inHouse: InHouse): void {
  test(
    'a list names every object once, with key and size',
    inHouse(async ({ backend, arena }) => {
      if (!backend.list) return;
      const keys = [
        ...keysUpTo(4),
        ...keysUpTo(3, { modelName: 'other/model' }),
        ...keysUpTo(2, { cacheSalt: 'tenant-a', kvRank: 0x0200_0201, objectGroupId: 17 }),
        l2Key(9, { modelName: 'm'.repeat(240), cacheSalt: 's'.repeat(100) }),
      ];
      await storeAll(
        backend,
        keys.map((key, i) => arena.object(key, l2Value(100 + i, i))),
      );
      const sorted = (list: string[]) => list.sort();
      const expected = keys.map((key, i) => `${keyText(key)} ${100 + i}`);
      for (const pageSize of [3, 1000]) {
        const found = await listAll(backend, null, pageSize);
        assert.equal(
          sorted(found.map(({ key, sizeBytes }) => `${keyText(key)} ${sizeBytes}`)),
          sorted(expected),
        );
      }
      const others = await listAll(backend, 'other/model', 2);
      assert.equal(
        sorted(others.map(({ key }) => keyText(key))),
        sorted(keysUpTo(3, { modelName: 'other/model' }).map(keyText)),
      );
      assert.equal(await listAll(backend, 'no/such-model', 10), []);
    }),
  );
}

export function definePersistenceTest(test: TestFunction, inHouse: InHouse): void {
  test(
    'a backend that is opened later finds what was stored',
    inHouse(async (house) => {
      const objects = objectsOf(house.arena, [...keysUpTo(4), l2Key(0, { cacheSalt: 'tenant-a' })]);
      await storeAll(house.backend, objects);
      await house.closeAll();
      await expectLoaded(house, objects, await house.openAnother());
    }),
  );
}

export function defineSharingTest(test: TestFunction, inHouse: InHouse): void {
  test(
    'two backends on one store see each other and write one key without harm',
    inHouse(async (house) => {
      const other = await house.openAnother();
      const mine = objectsOf(house.arena, keysUpTo(4), MIB);
      const theirs = objectsOf(house.arena, keysUpTo(4), MIB);
      await Promise.all([
        house.backend.store(mine, never),
        other.store(theirs, never),
        house.backend.store(theirs, never),
      ]);
      await expectLoaded(house, mine);
      await expectLoaded(house, mine, other);
      await other.delete(
        mine.map(({ key }) => key),
        never,
      );
      await expectAbsent(
        house,
        mine.map(({ key }) => key),
      );
    }),
  );
}
