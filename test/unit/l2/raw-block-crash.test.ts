/**
 * Whatever a crash interrupts: what a checkpoint has told reads back, and no value is torn.
 *
 * Values are those of `l2Value(size, seed)`, with the seed in their first 4 bytes, so each one says
 * by itself whether it is whole. They are of one size, so no header tells two values of a key
 * apart.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import * as assert from 'uvu/assert';
import type { L2Backend } from '../../../src/l2/backend.ts';
import type { RawBlockBackend } from '../../../src/l2/raw-block/raw-block-backend.ts';
import { KIB } from '../../../src/units.ts';
import type { Remains } from '../../support/failing-device.ts';
import { l2Key, l2Value } from '../../support/l2-objects.ts';
import fc from '../../support/property.ts';
import { DeviceFile } from '../../support/raw-block-device.ts';
import { openRawBlock } from '../../support/raw-block-house.ts';
import { suite } from '../../support/suite.ts';

const never = new AbortController().signal;
const KEY_COUNT = 4;
const VALUE_BYTES = 3001;

function valueWith(seed: number): Uint8Array {
  const bytes = l2Value(VALUE_BYTES, seed);
  new DataView(bytes.buffer).setUint32(0, seed);
  return bytes;
}

/** The seed of a value that is whole. */
function seedOf(bytes: Uint8Array): number {
  const seed = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
  assert.ok(Buffer.compare(bytes, valueWith(seed)) === 0, 'a torn value');
  return seed;
}

/** Seeds by key, of all values that a backend has; each of them is whole. */
async function contentOf(backend: L2Backend, keyCount = KEY_COUNT): Promise<Map<number, number>> {
  const content = new Map<number, number>();
  for (let index = 0; index < keyCount; index += 1) {
    const [size] = await backend.lookup([l2Key(index)], never);
    if (typeof size !== 'number') continue;
    const bytes = new Uint8Array(size);
    const [result] = await backend.load([{ key: l2Key(index), bytes }], never);
    if (result === 'loaded') content.set(index, seedOf(bytes));
  }
  return content;
}

type Step =
  | { readonly do: 'store' | 'delete'; readonly key: number; readonly isAwaited: boolean }
  | { readonly do: 'checkpoint'; readonly isAwaited: boolean };

const key = fc.nat(KEY_COUNT - 1);
const isAwaited = fc.boolean();
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 5, arbitrary: fc.record({ do: fc.constant('store' as const), key, isAwaited }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('delete' as const), key, isAwaited }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('checkpoint' as const), isAwaited }) },
);

/** Steps on a backend, and what the last checkpoint has told that no later step concerns. */
class Story {
  told = new Map<number, number>();
  readonly #backend: RawBlockBackend;
  readonly #running: Promise<unknown>[] = [];
  #seed = 0;

  constructor(backend: RawBlockBackend) {
    this.#backend = backend;
  }

  async take(step: Step): Promise<void> {
    if (step.do === 'checkpoint') {
      // What is there when it begins will be in it.
      await this.end();
      const now = await contentOf(this.#backend);
      const action = this.#backend.checkpoint();
      this.#running.push(action);
      if (!step.isAwaited) return;
      await action;
      this.told = now;
      return;
    }
    this.told.delete(step.key);
    this.#seed += 1;
    const object = { key: l2Key(step.key), bytes: valueWith(this.#seed) };
    const action =
      step.do === 'store'
        ? this.#backend.store([object], never)
        : this.#backend.delete([object.key], never);
    this.#running.push(action);
    if (step.isAwaited) await action;
  }

  async end(): Promise<void> {
    await Promise.allSettled(this.#running);
  }
}

suite('raw block: crashes', (test) => {
  test('after a loss of power or a kill at any write', async () => {
    const scenario = async (steps: readonly Step[], crashAt: number, kept: readonly number[]) => {
      const { backend, device } = await openRawBlock({ slotCount: 4 });
      const story = new Story(backend);
      const crashes: { readonly images: Remains; readonly told: Map<number, number> }[] = [];
      let next = 0;
      const keep = (): number => kept[next++ % kept.length] ?? 0;
      device.onWrite = (writeCount) => {
        if (writeCount !== crashAt) return;
        crashes.push({ images: device.remains(keep), told: new Map(story.told) });
      };
      for (const step of steps) await story.take(step);
      crashes.push({ images: device.remains(keep), told: new Map(story.told) });
      await story.end();
      for (const { images, told } of crashes) {
        for (const image of [images.powerLost, images.killed]) {
          const { backend: later } = await openRawBlock({ slotCount: 4, image });
          const content = await contentOf(later);
          for (const [index, expected] of told) assert.is(content.get(index), expected);
          await later.close();
        }
      }
    };
    const crashAt = fc.integer({ min: 1, max: 40 });
    const kept = fc.array(fc.constantFrom(0, 0.3, 0.5, 1), { minLength: 1, maxLength: 7 });
    const steps = fc.array(step, { minLength: 10, maxLength: 40 });
    await fc.assert(fc.asyncProperty(steps, crashAt, kept, scenario), { numRuns: 200 });
  });

  test('a slot that the checkpoint names is not written before another one is there', async () => {
    const { backend, device } = await openRawBlock({ slotCount: 1 });
    assert.equal(await backend.store([{ key: l2Key(0), bytes: valueWith(1) }], never), ['stored']);
    await backend.checkpoint();
    const { syncCount } = device;
    await backend.delete([l2Key(0)], never);
    assert.equal(await backend.store([{ key: l2Key(1), bytes: valueWith(2) }], never), ['stored']);
    assert.ok(device.syncCount > syncCount, 'the slot was written without a checkpoint');
    assert.is((await contentOf(backend)).get(1), 2);
  });

  test('a server that is killed while it stores', async () => {
    const device = new DeviceFile({ slotBytes: 12 * KIB, slotCount: 5 });
    for (let round = 0; round < 3; round += 1) {
      await storeUntilKilled(device.path, 5 + 4 * round);
      const backend = await device.open();
      const content = await contentOf(backend);
      // It was stored at first and is in every checkpoint.
      assert.is(content.get(0), 1);
      await backend.close();
    }
    device.remove();
  });
});

/** Kills a writer some time after so many checkpoints. */
async function storeUntilKilled(devicePath: string, checkpointCount: number): Promise<void> {
  const script = `${import.meta.dirname}/../../support/raw-block-writer.mjs`;
  const writer = spawn(process.execPath, [script, devicePath], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(writer, 'exit');
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  let lineCount = 0;
  writer.stdout.on('data', (chunk) => {
    lineCount += String(chunk).split('\n').length - 1;
    if (lineCount >= checkpointCount) resolve();
  });
  writer.on('exit', () => reject(new Error('the writer has ended by itself')));
  try {
    await promise;
  } finally {
    writer.kill('SIGKILL');
    await ended;
  }
}
