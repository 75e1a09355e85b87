import { decode } from '@msgpack/msgpack';
import * as assert from 'uvu/assert';
import { Dealer, Subscriber } from 'zeromq';
import { EventBus } from '../../../src/observability/event-bus.ts';
import { KvEventPublisher } from '../../../src/wire/kv-event-publisher.ts';
import { BatchBuffer } from '../../../src/wire/kv-event-replay.ts';
import { RecordingLogger } from '../../support/recording-logger.ts';
import { rejects } from '../../support/rejects.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';
import { deadline, until } from '../../support/waiting.ts';

const LOOPBACK = 'tcp://127.0.0.1:0';
const WAIT_MS = 5000;
const END_SEQ = 0xffff_ffff_ffff_ffffn;

type Event = [kind: string, ...fields: unknown[]];

interface Batch {
  readonly topic: string;
  readonly seq: bigint;
  readonly kinds: string[];
  readonly events: Event[];
}

function readBatch(topic: string, seq: Uint8Array, payload: Uint8Array): Batch {
  const [, events] = decode(payload) as [number, Event[], number];
  const kinds = events.map(([kind]) => kind);
  return { topic, seq: Buffer.from(seq).readBigUInt64BE(), kinds, events };
}

class House {
  readonly bus = new EventBus();
  readonly log = new RecordingLogger();
  readonly clock = new VirtualClock();
  readonly #closers: (() => unknown)[] = [];

  async open(rest: { topic?: string; endpoint?: string; replay?: boolean } = {}) {
    const { topic = 'kv', endpoint = LOOPBACK, replay = true } = rest;
    const { bus, log, clock } = this;
    const replayEndpoint = replay ? LOOPBACK : null;
    const publisher = await KvEventPublisher.open({
      ...{ endpoint, replayEndpoint, topic, clock, bus, log },
    });
    this.#closers.push(() => publisher.close());
    return publisher;
  }

  /** Returns when its subscription has arrived, which a publisher does not tell. */
  async subscribe(publisher: KvEventPublisher, topic = ''): Promise<Subscriber> {
    const socket = new Subscriber({ linger: 0, receiveTimeout: WAIT_MS });
    this.#closers.push(() => socket.close());
    socket.connect(publisher.endpoint);
    socket.subscribe(topic);
    let heard = -1n;
    await until(async () => {
      this.store(255);
      await turn();
      socket.receiveTimeout = 20;
      const frames = await socket.receive().catch(() => null);
      socket.receiveTimeout = WAIT_MS;
      if (frames) heard = (frames[1] as Buffer).readBigUInt64BE();
      return frames !== null;
    }, WAIT_MS);
    // Some of the trials may still be under way.
    const last = BigInt(publisher.status()['next_seq'] as number) - 1n;
    while (heard < last) heard = (await next(socket)).seq;
    return socket;
  }

  dealer(publisher: KvEventPublisher): Dealer {
    const socket = new Dealer({ linger: 0, receiveTimeout: WAIT_MS });
    this.#closers.push(() => socket.close());
    socket.connect(publisher.replayEndpoint as string);
    return socket;
  }

  store(n: number, rest: Partial<{ modelName: string; cacheSalt: string }> = {}): void {
    this.bus.publish('l1.chunks.stored', {
      ...{ modelName: 'm', worldSize: 1, cacheSalt: '', ...rest },
      hashes: [new Uint8Array(32).fill(n)],
      parentHash: null,
      tokenIds: Uint32Array.of(n, n + 1),
    });
  }

  remove(n: number): void {
    const scope = { modelName: 'm', worldSize: 1, cacheSalt: '' };
    this.bus.publish('l1.chunks.removed', { ...scope, hashes: [new Uint8Array(32).fill(n)] });
  }

