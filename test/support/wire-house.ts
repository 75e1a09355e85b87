/** A router on free loopback ports with a sink of the test's choosing. Close it in the end. */
import * as assert from 'uvu/assert';
import { KvdClient, tokenSpan } from '../../src/client/client.ts';
import { systemClock } from '../../src/clock.ts';
import type {
  OperationName,
  RequestContext,
  RequestOf,
  RequestSink,
} from '../../src/engine/api.ts';
import { KvdError } from '../../src/errors.ts';
import { EventBus } from '../../src/observability/events.ts';
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
  client(url?: string): KvdClient;
  close(): Promise<void>;
}

export interface WireHouseOptions {
  readonly endpoints?: readonly string[];
  readonly limits?: Partial<WireLimits>;
  /** What the engine makes of a refusal by the door. Absent: nothing. */
  readonly refuse?: RequestSink['refuse'];
}

/** Operations without an answer are `ERR_NOT_ENABLED`; PING and NOOP have one. */
export async function openWireHouse(
  answers: Answers = {},
  options: WireHouseOptions = {},
): Promise<WireHouse> {
  const all: Answers = { PING: () => true, NOOP: () => 'OK', ...answers };
  const log = new RecordingLogger();
  const bus = new EventBus();
  const router = await Router.bind({
    endpoints: options.endpoints ?? ['tcp://127.0.0.1:0'],
    clock: systemClock,
    log,
    bus,
    dialect: 'auto',
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
    client(target = url) {
      const client = KvdClient.connect(target);
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
 * Sends raw frames and returns the reply, or null when there is none. A NOOP goes behind them: a
 * request that is answered at once is answered before the NOOP, on the same connection.
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
  await client.call('NOOP', {}, CALL_TIMEOUT_MS);
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
    },
  };
}

export function retrieve(): RequestOf<'RETRIEVE'> {
  const { key } = lookup();
  return { key, instanceId: 1n, blockIds: [[0]], event: new Uint8Array(0), skipFirstTokens: 0 };
}
