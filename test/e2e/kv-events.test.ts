/**
 * What a server tells about the content of its L1, as the two kinds of followers see it: workers
 * that subscribe over the protocol (spec wire 8.2), and routers behind the PUB socket.
 */
import { decode, encode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import { Dealer, Subscriber } from 'zeromq';
import { promptOf } from '../support/fake-worker.ts';
import { expectCalm, type Scenario, scenario } from '../support/scenario.ts';
import type { ServerProcess } from '../support/server-process.ts';
import { SlotWorker } from '../support/slot-worker.ts';
import { suite } from '../support/suite.ts';
import { until } from '../support/waiting.ts';

const WAIT_MS = 5000;
const CHUNK_TOKENS = 16;
const UID = encode(2);
const OPERATION = encode('subscribe_kv_events');
const NONE = Buffer.alloc(0);
const PUBLISH = {
  '--kv-events-endpoint': 'tcp://127.0.0.1:0',
  '--kv-events-replay-endpoint': 'tcp://127.0.0.1:0',
  '--kv-events-topic': 'kv@pod@{model}',
};

interface Part {
  readonly enabled: boolean;
  readonly next_cursor: number;
  readonly lost: boolean;
  readonly events: readonly {
    readonly seq: number;
    readonly kind: string;
    readonly model_name: string;
    readonly block_hashes: readonly Uint8Array[];
    readonly parent_block_hash: Uint8Array | null;
    readonly token_ids: readonly number[];
  }[];
}

/** A client of 0.5.6 as far as streams go. */
class StreamClient {
  readonly #socket = new Dealer({ linger: 0, receiveTimeout: WAIT_MS });

  constructor(server: ServerProcess) {
    this.#socket.connect(server.url);
  }

  async subscribe(cursor = 0, instanceId = 4242): Promise<Part | null> {
    const payloads = [instanceId, 'm', cursor, 1024].map((value) => encode(value));
    await this.#socket.send([UID, OPERATION, ...payloads]);
    return await this.receive();
  }

  /** Takes one part more; null = the end of the stream. */
  async more(): Promise<Part | null> {
    await this.control('ack');
    return await this.receive();
  }

  async control(word: string): Promise<void> {
    await this.#socket.send([UID, NONE, word]);
  }

  async receive(): Promise<Part | null> {
    const [, , payload] = await this.#socket.receive();
    return payload ? (decode(payload) as Part) : null;
  }

  close(): void {
    this.#socket.close();
  }
}

type Event = [kind: string, hashes: Uint8Array[], ...rest: unknown[]];

interface Seen {
  readonly topic: string;
  readonly seq: number;
  readonly event: Event;
}

/** A router: a subscription, everything that came over it, and what follows from that. */
class RouterClient {
  readonly seen: Seen[] = [];
  readonly #socket = new Subscriber({ linger: 0 });

  constructor(endpoint: string) {
    this.#socket.connect(endpoint);
    this.#socket.subscribe('kv@');
    void this.#read();
  }

  async #read(): Promise<void> {
    for await (const [topic, seq, payload] of this.#socket) {
      const [, events] = decode(payload as Buffer) as [number, Event[], number];
      const number = Number((seq as Buffer).readBigUInt64BE());
      for (const event of events) this.seen.push({ topic: String(topic), seq: number, event });
    }
  }

  kinds(): string[] {
    return this.seen.map(({ event }) => event[0]);
  }

  async untilSeen(kind: string, count: number): Promise<void> {
    const isThere = () => this.kinds().filter((seen) => seen === kind).length >= count;
    await until(isThere, WAIT_MS, `${count} events ${kind}`);
  }

  close(): void {
    this.#socket.close();
  }
}

async function publisherOf(server: ServerProcess): Promise<Record<string, string>> {
  const status = (await server.status()) as unknown as Record<string, Record<string, string>>;
  return status['kv_event_publisher'] as Record<string, string>;
}

/** Returns when events arrive: a subscription takes a moment that nobody is told of. */
async function openRouter(s: Scenario, server: ServerProcess): Promise<RouterClient> {
  const { endpoint } = await publisherOf(server);
  const router = s.own(new RouterClient(endpoint as string));
  const worker = await s.worker(server, { instanceId: 9n });
  let number = 1000;
  const isConnected = async () => {
    number += 1;
    await worker.store(promptOf(number, 1));
    return router.seen.length > 0;
  };
  await until(isConnected, WAIT_MS, 'the first event');
  await router.untilSeen('BlockStored', 1);
  return router;
}

