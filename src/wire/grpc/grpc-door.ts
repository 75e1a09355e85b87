/**
 * The gRPC door: clients of 0.5.6 that select `grpc://` (spec wire, appendix).
 *
 *   HTTP/2 ──► grpc-js ──► client, method ──► transcode ──► decode ──► admit ──► sink.dispatch
 *     ▲                                                       │ no                │ value, promise
 *     └─── grpc-js ◄── transcode ◄── encode reply ◄── sink.refuse ◄───────────────┘ or stream
 *
 * It is the ZMQ door with other bytes: a method is an operation of dialect C, a message is turned
 * into that operation's frames (`request-transcoder.ts`), and from there the tables, the bounds and
 * the rules of failure are those of `requests/`, `Admission` and `reply.ts`.
 *
 * Invariants
 *   - Every call ends: with a reply, with the failure value of its operation (the error map goes
 *     behind it, as a trailer), or with a status where an operation has no such value, which only
 *     registrations have not. A status makes an engine raise, and for a STORE or a LOOKUP that ends
 *     it; a failure value is a miss.
 *   - A call whose client has given up (cancelled, deadline, gone) goes on and its reply is lost,
 *     as with ZMQ: handlers keep no count of who listens. One that was given up before its request
 *     was complete is not dispatched.
 *   - Calls of one client are dispatched in the order in which their messages are complete. HTTP/2
 *     interleaves calls, so a small one may overtake a large one that was sent first; the
 *     reference's server promises no more.
 *
 * What the library decides: a message is in memory in one piece before the door sees it (the size
 * of all of them is bounded by `messageBytesMax`, that of an operation afterwards), it has been
 * copied once then, and a reply is copied once more. Compressed requests are unpacked up to the
 * same bound; no client of the reference compresses.
 *
 * There is no loop here that could stop: the event loop hands calls over, and `LoopProbe` of the
 * ZMQ door, which exists also when no address was given for it, proves that the event loop and the
 * dispatch are alive.
 */
import { type Metadata, Server, ServerCredentials } from '@grpc/grpc-js';
import type { Clock } from '../../clock.ts';
import {
  type InstanceId,
  instanceIdOf,
  type OperationName,
  type ReplyStream,
  type RequestOf,
} from '../../engine/api.ts';
import type { RequestSink } from '../../engine/handlers.ts';
import { KvdError, toKvdError, WithheldReplyError } from '../../errors.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import { Admission } from '../admission.ts';
import { callNamed, dialectNamed } from '../dialect.ts';
import type { Call } from '../operation.ts';
import { neutralReply } from '../reply.ts';
import { readInlinePayload } from '../requests/transfers.ts';
import { PayloadReader, type TokenReader } from '../schema.ts';
import { WireJournal } from '../wire-journal.ts';
import { DEFAULT_WIRE_LIMITS, type WireLimits } from '../wire-limits.ts';
import { ClientTable } from './clients.ts';
import { EventStreams } from './event-streams.ts';
import { Exchange, type GrpcCall, type Method, ReplyLedger } from './exchange.ts';
import { Listeners } from './listeners.ts';
import { withoutOverdueCalls } from './overdue-calls.ts';
import { transcodeReply } from './reply-transcoder.ts';
import { RequestTranscoder } from './request-transcoder.ts';
import { METHODS } from './services.ts';
import { errorTrailers, statusOf } from './status.ts';

export interface GrpcDoorOptions {
  readonly endpoints: readonly string[];
  readonly clock: Clock;
  readonly log: Logger;
  readonly bus: EventBus;
  readonly limits?: Partial<WireLimits>;
}

interface Target {
  readonly sink: RequestSink;
  readonly reader: PayloadReader;
}

const DIALECT = dialectNamed('C');
const CLIENT_ID_KEY = 'lmcache-client-id-bin';
const EMPTY = new Uint8Array(0);
/** The longest message that gRPC can frame. */
const FRAME_BYTES_MAX = 0xffff_ffff;
/** Calls beyond those in flight, so that one too many is refused and does not wait for ever. */
const SPARE_CALLS = 64;
/** A client that has vanished without a word is gone after a minute. */
const KEEPALIVE_MS = 30_000;
const KEEPALIVE_TIMEOUT_MS = 20_000;
/** How often a closing door looks whether its replies have gone, and for how long it does. */
const DRAIN_POLL_MS = 2;
const FLUSH_MS_MAX = 500;

export class GrpcDoor {
  /** The dialect of all its clients. */
  readonly name = DIALECT.name;
  readonly releases = DIALECT.releases;
  readonly #clock: Clock;
  readonly #limits: WireLimits;
  readonly #listeners: Listeners;
  readonly #server: Server;
  readonly #clients: ClientTable;
  readonly #admission: Admission;
  readonly #journal: WireJournal;
  readonly #ledger: ReplyLedger;
  readonly #streams: EventStreams;
  #requestCount = 0;
  #sentCount = 0;
  /** Calls that are not over yet, streams included. */
  #openCount = 0;

