/**
 * Random work against a backend that does what it likes, compared with what must always be true:
 * tasks end by their deadline, buffers are held exactly as long as somebody may touch them, locks
 * and bytes are neither lost nor invented, and the capacity is a bound.
 */

import * as assert from 'uvu/assert';
import type { L2Task } from '../../../src/l2/task.ts';
import {
  emptyObject,
  hasSettled,
  L2AdapterHouse,
  objectOf,
  TASK_TIMEOUT_MS,
  turns,
} from '../../support/l2-adapter-house.ts';
import { l2Key } from '../../support/l2-objects.ts';
import fc from '../../support/property.ts';
import type { Conduct } from '../../support/scripted-backend.ts';
import { suite } from '../../support/suite.ts';

const KEY_COUNT = 12;
const SIZE_BYTES = 100;
const CAPACITY_BYTES = 700;

type Step =
  | { readonly do: 'store' | 'load' | 'delete' | 'lookup'; readonly ids: readonly number[] }
  | { readonly do: 'unlock' | 'pass' | 'end' }
  | { readonly do: 'behave'; readonly as: 'answer' | 'wait' | 'reject' | 'lie' };

const ids = fc.array(fc.integer({ min: 1, max: KEY_COUNT }), { minLength: 1, maxLength: 4 });
const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    { weight: 8, arbitrary: fc.record({ do: fc.constantFrom('store', 'lookup'), ids }) },
    { weight: 4, arbitrary: fc.record({ do: fc.constantFrom('load', 'delete'), ids }) },
    { weight: 4, arbitrary: fc.record({ do: fc.constantFrom('unlock', 'pass', 'end') }) },
    {
      weight: 3,
      arbitrary: fc.record({
        do: fc.constant('behave' as const),
        as: fc.constantFrom('answer', 'answer', 'wait', 'reject', 'lie'),
      }),
    },
  ) as fc.Arbitrary<Step>,
  { minLength: 1, maxLength: 40 },
);

const CONDUCTS: Readonly<Record<string, Conduct>> = {
  answer: 'answer',
  wait: 'wait',
  reject: { reject: new Error('no') },
  lie: { lie: (truth) => truth.map((_, i) => (i % 2 === 0 ? 'nonsense' : -1)) },
};

class Run {
  readonly house = new L2AdapterHouse({ capacityBytes: CAPACITY_BYTES });
  readonly locked: number[] = [];
  /** Whether the backend has stored what it did not admit: no bound holds then. */
  #hasLied = false;
  readonly tasks: { readonly task: L2Task<unknown>; readonly startMs: number }[] = [];

  async take(step: Step): Promise<void> {
    const { adapter, backend, clock } = this.house;
    switch (step.do) {
      case 'store':
        this.#begin(adapter.store(step.ids.map((id) => objectOf(id, SIZE_BYTES))));
        break;
      case 'load':
        this.#begin(adapter.load(step.ids.map((id) => emptyObject(id, SIZE_BYTES))));
        break;
      case 'lookup': {
        const keys = step.ids.map((id) => l2Key(id));
        const hits = adapter.lookup(
          keys,
          keys.map(() => SIZE_BYTES),
        );
        void hits.then((found) => {
          for (const [i, id] of step.ids.entries()) if (found[i] === 1) this.locked.push(id);
        });
        break;
      }
      case 'delete':
        await this.#delete(step.ids);
        break;
      case 'unlock':
        adapter.unlock(this.locked.splice(0, 1).map((id) => l2Key(id)));
        break;
      case 'pass':
        clock.advance(TASK_TIMEOUT_MS / 2);
        break;
      case 'end':
        backend.waiting()[0]?.answer();
        break;
      case 'behave':
        backend.conduct = CONDUCTS[step.as] as Conduct;
        this.#hasLied ||= step.as === 'lie';
    }
    await turns();
    await this.#check();
  }

  async finish(): Promise<void> {
    const { adapter, backend, clock } = this.house;
    backend.conduct = 'answer';
    clock.advance(TASK_TIMEOUT_MS);
    await turns();
    while (backend.waiting().length > 0) {
      for (const call of backend.waiting()) call.answer();
      await turns();
    }
    for (const { task } of this.tasks) await task.released;
    assert.is(adapter.inFlightTaskCount, 0);
    assert.is(adapter.inFlightBytes, 0);
    adapter.unlock(this.locked.splice(0).map((id) => l2Key(id)));
    assert.is(adapter.status()['locked_object_count'], 0);
    clock.advance(120_000); // a breaker that is open finds the store again
    await turns();
    const all = Array.from({ length: KEY_COUNT }, (_, i) => l2Key(i + 1));
    const sizes = all.map(() => SIZE_BYTES);
    const hits = await adapter.lookup(all, sizes);
    assert.is(
      hits.reduce((sum, hit) => sum + hit, 0),
      backend.values.size,
    );
    assert.is(adapter.usage().usedBytes, backend.values.size * SIZE_BYTES);
  }

  #begin(task: L2Task<unknown>): void {
    this.tasks.push({ task, startMs: this.house.clock.nowMs() });
  }

  /** Waits until it has settled, or would settle only later. */
  async #delete(step: readonly number[]): Promise<void> {
    const lockedBefore = new Set(this.locked);
    const deleted = this.house.adapter.delete(step.map((id) => l2Key(id)));
    if (!(await hasSettled(deleted))) return;
    for (const [i, result] of (await deleted).entries()) {
      const isLocked = lockedBefore.has(step[i] as number);
      assert.ok(!isLocked || result instanceof Error, 'a locked object was deleted');
    }
  }

  async #check(): Promise<void> {
    const { adapter, backend, clock } = this.house;
    assert.is(adapter.status()['locked_object_count'], new Set(this.locked).size);
    const { usedBytes } = adapter.usage();
    assert.ok(usedBytes >= 0, `${usedBytes} bytes used`);
    assert.ok(usedBytes <= CAPACITY_BYTES || this.#hasLied, `${usedBytes} bytes used`);
    const isBound = backend.values.size * SIZE_BYTES <= CAPACITY_BYTES;
    assert.ok(isBound || this.#hasLied, 'the store is over its bound');
    for (const { task, startMs } of this.tasks) {
      const isDue = clock.nowMs() - startMs >= TASK_TIMEOUT_MS;
      if (isDue) assert.ok(await hasSettled(task.outcome), 'a task has missed its deadline');
    }
    // Every call that waits belongs to a task that still holds its buffers.
    const touching = backend.waiting().filter(({ operation }) => operation !== 'lookup');
    assert.ok(adapter.inFlightTaskCount >= new Set(touching.map(({ signal }) => signal)).size);
  }
}

suite('L2 adapter against a backend that does what it likes', (test) => {
  test('deadlines, buffers, locks, bytes and capacity hold', async () => {
    await fc.assert(
      fc.asyncProperty(steps, async (list) => {
        const run = new Run();
        for (const step of list) await run.take(step);
        await run.finish();
      }),
      { numRuns: 150 },
    );
  });
});
