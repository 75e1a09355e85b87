/**
 * Random sequences of all requests of several workers, faults and time included, against what they
 * may see: a chunk that can be read holds exactly the bytes that some worker committed for it, and
 * in the end, whatever happened, L1 holds whole objects and nothing else.
 *
 * All workers compute the same bytes for the same tokens, so there is one right answer per chunk.
 * Slots that nobody wrote hold something else: the memory starts as zeros and changes hands.
 */

import * as assert from 'uvu/assert';
import { KvdError } from '../../../src/errors.ts';
import {
  CHUNK_TOKENS,
  chunkBytes,
  EngineDrivenHouse,
  tensorOf,
  tensorsIn,
  WORKER,
  WRITE_TTL_MS,
} from '../../support/engine-driven-house.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';

const WORKER_COUNT = 3;
const PROMPT_COUNT = 3;
const CHUNK_COUNT = 3;

/** Which worker asks, and for what. */
interface Place {
  readonly worker: number;
  readonly prompt: number;
  readonly request: number;
  readonly first: number;
  readonly count: number;
}

/** What a worker believes to have in its hands for one key of one request. */
interface Given {
  readonly slots: { readonly offset: number; readonly chunk: number }[];
  readonly preparedMs: number;
}

const bytesOf = (prompt: number, chunk: number): Uint8Array => chunkBytes(prompt + 1, chunk);

class Model {
  /** Small, so that stores evict; with room for every slot that is taken back. */
  readonly house = new EngineDrivenHouse({ units: 8, poolBytes: 2 ** 30 });
  readonly #given = new Map<string, Given>();
  /** Workers of another model: their objects are of no interest, their memory is. */
  readonly #strangers = new Set<number>();