  async close(): Promise<void> {
    for (const close of this.#closers.reverse()) await close();
  }
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

async function next(socket: Subscriber): Promise<Batch> {
  const [topic, seq, payload] = (await socket.receive()) as [Buffer, Buffer, Buffer];
  return readBatch(topic.toString(), seq, payload);
}

/** Asks for everything from `start` on; the last one is the end. */
async function replay(socket: Dealer, start: number | Uint8Array): Promise<bigint[]> {
  const request = Buffer.alloc(8);
  if (typeof start === 'number') request.writeBigUInt64BE(BigInt(start));
  await socket.send(['', typeof start === 'number' ? request : start]);
  const seqs: bigint[] = [];
  for (;;) {
    const [, seq, payload] = (await socket.receive()) as [Buffer, Buffer, Buffer];
    const number = seq.readBigUInt64BE();
    seqs.push(number);
    if (number === END_SEQ) {
      assert.is(payload.length, 0);
      return seqs;
    }
    assert.is(readBatch('', seq, payload).seq, number);
  }
}

function house(body: (house: House) => Promise<void>): () => Promise<void> {
  return async () => {
    const current = new House();
    try {
      await body(current);
    } finally {
      await current.close();
    }
  };
}

suite('publisher of KV events', (test) => {
  test(
    'sends all events of a turn as one batch, in order, with the topic and the next number',
    house(async (h) => {
      const publisher = await h.open();
      const socket = await h.subscribe(publisher);
      const first = BigInt(publisher.status()['next_seq'] as number);
      h.store(1);
      h.store(2);
      h.remove(1);
      await turn();
      h.remove(2);
      await turn();
      const [one, two] = [await next(socket), await next(socket)];
      assert.is(one.topic, 'kv');
      assert.equal(one.kinds, ['BlockStored', 'BlockStored', 'BlockRemoved']);
      assert.equal(one.events[2]?.[1], one.events[0]?.[1], 'the same block');
      assert.equal(two.kinds, ['BlockRemoved']);
      assert.is(one.seq, first);
      assert.is(two.seq, first + 1n);
    }),
  );

  test(
    'says that all blocks are cleared, to those who were told of some',
    house(async (h) => {
      const publisher = await h.open();
      const socket = await h.subscribe(publisher);
      h.bus.publish('l1.chunks.cleared', {});
      h.bus.publish('l1.chunks.cleared', {});
      h.store(1);
      await turn();
      h.bus.publish('l1.chunks.lost', {});
      await turn();
      assert.equal((await next(socket)).kinds, ['AllBlocksCleared', 'BlockStored']);
      assert.equal((await next(socket)).kinds, ['AllBlocksCleared']);
    }),
  );

  test(
    'puts the model into the topic where it is asked to, and clears each topic',
    house(async (h) => {
      const publisher = await h.open({ topic: 'kv@pod@{model}' });
      const socket = await h.subscribe(publisher, 'kv@');
      h.store(1, { modelName: 'a$&' });
      h.store(1, { modelName: 'b' });
      await turn();
      h.bus.publish('l1.chunks.cleared', {});
      await turn();
      const batches: Batch[] = [];
      for (let i = 0; i < 5; i += 1) batches.push(await next(socket));
      assert.equal(
        batches.map(({ topic, kinds }) => `${topic} ${kinds}`),
        [
          'kv@pod@a$& BlockStored',
          'kv@pod@b BlockStored',
          'kv@pod@m AllBlocksCleared',
          'kv@pod@a$& AllBlocksCleared',
          'kv@pod@b AllBlocksCleared',
        ],
      );
      const numbers = batches.map(({ seq }) => seq - (batches[0] as Batch).seq);
      assert.equal(numbers, [0n, 1n, 2n, 3n, 4n], 'one sequence over all topics');
    }),
  );

  test(
    'splits a turn that would make one large batch',
    house(async (h) => {
      const publisher = await h.open();
      const socket = await h.subscribe(publisher);
      const tokenIds = new Uint32Array(300_000).fill(0xffff_ffff);
      const scope = { modelName: 'm', worldSize: 1, cacheSalt: '' };
      const hashes = Array.from({ length: 300 }, (_, n) => new Uint8Array(32).fill(n));
      h.bus.publish('l1.chunks.stored', { ...scope, hashes, parentHash: null, tokenIds });
      await turn();
      const [one, two] = [await next(socket), await next(socket)];
      assert.is(one.events.length + two.events.length, Math.ceil(300 / 16));
      assert.is(two.seq, one.seq + 1n);
    }),
  );

  test(
    'replays what it has from a number on, then says that this is the end',
    house(async (h) => {
      const publisher = await h.open();
      for (let n = 0; n < 100; n += 1) {
        h.store(n);
        await turn();
      }
      const socket = h.dealer(publisher);
      const all = Array.from({ length: 100 }, (_, n) => BigInt(n));
      assert.equal(await replay(socket, 0), [...all, END_SEQ]);
      assert.equal(await replay(socket, 97), [97n, 98n, 99n, END_SEQ]);
      assert.equal(await replay(socket, 100), [END_SEQ]);
      assert.equal(await replay(socket, new Uint8Array(8).fill(0xff)), [END_SEQ]);
      assert.equal(await replay(socket, Uint8Array.of(98)), [98n, 99n, END_SEQ]);
      assert.is(publisher.status()['replay_count'], 5);
    }),
  );

  test(
    'ignores requests for a replay that are none, and serves the next one',
    house(async (h) => {
      const publisher = await h.open();
      h.store(1);
      await turn();
      const socket = h.dealer(publisher);
      await socket.send(['only one frame']);
      await socket.send(['', new Uint8Array(9)]);
      await socket.send(['', new Uint8Array(8), 'more']);
      assert.equal(await replay(socket, 0), [0n, END_SEQ]);
      assert.is(publisher.status()['bad_replay_request_count'], 3);
    }),
  );

  test(
    'is not held up by a client that leaves in the middle of its replay',
    house(async (h) => {
      const publisher = await h.open();
      for (let n = 0; n < 200; n += 1) {
        h.store(n);
        await turn();
      }
      const leaver = h.dealer(publisher);
      await leaver.send(['', new Uint8Array(8)]);
      await leaver.receive();
      leaver.close();
      assert.is((await replay(h.dealer(publisher), 0)).length, 201);
    }),
  );

  test(
    'connects to a router that listens itself',
    house(async (h) => {
      const socket = new Subscriber({ linger: 0, receiveTimeout: WAIT_MS });
      try {
        await socket.bind('tcp://127.0.0.1:0');
        socket.subscribe('');
        const publisher = await h.open({ endpoint: socket.lastEndpoint as string, replay: false });
        const received = next(socket);
        let isThere = false;
        void received.then(() => {
          isThere = true;
        });
        await until(async () => {
          h.store(1);
          await turn();
          return isThere;
        }, WAIT_MS);
        assert.equal((await deadline(received, WAIT_MS, 'no batch')).kinds[0], 'BlockStored');
        assert.is(publisher.replayEndpoint, null);
      } finally {
        socket.close();
      }
    }),
  );

  test(
    'refuses addresses that cannot be bound, and leaves nothing open',
    house(async (h) => {
      const { bus, log, clock } = h;
      const rest = { topic: '', clock, bus, log };
      const taken = await h.open();
      const port = taken.replayEndpoint as string;
      await rejects(
        KvEventPublisher.open({ ...rest, endpoint: LOOPBACK, replayEndpoint: port }),
        /cannot be bound: another process listens there/,
      );
      await rejects(
        KvEventPublisher.open({ ...rest, endpoint: 'nonsense', replayEndpoint: null }),
        /nonsense cannot be connected to/,
      );
    }),
  );
});

suite('buffer of batches', (test) => {
  const batch = (size: number): Uint8Array => new Uint8Array(size);

  test('numbers batches from 0 and keeps the newest', () => {
    const buffer = new BatchBuffer(3, 1000);
    const numbers = [1, 2, 3, 4, 5].map((size) => buffer.push(batch(size)));
    assert.equal(numbers, [0, 1, 2, 3, 4]);
    assert.is(buffer.count, 3);
    assert.is(buffer.firstSeq, 2);
    assert.is(buffer.nextSeq, 5);
    assert.is(buffer.sizeBytes, 3 + 4 + 5);
    assert.equal(
      [2, 3, 4].map((seq) => buffer.at(seq).length),
      [3, 4, 5],
    );
  });

  test('is bounded in bytes, but for one that is too large by itself', () => {
    const buffer = new BatchBuffer(1000, 100);
    for (let i = 0; i < 50; i += 1) buffer.push(batch(30));
    assert.is(buffer.count, 3);
    buffer.push(batch(500));
    assert.is(buffer.count, 1);
    assert.is(buffer.at(50).length, 500);
    buffer.push(batch(1));
    assert.is(buffer.count, 1);
    assert.is(buffer.firstSeq, 51);
  });
});
