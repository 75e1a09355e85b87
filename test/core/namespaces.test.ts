import * as assert from 'uvu/assert';
import { kvRank, NamespaceTable, NO_NAMESPACE } from '../../src/core/namespaces.ts';
import { NO_SLOT } from '../../src/core/object-table.ts';
import { keysOf, namespaceKey, openCoreTable, UNIT_BYTES } from '../support/core-table.ts';
import { suite } from '../support/suite.ts';

/** A table of names over a core that says how many objects lie under an id. */
function openNames(countMax: number) {
  const objectCounts = new Map<number, number>();
  const limits = new Map<number, number>();
  const defined: [id: number, scope: number, tenant: number][] = [];
  /** So many definitions fail from now on. */
  const refusals = { count: 0 };
  const names = new NamespaceTable(
    {
      namespace_define: (id, scope, tenant) => {
        if (refusals.count > 0) {
          refusals.count -= 1;
          return -1;
        }
        defined.push([id, scope, tenant]);
        return 0;
      },
      namespace_object_count: (id) => objectCounts.get(id) ?? 0,
      tenant_bytes: () => 0,
      tenant_limit: (tenant, bytes) => {
        limits.set(tenant, bytes);
        return 0;
      },
    },
    countMax,
  );
  const key = (n: number) => namespaceKey({ modelName: `model-${n}`, cacheSalt: `salt-${n}` });
  /** Asks so often that no earlier question counts as recent. */
  const age = (n: number) => {
    for (let i = 0; i < 4096; i += 1) names.find(key(n));
  };
  return { names, objectCounts, limits, defined, refusals, key, age };
}

