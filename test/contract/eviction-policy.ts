/**
 * What every eviction policy promises (assembly/policy/policy.ts): whom it names, never in which
 * order. The order is the policy's own, and so are its traces of the reference.
 */
import * as assert from 'uvu/assert';
import { contractSuite, type Skip } from '../support/contract.ts';
import { NamedPolicy, type PolicyParts } from '../support/named-policy.ts';
import { policyVectors } from '../support/policy-vectors.ts';
import type { TestFunction } from '../support/suite.ts';

export interface EvictionPolicyContract {
  readonly parts: PolicyParts;
  readonly name: string;
  /** Its number in policy.ts. */
  readonly kind: number;
  /** Section of the reference's traces; there are none of S3-FIFO. */
  readonly section?: string;
  readonly skip?: readonly Skip[];
}

interface PolicyStep {
  readonly op: 'create' | 'reserve' | 'touch' | 'remove' | 'evict' | 'state';
  readonly keys?: readonly string[];
  readonly ratio?: number;
  readonly salt?: string | null;
  readonly locked?: readonly string[];
  readonly victims?: readonly string[];
  /** The state of LRU, of IsolatedLRU, of ARC. */
  readonly order?: readonly string[];
  readonly buckets?: Readonly<Record<string, readonly string[]>>;
  readonly t1?: readonly string[];
  readonly t2?: readonly string[];
  readonly b1?: readonly string[];
  readonly b2?: readonly string[];
  readonly capacity?: number;
  readonly target_t1_size?: number;
}

interface PolicyTrace {
  readonly name: string;
  readonly ops: readonly PolicyStep[];
}

const ARC_IN_T1 = 1;
const ARC_IN_T2 = 2;

function checkState(policy: NamedPolicy, step: PolicyStep, where: string): void {
  if (step.order) assert.equal(policy.walk(true), step.order, where);
  if (step.buckets) {
    let count = 0;
    for (const [salt, order] of Object.entries(step.buckets)) {
      assert.equal(policy.walk(true, salt), order, `${where}: ${salt}`);
      count += order.length;
    }
    assert.is(policy.count, count, where);
  }
  if (step.t1) {
    const order = policy.walk(true);
    const inList = (bit: number) => order.filter((name) => (policy.word(name) & bit) !== 0);
    assert.equal(inList(ARC_IN_T1), step.t1, where);
    assert.equal(inList(ARC_IN_T2), step.t2, where);
    assert.equal(policy.ghosts(0), step.b1, where);
    assert.equal(policy.ghosts(1), step.b2, where);
    const { capacity, target_t1_size: target } = step;
    assert.equal(policy.arcState, { capacity, target }, where);
  }
}

function apply(policy: NamedPolicy, { op, keys = [] }: PolicyStep): void {
  // Batches of what is stored and used go from the last key to the first.
  for (const key of op === 'remove' ? keys : keys.toReversed()) {
    if (op === 'create') policy.insert(key);
    else if (op === 'reserve') policy.reserve(key);
    else if (op === 'touch') policy.touch(key);
    else if (op === 'remove') policy.remove(key);
  }
}

function replay(policy: NamedPolicy, trace: PolicyTrace): void {
  for (const [index, step] of trace.ops.entries()) {
    const where = `step ${index}: ${step.op}`;
    apply(policy, step);
    if (step.op === 'state') checkState(policy, step, where);
    // Without a salt IsolatedLRU raises in the reference; here such a walk goes over all salts.
    if (step.op === 'evict' && step.salt !== null) {
      const victims = policy.select(step.ratio!, step.locked ?? [], step.salt);
      assert.equal(victims, step.victims, where);
    }
  }
}

const NAMES = [':0', ':1', ':2', ':3', ':4'];

function testGrants(test: TestFunction, policy: NamedPolicy): void {
  test('a family that is placed again or reserved is tracked once', () => {
    policy.reserve(':0');
    policy.insert(':0');
    policy.refresh(':0');
    policy.refresh(':9');
    assert.equal(policy.walk(true), [':0']);
    assert.is(policy.count, 1);
  });

  test('used families are granted in the end, each once, and stay until they are removed', () => {
    for (const one of NAMES) policy.insert(one);
    for (let use = 0; use < 5; use += 1) policy.touch(':3');
    assert.equal(policy.takeVictims(99, []).sort(), NAMES);
    assert.equal(policy.walk(true).sort(), NAMES);
    assert.equal(policy.takeVictims(99, [':1', ':3']).sort(), [':0', ':2', ':4']);
  });

  test('a family that returns after its eviction is a family like any other', () => {
    for (const one of NAMES) policy.insert(one);
    for (const one of policy.takeVictims(3, [])) policy.remove(one);
    assert.is(policy.count, NAMES.length - 3);
    for (const one of NAMES) policy.insert(one);
    assert.equal(policy.walk(true).sort(), NAMES);
  });
}

export function evictionPolicyContract(options: EvictionPolicyContract): void {
  const { parts, name, kind, section, skip = [] } = options;
  const policy = new NamedPolicy(parts, kind);

  contractSuite(`eviction policy: ${name}`, skip, (test) => {
    test.beforeEach(() => policy.begin());
    test.afterEach(() => policy.forget());

    for (const trace of section ? policyVectors<PolicyTrace[]>(section) : []) {
      test(`follows the reference: ${trace.name}`, () => replay(policy, trace));
    }

    test('a policy without families names none', () => {
      assert.equal(policy.walk(true), []);
      assert.is(policy.count, 0);
    });

    test('a walk names every family once, and looking changes nothing', () => {
      for (const one of NAMES) policy.insert(one);
      const order = policy.walk(true);
      assert.equal([...order].sort(), NAMES);
      assert.equal(policy.walk(true), order);
      assert.is(policy.count, NAMES.length);
    });

    test('a family that comes again or is used is still one family', () => {
      for (const one of NAMES) policy.insert(one);
      policy.insert(':1');
      policy.touch(':2');
      assert.equal(policy.walk(true).sort(), NAMES);
      assert.is(policy.count, NAMES.length);
    });

    test('a family that is unknown or gone is never named', () => {
      policy.insert(':0');
      policy.insert(':1');
      policy.touch(':7');
      policy.remove(':8');
      policy.remove(':1');
      policy.remove(':1');
      policy.touch(':1');
      assert.equal(
        policy.walk(true).filter((one) => one !== ':0'),
        [],
      );
      assert.ok(policy.count <= 1);
    });

    test('a walk goes on behind a family that leaves while it is next', () => {
      for (const one of NAMES) policy.insert(one);
      const order = policy.walk(true);
      assert.is(policy.next(true), order[0]);
      policy.remove(order[1]!);
      assert.equal(policy.walk(false), order.slice(2));
    });

    testGrants(test, policy);

    test('a walk that is over stays over until it begins again', () => {
      policy.insert(':0');
      assert.equal(policy.walk(true), [':0']);
      assert.equal(policy.walk(false), []);
      assert.equal(policy.walk(true), [':0']);
    });
  });
}
