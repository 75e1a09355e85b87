/**
 * What every eviction policy promises (assembly/policy/policy.ts): whom it names, never in which
 * order. The order is the policy's own, and so are its traces of the reference.
 */
import * as assert from 'uvu/assert';
import { contractSuite, type Skip } from '../support/contract.ts';
import type { CoreParts } from '../support/core-parts.ts';
import { policyVectors } from '../support/policy-vectors.ts';

export interface EvictionPolicyContract {
  readonly parts: CoreParts;
  /** Section of the traces. */
  readonly name: string;
  /** Its number in policy.ts. */
  readonly kind: number;
  readonly skip?: readonly Skip[];
}

interface PolicyTrace {
  readonly name: string;
  readonly ops: readonly {
    readonly op: 'create' | 'touch' | 'remove' | 'evict' | 'state';
    readonly keys?: readonly string[];
    readonly ratio?: number;
    readonly locked?: readonly string[];
    readonly victims?: readonly string[];
    readonly order?: readonly string[];
  }[];
}

/** A policy whose families have the names of the traces: ":<chunk number>". */
class NamedPolicy {
  readonly #parts: CoreParts;
  readonly #kind: number;
  readonly #names = new Map<number, string>();

  constructor(parts: CoreParts, kind: number) {
    this.#parts = parts;
    this.#kind = kind;
  }

  /** What an earlier test has left is forgotten by the policy's own rules first. */
  reset(): void {
    for (const family of this.#names.keys()) this.#parts.policy_remove(family);
    this.#parts.policy_select(this.#kind);
  }

  get count(): number {
    return this.#parts.policy_count();
  }

  insert(name: string): void {
    this.#parts.policy_insert(this.#familyOf(name));
  }

  touch(name: string): void {
    this.#parts.policy_touch(this.#familyOf(name));
  }

  remove(name: string): void {
    this.#parts.policy_remove(this.#familyOf(name));
  }

  /** The rest of a walk, best victim first. */
  walk(isFromStart: boolean): string[] {
    const order: string[] = [];
    let family = this.#parts.policy_victim(isFromStart ? 1 : 0);
    while (family !== 0) {
      order.push(this.#names.get(family) ?? '?');
      family = this.#parts.policy_victim(0);
    }
    return order;
  }

  /** One step of a walk. */
  first(): string | undefined {
    return this.#names.get(this.#parts.policy_victim(1));
  }

  /** The reference's selection by a ratio of the keys, over the walk (storage.md 10.2). */
  select(ratio: number, locked: readonly string[]): string[] {
    const clamped = Math.min(1, Math.max(0, ratio));
    const target = Math.max(Math.trunc(this.count * clamped), clamped > 0 ? 1 : 0);
    return this.walk(true)
      .filter((name) => !locked.includes(name))
      .slice(0, target);
  }

  #familyOf(name: string): number {
    const family = this.#parts.policy_family(Number(name.slice(1)));
    this.#names.set(family, name);
    return family;
  }
}

function replay(policy: NamedPolicy, trace: PolicyTrace): void {
  for (const [index, step] of trace.ops.entries()) {
    const where = `step ${index}: ${step.op}`;
    // Batches go from the last key to the first.
    for (const key of (step.keys ?? []).toReversed()) {
      if (step.op === 'create') policy.insert(key);
      else if (step.op === 'touch') policy.touch(key);
      else if (step.op === 'remove') policy.remove(key);
    }
    if (step.op === 'state') assert.equal(policy.walk(true), step.order, where);
    if (step.op === 'evict') {
      assert.equal(policy.select(step.ratio!, step.locked ?? []), step.victims, where);
    }
  }
}

const NAMES = [':0', ':1', ':2', ':3', ':4'];

export function evictionPolicyContract(options: EvictionPolicyContract): void {
  const { parts, name, kind, skip = [] } = options;
  const policy = new NamedPolicy(parts, kind);

  contractSuite(`eviction policy: ${name}`, skip, (test) => {
    test.beforeEach(() => policy.reset());

    for (const trace of policyVectors<PolicyTrace[]>(name)) {
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
      assert.is(policy.first(), order[0]);
      policy.remove(order[1]!);
      assert.equal(policy.walk(false), order.slice(2));
    });

    test('a walk that is over stays over until it begins again', () => {
      policy.insert(':0');
      assert.equal(policy.walk(true), [':0']);
      assert.equal(policy.walk(false), []);
      assert.equal(policy.walk(true), [':0']);
    });
  });
}
