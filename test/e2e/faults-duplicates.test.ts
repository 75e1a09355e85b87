/**
 * Messages that come twice, and the second half of a transfer without its first (spec engine 6.3,
 * 9.3; wire 7): one reply to each, and no lock or byte is left.
 */
import * as assert from 'uvu/assert';
import type { CacheKey } from '../../src/engine/api.ts';
import { expectNothingLeft } from '../support/aftermath.ts';
import { hitsOf, keyOf, promptOf } from '../support/fake-worker.ts';
import { Repeater, type Uids } from '../support/repeater.ts';
import { expectCalm, type Scenario, scenario } from '../support/scenario.ts';
import type { ServerProcess } from '../support/server-process.ts';
import { SlotWorker } from '../support/slot-worker.ts';
import { suite } from '../support/suite.ts';
import { until } from '../support/waiting.ts';
import { framesInFull, type VectorFrame, wireVectors } from '../support/wire-vectors.ts';

const CHUNKS = 4;
const PROMPT = promptOf(1, CHUNKS);
const INSTANCE = 2n ** 62n + 1n;
const EVENT = Buffer.from('stub_ipc_handle');
/** Of this process. */
const SEGMENTS = `lmcache_kv_${process.pid}_`;
const UIDS: readonly Uids[] = ['same uid', 'other uid'];
const twice = <T>(value: T): [T, T] => [value, value];

/** A scheduler's requests, all twice: what they find, and that their locks end. */
async function repeatLookups(repeater: Repeater, server: ServerProcess): Promise<void> {
  const key = keyOf(PROMPT);
  const { requestId } = key;
  assert.equal(await repeater.twice('LOOKUP', { key, tpSize: 1 }), twice(null));
  assert.is((await server.l1())['read_locked_count'], CHUNKS, 'the second replaces the first');
  assert.equal(await repeater.twice('QUERY_PREFETCH_LOOKUP_HITS', { requestId }), twice(CHUNKS));
  assert.equal(await repeater.twice('QUERY_PREFETCH_STATUS', { requestId }), [CHUNKS, 0]);
  const waiting = keyOf(PROMPT, { requestId: 'waiting' });
  await repeater.twice('LOOKUP', { key: waiting, tpSize: 1 });
  const wait = { requestId: 'waiting', timeoutSeconds: 1 };
  assert.equal(await repeater.twice('WAIT_PREFETCH_STATUS', wait), [CHUNKS, 0]);
  assert.equal(await repeater.twice('FREE_LOOKUP_LOCKS', { key: waiting, tpSize: 1 }), twice(null));
}

async function repeatEnds(repeater: Repeater, server: ServerProcess): Promise<void> {
  assert.is((await server.l1())['read_locked_count'], 0, 'the first retrieve took all readers');
  assert.equal(await repeater.twice('PING', { instanceId: INSTANCE }), twice(true));
  for (const requestId of ['request', 'waiting']) {
    assert.equal(await repeater.twice('END_SESSION', { requestId }), twice(null));
  }
  const report = { instanceId: INSTANCE, modelName: 'm', records: [] };
  assert.equal(await repeater.twice('REPORT_BLOCK_ALLOCATION', report), twice(null));
  assert.equal(await repeater.twice('GET_CHUNK_SIZE', {}), twice(16));
  assert.equal(await repeater.twice('NOOP', {}), twice('OK'));
}

const keyed = (): { key: CacheKey; instanceId: bigint } => ({
  key: keyOf(PROMPT, { workerId: 0 }),
  instanceId: INSTANCE,
});

