/**
 * Clients that ask and never read (spec field-lessons 5.3; that they delay nobody is shown in
 * lessons-5-clients): what they locked with requests whose replies are lost is given back all the
 * same, and what the server keeps for them is bounded.
 */
import { setImmediate as eventLoopTurn } from 'node:timers/promises';
import * as assert from 'uvu/assert';
import { Dealer } from 'zeromq';
import { expectNothingLeft } from '../support/aftermath.ts';
import { keyOf, promptOf } from '../support/fake-worker.ts';
import { framesOf } from '../support/repeater.ts';
import { expectAnswers, type Scenario, scenario } from '../support/scenario.ts';
import type { ServerProcess } from '../support/server-process.ts';
import { SlotWorker } from '../support/slot-worker.ts';
import { suite } from '../support/suite.ts';
import { until } from '../support/waiting.ts';

const MIB = 1024 * 1024;
/** Bound of the replies that wait for one client. */
const QUEUE_BYTES_MAX = 64 * MIB;
/** A reply repeats the uid: 20,000 of these are more than the bound and all socket buffers. */
const UID_BYTES = 5 * 1024;
const REQUEST_COUNT = 20_000;
const CHUNKS = 4;

/** A client that reads nothing: its replies stay in the server. */
function deafClient(s: Scenario, server: ServerProcess): Dealer {
  const deaf = new Dealer({ linger: 0, receiveHighWaterMark: 1, sendHighWaterMark: 0 });
  deaf.connect(server.url);
  return s.own(deaf);
}

/** Sends `count` requests, made by `request`, without holding up this process. */
async function flood(
  deaf: Dealer,
  count: number,
  request: (index: number) => Uint8Array[],
): Promise<void> {
  for (let i = 0; i < count; i += 1) {
    await deaf.send([Buffer.alloc(UID_BYTES, i), ...request(i)]);
    if (i % 20 === 0) await eventLoopTurn();
  }
}

async function expectBoundedQueue(server: ServerProcess): Promise<void> {
  const { wire } = await server.status();
  const queuedBytes = wire['replies_queued_bytes'] as number;
  assert.ok(queuedBytes > 0 && queuedBytes <= QUEUE_BYTES_MAX, `${queuedBytes} bytes wait`);
  assert.ok(wire.replies_lost.full > 0, 'nothing was lost');
}

async function expectQueueDropped(server: ServerProcess): Promise<void> {
  const isEmpty = async () => (await server.status()).wire['replies_queued_bytes'] === 0;
  await until(isEmpty, 5000, 'the replies of a client that has gone are dropped');
}

suite('faults: replies that nobody reads', (test) => {
  test(
    `a scheduler's ${REQUEST_COUNT} requests leave no lock, session or job`,
    scenario(async (s) => {
      const server = await s.serve();
      const worker = s.own(new SlotWorker(server.url, { transport: 'shm' }));
      await worker.register();
      const prompt = promptOf(1, CHUNKS);
      await worker.store(prompt, 1);
      const deaf = deafClient(s, server);
      await flood(deaf, REQUEST_COUNT, (i) => {
        const requestId = `r${Math.floor(i / 4)}`;
        const key = keyOf(prompt, { requestId });
        const steps = [
          () => framesOf('LOOKUP', { key, tpSize: 1 }),
          () => framesOf('QUERY_PREFETCH_STATUS', { requestId }),
          () => framesOf('FREE_LOOKUP_LOCKS', { key: { ...key, endToken: 32 }, tpSize: 1 }),
          () => framesOf('END_SESSION', { requestId }),
        ];
        return (steps[i % steps.length] as () => Uint8Array[])();
      });
      const areAllRead = async () =>
        ((await server.status()).wire['messages_received'] as number) >= REQUEST_COUNT;
      await until(areAllRead, 20_000, 'all requests are read');
      await expectAnswers(server);
      await expectBoundedQueue(server);
      const { active_sessions, active_prefetch_jobs, storage_manager } = await server.status();
      const { read_locked_count } = storage_manager.l1_manager;
      assert.equal([active_sessions, active_prefetch_jobs, read_locked_count], [0, 0, 0]);
      assert.equal(await worker.retrieve(prompt), worker.expected(1, CHUNKS));
      deaf.close();
      await expectQueueDropped(server);
      await expectNothingLeft(server);
    }),
  );

  test(
    'an inline worker that reads none of its data costs a bounded queue and no pin',
    scenario(async (s) => {
      const server = await s.serve({ '--shm-name': '' });
      const geometry = { layerCount: 16, hiddenSize: 1024 };
      const worker = s.own(new SlotWorker(server.url, { transport: 'inline', geometry }));
      await worker.register();
      const prompt = promptOf(1, CHUNKS);
      assert.is(await worker.store(prompt, 1), true);
      const deaf = deafClient(s, server);
      const request = framesOf('PREPARE_RETRIEVE', worker.requestOf(prompt));
      const replyBytes = CHUNKS * worker.objectSizeBytes;
      // ZMQ itself takes up to 64 messages before it says that it is full.
      const count = 64 + Math.ceil((2 * QUEUE_BYTES_MAX) / replyBytes);
      const before = (await server.status()).wire['messages_received'] as number;
      await flood(deaf, count, () => request);
      const areAnswered = async () => {
        const { requests, wire } = await server.status();
        const received = (wire['messages_received'] as number) - before;
        return received >= count && requests.in_flight === 0;
      };
      await until(areAnswered, 20_000, 'all requests are answered');
      await expectAnswers(server);
      await expectBoundedQueue(server);
      assert.is((await server.l1())['read_locked_count'], 0);
      assert.equal(await worker.retrieve(prompt), worker.expected(1, CHUNKS));
      deaf.close();
      await expectQueueDropped(server);
      await expectNothingLeft(server, { objectSizeBytes: worker.objectSizeBytes });
    }),
  );
});
