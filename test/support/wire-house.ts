/** A router on free loopback ports with a sink of the test's choosing. Close it in the end. */
import * as assert from 'uvu/assert';
import { KvdClient, tokenSpan } from '../../src/client/client.ts';
import { systemClock } from '../../src/clock.ts';
import type { OperationName, RequestOf } from '../../src/engine/api.ts';
import type { RequestContext } from '../../src/engine/client-traits.ts';
import type { RequestSink } from '../../src/engine/handlers.ts';
import { KvdError } from '../../src/errors.ts';
import { EventBus } from '../../src/observability/event-bus.ts';
import type { DialectChoice, DialectName } from '../../src/wire/dialect.ts';
import { Router } from '../../src/wire/router.ts';
import type { WireLimits } from '../../src/wire/wire-limits.ts';
import { openHasher } from './core-hasher.ts';
import { RecordingLogger } from './recording-logger.ts';

export type Answer = (request: never, context: RequestContext) => unknown;
export type Answers = Partial<Record<OperationName, Answer>>;

export interface WireHouse {
  readonly router: Router;
  readonly log: RecordingLogger;
  readonly bus: EventBus;
  readonly url: string;
  /** A further client; closed with the house. */
  client(url?: string, dialect?: DialectName): KvdClient;
  close(): Promise<void>;
}

export interface WireHouseOptions {
  readonly endpoints?: readonly string[];
  readonly limits?: Partial<WireLimits>;
  readonly dialect?: DialectChoice;
  /** What the engine makes of a refusal by the door. Absent: nothing. */
  readonly refuse?: RequestSink['refuse'];
}

/** Operations without an answer are `ERR_NOT_ENABLED`; PING, NOOP and GET_CHUNK_SIZE have one. */
export async function openWireHouse(
  answers: Answers = {},
  options: WireHouseOptions = {},
): Promise<WireHouse> {
  const all: Answers = {
    PING: () => true,
    NOOP: () => 'OK',
    GET_CHUNK_SIZE: () => 16,
    ...answers,
  };
  const log = new RecordingLogger();
  const bus = new EventBus();
  const router = await Router.bind({
    endpoints: options.endpoints ?? ['tcp://127.0.0.1:0'],
    clock: systemClock,
    log,
    bus,
    dialect: options.dialect ?? 'auto',
    ...(options.limits ? { limits: options.limits } : {}),
  });
  router.run({
    sink: {
      dispatch(name, request, context) {
        const answer = all[name];
        if (!answer) throw new KvdError('ERR_NOT_ENABLED', `${name} is not served here`);
        return answer(request as never, context) as never;
      },
      refuse: options.refuse ?? ((_name, _request, _context, error) => error),
    },
    hasher: openHasher({ chunkSizeTokens: 16, tokenCountMax: 70_000 }),
  });
  const clients: KvdClient[] = [];
  const url = router.endpoints[0] as string;
  return {
    router,
    log,
    bus,
    url,
    client(target = url, dialect = 'A') {
      const client = KvdClient.connect(target, { dialect });
      clients.push(client);
      return client;
    },
    async close() {
      for (const client of clients) client.close();
      await router.close({ deadlineMs: 100 });
    },
  };
}

/** Opens a house, runs the test in it, closes it. */
export async function withWireHouse(
  answers: Answers,
  run: (house: WireHouse) => Promise<void>,
  options: WireHouseOptions = {},
): Promise<void> {
  const house = await openWireHouse(answers, options);
  try {
    await run(house);
  } finally {
    await house.close();
  }
}

export const CALL_TIMEOUT_MS = 5_000;

export async function ping(client: KvdClient): Promise<void> {
  const { value } = await client.call('PING', { instanceId: null }, CALL_TIMEOUT_MS);
  assert.is(value, true);
}

/** A PING for whose reply nobody waits. */
export function pingUnheard(client: KvdClient): Promise<void> {
  return client.send([Buffer.from('unheard'), Buffer.from([19]), Buffer.from([0xc0])]);
}
/**
 * Sends raw frames and returns the reply, or null when there is none. A PING goes behind them: a
 * request that is answered at once is answered before the PING, on the same connection.
 */
export async function replyOrSilence(
  client: KvdClient,
  frames: readonly Uint8Array[],
): Promise<readonly Uint8Array[] | null> {
  let reply: readonly Uint8Array[] | null = null;
  client.onStrayReply((stray) => {
    reply = stray;
  });
  await client.send(frames);
  await ping(client);
  return reply;
}

export function lookup(requestId = 'r'): RequestOf<'LOOKUP'> {
  return {
    tpSize: 1,
    key: {
      modelName: 'm',
      worldSize: 1,
      workerId: null,
      tokens: tokenSpan([1, 2, 3]),
      startToken: 0,
      endToken: 3,
      requestId,
      cacheSalt: '',
      readerCount: null,
      requestConfigs: null,
    },
  };
}

export function retrieve(): RequestOf<'RETRIEVE'> {
  const { key } = lookup();
  return { key, instanceId: 1n, blockIds: [[0]], event: new Uint8Array(0), skipFirstTokens: 0 };
}