suite('namespaces', (test) => {
  test('a tenant has its limit from its first namespace on, and a new one when it changes', () => {
    const { names, defined, limits } = openNames(64);
    names.intern(namespaceKey({ cacheSalt: 'known' }));
    const quotas = new Map([['known', 5]]);
    names.limitTenants((cacheSalt) => quotas.get(cacheSalt) ?? null);
    names.intern(namespaceKey({ cacheSalt: 'new' }));
    const [known, fresh] = defined.map(([, , tenant]) => tenant);
    assert.equal([limits.get(known!), limits.get(fresh!)], [5, -1]);
    quotas.delete('known');
    names.limitTenants((cacheSalt) => quotas.get(cacheSalt) ?? null);
    assert.is(limits.get(known!), -1);
  });

  test('gives one id to one namespace and another to each other', () => {
    const { names } = openNames(64);
    const variants = [
      namespaceKey(),
      namespaceKey({ modelName: 'n' }),
      namespaceKey({ worldSize: 2 }),
      namespaceKey({ workerId: 1 }),
      namespaceKey({ objectGroupId: 1 }),
      namespaceKey({ cacheSalt: 'salt' }),
      // The same characters, cut elsewhere.
      namespaceKey({ modelName: 'ms', cacheSalt: 'alt' }),
    ];
    const ids = variants.map((key) => names.intern(key));
    assert.is(new Set(ids).size, variants.length);
    assert.equal(
      variants.map((key) => names.intern(key)),
      ids,
    );
    assert.equal(
      variants.map((key) => names.find(key)),
      ids,
    );
  });

  test('puts ranks and groups of a model into one scope, and a salt into one tenant', () => {
    const { names } = openNames(64);
    const at = (part: Parameters<typeof namespaceKey>[0]) =>
      names.describe(names.intern(namespaceKey(part)));
    const first = at({ worldSize: 2 });
    assert.is(at({ worldSize: 2, workerId: 1, objectGroupId: 3 }).scope, first.scope);
    assert.is.not(at({ worldSize: 4 }).scope, first.scope);
    assert.is.not(at({ worldSize: 2, cacheSalt: 's' }).scope, first.scope);
    assert.is(at({ modelName: 'other' }).tenant, first.tenant);
    assert.is.not(at({ cacheSalt: 's' }).tenant, first.tenant);
  });

  test('describes what it was given', () => {
    const { names } = openNames(64);
    const key = namespaceKey({ worldSize: 2, workerId: 1, objectGroupId: 5, cacheSalt: 's' });
    const { modelName, worldSize, workerId, objectGroupId, cacheSalt, kvRank } = names.describe(
      names.intern(key),
    );
    assert.equal({ modelName, worldSize, workerId, objectGroupId, cacheSalt }, key);
    assert.is(kvRank, 0x0201_0201);
  });

  test('makes no entry for a question', () => {
    const { names, defined } = openNames(64);
    assert.is(names.find(namespaceKey()), NO_NAMESPACE);
    assert.is(names.count, 0);
    assert.equal(defined, []);
  });

  test('a namespace that was never stored to has nothing to read', () => {
    const { namespaces, table } = openCoreTable();
    const keys = keysOf([1, 2], [namespaces.find(namespaceKey())]);
    assert.equal([...table.holdPrefix(keys, 1)], []);
    assert.equal([...table.find(keys)], [NO_SLOT, NO_SLOT]);
    assert.is(namespaces.count, 0);
  });

  test('a definition that fails costs no id, no scope and no tenant', () => {
    const { names, objectCounts, refusals, defined, key, age } = openNames(3);
    refusals.count = 2;
    for (const n of [7, 8]) assert.throws(() => names.intern(key(n)), /namespace_define/);
    const ids = [0, 1, 2].map((n) => names.intern(key(n)));
    // Once more with a reused id.
    objectCounts.set(ids[1]!, 1);
    age(2);
    refusals.count = 1;
    assert.throws(() => names.intern(key(3)), /namespace_define/);
    ids[0] = names.intern(key(4));
    assert.is(new Set(ids).size, 3);
    assert.equal(
      [...ids].sort((a, b) => a - b),
      [0, 1, 2],
    );
    assert.ok(defined.every((numbers) => numbers.every((n) => n < 3)));
  });

  test('reuses the longest unused id without objects when it is full', () => {
    const { names, objectCounts, key, age } = openNames(3);
    const ids = [0, 1, 2].map((n) => names.intern(key(n)));
    objectCounts.set(ids[0]!, 5);
    age(2);
    assert.is(names.intern(key(3)), ids[1]);
    assert.is(names.find(key(1)), NO_NAMESPACE, 'the oldest empty one is gone');
    assert.is(names.find(key(0)), ids[0], 'the one with objects is not');
    assert.is(names.count, 3);
  });

  test('never reuses an id that one request has just asked for', () => {
    const { names, key } = openNames(3);
    for (const n of [0, 1, 2]) names.intern(key(n));
    assert.throws(() => names.intern(key(3)), /at most 3 namespaces/);
    assert.is.not(names.find(key(0)), NO_NAMESPACE);
  });

  test('refuses a new namespace when objects lie under all of them', () => {
    const { names, objectCounts, key, age } = openNames(3);
    for (const n of [0, 1, 2]) objectCounts.set(names.intern(key(n)), 1);
    age(0);
    assert.throws(() => names.intern(key(3)), /at most 3 namespaces/);
    objectCounts.set(names.find(key(1)), 0);
    age(0);
    names.intern(key(3));
    assert.is(names.find(key(1)), NO_NAMESPACE);
  });

  test('finds a name among many thousands without walking through the traces of its uses', () => {
    const { names, key } = openNames(50_000);
    for (let n = 0; n < 50_000; n += 1) names.intern(key(n));
    const startMs = performance.now();
    for (let i = 0; i < 40_000; i += 1) names.find(key(i % 8));
    const ms = performance.now() - startMs;
    // A detector, not a measurement: 0.1 s when it is right, 3 s when each use leaves a hole.
    assert.ok(ms < 1000, `40,000 look-ups took ${ms} ms`);
  });

  test('bounds the bytes of all names together', () => {
    const { names, key, age } = openNames(1000);
    const long = (n: number) => namespaceKey({ modelName: `${n}`.padEnd(1_000_000, 'x') });
    names.intern(key(0));
    for (let n = 0; n < 40; n += 1) {
      age(0);
      names.intern(long(n));
    }
    assert.ok(names.count < 20, `${names.count} names of a megabyte`);
    assert.is(names.find(long(0)), NO_NAMESPACE);
    assert.is.not(names.find(long(39)), NO_NAMESPACE);
  });

  test('counts the bytes of a tenant over all of its models', () => {
    const core = openCoreTable();
    const store = (chunk: number, part: Parameters<typeof namespaceKey>[0]) => {
      const id = core.namespaces.intern(namespaceKey(part));
      const { slots } = core.table.reserveWrite(keysOf([chunk], [id]), UNIT_BYTES + 1, 1, 0);
      core.table.finishWrite(slots, 0);
      return slots;
    };
    store(1, { cacheSalt: 'a' });
    store(2, { cacheSalt: 'a', modelName: 'other' });
    store(3, { cacheSalt: 'b' });
    assert.is(core.namespaces.tenantBytes('a'), 4 * UNIT_BYTES);
    assert.is(core.namespaces.tenantBytes('b'), 2 * UNIT_BYTES);
    assert.is(core.namespaces.tenantBytes('c'), 0);
    core.table.clear(true, 0);
    assert.is(core.namespaces.tenantBytes('a'), 0);
  });
});

suite('kv rank', (test) => {
  test('joins world size and rank as the reference does', () => {
    assert.is(kvRank(1, 0), 0x0100_0100);
    assert.is(kvRank(8, 3), 0x0803_0803);
  });

  test('is not cut to 32 bits', () => {
    assert.is(kvRank(256, 4), 256 * 2 ** 24 + (4 << 16) + (256 << 8) + 4);
    // Fields overlap here: 0x12c = 300, so bits of size and rank are joined with OR.
    assert.is(kvRank(300, 299), 0x1_2c00_0000 + (0x012b_0000 | 0x0001_2c00 | 0x0000_012b));
  });
});
