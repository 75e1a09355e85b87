/** Streams over gRPC: a part at a time, ended by whoever wants no more. */
import { once } from 'node:events';
import { connect } from 'node:http2';
import type { ClientReadableStream, ServiceError } from '@grpc/grpc-js';
import * as assert from 'uvu/assert';
import type { KvEventBatch, ReplyStream } from '../../../../src/engine/api.ts';
import { KvdError } from '../../../../src/errors.ts';
import { callNamed, dialectNamed } from '../../../../src/wire/dialect.ts';
import {
  messageOf,
  methodOf,
  openGrpcHouse,
  ping,
  STATUS,
  soon,
  withGrpcHouse,
} from '../../../support/grpc-house.ts';
import { suite } from '../../../support/suite.ts';

const REQUEST = { instanceId: 1n, modelName: 'm', cursor: 0, eventCountMax: 1024 };

function batch(nextCursor: number, tokenCount = 0): KvEventBatch {
  const event = {
    seq: nextCursor,
    kind: 'stored',
    medium: 'CPU',
    modelName: 'm',
    blockHashes: [Buffer.from('hash')],
    parentBlockHash: null,
    tokenIds: new Array<number>(tokenCount).fill(70_000),
  } as const;
  const events = tokenCount === 0 ? [] : [event];
  return { isEnabled: true, incarnation: 2n ** 60n, nextCursor, isLost: false, events };
}

/** A subscription whose parts the test gives out, or that has always one more. */
class Source implements ReplyStream<KvEventBatch> {
  readonly #endless: KvEventBatch | null;
  readonly #waiting: ((part: KvEventBatch | null) => void)[] = [];
  readonly isEnded = false;
  askedCount = 0;
  isCancelled = false;

  constructor(endless: KvEventBatch | null = null) {
    this.#endless = endless;
  }

