/**
 * Cost of the ZMQ door: what decoding and encoding take, and what a client sees.
 *
 *   node_modules/.bin/node bench/micro/wire.ts
 *
 * The client is a process of its own (this file with an address). The floor is the same client
 * against a ROUTER that echoes what it gets, so the difference is the door: identity, operation,
 * schema, dispatch to an empty handler, reply.
 *
 * Sketch for a PING: 4 frames in and 4 out at about 0.4 µs each in zeromq.js, two promises,
 * everything else below a microsecond.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { bench, do_not_optimize, run } from 'mitata';
import { Router as RouterSocket } from 'zeromq';
import { KvdClient, tokenSpan } from '../../src/client/client.ts';
import { systemClock } from '../../src/clock.ts';
import type { RequestOf } from '../../src/engine/api.ts';
import { EventBus } from '../../src/observability/event-bus.ts';
import { Connection } from '../../src/wire/connections.ts';
import { DialectDetection } from '../../src/wire/detection.ts';
import { callNamed, DIALECTS, dialectNamed } from '../../src/wire/dialect.ts';
import { readOperationFrame } from '../../src/wire/frames.ts';
import { OPERATIONS } from '../../src/wire/requests.ts';
import { Router } from '../../src/wire/router.ts';
import { PayloadReader } from '../../src/wire/schema.ts';
import { callA } from '../../test/support/calls.ts';
import { openHasher } from '../../test/support/core-hasher.ts';
import { silentLogger } from '../../test/support/silent-logger.ts';
import { lcgTokens } from '../../test/support/token-arrays.ts';
import { percentile } from '../../test/support/waiting.ts';

const CALL_TIMEOUT_MS = 10_000;
const ROUND_TRIPS = 5_000;
const CLIENTS = 32;
const LOOKUPS_PER_CLIENT = 300;
const TOKENS = 8192;

const lookup: RequestOf<'LOOKUP'> = {
  tpSize: 1,
  key: {
    modelName: 'meta-llama/Llama-3.1-8B-Instruct',
    worldSize: 1,
    workerId: null,
    tokens: tokenSpan(lcgTokens(1, TOKENS, 151_936)),
    startToken: 0,
    endToken: TOKENS,
    requestId: 'cmpl-8f3c1b7e-0',
    cacheSalt: '',
    readerCount: null,
    requestConfigs: null,
  },
};

/** A LOOKUP whose generation is known, and one of a client that two releases could have sent. */
function benchDetection(payloads: readonly Uint8Array[]): void {
  const detection = new DialectDetection(DIALECTS);
  const op = Buffer.of(callNamed(dialectNamed('B'), 'LOOKUP').id as number);
  const frames = [Buffer.from('me'), Buffer.of(1), op, ...payloads];
  for (const [label, candidates] of [
    ['one dialect left', [dialectNamed('B')]],
    ['two dialects left', DIALECTS.slice(1)],
  ] as const) {
    const connection = new Connection(1, Buffer.from('me'), candidates);
    bench(`detection, ${label}`, () =>
      do_not_optimize(detection.resolve(connection, readOperationFrame(op), frames)),
    );
  }
}

async function benchCodec(): Promise<void> {
  const reader = new PayloadReader(openHasher({ chunkSizeTokens: 256, tokenCountMax: 16_384 }));
  const long = callA('LOOKUP').encodeRequest(lookup);
  const key = { ...lookup.key, tokens: tokenSpan([1, 2, 3]) };
  const short = callA('LOOKUP').encodeRequest({ ...lookup, key });
  const ping = callA('PING').encodeRequest({ instanceId: 1n << 62n });
  bench('decode PING', () => do_not_optimize(callA('PING').decodeRequest(ping, 0, reader)));
  bench('decode LOOKUP, 3 tokens', () =>
    do_not_optimize(callA('LOOKUP').decodeRequest(short, 0, reader)),
  );
  bench(`decode LOOKUP, ${TOKENS} tokens`, () =>
    do_not_optimize(callA('LOOKUP').decodeRequest(long, 0, reader)),
  );
  benchDetection(long);
  bench('encode reply of PING', () => do_not_optimize(OPERATIONS.PING.encodeReply(true)));
  const { benchmarks, context } = await run({ format: 'quiet' });
  console.log(`${context.cpu.name}, Node ${process.version}`);
  for (const { alias, runs } of benchmarks) {
    console.log(`${alias.padEnd(32)} p50 ${(runs[0]!.stats!.p50 / 1000).toFixed(2)} us`);
  }
}

async function inOtherProcess(url: string, what: string): Promise<void> {
  const child = spawn(process.execPath, [import.meta.filename, url, what], { stdio: 'inherit' });
  const [code] = await once(child, 'exit');
  if (code !== 0) throw new Error(`the client ended with ${code}`);
}

async function benchEcho(): Promise<void> {
  const socket = new RouterSocket({ linger: 0, sendTimeout: 0 });
  await socket.bind('tcp://127.0.0.1:0');
  const loop = (async () => {
    while (!socket.closed) {
      try {
        const [identity, uid, op] = await socket.receive();
        await socket.send([identity!, uid!, op!, Buffer.from([0xc3])]);
      } catch {
        // Closed while it waited.
      }
    }
  })();
  await inOtherProcess(socket.lastEndpoint as string, 'echo');
  socket.close();
  await loop;
}

async function benchDoor(): Promise<void> {
  const router = await Router.bind({
    endpoints: ['tcp://127.0.0.1:0'],
    clock: systemClock,
    log: silentLogger,
    bus: new EventBus(),
    dialect: 'auto',
  });
  router.run({
    sink: {
      dispatch: (name) => (name === 'PING' ? true : undefined) as never,
      refuse: (_name, _request, _context, error) => error,
    },
    hasher: openHasher({ chunkSizeTokens: 256, tokenCountMax: 16_384 }),
  });
  await inOtherProcess(router.endpoints[0] as string, 'door');
  await router.close();
}

/** In the client's process. */
async function beClient(url: string, what: string): Promise<void> {
  const client = KvdClient.connect(url);
  const times: number[] = [];
  for (let index = 0; index < ROUND_TRIPS; index += 1) {
    const startMs = performance.now();
    await client.call('PING', { instanceId: 1n << 62n }, CALL_TIMEOUT_MS);
    times.push((performance.now() - startMs) * 1000);
  }
  const [p50, p99] = [percentile(times, 0.5).toFixed(0), percentile(times, 0.99).toFixed(0)];
  console.log(`${`PING round trip, ${what}`.padEnd(32)} p50 ${p50} us, p99 ${p99} us`);
  client.close();
  const clients = Array.from({ length: CLIENTS }, () => KvdClient.connect(url));
  const startMs = performance.now();
  await Promise.all(clients.map((one) => lookUpMany(one)));
  const perSecond = (CLIENTS * LOOKUPS_PER_CLIENT * 1000) / (performance.now() - startMs);
  console.log(
    `${`LOOKUP, ${CLIENTS} clients, ${what}`.padEnd(32)} ${perSecond.toFixed(0)} a second`,
  );
  for (const one of clients) one.close();
}

async function lookUpMany(client: KvdClient): Promise<void> {
  const op = Buffer.from([5]);
  const payloads = callA('LOOKUP').encodeRequest(lookup);
  for (let index = 0; index < LOOKUPS_PER_CLIENT; index += 1) {
    await client.exchange([client.nextUid(), op, ...payloads], CALL_TIMEOUT_MS);
  }
}

const [, , url, what] = process.argv;
if (url) {
  await beClient(url, what as string);
} else {
  await benchCodec();
  await benchEcho();
  await benchDoor();
}