  async register(of: Place, isStranger: boolean): Promise<void> {
    const isKnown = this.house.instances.lookupEngineDriven(idOf(of)) !== undefined;
    // The same registration again ends nothing; any other is a new beginning.
    if (!isKnown || isStranger !== this.#strangers.has(of.worker)) this.#forget(of.worker);
    if (isStranger) this.#strangers.add(of.worker);
    else this.#strangers.delete(of.worker);
    const rest = isStranger ? { modelName: 'w', hiddenSize: 16 } : {};
    await this.house.register({ instanceId: idOf(of), ...rest });
  }

  async unregister(of: Place): Promise<void> {
    this.#forget(of.worker);
    await this.house.unregister(idOf(of));
  }

  async prepareStore(of: Place): Promise<void> {
    const preparedMs = this.house.clock.nowMs();
    const { context } = await this.house.prepareStore(this.#key(of), idOf(of));
    const slots = (context.slots ?? []).map(({ offset }, i) => ({
      offset,
      chunk: of.first + (context.chunk_indices?.[i] as number),
    }));
    if (slots.length > 0) this.#given.set(nameOf(of), { slots, preparedMs });
  }

  /** A worker writes all that it was given, also when its time was over long ago. */
  async commitSlots(of: Place): Promise<void> {
    const { clock, device } = this.house;
    const given = this.#given.get(nameOf(of));
    this.#given.delete(nameOf(of));
    // Two TTLs are what it is protected for; who is stopped for longer can do harm (engine 9.3).
    const isProtected = given && clock.nowMs() - given.preparedMs < 2 * WRITE_TTL_MS;
    if (given && !isProtected) return;
    if (given && !this.#strangers.has(of.worker)) {
      for (const { offset, chunk } of given.slots) device.l1.set(bytesOf(of.prompt, chunk), offset);
    }
    const isStored = await this.house.commitStore(this.#key(of), undefined, idOf(of));
    assert.ok(!isStored || given, 'a commit of slots that nobody was given');
  }

  async commitData(of: Place, missing: number): Promise<void> {
    if (this.#strangers.has(of.worker)) return;
    this.#given.delete(nameOf(of));
    const tensors = Array.from({ length: Math.max(0, of.count - missing) }, (_, i) =>
      tensorOf(bytesOf(of.prompt, of.first + i)),
    );
    const isStored = await this.house.commitStore(this.#key(of), tensors, idOf(of));
    assert.ok(isStored || missing > 0, 'complete data was not stored');
  }

  async prepareRetrieve(of: Place): Promise<void> {
    const reply = await this.house.prepareRetrieve(this.#key(of), idOf(of));
    if (this.#strangers.has(of.worker)) return;
    const wanted = Array.from({ length: of.count }, (_, i) => bytesOf(of.prompt, of.first + i));
    const { slots } = reply.context;
    assert.ok(slots || reply.data.length > 0, 'a success without bytes');
    if (slots) assert.equal(this.house.read(slots), wanted);
    if (reply.data.length > 0) assert.equal(tensorsIn(reply.data), wanted);
  }

  async commitRetrieve(of: Place): Promise<void> {
    await this.house.commitRetrieve(this.#key(of), idOf(of));
  }

  async lookup(of: Place): Promise<void> {
    const key = { ...this.#key(of), workerId: null, startToken: 0 };
    await this.house.call('LOOKUP', { key, tpSize: 1 });
  }

  async endSession(of: Place): Promise<void> {
    await this.house.call('END_SESSION', { requestId: requestIdOf(of) });
  }

  /** Everybody leaves; then nothing may be left but whole objects. */
  async finish(): Promise<void> {
    const none = { first: 0, count: 1 };
    for (let worker = 0; worker < WORKER_COUNT; worker += 1) {
      await this.unregister({ worker, prompt: 0, request: 0, ...none });
    }
    for (let prompt = 0; prompt < PROMPT_COUNT; prompt += 1) {
      for (const request of [0, 1]) await this.endSession({ worker: 0, prompt, request, ...none });
    }
    this.house.assertClean();
  }

  #key(of: Place) {
    return this.house.key(of.prompt, CHUNK_COUNT, {
      startToken: of.first * CHUNK_TOKENS,
      endToken: (of.first + of.count) * CHUNK_TOKENS,
      requestId: requestIdOf(of),
      ...(this.#strangers.has(of.worker) && { modelName: 'w' }),
    });
  }

  /** Slots of a worker that begins anew are not in its hands any more. */
  #forget(worker: number): void {
    for (const name of [...this.#given.keys()]) {
      if (name.startsWith(`${worker} `)) this.#given.delete(name);
    }
  }
}

const idOf = ({ worker }: Place) => WORKER + BigInt(worker);
const requestIdOf = ({ prompt, request }: Place) => `p${prompt}r${request}`;
const nameOf = ({ worker, prompt, request, first, count }: Place) =>
  `${worker} ${prompt} ${request} ${first}+${count}`;

const place = fc.record({
  worker: fc.nat({ max: WORKER_COUNT - 1 }),
  prompt: fc.nat({ max: PROMPT_COUNT - 1 }),
  request: fc.nat({ max: 1 }),
  first: fc.nat({ max: 1 }),
  count: fc.integer({ min: 1, max: 2 }),
});

type Step = readonly [name: string, run: (model: Model) => Promise<void> | void];

/** A step at some place; `run` gets a number for whatever else it has to choose. */
function step(
  weight: number,
  name: string,
  run: (model: Model, of: Place, choice: number) => Promise<void> | void,
) {
  const arbitrary = fc
    .tuple(place, fc.nat({ max: 99 }))
    .map(
      ([of, choice]): Step => [
        `${name} ${JSON.stringify(of)} ${choice}`,
        (model) => run(model, of, choice),
      ],
    );
  return { weight, arbitrary };
}

const steps = fc.oneof(
  step(2, 'register', (model, of, choice) => model.register(of, choice < 30)),
  step(1, 'unregister', (model, of) => model.unregister(of)),
  step(1, 'reap', async (model, of) => void (await model.house.instances.drop(idOf(of), 'reaped'))),
  step(9, 'PREPARE_STORE', (model, of) => model.prepareStore(of)),
  step(9, 'COMMIT_STORE', (model, of) => model.commitSlots(of)),
  step(2, 'COMMIT_STORE data', (model, of, choice) => model.commitData(of, choice % 3)),
  step(6, 'PREPARE_RETRIEVE', (model, of) => model.prepareRetrieve(of)),
  step(5, 'COMMIT_RETRIEVE', (model, of) => model.commitRetrieve(of)),
  step(3, 'LOOKUP', (model, of) => model.lookup(of)),
  step(1, 'END_SESSION', (model, of) => model.endSession(of)),
  step(2, 'ping', (model, of) => void model.house.instances.ping(idOf(of))),
  step(2, 'wait', (model, _, choice) => model.house.clock.advance((choice + 1) * 100)),
  step(2, 'wait a TTL', (model) => model.house.clock.advance(WRITE_TTL_MS)),
  step(1, 'clear', async (model, _, choice) => {
    await model.house.storage.clear(choice < 50);
  }),
);

/** Refusals are as good an answer as any here; broken rules of ours are not. */
async function run(model: Model, [name, act]: Step): Promise<void> {
  try {
    await act(model);
  } catch (error) {
    if (!(error instanceof KvdError) || error.code === 'ERR_INTERNAL') {
      throw new Error(`${name}: ${(error as Error).message}`, { cause: error });
    }
  }
  model.house.core.table.checkConsistency();
}

suite('engine-driven transfers, random sequences', (test) => {
  test('what can be read was committed, and nothing is left behind', async () => {
    const sequence = fc.array(steps, { minLength: 10, maxLength: 80, size: 'max' });
    await fc.assert(
      fc.asyncProperty(sequence, async (taken) => {
        const model = new Model();
        for (let worker = 0; worker < WORKER_COUNT; worker += 1) {
          await model.register({ worker, prompt: 0, request: 0, first: 0, count: 1 }, false);
        }
        for (const one of taken) await run(model, one);
        await model.finish();
      }),
      { numRuns: 200 },
    );
  });
});
