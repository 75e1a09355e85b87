/** The door to free-standing orders. What the policies do: test/contract/eviction-policy.ts. */
import { readFileSync } from 'node:fs';
import * as assert from 'uvu/assert';
import { EVICTION_POLICIES, EvictionOrder, type EvictionPolicy } from '../../src/core/policy.ts';
import { suite } from '../support/suite.ts';

const wasm = readFileSync(new URL('../../build/core.wasm', import.meta.url));

function open(policy: EvictionPolicy, entryCountMax = 8, tenantCountMax = 2): EvictionOrder {
  const onTrap = (error: unknown): never => {
    throw error;
  };
  return EvictionOrder.open({ policy, entryCountMax, tenantCountMax, wasm, onTrap });
}

const isEligible = () => true;
const all = (order: EvictionOrder, cacheSalt?: string) => [
  ...order.victims(cacheSalt === undefined ? { isEligible } : { isEligible, cacheSalt }),
];

suite('eviction order', (test) => {
  for (const policy of EVICTION_POLICIES) {
    test(`${policy}: numbers are given out, taken back and used again`, () => {
      const order = open(policy, 2);
      const first = order.add({ name: 'a' })!;
      const second = order.add({ name: 'b' })!;
      assert.not.equal(first, second);
      assert.is(order.add({ name: 'c' }), null, 'there are two');
      order.remove(first);
      assert.is(order.add({ name: 'c' }), first);
    });

    test(`${policy}: a number that is nobody's is a fault of the caller`, () => {
      const order = open(policy);
      const entry = order.add({ name: 'a' })!;
      order.remove(entry);
      for (const use of [order.insert, order.touch, order.refresh, order.remove]) {
        for (const wrong of [entry, 0, 9, 2 ** 31]) {
          assert.throws(() => use.call(order, wrong), /INVALID_ARGUMENT/);
        }
      }
    });
  }

  test('names victims that are eligible, as many as the caller takes', () => {
    const order = open('LRU');
    const entries = ['a', 'b', 'c', 'd'].map((name) => order.add({ name })!);
    order.touch(entries[0]!);
    const walk = order.victims({ isEligible: (entry) => entry !== entries[1] });
    assert.is(walk.next().value, entries[2]);
    order.remove(entries[2]!);
    assert.is(walk.next().value, entries[3]);
    assert.equal(all(order), [entries[1], entries[3], entries[0]]);
  });

  test('a victim that returns is known by its name', () => {
    const order = open('ARC');
    const [a, b] = ['a', 'b'].map((name) => order.add({ name })!);
    const [victim] = order.victims({ isEligible: (entry) => entry === a });
    order.remove(victim!);
    const again = order.add({ name: 'a' })!;
    // The ghost has brought it into the list of those used again, so `b` goes first.
    assert.equal(all(order), [b, again]);
  });

  test('a reserved entry is used once when it is stored', () => {
    const order = open('ARC');
    const reserved = order.add({ name: 'a', isReserved: true })!;
    order.insert(reserved);
    const stored = order.add({ name: 'b' })!;
    order.insert(stored);
    // `b` was stored twice: it is in the list of those used again.
    assert.equal(all(order), [reserved, stored]);
  });

  test('IsolatedLRU tells tenants apart, and lets their numbers go with their last entry', () => {
    const order = open('IsolatedLRU');
    const a = order.add({ name: 'x', cacheSalt: 'a' })!;
    const none = order.add({ name: 'x' })!;
    assert.equal(all(order, 'a'), [a]);
    assert.equal(all(order, ''), [none]);
    assert.equal(all(order, 'b'), []);
    assert.is(order.add({ name: 'x', cacheSalt: 'b' }), null, 'there are two tenants');
    order.remove(a);
    const b = order.add({ name: 'x', cacheSalt: 'b' })!;
    assert.equal(all(order, 'b'), [b]);
    assert.equal(all(order, 'a'), []);
    assert.is(order.count, 2);
  });
});