  next(): Promise<KvEventBatch | null> {
    this.askedCount += 1;
    if (this.#endless) return Promise.resolve(this.#endless);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  give(part: KvEventBatch | null): void {
    this.#waiting.shift()?.(part);
  }

  cancel(): void {
    this.isCancelled = true;
    for (const resolve of this.#waiting.splice(0)) resolve(null);
  }
}

/** What the client has seen: cursors, and in the end a status. */
function follow(stream: ClientReadableStream<unknown>): (number | string)[] {
  const seen: (number | string)[] = [];
  stream.on('data', (part: KvEventBatch) => seen.push(part.nextCursor));
  stream.on('error', () => {});
  stream.on('status', ({ code }: ServiceError) => seen.push(`status ${code}`));
  return seen;
}

/** A call over HTTP/2 itself, whose frames the test sends. */
function callByHand(url: string, headers: Record<string, string> = {}) {
  const method = methodOf('SUBSCRIBE_KV_EVENTS');
  const frames = callNamed(dialectNamed('C'), 'SUBSCRIBE_KV_EVENTS').encodeRequest(REQUEST);
  const message = messageOf(method, frames);
  const header = Buffer.alloc(5);
  header.writeUInt32BE(message.length, 1);
  const session = connect(url.replace(/^grpc/, 'http'));
  session.on('error', () => {});
  const stream = session.request({
    ':method': 'POST',
    ':path': method.path,
    'content-type': 'application/grpc',
    te: 'trailers',
    ...headers,
  });
  stream.on('error', () => {});
  return { session, stream, request: Buffer.concat([header, message]) };
}

/** A subscriber that reads nothing until it is resumed; the library's own reads ahead. */
function subscribeUnread(url: string) {
  const { session, stream, request } = callByHand(url);
  stream.pause();
  stream.end(request);
  return { session, stream };
}

suite('gRPC stream', (test) => {
  test('sends a part, and asks for the next when that is on its way', async () => {
    const source = new Source();
    await withGrpcHouse({ SUBSCRIBE_KV_EVENTS: () => source }, async ({ client, door }) => {
      const seen = follow(client().stream(REQUEST));
      await soon(() => source.askedCount === 1);
      source.give(batch(7, 3));
      await soon(() => source.askedCount === 2);
      source.give(batch(8));
      await soon(() => seen.length === 2);
      assert.equal(seen, [7, 8]);
      assert.equal([door.statistics()['streams'], door.statistics()['stream_parts_sent']], [1, 2]);
      source.give(null);
      await soon(() => seen.length === 3);
      assert.equal(seen, [7, 8, 'status 0']);
      await soon(() => door.statistics()['streams'] === 0);
    });
  });

  test('ends in the engine when the client cancels it', async () => {
    const source = new Source();
    await withGrpcHouse({ SUBSCRIBE_KV_EVENTS: () => source }, async ({ client, door }) => {
      const stream = client().stream(REQUEST);
      const seen = follow(stream);
      await soon(() => source.askedCount === 1);
      stream.cancel();
      await soon(() => source.isCancelled);
      assert.is(door.statistics()['streams'], 0);
      await soon(() => seen.length === 1);
      assert.equal(seen, [`status ${STATUS.CANCELLED}`]);
    });
  });

  test('ends in the engine when the client has gone', async () => {
    const source = new Source();
    await withGrpcHouse({ SUBSCRIBE_KV_EVENTS: () => source }, async ({ url }) => {
      const { session } = subscribeUnread(url);
      await soon(() => source.askedCount === 1);
      session.destroy();
      await soon(() => source.isCancelled);
    });
  });

  test('waits for a client that does not read', async () => {
    const source = new Source(batch(1, 10_000));
    await withGrpcHouse({ SUBSCRIBE_KV_EVENTS: () => source }, async ({ client, door, url }) => {
      const { session, stream } = subscribeUnread(url);
      let askedCount = 0;
      // No part for as long as a PING takes, several times in a row.
      for (let still = 0; still < 10; still = source.askedCount === askedCount ? still + 1 : 0) {
        askedCount = source.askedCount;
        await ping(client('other'));
      }
      assert.ok(askedCount > 0 && askedCount < 10, `${askedCount} parts`);
      assert.is(door.statistics()['clients_not_reading'], 1);
      stream.resume();
      await soon(() => source.askedCount > askedCount);
      session.destroy();
      await soon(() => source.isCancelled);
      assert.is(door.statistics()['replies_queued_bytes'], 0);
    });
  });

  test('is not opened for a call whose time was up before its request was complete', async () => {
    const source = new Source(batch(1));
    await withGrpcHouse({ SUBSCRIBE_KV_EVENTS: () => source }, async ({ client, door, url }) => {
      const { session, stream, request } = callByHand(url, { 'grpc-timeout': '50m' });
      stream.resume().write(request);
      const [headers] = await once(stream, 'response');
      assert.is(Number(headers['grpc-status']), STATUS.DEADLINE_EXCEEDED);
      stream.end();
      await once(stream, 'close');
      await ping(client('other'));
      await soon(() => door.statistics()['calls_open'] === 0);
      assert.equal([source.askedCount, door.statistics()['streams']], [0, 0]);
      assert.is(door.statistics()['replies_queued_bytes'], 0);
      session.destroy();
    });
  });

  test('is refused beyond the bound, by a batch that says that nothing is recorded', async () => {
    const sources: Source[] = [];
    const answers = {
      SUBSCRIBE_KV_EVENTS: () => {
        const source = new Source();
        sources.push(source);
        return source;
      },
    };
    const limits = { streamCountMax: 1 };
    await withGrpcHouse(
      answers,
      async ({ client }) => {
        const tester = client();
        follow(tester.stream(REQUEST));
        await soon(() => sources.length === 1);
        const parts: KvEventBatch[] = [];
        const refused = tester.stream(REQUEST);
        refused.on('data', (part: KvEventBatch) => parts.push(part));
        const ended = new Promise((resolve) => refused.once('end', resolve));
        await ended;
        assert.equal(
          parts.map(({ isEnabled }) => isEnabled),
          [false],
        );
        assert.equal(
          sources.map(({ isCancelled }) => isCancelled),
          [false, true],
        );
      },
      { limits },
    );
  });

  test('that breaks ends with a status', async () => {
    const next = () => Promise.reject(new KvdError('ERR_INTERNAL', 'no more'));
    const answers = { SUBSCRIBE_KV_EVENTS: () => ({ next, cancel: () => {}, isEnded: false }) };
    await withGrpcHouse(answers, async ({ client, door }) => {
      const seen = follow(client().stream(REQUEST));
      await soon(() => seen.length === 1);
      assert.equal(seen, [`status ${STATUS.INTERNAL}`]);
      assert.equal(door.statistics()['refusals'], { ERR_INTERNAL: 1 });
    });
  });

  test('ends when the server closes, as one that was disconnected', async () => {
    const source = new Source();
    const house = await openGrpcHouse({ SUBSCRIBE_KV_EVENTS: () => source });
    const seen = follow(house.client().stream(REQUEST));
    await soon(() => source.askedCount === 1);
    await house.door.close({ deadlineMs: 1000 });
    await soon(() => seen.length === 1);
    assert.equal(seen, [`status ${STATUS.UNAVAILABLE}`]);
    assert.ok(source.isCancelled);
    await house.close();
  });
});
