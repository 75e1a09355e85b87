/** Random adapters against a plain model: no wrong byte, nothing leaked, every task ends */

import * as assert from 'uvu/assert';
import type { PrefetchTask } from '../../../src/storage/prefetch-controller.ts';
import { ALIGN_BYTES } from '../../support/l1-house.ts';
import { buildL2House, type L2House } from '../../support/l2-house.ts';
import fc from '../../support/property.ts';
import type { ScriptedStore } from '../../support/scripted-store.ts';
import { suite } from '../../support/suite.ts';

const PROMPT_COUNT = 3;
const CHUNK_COUNT_MAX = 6;
const UNITS = 10;

type Step =
  | { kind: 'store' | 'prefetch' | 'put'; prompt: number; chunks: number; readers: number }
  | { kind: 'hold' | 'release'; call: 'store' | 'lookup' | 'load'; adapter: number }
  | { kind: 'time'; ms: number }
  | { kind: 'fail'; adapter: number; modulus: number }
  | { kind: 'lie' | 'lose' | 'timeOut'; adapter: number }
  | { kind: 'clear' | 'evict' | 'free' };

const adapter = fc.nat({ max: 1 });
const steps: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constantFrom('store' as const, 'prefetch' as const, 'put' as const),
      prompt: fc.nat({ max: PROMPT_COUNT - 1 }),
      chunks: fc.integer({ min: 1, max: CHUNK_COUNT_MAX }),
      readers: fc.nat({ max: 3 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constantFrom('hold' as const, 'release' as const),
      call: fc.constantFrom('store' as const, 'lookup' as const, 'load' as const),
      adapter,
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('time' as const),
      ms: fc.constantFrom(100, 1000, 3000),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('fail' as const), adapter, modulus: fc.nat(4) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constantFrom('lie' as const, 'lose' as const, 'timeOut' as const),
      adapter,
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constantFrom('clear' as const, 'evict' as const, 'free' as const),
    }),
  },
);

function failSome(store: ScriptedStore, modulus: number): void {
  let count = 0;
  store.failure = () => {
    count += 1;
    return modulus > 0 && count % modulus === 0 ? new Error('now and then') : null;
  };
}

/** `wrong`: objects that a prefetch has answered with other bytes than their own. */
type RaceHouse = L2House & { readonly wrong: string[] };

async function takeStep(house: RaceHouse, step: Step, held: [PrefetchTask, number][]) {
  const store = 'adapter' in step ? (house.stores[step.adapter] as ScriptedStore) : house.store0;
  switch (step.kind) {
    case 'store':
      house.storeInL1(house.keysOf(step.prompt, step.chunks, 2));
      break;
    case 'put':
      house.put(store, house.keysOf(step.prompt, step.chunks, 2));
      break;
    case 'prefetch': {
      const keys = house.keysOf(step.prompt, step.chunks, 2);
      const task = house.prefetch(keys, step.readers);
      task.onDone(() => void house.wrong.push(...house.wrongBytes(keys, task)));
      held.push([task, step.readers]);
      break;
    }
    case 'hold':
      store.holds.add(step.call);
      break;
    case 'release':
      store.holds.delete(step.call);
      for (const call of store.held.filter(({ kind }) => kind === step.call)) call.release();
      break;
    case 'timeOut':
      for (const call of store.held) call.timeOut();
      break;
    case 'fail':
      failSome(store, step.modulus);
      break;
    case 'lie':
      store.claimsAll = !store.claimsAll;
      break;
    case 'lose':
      for (const name of [...store.values.keys()].filter((_, i) => i % 2))
        store.values.delete(name);
      break;
    case 'clear':
      house.storage.clear(true);
      break;
    case 'evict':
      house.l1.evict(4 * ALIGN_BYTES, 100, false);
      break;
    case 'free':
      for (const [task, readers] of held.splice(0, 2)) {
        task.onDone(() => void (readers > 0 && house.release(task, readers)));
      }
      break;
    case 'time':
      await house.run(step.ms);
  }
}

/** Resident objects with other bytes than their own. */
function strangeObjects(house: RaceHouse): string[] {
  return Array.from({ length: PROMPT_COUNT }, (_, prompt) => {
    const keys = house.keysOf(prompt, CHUNK_COUNT_MAX, 2);
    return house.wrongSlots(keys, house.core.table.find(keys));
  }).flat();
}

async function play(script: readonly Step[], storePolicy: 'default' | 'skip_l1'): Promise<void> {
  const l2 = { lookupTimeoutMs: 2000, loadTimeoutMs: 3000, prefetchMaxInFlight: 2, storePolicy };
  const house = { ...buildL2House({ units: UNITS, adapterCount: 2, l2 }), wrong: [] as string[] };
  const held: [PrefetchTask, number][] = [];
  const tasks: PrefetchTask[] = [];
  for (const step of script) {
    await takeStep(house, step, held);
    tasks.push(...held.map(([task]) => task));
    await house.run();
    house.core.table.checkConsistency();
    assert.equal(strangeObjects(house), []);
  }
  await house.run(2000);
  await house.run(3000);
  assert.ok(
    tasks.every((task) => task.result !== null),
    'every task ends by its deadlines, whatever the adapters do',
  );
  for (const store of house.stores) {
    store.failure = () => null;
    store.releaseAll();
  }
  await house.run();
  assert.equal(strangeObjects(house), []);
  for (const [task, readers] of held) if (readers > 0) house.release(task, readers);
  for (let second = 0; second < 8; second += 1) await house.run(1000);
  assert.is(house.leaks(), 0);
  assert.equal(house.wrong, []);
  for (const store of house.stores) {
    for (const [name, value] of store.values) {
      const isObject = name.includes('@m@') && value.length === ALIGN_BYTES;
      if (isObject && !Buffer.from(value).includes('kvd-layout')) {
        assert.ok(Buffer.from(value).equals(house.contentOf(name)), 'L2 holds what was stored');
      }
    }
  }
  house.storage.clear(true);
  assert.is(house.l1.usedBytes, 0);
}

suite('storage: L1 and L2 at random', (test) => {
  for (const policy of ['default', 'skip_l1'] as const) {
    test(`store policy ${policy}`, async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(steps, { minLength: 1, maxLength: 60, size: 'max' }), (script) =>
          play(script, policy),
        ),
        { numRuns: 60 },
      );
    });
  }
});