async function repeatPaged(s: Scenario, server: ServerProcess, repeater: Repeater): Promise<void> {
  const worker = s.newWorker(server, { instanceId: INSTANCE });
  worker.fill([0, 1, 2, 3], 1);
  const registration = {
    instanceId: INSTANCE,
    wrappers: worker.wrappers,
    modelName: 'm',
    worldSize: 1,
    engineType: 'vllm' as const,
    layoutHints: {},
    engineGroupInfos: [],
  };
  assert.equal(await repeater.twice('REGISTER_KV_CACHE', registration), twice(null));
  assert.is(server.mappedSegments(SEGMENTS).length, worker.wrappers.length);
  const transfer = { ...keyed(), event: EVENT };
  const store = { ...transfer, blockIds: [[0, 1, 2, 3]] };
  assert.equal(await repeater.twice('STORE', store), twice([EVENT, true]));
  await repeatLookups(repeater, server);
  const retrieve = { ...transfer, blockIds: [[8, 9, 10, 11]], skipFirstTokens: 0 };
  assert.equal(await repeater.twice('RETRIEVE', retrieve), twice([EVENT, true]));
  assert.equal(worker.read([8, 9, 10, 11]), worker.read([0, 1, 2, 3]));
  await repeatEnds(repeater, server);
  const { instanceId } = registration;
  assert.equal(await repeater.twice('UNREGISTER_KV_CACHE', { instanceId }), twice(null));
  assert.equal(server.mappedSegments(SEGMENTS), []);
  worker.close();
}

async function repeatSlots(s: Scenario, server: ServerProcess, repeater: Repeater): Promise<void> {
  const reader = await s.slotWorker(server, { transport: 'shm' });
  await repeatRegistration(repeater);
  const request = keyed();
  const [first, second] = (await repeater.twice('PREPARE_STORE', request)) as Prepared[];
  assert.is(first?.context.slots.length, CHUNKS);
  assert.equal(second?.context, { slots: [], chunk_indices: [] });
  await reader.fill(first?.context ?? {}, 1);
  const commit = { ...request, data: { kind: 'none' } as const };
  assert.equal(await repeater.twice('COMMIT_STORE', commit), [true, false]);
  await repeatLookups(repeater, server);
  const reads = (await repeater.twice('PREPARE_RETRIEVE', request)) as Prepared[];
  for (const { success, context } of reads) {
    assert.is(success, true);
    assert.equal(context.slots, first?.context.slots);
  }
  assert.equal(await repeater.twice('COMMIT_RETRIEVE', request), twice(true));
  // The whole store again, as after a lost reply.
  const [again] = (await repeater.twice('PREPARE_STORE', request)) as Prepared[];
  assert.equal(again?.context.slots, []);
  assert.equal(await repeater.twice('COMMIT_STORE', commit), twice(false));
  assert.equal(await reader.retrieve(PROMPT), reader.expected(1, CHUNKS));
  await repeatEnds(repeater, server);
  await repeatGoodbye(repeater);
}

async function repeatInline(s: Scenario, server: ServerProcess, repeater: Repeater): Promise<void> {
  const reader = await s.slotWorker(server, { transport: 'inline' });
  await repeatRegistration(repeater);
  const request = keyed();
  assert.equal(await repeater.twice('PREPARE_STORE', request), twice({ context: {} }));
  const commit = { ...request, data: reader.payloadOf(PROMPT, 1) };
  assert.equal(await repeater.twice('COMMIT_STORE', commit), twice(true));
  await repeatLookups(repeater, server);
  const [one, two] = (await repeater.twice('PREPARE_RETRIEVE', request)) as Prepared[];
  assert.is(one?.success, true);
  assert.equal(one, two);
  assert.equal(await repeater.twice('COMMIT_RETRIEVE', request), twice(true));
  assert.equal(await reader.retrieve(PROMPT), reader.expected(1, CHUNKS));
  await repeatEnds(repeater, server);
  await repeatGoodbye(repeater);
}

/** An engine-driven worker of the same geometry as `SlotWorker`. */
async function repeatRegistration(repeater: Repeater): Promise<void> {
  const [pool, again] = await repeater.twice('REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT', {
    instanceId: INSTANCE,
    modelName: 'm',
    worldSize: 1,
    blockSize: 16,
    layerCount: 2,
    hiddenSize: 32,
    dtype: 'float16',
    usesMla: false,
    physicalSlotCount: null,
  });
  assert.equal(pool, again);
}

async function repeatGoodbye(repeater: Repeater): Promise<void> {
  const name = 'UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT';
  assert.equal(await repeater.twice(name, { instanceId: INSTANCE }), twice(null));
}

