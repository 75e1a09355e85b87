/** Whatever arrives, the loop goes on, and the sender gets the reply that it can bear. */
import { existsSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import * as assert from 'uvu/assert';
import type { KvdClient } from '../../../src/client/client.ts';
import type {
  CacheKey,
  RegisterKvCacheRequest,
  RequestOf,
  StoreRequest,
} from '../../../src/engine/api.ts';
import { KvdError } from '../../../src/errors.ts';
import { type Dialect, dialectNamed } from '../../../src/wire/dialect.ts';
import fc from '../../support/property.ts';
import { suite } from '../../support/suite.ts';
import {
  type Answers,
  CALL_TIMEOUT_MS,
  openWireHouse,
  ping,
  replyOrSilence,
  type WireHouse,
} from '../../support/wire-house.ts';
import {
  framesInFull,
  RELEASES,
  type Release,
  type VectorMalformed,
  type VectorRequest,
  wireVectorsOf,
} from '../../support/wire-vectors.ts';

function refuse(message: string): never {
  throw new KvdError('ERR_BAD_REQUEST', message);
}

function checkRange({ startToken, endToken, tokens }: CacheKey): void {
  if (startToken > endToken || endToken > tokens.count) refuse('the range is not in the tokens');
}

/** What an engine without any instance answers. */
const emptyEngine: Answers = {
  GET_CHUNK_SIZE: () => 256,
  REGISTER_KV_CACHE: ({ wrappers }: RegisterKvCacheRequest) =>
    wrappers.length === 0 ? refuse('no tensors') : undefined,
  UNREGISTER_KV_CACHE: () => undefined,
  LOOKUP: ({ key }: RequestOf<'LOOKUP'>) => checkRange(key),
  STORE: ({ blockIds, instanceId }: StoreRequest) => {
    if (blockIds.flat().some((id) => id < 0)) refuse('a block id is negative');
    throw new KvdError('ERR_UNKNOWN_INSTANCE', `instance ${instanceId}`);
  },
  WAIT_PREFETCH_STATUS: () => 0,
  CLEAR: () => undefined,
  REPORT_BLOCK_ALLOCATION: () => undefined,
};

type ReplyKind = 'none' | 'bare' | 'error' | 'exception' | 'normal';

/** The kind of reply in the words of the vectors. An empty result and a bare reply look alike. */
function kindOf(op: Buffer, reply: readonly Uint8Array[] | null, wasBad: boolean): ReplyKind {
  if (reply === null) return 'none';
  if (!op.equals(reply[1] as Uint8Array)) return 'exception';
  if (reply.length === 4) return 'error';
  return wasBad ? 'bare' : 'normal';
}

function badMessageCount(house: WireHouse): number {
  const counts = house.router.statistics()['bad_messages'] as Record<string, number>;
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

async function stillAnswers(house: WireHouse, client: KvdClient): Promise<void> {
  await ping(client);
  await ping(house.client());
}

async function checkMalformed(
  house: WireHouse,
  client: KvdClient,
  vector: VectorMalformed,
): Promise<void> {
  const frames = framesInFull(vector.frames);
  const badBefore = badMessageCount(house);
  const reply = await replyOrSilence(client, frames);
  const kind = kindOf(frames[1] ?? Buffer.of(), reply, badMessageCount(house) > badBefore);
  assert.ok(vector.reply_kind.split('|').includes(kind), `${vector.case}: ${kind}`);
  if (reply) assert.equal(Buffer.from(reply[0]!), frames[0], 'the uid is echoed');
  await stillAnswers(house, client);
  client.close();
}

suite('malformed message', (test) => {
  for (const [release, dialect] of Object.entries(RELEASES) as [Release, 'A' | 'C'][]) {
    test(`of every golden case of ${release} gets its kind of reply`, async () => {
      const house = await openWireHouse(emptyEngine);
      const { malformed, establish } = wireVectorsOf(release);
      try {
        for (const vector of malformed) {
          const client = house.client(house.url, dialect);
          const known = establish.map((hex) => Buffer.from(hex, 'hex'));
          await client.exchange(known, CALL_TIMEOUT_MS);
          await checkMalformed(house, client, vector);
        }
        assert.not.ok(existsSync('pwned_by_pickle'));
        assert.ok(house.log.has(/LOOKUP of client \d+ refused: ERR_WIRE_PAYLOAD: payload 0/));
      } finally {
        await house.close();
      }
    });
  }

  test('that is a golden request cut anywhere is refused with an error', async () => {
    const house = await openWireHouse(emptyEngine);
    try {
      for (const release of Object.keys(RELEASES) as Release[]) {
        const dialect = dialectNamed(RELEASES[release]);
        const client = house.client(house.url, dialect.name);
        const known = wireVectorsOf(release).establish.map((hex) => Buffer.from(hex, 'hex'));
        await client.exchange(known, CALL_TIMEOUT_MS);
        for (const vector of oneRequestPerOperation(release)) {
          await checkTruncations(client, dialect, vector);
        }
        await stillAnswers(house, client);
      }
    } finally {
      await house.close();
    }
  });

  test('of random frames is answered or dropped, ten thousand times', async () => {
    const house = await openWireHouse(emptyEngine);
    try {
      const client = house.client();
      const frame = fc.uint8Array({ maxLength: 40 });
      const messages = fc.sample(fc.array(frame, { minLength: 1, maxLength: 8 }), 5_000);
      const known = fc.sample(
        fc.tuple(fc.integer({ min: 1, max: 41 }), fc.array(frame, { maxLength: 7 })),
        5_000,
      );
      for (const frames of messages) await client.send(frames);
      for (const [id, payloads] of known) {
        await client.send([Buffer.from([7]), Buffer.from([id]), ...payloads]);
      }
      // Any uid of a call may have been among the random ones.
      await client.exchange([Buffer.from('the last one'), Buffer.from([21])], CALL_TIMEOUT_MS);
      await stillAnswers(house, house.client());
      const statistics = house.router.statistics();
      assert.ok((statistics['messages_received'] as number) >= 10_000);
    } finally {
      await house.close();
    }
  });
});

/** The shortest golden request of each operation that has payloads. */
function oneRequestPerOperation(release: Release): VectorRequest[] {
  const shortest = new Map<string, VectorRequest>();
  for (const vector of wireVectorsOf(release).requests) {
    if (vector.frames.length === 2 || JSON.stringify(vector.frames).includes('$len')) continue;
    const known = shortest.get(vector.op);
    const size = (candidate: typeof vector) => candidate.frames.join('').length;
    if (!known || size(vector) < size(known)) shortest.set(vector.op, vector);
  }
  return [...shortest.values()];
}

/** Cuts each payload at each byte; one PING behind them all shows that every one was taken. */
async function checkTruncations(
  client: KvdClient,
  dialect: Dialect,
  { op, frames: golden }: VectorRequest,
): Promise<void> {
  const frames = framesInFull(golden);
  const replies: (readonly Uint8Array[])[] = [];
  client.onStrayReply((reply) => replies.push(reply));
  let count = 0;
  for (let index = 2; index < frames.length; index += 1) {
    const payload = frames[index] as Buffer;
    for (let length = 0; length < payload.length; length += 1) {
      const damaged = frames.with(index, payload.subarray(0, length));
      await client.send([Buffer.from('cut'), ...damaged.slice(1)]);
      count += 1;
    }
  }
  await ping(client);
  const call = [...dialect.callsByName.values()].find(({ label }) => label === op);
  const isRegistration = call?.operation.neutral.kind === 'none';
  assert.is(replies.length, isRegistration && dialect.name === 'A' ? 0 : count, op);
  assert.ok(replies.every(({ length }) => length === (isRegistration ? 2 : 4)));
}

suite('router on several endpoints', (test) => {
  test('serves names, IPv6 and ipc side by side', async () => {
    const path = `/tmp/kvd-wire-${process.pid}.sock`;
    const hasIpv6 = Object.values(networkInterfaces())
      .flat()
      .some((address) => address?.address === '::1');
    const endpoints = ['tcp://localhost:0', `ipc://${path}`, ...(hasIpv6 ? ['tcp://[::1]:0'] : [])];
    const house = await openWireHouse({}, { endpoints });
    try {
      assert.is(house.router.endpoints.length, endpoints.length);
      assert.match(house.router.endpoints[0] as string, /^tcp:\/\/127\.0\.0\.1:\d+$/);
      for (const endpoint of house.router.endpoints) {
        await ping(house.client(endpoint));
      }
    } finally {
      await house.close();
    }
    assert.not.ok(existsSync(path), 'the socket file is removed');
  });
});
