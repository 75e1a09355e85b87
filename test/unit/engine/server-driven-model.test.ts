/**
 * Random sequences of all requests of a hybrid model with two ranks, clients of both generations
 * and faults included, against what they may see: a LOOKUP answers the longest prefix that every
 * rank can serve, and what it holds can be retrieved until somebody gives it back, byte for byte
 * and nothing else; in the end L1 holds whole objects and nothing more.
 */

import * as assert from 'uvu/assert';
import type { ClientTraits } from '../../../src/engine/client-traits.ts';
import { KvdError } from '../../../src/errors.ts';
import { NEW_CLIENT, OLD_CLIENT } from '../../support/client-traits.ts';
import fc from '../../support/property.ts';
import {
  blockIdsOf,
  CHUNK_TOKENS,
  ServerDrivenHouse,
  WINDOW_CHUNKS,
  WORLD_SIZE,
} from '../../support/server-driven-house.ts';
import { suite } from '../../support/suite.ts';

const PROMPT_COUNT = 3;
const CHUNK_COUNT = 4;
const SCHEDULER = 100;
const UNTOUCHED = 0xee;
const EVENT = new Uint8Array(0);

interface Place {
  readonly rank: number;
  readonly prompt: number;
  readonly first: number;
  readonly count: number;
  readonly isNew: boolean;
  readonly choice: number;
}

/** The one right content of a chunk. */
const contentOf = (of: { prompt: number; rank: number }, layer: number, chunk: number) =>
  1 + ((of.prompt * WORLD_SIZE + of.rank) * 2 + layer) * CHUNK_COUNT + chunk;

function servableCount(presence: readonly (readonly boolean[])[]): number {
  for (let length = presence.length; length > 0; length -= 1) {
    const isServable = [0, 1, 2, 3].every((column) => {
      const needed = column % 2 === 1 ? Math.min(WINDOW_CHUNKS, length) : length;
      return presence.slice(length - needed, length).every((chunk) => chunk[column]);
    });
    if (isServable) return length;
  }
  return 0;
}

class Model {
  readonly house = new ServerDrivenHouse(36);
  /** Loads that followed their lookup and succeeded. */
  retrieveCount = 0;
  /** Hits that a prompt's lookup holds for each rank, until something may have taken them. */
  readonly #held = new Map<string, number>();

  async register(of: Place): Promise<void> {
    await this.house.register(of.rank, clientOf(of));
  }

  async unregister(of: Place): Promise<void> {
    const request = { instanceId: BigInt(of.rank + 1) };
    await this.house.call('UNREGISTER_KV_CACHE', request, workerOf(of));
    // The last worker of a model takes what its lookups hold with it.
    if (this.house.instances.instanceCount === 0) this.#held.clear();
  }

  /** The second layer has no bytes of its early chunks, as an engine with a window. */
  async store(of: Place): Promise<void> {
    const ids = blockIdsOf(of.count);
    for (let i = 0; i < of.count; i += 1) {
      for (const layer of [0, 1]) {
        this.house.fill(of.rank, layer, 2 + 2 * i, contentOf(of, layer, of.first + i));
      }
    }
    const nullCount = of.isNew ? 2 * (of.choice % (of.count + 1)) : 0;
    const windowIds = ids.map((id, i) => (i < nullCount ? 0 : id));
    const { ok } = await this.house.call(
      'STORE',
      this.#transfer(of, [ids, windowIds]),
      workerOf(of),
    );
    assert.ok(ok);
  }

  async lookup(of: Place): Promise<void> {
    const expected = this.house.instances.findLayout('m', WORLD_SIZE)
      ? servableCount(this.house.presence(of.prompt, CHUNK_COUNT))
      : 0;
    this.#giveBack(of.prompt);
    const key = this.house.key(of.prompt, {
      chunkCount: CHUNK_COUNT,
      readerCount: of.isNew ? 1 : null,
    });
    const from = { connectionId: SCHEDULER, client: NEW_CLIENT };
    await this.house.call('LOOKUP', { key, tpSize: WORLD_SIZE }, from);
    const hits = await this.house.call('QUERY_PREFETCH_STATUS', { requestId: key.requestId }, from);
    assert.is(hits, expected);
    for (let rank = 0; rank < WORLD_SIZE; rank += 1)
      this.#held.set(`${of.prompt} ${rank}`, hits ?? 0);
  }

  /** What the lookup found, into blocks that hold something else. */
  async retrieve(of: Place): Promise<void> {
    const name = `${of.prompt} ${of.rank}`;
    const held = this.#held.get(name) ?? 0;
    const count = held > 0 ? held : of.count;
    this.#held.delete(name);
    for (let i = 0; i < count; i += 1) {
      for (const layer of [0, 1]) this.house.fill(of.rank, layer, 2 + 2 * i, UNTOUCHED);
    }
    const isRegistered = this.house.instances.lookup(BigInt(of.rank + 1)) !== undefined;
    const ids = blockIdsOf(count);
    const request = this.#transfer({ ...of, first: 0, count }, [ids, ids]);
    const failure = this.house.device.failNextJob;
    try {
      await this.house.call('RETRIEVE', { ...request, skipFirstTokens: 0 }, workerOf(of));
    } catch (error) {
      const isAllowed = held === 0 || !isRegistered || failure !== null;
      assert.ok(isAllowed, `what the lookup holds is gone: ${(error as Error).message}`);
      throw error;
    }
    for (let i = 0; i < count; i += 1) {
      assert.equal(this.house.read(of.rank, 0, 2 + 2 * i), [contentOf(of, 0, i)]);
      const isSeen = i >= count - WINDOW_CHUNKS;
      const want = isSeen ? contentOf(of, 1, i) : UNTOUCHED;
      assert.equal(this.house.read(of.rank, 1, 2 + 2 * i), [want]);
    }
  }

