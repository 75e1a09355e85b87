/** A gRPC door on free loopback ports with a sink of the test's choosing. Close it in the end. */
import {
  Client,
  type ClientReadableStream,
  type ClientUnaryCall,
  credentials,
  Metadata,
  type ServiceError,
} from '@grpc/grpc-js';
import * as assert from 'uvu/assert';
import { systemClock } from '../../src/clock.ts';
import type { OperationName, RequestOf } from '../../src/engine/api.ts';
import type { RequestSink } from '../../src/engine/handlers.ts';
import { KvdError } from '../../src/errors.ts';
import { EventBus } from '../../src/observability/event-bus.ts';
import { callNamed, dialectNamed } from '../../src/wire/dialect.ts';
import type { MessageTable } from '../../src/wire/grpc/fields.ts';
import { GrpcDoor } from '../../src/wire/grpc/grpc-door.ts';
import { transcodeReply } from '../../src/wire/grpc/reply-transcoder.ts';
import { RequestTranscoder } from '../../src/wire/grpc/request-transcoder.ts';
import { METHODS, type MethodTable } from '../../src/wire/grpc/services.ts';
import { MsgpackWriter } from '../../src/wire/msgpack.ts';
import { type ErrorMap, errorMap } from '../../src/wire/reply.ts';
import { decode, PayloadReader } from '../../src/wire/schema.ts';
import type { WireLimits } from '../../src/wire/wire-limits.ts';
import { openHasher } from './core-hasher.ts';
import { RecordingLogger } from './recording-logger.ts';
import { rejects } from './rejects.ts';
import { until } from './waiting.ts';
import { type Answers, lookup as oldLookup, retrieve as oldRetrieve } from './wire-house.ts';

const DIALECT = dialectNamed('C');

export function methodOf(name: OperationName): MethodTable {
  return METHODS.find(({ operation }) => operation === name) as MethodTable;
}

/** A tuple has several frames; together they are an array. */
function joined({ shape }: MessageTable, frames: readonly Uint8Array[]): Uint8Array {
  if (shape !== 'tuple') return frames[0] as Uint8Array;
  const header = new MsgpackWriter();
  header.writeArrayHeader(frames.length);
  return Buffer.concat([header.take(), ...frames]);
}

export function messageOf({ request }: MethodTable, frames: readonly Uint8Array[]): Buffer {
  return transcodeReply(request, frames.length === 0 ? null : joined(request, frames));
}

export interface Answered {
  /** The message, decoded as the reply of the operation. */
  readonly value: unknown;
  readonly error: ErrorMap | null;
}

const reader = new PayloadReader(openHasher({ chunkSizeTokens: 16, tokenCountMax: 16 }));

function replyOf(method: MethodTable, message: Buffer): unknown {
  const { operation } = callNamed(DIALECT, method.operation);
  if (method.reply.fields.length === 0) return null;
  const { frames } = new RequestTranscoder(method.reply, message).transcode();
  return operation.decodeReply(joined(method.reply, frames), reader);
}

/** A client of the library, under an id of its own as those of the reference. */
export class GrpcTester {
  readonly #client: Client;
  readonly #metadata = new Metadata();

  constructor(url: string, id: string | null = 'tester') {
    const target = url.replace(/^grpc:\/\//, '').replace(/^grpc\+unix:\/\//, 'unix:');
    this.#client = new Client(target, credentials.createInsecure(), {
      // Its own connection, not one that is shared with other clients of the process.
      'grpc.use_local_subchannel_pool': 1,
      'grpc.max_receive_message_length': -1,
    });
    if (id !== null) this.#metadata.set('lmcache-client-id-bin', Buffer.from(id));
  }

  call<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    options: { readonly deadlineMs?: number; onCall?(call: ClientUnaryCall): void } = {},
  ): Promise<Answered> {
    const message = messageOf(methodOf(name), callNamed(DIALECT, name).encodeRequest(request));
    return this.callRaw(name, message, options);
  }

  /** Rejects with the library's `ServiceError`. */
  callRaw(
    name: OperationName,
    message: Buffer,
    options: { readonly deadlineMs?: number; onCall?(call: ClientUnaryCall): void } = {},
  ): Promise<Answered> {
    const method = methodOf(name);
    const { deadlineMs } = options;
    return new Promise((resolve, reject) => {
      let value: unknown;
      const call = this.#client.makeUnaryRequest(
        method.path,
        same,
        same,
        message,
        this.#metadata,
        deadlineMs === undefined ? {} : { deadline: Date.now() + deadlineMs },
        (error: ServiceError | null, reply?: Buffer) => {
          if (error) reject(error);
          else value = replyOf(method, reply as Buffer);
        },
      );
      call.on('status', ({ code, metadata }) => {
        const [map] = metadata.get('kvd-error-bin');
        const error = map ? decode(errorMap, map as Buffer, reader) : null;
        if (code === 0) setImmediate(() => resolve({ value, error }));
      });
      options.onCall?.(call);
    });
  }

  /** A method that no service has. */
  callUnknown(path: string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#client.makeUnaryRequest(path, same, same, Buffer.alloc(0), (error) =>
        error ? reject(error) : resolve(),
      );
    });
  }

  stream(request: RequestOf<'SUBSCRIBE_KV_EVENTS'>): ClientReadableStream<unknown> {
    const method = methodOf('SUBSCRIBE_KV_EVENTS');
    const frames = callNamed(DIALECT, 'SUBSCRIBE_KV_EVENTS').encodeRequest(request);
    return this.#client.makeServerStreamRequest(
      method.path,
      same,
      (message: Buffer) => replyOf(method, message),
      messageOf(method, frames),
      this.#metadata,
    );
  }

  close(): void {
    this.#client.close();
  }
}

