import * as assert from 'uvu/assert';
import { openCoreParts } from '../support/core-parts.ts';
import { policyVectors } from '../support/policy-vectors.ts';
import { suite } from '../support/suite.ts';

interface LockTrace {
  name: string;
  ttl_seconds: number;
  time_unit: 'ms' | 'ns';
  ops: [time: number, operation: 'lock' | 'unlock' | 'reset' | 'probe', isLocked: boolean][];
}

const { parts } = openCoreParts(1);
const TTL_MS = 5000;

function apply(operation: LockTrace['ops'][number][1], nowMs: number, ttlMs: number): void {
  if (operation === 'lock') parts.lock_acquire(nowMs, ttlMs);
  else if (operation === 'unlock') parts.lock_release();
  else if (operation === 'reset') parts.lock_reset();
}

suite('ttl lock', (test) => {
  test.beforeEach(() => parts.lock_reset());

  for (const trace of policyVectors<LockTrace[]>('ttl_lock')) {
    test(`follows the reference: ${trace.name}`, () => {
      for (const [index, [time, operation, isLocked]] of trace.ops.entries()) {
        const nowMs = trace.time_unit === 'ns' ? Math.floor(time / 1e6) : time;
        apply(operation, nowMs, trace.ttl_seconds * 1000);
        const where = `step ${index}: ${operation} at ${nowMs} ms`;
        assert.is(parts.lock_is_held(nowMs) !== 0, isLocked, where);
      }
    });
  }

  test('keeps its generation while anybody holds it', () => {
    parts.lock_acquire(0, TTL_MS);
    const generation = parts.lock_generation();
    parts.lock_acquire(1, TTL_MS);
    parts.lock_release();
    assert.is(parts.lock_generation(), generation);
  });

  test('begins a generation after an expiry, after the last release and after a reset', () => {
    parts.lock_acquire(0, TTL_MS);
    const first = parts.lock_generation();
    parts.lock_acquire(TTL_MS, TTL_MS);
    assert.is(parts.lock_generation(), first + 1, 'expired');
    parts.lock_release();
    parts.lock_acquire(TTL_MS, TTL_MS);
    assert.is(parts.lock_generation(), first + 2, 'released');
    parts.lock_reset();
    parts.lock_acquire(TTL_MS, TTL_MS);
    assert.is(parts.lock_generation(), first + 3, 'reset');
  });

  test('works at the beginning and at the end of time', () => {
    for (const nowMs of [0, 2 ** 31, 2 ** 32, 2 ** 53 - 1 - TTL_MS]) {
      parts.lock_reset();
      parts.lock_acquire(nowMs, TTL_MS);
      assert.ok(parts.lock_is_held(nowMs + TTL_MS - 1), `held, taken at ${nowMs}`);
      assert.not.ok(parts.lock_is_held(nowMs + TTL_MS), `free, taken at ${nowMs}`);
    }
  });
});