  private constructor(options: GrpcDoorOptions, limits: WireLimits, listeners: Listeners) {
    this.#clock = options.clock;
    this.#limits = limits;
    this.#listeners = listeners;
    this.#clients = new ClientTable(limits.connectionCountMax);
    this.#admission = new Admission(limits);
    this.#journal = new WireJournal(options.log, options.bus);
    this.#ledger = new ReplyLedger(limits);
    this.#streams = new EventStreams({
      limits,
      onFailed: ({ connection, method, request }, error) => {
        const failed = { operation: method.call.operation, request, isAnswered: true };
        this.#journal.refusal(connection, error, failed);
      },
    });
    this.#server = new Server({
      interceptors: [withoutOverdueCalls],
      'grpc.max_receive_message_length': Math.min(limits.messageBytesMax, FRAME_BYTES_MAX),
      'grpc.max_concurrent_streams': limits.inFlightCountMax + limits.streamCountMax + SPARE_CALLS,
      'grpc.keepalive_time_ms': KEEPALIVE_MS,
      'grpc.keepalive_timeout_ms': KEEPALIVE_TIMEOUT_MS,
      // Its statistics of every call; ours are below.
      'grpc.enable_channelz': 0,
    });
  }

  /** Binds every endpoint. Throws `ERR_ADDRESS` and leaves nothing open when one cannot be. */
  static async open(options: GrpcDoorOptions): Promise<GrpcDoor> {
    const limits = { ...DEFAULT_WIRE_LIMITS, ...options.limits };
    const { endpoints, log } = options;
    const socketCountMax = limits.connectionCountMax;
    return new GrpcDoor(options, limits, await Listeners.open({ endpoints, socketCountMax, log }));
  }

  /** Endpoints with their real ports. */
  get endpoints(): readonly string[] {
    return this.#listeners.endpoints;
  }

  /** Takes calls. Connections that came since `open` have waited. */
  run({ sink, hasher }: { readonly sink: RequestSink; readonly hasher: TokenReader }): void {
    const target = { sink, reader: new PayloadReader(hasher) };
    const same = (bytes: Buffer) => bytes;
    for (const table of METHODS) {
      const call = callNamed(DIALECT, table.operation) as unknown as Call;
      const method = { table, call };
      const handle = (stream: GrpcCall) => this.#handle(stream, method, target);
      // A method with one reply is a stream of one: on the wire there is no difference.
      this.#server.register(table.path, handle, same, same, 'serverStream');
    }
    const injector = this.#server.createConnectionInjector(ServerCredentials.createInsecure());
    this.#listeners.start({
      opened: (socket, peer) => {
        this.#clients.opened(peer);
        injector.injectConnection(socket);
      },
      closed: (peer) => this.#clients.closed(peer),
    });
  }

  /** Clients and requests; all of dialect C. */
  get counts(): { readonly clients: number; readonly requests: number } {
    return { clients: this.#clients.count, requests: this.#requestCount };
  }

  statistics(): Record<string, unknown> {
    return {
      endpoints: this.endpoints,
      is_closing: this.#admission.isClosing,
      sockets: this.#listeners.socketCount,
      ...this.counts,
      calls_open: this.#openCount,
      connections_max: this.#limits.connectionCountMax,
      in_flight: this.#admission.inFlightCount,
      in_flight_max: this.#limits.inFlightCountMaxTotal,
      replies_sent: this.#sentCount,
      replies_queued_bytes: this.#ledger.queuedBytes,
      replies_queued_bytes_max: this.#limits.queueBytesMaxTotal,
      clients_not_reading: this.#ledger.waitingClientCount,
      streams: this.#streams.count,
      streams_max: this.#limits.streamCountMaxTotal,
      stream_parts_sent: this.#streams.partCount,
      ...this.#journal.snapshot(),
    };
  }

  /**
   * Takes no new connections, answers what is in flight until the deadline, refuses what is new,
   * and closes. Never rejects.
   */
  async close({ deadlineMs = 5000 }: { deadlineMs?: number } = {}): Promise<void> {
    this.#admission.isClosing = true;
    this.#listeners.stop();
    const endMs = this.#clock.preciseMs() + deadlineMs;
    while (this.#admission.inFlightCount > 0 && this.#clock.preciseMs() < endMs) {
      await this.#pause();
    }
    this.#streams.endAll(
      statusOf(new KvdError('ERR_SHUTTING_DOWN', 'the server is shutting down')),
    );
    const flushEndMs = Math.min(endMs, this.#clock.preciseMs() + FLUSH_MS_MAX);
    while (this.#openCount > 0 && this.#clock.preciseMs() < flushEndMs) await this.#pause();
    // A stream ends before its last bytes have left; a connection that ends by itself sent them.
    let hasEnded = false;
    this.#server.tryShutdown(() => {
      hasEnded = true;
    });
    while (!hasEnded && this.#clock.preciseMs() < flushEndMs) await this.#pause();
    this.#server.forceShutdown();
    this.#listeners.close();
  }

  #pause(): Promise<void> {
    return new Promise((resolve) => void this.#clock.after(DRAIN_POLL_MS, resolve));
  }

  /** One call from beginning to end. Never throws. */
  #handle(stream: GrpcCall, method: Method, { sink, reader }: Target): void {
    const connection = this.#clients.of(stream.getPeer(), clientIdIn(stream.metadata));
    const exchange = new Exchange(stream, connection, method, this.#ledger);
    this.#openCount += 1;
    stream.once('close', () => {
      this.#openCount -= 1;
    });
    this.#journal.receivedCount += 1;
    this.#requestCount += 1;
    const { call } = method;
    let request: RequestOf<OperationName>;
    try {
      request = this.#read(method, stream.request, reader);
    } catch (error) {
      this.#refuseAtDoor(exchange, sink, null, toKvdError(error));
      return;
    }
    exchange.request = request;
    const refusal = this.#admission.refusalOf(call, connection);
    if (refusal) this.#refuseAtDoor(exchange, sink, instanceIdOf(request), refusal);
    else this.#dispatch(exchange, sink, request);
  }

  #read(
    { table, call }: Method,
    message: Uint8Array,
    reader: PayloadReader,
  ): RequestOf<OperationName> {
    // Nothing is looked at before it is known that it is not too large.
    let scanned: RequestTranscoder | null = null;
    const scan = () => {
      scanned ??= new RequestTranscoder(table.request, message);
      return scanned;
    };
    const headBytes = () => message.length - (scan().data?.length ?? 0);
    this.#admission.checkBytes(call, message.length, reader.tokenCountMax, headBytes);
    const { frames, data } = scan().transcode();
    const request = call.decodeRequest(frames, 0, reader);
    if (data === null) return request;
    const commit = request as RequestOf<'COMMIT_STORE'>;
    return { ...commit, data: readInlinePayload(commit.key, data, reader.chunkSizeTokens) };
  }

  #dispatch(exchange: Exchange, sink: RequestSink, request: RequestOf<OperationName>): void {
    const { connection, method } = exchange;
    let result: unknown;
    try {
      result = sink.dispatch(method.table.operation, request, connection.context);
    } catch (error) {
      this.#refuse(exchange, error);
      return;
    }
    if (result instanceof Promise) {
      this.#admission.settleLater(
        connection,
        result,
        (reply) => this.#answer(exchange, reply),
        (error) => this.#refuse(exchange, error),
      );
    } else this.#answer(exchange, result);
  }

  #refuseAtDoor(
    exchange: Exchange,
    sink: RequestSink,
    instanceId: InstanceId | null,
    cause: KvdError,
  ): void {
    const { connection, method } = exchange;
    const turnedAway = { name: method.table.operation, instanceId, cause };
    this.#admission.turnAway(connection, turnedAway, sink, (error) =>
      this.#refuse(exchange, error),
    );
  }

  #answer(exchange: Exchange, reply: unknown): void {
    const { connection, method } = exchange;
    const { operation } = method.call;
    let message: Buffer;
    try {
      if (operation.isStream) {
        this.#streams.open(exchange, reply as ReplyStream<unknown>);
        return;
      }
      message = transcodeReply(method.table.reply, operation.encodeReply(reply as never));
      if (!this.#ledger.fits(connection, message.length)) {
        throw new KvdError('ERR_OVERLOADED', 'the client does not read its replies');
      }
    } catch (error) {
      this.#refuse(exchange, error);
      return;
    }
    this.#send(exchange, message);
  }

  /** A request that failed, or could not be read. */
  #refuse(exchange: Exchange, cause: unknown): void {
    const { connection, method, request } = exchange;
    const { call, table } = method;
    const error = toKvdError(cause);
    const refused = { operation: call.operation, request, isAnswered: true };
    // A message that is too large was not looked at, so nobody knows whether it was a bad one.
    if (request || error.code === 'ERR_OVERLOADED') {
      this.#journal.refusal(connection, error, refused);
    } else this.#journal.badMessage(connection, error, refused);
    const failed = { uid: EMPTY, op: EMPTY, call, client: DIALECT.client };
    // Silence is for clients of other generations: here a call has to end.
    const isWithheld = error instanceof WithheldReplyError;
    const [, , neutral, errorMap] = (isWithheld ? null : neutralReply(failed, error)) ?? [];
    if (exchange.isOver) this.#journal.lost(connection, 'gone', 1);
    else if (!neutral || !errorMap) exchange.fail(statusOf(error));
    else this.#send(exchange, transcodeReply(table.reply, neutral), errorTrailers(errorMap));
  }

  #send(exchange: Exchange, message: Buffer, trailers?: Metadata): void {
    if (exchange.isOver) {
      this.#journal.lost(exchange.connection, 'gone', 1);
      return;
    }
    this.#sentCount += 1;
    exchange.send(message);
    exchange.end(trailers);
  }
}

function clientIdIn(metadata: Metadata): Buffer | null {
  const [id] = metadata.get(CLIENT_ID_KEY);
  return Buffer.isBuffer(id) ? id : null;
}