const same = (bytes: Buffer) => bytes;

export interface GrpcHouse {
  readonly door: GrpcDoor;
  readonly log: RecordingLogger;
  readonly url: string;
  /** A further client; closed with the house. */
  client(id?: string | null, url?: string): GrpcTester;
  close(): Promise<void>;
}

export interface GrpcHouseOptions {
  readonly endpoints?: readonly string[];
  readonly limits?: Partial<WireLimits>;
  readonly refuse?: RequestSink['refuse'];
}

/** Operations without an answer are `ERR_NOT_ENABLED`; PING, NOOP and GET_CHUNK_SIZE have one. */
export async function openGrpcHouse(
  answers: Answers = {},
  options: GrpcHouseOptions = {},
): Promise<GrpcHouse> {
  const all: Answers = {
    PING: () => true,
    NOOP: () => 'OK',
    GET_CHUNK_SIZE: () => 16,
    ...answers,
  };
  const log = new RecordingLogger();
  const door = await GrpcDoor.open({
    endpoints: options.endpoints ?? ['grpc://127.0.0.1:0'],
    clock: systemClock,
    log,
    bus: new EventBus(),
    ...(options.limits ? { limits: options.limits } : {}),
  });
  door.run({
    sink: {
      dispatch(name, request, context) {
        const answer = all[name];
        if (!answer) throw new KvdError('ERR_NOT_ENABLED', `${name} is not served here`);
        return answer(request as never, context) as never;
      },
      refuse: options.refuse ?? ((_name, _instanceId, _context, error) => error),
    },
    hasher: openHasher({ chunkSizeTokens: 16, tokenCountMax: 70_000 }),
  });
  const clients: GrpcTester[] = [];
  const url = door.endpoints[0] as string;
  return {
    door,
    log,
    url,
    client(id = 'tester', target = url) {
      const client = new GrpcTester(target, id);
      clients.push(client);
      return client;
    },
    async close() {
      for (const client of clients) client.close();
      await door.close({ deadlineMs: 100 });
    },
  };
}

export async function withGrpcHouse(
  answers: Answers,
  run: (house: GrpcHouse) => Promise<void>,
  options: GrpcHouseOptions = {},
): Promise<void> {
  const house = await openGrpcHouse(answers, options);
  try {
    await run(house);
  } finally {
    await house.close();
  }
}

/** Codes that the tests expect. */
export const STATUS = {
  CANCELLED: 1,
  INVALID_ARGUMENT: 3,
  DEADLINE_EXCEEDED: 4,
  RESOURCE_EXHAUSTED: 8,
  UNIMPLEMENTED: 12,
  INTERNAL: 13,
  UNAVAILABLE: 14,
} as const;

/** Code and details of a call that fails. */
export async function statusOf(call: Promise<unknown>): Promise<[number, string]> {
  const error = (await rejects(call, /./)) as ServiceError;
  return [error.code, error.details];
}

export async function ping(client: GrpcTester): Promise<void> {
  assert.is((await client.call('PING', { instanceId: null })).value, true);
}

const SOON_MS = 5_000;

export function soon(condition: () => boolean): Promise<number> {
  return until(condition, SOON_MS);
}

/** As clients write it that state their readers. */
export function lookup(requestId = 'r'): RequestOf<'LOOKUP'> {
  const { key, tpSize } = oldLookup(requestId);
  return { key: { ...key, readerCount: 1 }, tpSize };
}

export function retrieve(): RequestOf<'RETRIEVE'> {
  return { ...oldRetrieve(), key: lookup().key };
}
