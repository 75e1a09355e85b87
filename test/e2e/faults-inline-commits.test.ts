/**
 * COMMIT_STORE with data that is not what it should be (spec engine 6.4, 9.3; wire 6;
 * field-lessons 1.7): the reply tells the truth, whole chunks are kept, everything else is given
 * back, and 500 rounds of it cost nothing.
 *
 *   data                          reply     chunks of four that are there afterwards
 *   two tensors                   false     the first two
 *   one of another kind (2nd)     false     the first, and those behind the gap for later
 *   not a list of tensors         refused   none
 */
import { encode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import { hostTensor } from '../../src/client/host-tensors.ts';
import type { HostTensor, InlinePayload } from '../../src/engine/api.ts';
import { writeTensorList } from '../../src/wire/tensor-list-writer.ts';
import { expectNothingLeft } from '../support/aftermath.ts';
import { hitsOf, promptOf } from '../support/fake-worker.ts';
import { framesOf } from '../support/repeater.ts';
import { scenario } from '../support/scenario.ts';
import { chunkBytesOf, SlotWorker } from '../support/slot-worker.ts';
import { suite } from '../support/suite.ts';
import { frameBytes, wireVectors } from '../support/wire-vectors.ts';

const CHUNKS = 4;
const CHUNK_BYTES = 4096;
const SHAPE = [2, 2, 16, 32];
const ROUNDS = 500;
const CALL_DEADLINE_MS = 5000;

const chunk = (index: number) => hostTensor('float16', SHAPE, chunkBytesOf(1, index, CHUNK_BYTES));
const chunks = (count: number) => Array.from({ length: count }, (_, index) => chunk(index));
/** Four chunks, the second of another kind. */
const withSecond = (tensor: HostTensor) => chunks(CHUNKS).with(1, tensor);
const zeros = (count: number) => new Uint8Array(count);

interface BadCommit {
  readonly title: string;
  readonly data: Uint8Array;
  readonly isRefused: boolean;
  /** Leading chunks, and all chunks, that are kept. */
  readonly hitCount: number;
  readonly keptCount: number;
}

function wrong(title: string, tensors: readonly HostTensor[], kept: readonly [number, number]) {
  const [hitCount, keptCount] = kept;
  const data = writeTensorList({ kind: 'tensors', tensors });
  return { title, data, isRefused: false, hitCount, keptCount };
}

function noList(title: string, data: Uint8Array): BadCommit {
  return { title, data, isRefused: true, hitCount: 0, keptCount: 0 };
}

const whole = Buffer.from(writeTensorList({ kind: 'tensors', tensors: chunks(CHUNKS) }));
const hostile = wireVectors.hostile_pickles[0] as (typeof wireVectors.hostile_pickles)[0];
/** Tensors that take the place of a chunk. */
const other = {
  shape: hostTensor('float16', [2, 2, 16, 16], zeros(2048)),
  rank: hostTensor('float16', [2048], zeros(4096)),
  dtype: hostTensor('bfloat16', SHAPE, zeros(4096)),
  itemSize: hostTensor('float32', SHAPE, zeros(8192)),
  nothing: hostTensor('float16', [0], zeros(0)),
};

const BAD_COMMITS: readonly BadCommit[] = [
  wrong('two tensors', chunks(2), [2, 2]),
  wrong('no tensors', [], [0, 0]),
  wrong('a tensor of another shape', withSecond(other.shape), [1, 3]),
  wrong('a tensor of another rank', withSecond(other.rank), [1, 3]),
  wrong('a tensor of another dtype', withSecond(other.dtype), [1, 3]),
  wrong('a tensor of larger items', withSecond(other.itemSize), [1, 3]),
  wrong('a tensor without elements', withSecond(other.nothing), [1, 3]),
  noList('five tensors', writeTensorList({ kind: 'tensors', tensors: chunks(CHUNKS + 1) })),
  noList('a list cut short', whole.subarray(0, whole.length - CHUNK_BYTES)),
  noList('a list that does not end', whole.subarray(0, whole.length - 1)),
  noList('bytes that are no pickle', Buffer.alloc(4096, 0x55)),
  noList('a pickle that calls something', frameBytes(hostile.hex)),
];

/** COMMIT_STORE of four chunks of this prompt with exactly these bytes as data. */
async function commitBytes(worker: SlotWorker, prompt: readonly number[], data: Uint8Array) {
  const none: InlinePayload = { kind: 'none' };
  const frames = framesOf('COMMIT_STORE', { ...worker.requestOf(prompt), data: none });
  const sent = [worker.client.nextUid(), ...frames.slice(0, -1), encode(data)];
  const [, , value, error] = await worker.client.exchange(sent, CALL_DEADLINE_MS);
  return { reply: value?.[0], isRefused: error !== undefined };
}

const FALSE = 0xc2;

suite('faults: data of COMMIT_STORE', (test) => {
  for (const flags of [{ '--shm-name': '' }, {}]) {
    const where = '--shm-name' in flags ? 'without a segment' : 'in place of slots';
    test(
      `${ROUNDS} bad ones ${where}: each is told so, usage is constant, a good one completes them`,
      scenario(async (s) => {
        const server = await s.serve(flags);
        const client = s.connect(server);
        const worker = s.own(new SlotWorker(server.url, { transport: 'inline' }));
        await worker.register();
        const prompts = BAD_COMMITS.map((_, i) => promptOf(i, CHUNKS));
        const keptCount = BAD_COMMITS.reduce((sum, bad) => sum + bad.keptCount, 0);
        const expectUsage = async () => {
          const { memory_used_bytes, write_locked_count, staging_object_count } = await server.l1();
          const usage = { memory_used_bytes, write_locked_count, staging_object_count };
          const wanted = { write_locked_count: 0, staging_object_count: 0 };
          assert.equal(usage, { ...wanted, memory_used_bytes: keptCount * CHUNK_BYTES });
        };
        for (let round = 0; round < ROUNDS; round += 1) {
          const i = round % BAD_COMMITS.length;
          const isFirstTurn = round < BAD_COMMITS.length;
          const [bad, prompt] = [BAD_COMMITS[i], prompts[i]] as [BadCommit, number[]];
          // A worker that has just registered is offered slots, and these are reserved.
          if (isFirstTurn) await worker.register();
          await worker.prepareStore(prompt);
          const { reply, isRefused } = await commitBytes(worker, prompt, bad.data);
          assert.is(reply, FALSE, bad.title);
          assert.is(isRefused, bad.isRefused, bad.title);
          if (isFirstTurn) assert.is(await hitsOf(client, prompt), bad.hitCount, bad.title);
          if (round === BAD_COMMITS.length - 1) await expectUsage();
        }
        await expectUsage();
        for (const [i, prompt] of prompts.entries()) {
          const data = worker.payloadOf(prompt, 1);
          assert.is(await worker.commitStore(prompt, data), true, BAD_COMMITS[i]?.title);
          assert.equal(await worker.retrieve(prompt), worker.expected(1, CHUNKS));
          await worker.commitRetrieve(prompt);
        }
        await expectNothingLeft(server);
      }),
    );
  }
});