  /** A request that waits between its lookup and its load, while others store. */
  async serve(of: Place): Promise<void> {
    await this.lookup(of);
    for (let i = 1; i <= of.choice % 3; i += 1) {
      const prompt = (of.prompt + i) % PROMPT_COUNT;
      await this.store({ ...of, prompt, first: 0, count: CHUNK_COUNT, isNew: false });
    }
    await this.retrieve(of);
    this.retrieveCount += 1;
  }

  async free(of: Place): Promise<void> {
    this.#giveBack(of.prompt);
    const key = this.house.key(of.prompt, {
      chunkCount: CHUNK_COUNT,
      startToken: of.first * CHUNK_TOKENS,
      endToken: Math.min(of.first + of.count, CHUNK_COUNT) * CHUNK_TOKENS,
    });
    const from = { connectionId: SCHEDULER, client: clientOf(of) };
    await this.house.call('FREE_LOOKUP_LOCKS', { key, tpSize: 1 }, from);
  }

  async endSession(of: Place): Promise<void> {
    this.#giveBack(of.prompt);
    const from = { connectionId: SCHEDULER, client: clientOf(of) };
    await this.house.call('END_SESSION', { requestId: `p${of.prompt}` }, from);
  }

  async clear(of: Place): Promise<void> {
    const isForced = of.choice < 30;
    if (isForced) this.#held.clear();
    await this.house.l1House.storage.clear(isForced);
  }

  async finish(): Promise<void> {
    const none = { rank: 0, first: 0, count: 1, isNew: true, choice: 0 };
    this.house.device.failNextJob = null;
    for (let prompt = 0; prompt < PROMPT_COUNT; prompt += 1)
      await this.endSession({ ...none, prompt });
    this.house.assertClean();
  }

  #giveBack(prompt: number): void {
    for (let rank = 0; rank < WORLD_SIZE; rank += 1) this.#held.delete(`${prompt} ${rank}`);
  }

  #transfer({ prompt, rank, first, count }: Place, blockIds: number[][]) {
    const key = this.house.key(prompt, {
      chunkCount: first + count,
      workerId: rank,
      startToken: first * CHUNK_TOKENS,
    });
    return { key, instanceId: BigInt(rank + 1), blockIds, event: EVENT };
  }
}

const clientOf = ({ isNew }: Place): ClientTraits => (isNew ? NEW_CLIENT : OLD_CLIENT);
const workerOf = (of: Place) => ({ connectionId: of.rank + 1, client: clientOf(of) });

const place = fc
  .record({
    rank: fc.nat({ max: WORLD_SIZE - 1 }),
    prompt: fc.nat({ max: PROMPT_COUNT - 1 }),
    first: fc.nat({ max: 2 }),
    count: fc.integer({ min: 1, max: CHUNK_COUNT }),
    isNew: fc.boolean(),
    choice: fc.nat({ max: 99 }),
  })
  .map((of): Place => ({ ...of, count: Math.min(of.count, CHUNK_COUNT - of.first) }));

const ACTS: readonly [weight: number, name: string, act: (model: Model, of: Place) => unknown][] = [
  [12, 'STORE', (model, of) => model.store(of)],
  [
    6,
    'STORE by both',
    async (model, of) => {
      for (const rank of [0, 1]) await model.store({ ...of, first: 0, rank });
    },
  ],
  [8, 'LOOKUP', (model, of) => model.lookup(of)],
  [6, 'LOOKUP, then others, then RETRIEVE', (model, of) => model.serve(of)],
  [8, 'RETRIEVE', (model, of) => model.retrieve(of)],
  [2, 'FREE', (model, of) => model.free(of)],
  [2, 'END_SESSION', (model, of) => model.endSession(of)],
  [1, 'CLEAR', (model, of) => model.clear(of)],
  [1, 'REGISTER', (model, of) => model.register(of)],
  [1, 'UNREGISTER', (model, of) => model.unregister(of)],
  [
    1,
    'fault',
    (model) => {
      model.house.device.failNextJob = 'the worker is gone';
    },
  ],
  [1, 'wait', (model, of) => model.house.l1House.clock.advance(of.choice * 100)],
];

const step = fc.oneof(
  ...ACTS.map(([weight, name, act]) => ({
    weight,
    arbitrary: place.map((of) => ({ name, act, of })),
  })),
);

suite('server-driven transfers, random sequences', (test) => {
  test('lookups tell the truth, what they hold can be read, nothing is left behind', async () => {
    let retrieveCount = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { minLength: 10, maxLength: 60, size: 'max' }),
        async (steps) => {
          const model = new Model();
          for (const rank of [0, 1]) await model.house.register(rank, NEW_CLIENT);
          for (const { name, act, of } of steps) {
            try {
              await act(model, of);
            } catch (error) {
              // A refusal is as good an answer as any here; broken rules of ours are not.
              if (error instanceof KvdError && error.code !== 'ERR_INTERNAL') continue;
              throw new Error(`${name} ${JSON.stringify(of)}: ${error}`, { cause: error });
            }
            model.house.l1House.core.table.checkConsistency();
          }
          await model.finish();
          retrieveCount += model.retrieveCount;
        },
      ),
      { numRuns: 150 },
    );
    assert.ok(retrieveCount > 200, `only ${retrieveCount} of the RETRIEVEs succeeded`);
  });
});
