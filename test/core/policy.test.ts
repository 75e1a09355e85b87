/** The order of single policies. What all of them promise: test/contract/eviction-policy.ts. */
import * as assert from 'uvu/assert';
import { openCoreParts } from '../support/core-parts.ts';
import { suite } from '../support/suite.ts';

const LRU = 1;
const { parts } = openCoreParts(4096);

suite('lru', (test) => {
  test('a walk meets a family that is used meanwhile at the young end', () => {
    parts.policy_select(LRU);
    const families = [0, 1, 2, 3, 4].map((chunk) => parts.policy_family(chunk));
    for (const family of families) parts.policy_insert(family);
    // oldest 0 1 2 3 4 youngest
    assert.is(parts.policy_victim(1), families[0]);
    parts.policy_touch(families[1]!);
    // oldest 0 2 3 4 1 youngest
    const rest = [1, 2, 3, 4].map(() => parts.policy_victim(0));
    assert.equal(
      rest,
      [2, 3, 4, 1].map((chunk) => families[chunk]),
    );
    assert.is(parts.policy_victim(0), 0);
  });
});