suite('KV events of a server', (test) => {
  test(
    'reach a subscribed worker: stored with tokens and parents, removed, cleared',
    scenario(async (s) => {
      const server = await s.serve();
      const worker = await s.worker(server);
      const client = s.own(new StreamClient(server));
      const first = await client.subscribe();
      assert.equal([first?.enabled, first?.lost, first?.events.length], [true, false, 0]);
      const prompt = promptOf(1, 3);
      await worker.store(prompt);
      const stored = await client.more();
      assert.equal(
        stored?.events.map(({ seq, kind }) => [seq, kind]),
        [
          [1, 'stored'],
          [2, 'stored'],
          [3, 'stored'],
        ],
      );
      assert.equal(
        stored?.events.flatMap(({ token_ids }) => token_ids),
        prompt,
      );
      const [one, two] = stored?.events ?? [];
      assert.is(one?.parent_block_hash, null);
      assert.equal(two?.parent_block_hash, one?.block_hashes[0]);
      await server.clearIdle();
      const removed = await client.more();
      const [removal] = removed?.events ?? [];
      assert.is(removal?.kind, 'removed');
      assert.is(removal?.block_hashes.length, 3);
      await worker.store(prompt);
      assert.is((await client.more())?.events.length, 3);
      await s.connect(server).call('CLEAR', { isForced: true }, WAIT_MS);
      assert.is((await client.more())?.lost, true);
      await client.control('cancel');
      assert.is(await client.receive(), null);
      await expectCalm(server);
    }),
  );

  test(
    'come from both transfer paths, once for each chunk',
    scenario(async (s) => {
      const server = await s.serve();
      const client = s.own(new StreamClient(server));
      await client.subscribe();
      const slots = new SlotWorker(server.url, { transport: 'shm' });
      s.own(slots);
      await slots.register();
      assert.ok(await slots.store(promptOf(1, 2), 1));
      assert.is((await client.more())?.events.length, 2);
      const inline = new SlotWorker(server.url, {
        transport: 'inline',
        instanceId: 2n ** 62n + 9n,
      });
      s.own(inline);
      await inline.register();
      assert.ok(await inline.store(promptOf(1, 2), 1));
      assert.ok(await inline.store(promptOf(2, 4), 1));
      assert.is((await client.more())?.events.length, 4);
    }),
  );

  test(
    'are replayed behind a cursor, and a second stream of a worker ends the first',
    scenario(async (s) => {
      const server = await s.serve({ '--kv-event-log-size': 4 });
      const worker = await s.worker(server);
      await worker.store(promptOf(1, 6));
      const client = s.own(new StreamClient(server));
      const part = await client.subscribe(3);
      assert.equal(
        part?.events.map(({ seq }) => seq),
        [4, 5, 6],
      );
      assert.is(part?.lost, false);
      const late = s.own(new StreamClient(server));
      const whole = await late.subscribe(1);
      assert.is(whole?.lost, true);
      assert.equal(
        whole?.events.map(({ seq }) => seq),
        [3, 4, 5, 6],
      );
      assert.is(await client.more(), null, 'its worker has another stream now');
      const status = (await server.status()) as unknown as Record<string, Record<string, number>>;
      const { log_depth: depth, next_seq: next, subscribers } = status['kv_events'] ?? {};
      assert.equal([depth, next, subscribers], [4, 7, 1]);
      assert.is(await server.metric('lmcache_mp_kv_events_log_depth'), 4);
    }),
  );

  test(
    'are not kept where the log is off, and a subscriber is told so',
    scenario(async (s) => {
      const server = await s.serve({ '--kv-event-log-size': 0 });
      const client = s.own(new StreamClient(server));
      assert.is((await client.subscribe())?.enabled, false);
      assert.is(await client.more(), null);
    }),
  );

  test(
    'reach routers: stored, removed by eviction and cleared, with tier and tenant',
    scenario(async (s) => {
      const server = await s.serve({ ...PUBLISH, '--kv-event-log-size': 0 });
      const router = await openRouter(s, server);
      const worker = await s.worker(server);
      router.seen.length = 0;
      await worker.store(promptOf(1, 3));
      await worker.store(promptOf(1, 3), { cacheSalt: 'tenant' });
      await router.untilSeen('BlockStored', 2);
      const [plain, salted] = router.seen;
      assert.is(plain?.topic, 'kv@pod@m');
      const [, hashes, parent, tokenIds, blockSize, , medium, , extraKeys] = plain?.event ?? [];
      assert.is((hashes as Uint8Array[]).length, 3);
      assert.equal([parent, blockSize, medium, extraKeys], [null, CHUNK_TOKENS, 'CPU', null]);
      assert.equal(tokenIds, promptOf(1, 3));
      assert.equal(salted?.event[8], [['tenant'], null, null]);
      assert.not.equal(salted?.event[1], plain?.event[1], 'equal tokens of two tenants');
      await s.connect(server).call('CLEAR', { isForced: true }, WAIT_MS);
      await router.untilSeen('AllBlocksCleared', 1);
      for (let n = 0; n < 700; n += 1) await worker.store(promptOf(2000 + n, 10));
      await router.untilSeen('BlockRemoved', 1);
      expectNoGap(router.seen);
      const stored = hashesOf(router, 'BlockStored');
      assert.ok(hashesOf(router, 'BlockRemoved').every((hash) => stored.includes(hash)));
    }),
  );

  test(
    'can be asked for again by routers',
    scenario(async (s) => {
      const server = await s.serve(PUBLISH);
      const worker = await s.worker(server);
      for (let n = 0; n < 5; n += 1) await worker.store(promptOf(n, 1));
      const dealer = s.own(new Dealer({ linger: 0, receiveTimeout: WAIT_MS }));
      dealer.connect((await publisherOf(server))['replay_endpoint'] as string);
      const start = Buffer.alloc(8);
      start.writeBigUInt64BE(3n);
      await dealer.send(['', start]);
      const seqs: bigint[] = [];
      for (let isOver = false; !isOver; ) {
        const [, seq, payload] = await dealer.receive();
        seqs.push((seq as Buffer).readBigInt64BE());
        isOver = (payload as Buffer).length === 0;
      }
      assert.equal(seqs, [3n, 4n, -1n]);
    }),
  );
});

function hashesOf(router: RouterClient, kind: string): string[] {
  const events = router.seen.filter(({ event }) => event[0] === kind);
  return events.flatMap(({ event }) => event[1].map((hash) => Buffer.from(hash).toString('hex')));
}

function expectNoGap(seen: readonly Seen[]): void {
  for (const [i, { seq }] of seen.entries()) {
    const before = seen[i - 1]?.seq ?? seq;
    assert.ok(seq === before || seq === before + 1, `${seq} follows ${before}`);
  }
}