const PATHS = [
  { title: 'lmcache-driven', flags: {}, repeat: repeatPaged },
  { title: 'engine-driven over slots', flags: {}, repeat: repeatSlots },
  { title: 'engine-driven inline', flags: { '--shm-name': '' }, repeat: repeatInline },
];

suite('faults: every request twice', (test) => {
  for (const { title, flags, repeat } of PATHS) {
    test(
      title,
      scenario(async (s) => {
        const server = await s.serve(flags);
        for (const uids of UIDS) {
          const repeater = s.own(new Repeater(server.url, uids));
          await repeat(s, server, repeater);
          await expectCalm(server);
          assert.is((await server.l1())['total_object_count'], CHUNKS, uids);
          assert.equal(await repeater.twice('CLEAR', { isForced: true }), twice(null));
          assert.is(repeater.replyCount, repeater.messageCount, 'one reply each');
        }
        await expectNothingLeft(server);
      }),
    );
  }

  test(
    'of workers and requests that nobody knows: one refusal each, silence for registrations',
    scenario(async (s) => {
      const server = await s.serve({ '--no-strict-retrieve': true });
      const { operations, requests } = wireVectors;
      const repeaters = UIDS.map((uids) => s.own(new Repeater(server.url, uids)));
      for (const { op } of operations) {
        const golden = requests.find((request) => request.op === op && isWhole(request.frames));
        assert.ok(golden, `a golden request of ${op}`);
        const [, ...frames] = framesInFull(golden.frames);
        for (const repeater of repeaters) await repeater.sendTwice(frames);
      }
      const answered = operations.filter(({ op }) => !isAnsweredBySilence(op)).length;
      for (const repeater of repeaters) {
        await until(() => repeater.replyCount >= 2 * answered, 5000, 'a reply to each');
      }
      // Replies too many would have come by now.
      await expectCalm(server);
      for (const repeater of repeaters) assert.is(repeater.replyCount, 2 * answered);
      await expectNothingLeft(server);
    }),
  );
});

interface Prepared {
  readonly success?: boolean;
  readonly context: {
    readonly slots: { offset: number; length: number; shape: number[]; dtype: string }[];
    readonly chunk_indices: number[];
  };
}

const isWhole = (frames: readonly VectorFrame[]) =>
  frames.every((frame) => typeof frame === 'string' || '$runs' in frame);

/** These fail here, and their clients take any reply for a success. */
const isAnsweredBySilence = (op: string) => /^REGISTER_KV_CACHE$|^CB_REGISTER_/.test(op);

suite('faults: COMMIT without PREPARE', (test) => {
  test(
    'COMMIT_STORE is false and COMMIT_RETRIEVE true, whoever asks; nothing becomes readable',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.connect(server);
      const worker = s.own(new SlotWorker(server.url, { transport: 'shm' }));
      await worker.register();
      assert.is(await worker.commitStore(PROMPT), false);
      assert.equal(await worker.commitRetrieve(PROMPT), { value: true, error: null });
      // Of another request, of another worker, of a part: none of these is what was prepared.
      const stranger = s.own(new SlotWorker(server.url, { transport: 'shm', instanceId: 9n }));
      await stranger.register();
      const context = await worker.prepareStore(PROMPT);
      assert.is(await worker.commitStore(PROMPT, undefined, { requestId: 'other' }), false);
      assert.is(await worker.commitStore(PROMPT, undefined, { endToken: 32 }), false);
      assert.is(await stranger.commitStore(PROMPT), false);
      assert.is(await hitsOf(client, PROMPT), 0);
      await worker.fill(context, 1);
      assert.is(await worker.commitStore(PROMPT), true);
      assert.equal(await stranger.retrieve(PROMPT), worker.expected(1, CHUNKS));
      // Of a worker that is not registered.
      await worker.unregister();
      const refused = await worker.tryCommitStore(PROMPT);
      assert.is(refused.value, false);
      assert.is(refused.error?.error, 'UNKNOWN_INSTANCE');
      assert.is((await worker.commitRetrieve(PROMPT)).value, false);
      await expectNothingLeft(server);
    }),
  );
});
