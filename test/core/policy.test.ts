/** The order of single policies. What all of them promise: test/contract/eviction-policy.ts. */

import * as assert from 'uvu/assert';
import { openCoreParts } from '../support/core-parts.ts';
import { NamedPolicy } from '../support/named-policy.ts';
import fc from '../support/property.ts';
import { S3FifoModel } from '../support/s3fifo-model.ts';
import { suite } from '../support/suite.ts';

const LRU = 1;
const ISOLATED_LRU = 2;
const S3FIFO = 4;
const parts = openCoreParts(4096);

suite('lru', (test) => {
  const policy = new NamedPolicy(parts, LRU);
  test.beforeEach(() => policy.begin());
  test.afterEach(() => policy.forget());

  test('a walk meets a family that is used meanwhile at the young end', () => {
    for (const name of [':0', ':1', ':2', ':3', ':4']) policy.insert(name);
    // oldest 0 1 2 3 4 youngest
    assert.is(policy.next(true), ':0');
    policy.touch(':1');
    // oldest 0 2 3 4 1 youngest
    assert.equal(policy.walk(false), [':2', ':3', ':4', ':1']);
  });
});

suite('isolated lru', (test) => {
  const policy = new NamedPolicy(parts, ISOLATED_LRU);
  test.beforeEach(() => policy.begin());
  test.afterEach(() => policy.forget());

  test('a walk over all tenants takes the same part of each list, and one of a small list', () => {
    for (let chunk = 0; chunk < 320; chunk += 1) policy.insert(`big:${chunk}`);
    for (let chunk = 0; chunk < 64; chunk += 1) policy.insert(`half:${chunk}`);
    policy.insert('small:0');
    const victims = policy.takeVictims(13, []);
    // One round: a 32nd of big, a 32nd of half, the only one of small.
    const count = (salt: string) => victims.filter((name) => name.startsWith(`${salt}:`)).length;
    assert.equal([count('big'), count('half'), count('small')], [10, 2, 1]);
    assert.equal(victims.slice(0, 2), ['big:0', 'big:1']);
  });

  test('a walk goes on when the tenant that it is at has nothing left', () => {
    for (const name of ['a:0', 'b:0', 'c:0']) policy.insert(name);
    assert.is(policy.next(true), 'a:0');
    policy.remove('a:0');
    assert.is(policy.next(false), 'b:0');
    policy.remove('c:0');
    policy.remove('b:0');
    assert.is(policy.next(false), undefined);
    assert.is(policy.count, 0);
  });
});

suite('s3-fifo', (test) => {
  const policy = new NamedPolicy(parts, S3FIFO);
  test.beforeEach(() => policy.begin());
  test.afterEach(() => policy.forget());

  const IN_SMALL = 1;
  const inQueue = (isSmall: boolean) =>
    policy.walk(true).filter((name) => ((policy.word(name) & IN_SMALL) !== 0) === isSmall);

  test('new families that nobody uses go before older ones that were used once', () => {
    for (const name of [':0', ':1', ':2', ':3']) policy.insert(name);
    policy.touch(':0');
    policy.touch(':1');
    assert.equal(policy.takeVictims(2, []), [':2', ':3']);
    // The used ones were passed on the way and have moved to the main queue.
    assert.equal(inQueue(false), [':0', ':1']);
  });

  test('a family that returns as a ghost goes to the main queue', () => {
    for (const name of [':0', ':1']) policy.insert(name);
    policy.takeVictims(1, []);
    policy.remove(':0');
    assert.equal(policy.ghosts(0), [':0']);
    policy.insert(':0');
    assert.equal([inQueue(true), inQueue(false), policy.ghosts(0)], [[':1'], [':0'], []]);
  });

  test('a family that was deleted, not evicted, leaves no ghost', () => {
    for (const name of [':0', ':1']) policy.insert(name);
    policy.remove(':0');
    assert.equal(policy.ghosts(0), []);
  });

  test('a victim that is not removed after all keeps its place', () => {
    for (const name of [':0', ':1', ':2']) policy.insert(name);
    assert.equal(policy.takeVictims(1, []), [':0']);
    assert.equal(policy.takeVictims(1, []), [':0']);
    policy.insert(':0');
    policy.remove(':0');
    assert.equal(policy.ghosts(0), []);
  });

  test('a walk past locked families costs them nothing', () => {
    for (const name of [':0', ':1']) {
      policy.insert(name);
      policy.touch(name);
    }
    const words = [':0', ':1'].map((name) => policy.word(name));
    for (let i = 0; i < 5; i += 1) assert.equal(policy.takeVictims(1, [':0', ':1']), []);
    assert.equal(
      [':0', ':1'].map((name) => policy.word(name)),
      words,
    );
  });

  test('does what a straightforward model does', () => {
    const name = fc.integer({ min: 0, max: 24 }).map((chunk) => `:${chunk}`);
    const step = fc.oneof(
      fc.record({ op: fc.constantFrom('insert', 'touch', 'remove'), name }),
      fc.record({
        op: fc.constant('evict'),
        count: fc.integer({ min: 1, max: 8 }),
        locked: fc.array(name, { maxLength: 6 }),
      }),
    );
    const run = (steps: readonly S3Step[]) => {
      policy.forget();
      policy.begin();
      const model = new S3FifoModel();
      for (const one of steps) {
        applyStep(policy, model, one);
        assert.equal(inQueue(true), model.small);
        assert.equal(inQueue(false), model.main);
        assert.equal(policy.ghosts(0), model.ghosts);
        for (const [each, counter] of model.counters) assert.is(policy.word(each) >> 3, counter);
        assert.is(policy.count, model.count);
      }
    };
    fc.assert(fc.property(fc.array(step, { minLength: 1, maxLength: 120 }), run), {
      numRuns: 200,
    });
  });
});

interface S3Step {
  readonly op: string;
  readonly name?: string;
  readonly count?: number;
  readonly locked?: readonly string[];
}

function applyStep(policy: NamedPolicy, model: S3FifoModel, step: S3Step): void {
  const { op, name = '', count = 0, locked = [] } = step;
  if (op === 'evict') {
    const victims: string[] = [];
    let isFromStart = true;
    while (victims.length < count) {
      const candidate = policy.next(isFromStart);
      isFromStart = false;
      if (candidate === undefined) break;
      if (locked.includes(candidate) || !policy.take(candidate)) continue;
      policy.remove(candidate);
      victims.push(candidate);
    }
    assert.equal(victims, model.evict(count, locked));
    return;
  }
  if (op === 'insert') policy.insert(name);
  else if (op === 'touch') policy.touch(name);
  else policy.remove(name);
  if (op === 'insert') model.insert(name);
  else if (op === 'touch') model.touch(name);
  else model.remove(name);
}
