import * as assert from 'uvu/assert';
import { openCoreParts } from '../support/core-parts.ts';
import { policyVectors } from '../support/policy-vectors.ts';
import { suite } from '../support/suite.ts';

interface PolicyTrace {
  name: string;
  ops: {
    op: 'create' | 'touch' | 'remove' | 'evict' | 'state';
    keys?: string[];
    ratio?: number;
    locked?: string[];
    victims?: string[];
    order?: string[];
  }[];
}

const NOOP = 0;
const LRU = 1;
const { parts } = openCoreParts(4096);

/** Keys of the traces are ":<chunk number>". */
const familyOf = (key: string): number => parts.policy_family(Number(key.slice(1)));
const chunkOf = new Map<number, string>();

function nameFamilies(keys: readonly string[]): void {
  for (const key of keys) chunkOf.set(familyOf(key), key);
}

/** The whole walk, best victim first. */
function walk(): string[] {
  const order: string[] = [];
  let family = parts.policy_victim(1);
  while (family !== 0) {
    order.push(chunkOf.get(family) ?? '?');
    family = parts.policy_victim(0);
  }
  return order;
}

/** The reference's selection by a ratio of the keys, over the walk (storage.md 10.2). */
function select(ratio: number, locked: readonly string[]): string[] {
  const count = parts.policy_count();
  const clamped = Math.min(1, Math.max(0, ratio));
  const target = Math.max(Math.trunc(count * clamped), clamped > 0 ? 1 : 0);
  return walk()
    .filter((key) => !locked.includes(key))
    .slice(0, target);
}

function replay(trace: PolicyTrace, kind: number): void {
  // What an earlier trace has left is forgotten by its own rules first.
  for (const family of chunkOf.keys()) parts.policy_remove(family);
  parts.policy_select(kind);
  for (const [index, step] of trace.ops.entries()) {
    const keys = step.keys ?? [];
    nameFamilies(keys);
    const where = `step ${index}: ${step.op}`;
    // Batches go from the last key to the first.
    for (const key of keys.toReversed()) {
      if (step.op === 'create') parts.policy_insert(familyOf(key));
      else if (step.op === 'touch') parts.policy_touch(familyOf(key));
      else if (step.op === 'remove') parts.policy_remove(familyOf(key));
    }
    if (step.op === 'state') assert.equal(walk(), step.order, where);
    if (step.op === 'evict')
      assert.equal(select(step.ratio!, step.locked ?? []), step.victims, where);
  }
}

suite('lru', (test) => {
  for (const trace of policyVectors<PolicyTrace[]>('lru')) {
    test(`follows the reference: ${trace.name}`, () => replay(trace, LRU));
  }

  test('goes on with its walk when the next family is touched or removed', () => {
    replay({ name: '', ops: [{ op: 'create', keys: [':4', ':3', ':2', ':1', ':0'] }] }, LRU);
    // oldest 0 1 2 3 4 youngest
    assert.is(chunkOf.get(parts.policy_victim(1)), ':0');
    parts.policy_remove(familyOf(':1'));
    assert.is(chunkOf.get(parts.policy_victim(0)), ':2');
    parts.policy_touch(familyOf(':3'));
    // oldest 0 2 4 3 youngest
    assert.is(chunkOf.get(parts.policy_victim(0)), ':4');
    assert.is(chunkOf.get(parts.policy_victim(0)), ':3');
    assert.is(parts.policy_victim(0), 0);
  });
});

suite('noop', (test) => {
  for (const trace of policyVectors<PolicyTrace[]>('noop')) {
    test(`follows the reference: ${trace.name}`, () => replay(trace, NOOP));
  }
});
