/**
 * The ZMQ door: one ROUTER socket, one loop, every request answered exactly once.
 *
 *          receive ──► connection, operation ──► decode ──► admit ──► sink.dispatch
 *             ▲                 │ unknown          │ bad      │ no       │ value   │ promise
 *             │                 ▼                  ▼          ▼          ▼         ▼ later
 *          [ROUTER] ◄── outbox ◄─ bare / neutral + error / sink.refuse / reply ◄───┘
 *
 * Invariants
 *   - Nothing that arrives stops the loop. What can fail for one message is inside `#handle`, which
 *     turns every error into that request's reply; errors of `receive` itself are logged and slow
 *     the loop down, never end it.
 *   - Each request leaves through `#answer` or one of the `#refuse…`, once. Silence remains only
 *     where spec wire 7.3 asks for it: fewer than two client frames have nobody to answer, an empty
 *     operation frame belongs to a stream, and failures that the client would take for success are
 *     withheld.
 *   - A request that could be decoded is refused in the engine's words only (`sink.refuse`): a
 *     failure that its client would take for success stays silent, also under overload.
 *   - A handler that returns a value is answered before the next message is read: no promise, no
 *     timer between. Others are answered when their promise settles, in any order.
 *   - A burst yields to the event loop (`BATCH_COUNT_MAX`, `BATCH_MS_MAX`). ZMQ takes clients in
 *     turn, so one that floods delays another by one message, not by its queue.
 *
 * Cost: a PING takes about 8 µs longer than through a ROUTER that only echoes, of 80 µs in all
 * (bench/micro/wire.ts); decoding and encoding are 0.2 µs of that.
 */
import { setImmediate as eventLoopTurn } from 'node:timers/promises';
import type { Router as RouterSocket } from 'zeromq';
import type { Clock } from '../clock.ts';
import type { OperationName, RequestOf, RequestSink } from '../engine/api.ts';
import { KvdError, toKvdError, WithheldReplyError } from '../errors.ts';
import type { EventBus } from '../observability/events.ts';
import type { Logger } from '../observability/log.ts';
import { Admission } from './admission.ts';
import { type Connection, ConnectionTable } from './connections.ts';
import { type Dialect, type DialectName, dialectOf, offeredDialects } from './dialect.ts';
import { removeIpcPath } from './endpoints.ts';
import {
  FIRST_PAYLOAD,
  type OperationFrame,
  readOperationFrame,
  releasePayloads,
} from './frames.ts';
import { LoopProbe } from './loop-probe.ts';
import { Outbox } from './outbox.ts';
import { bareReply, exceptionReply } from './reply.ts';
import type { Operation } from './requests.ts';
import { PayloadReader, type TokenReader } from './schema.ts';
import { type BoundSocket, openSocket } from './socket.ts';
import { WireJournal } from './wire-journal.ts';
import {
  BATCH_COUNT_MAX,
  BATCH_MS_MAX,
  CLOSE_LINGER_MS,
  DEFAULT_WIRE_LIMITS,
  type WireLimits,
} from './wire-limits.ts';

export interface RouterOptions {
  readonly endpoints: readonly string[];
  readonly clock: Clock;
  readonly log: Logger;
  readonly bus: EventBus;
  readonly limits?: Partial<WireLimits>;
  readonly dialect: 'auto' | DialectName;
}

/** What stands behind the door. */
export interface RouterTarget {
  readonly sink: RequestSink;
  /** The chunk hasher; decoding a key reads its tokens. */
  readonly hasher: TokenReader;
}

/** Pause after an error of `receive`, so that a lasting one cannot occupy the process. */
const RECEIVE_ERROR_PAUSE_MS = 10;
/** How often a closing router looks whether its replies have gone. */
const DRAIN_POLL_MS = 2;

/** How long a closing router tries to reach clients that do not read. */
const FLUSH_MS_MAX = 500;

/** What is needed to answer a request, also much later. */
interface Pending {
  readonly connection: Connection;
  readonly uid: Buffer;
  readonly op: Buffer;
}

/** A request that has been decoded. */
interface Accepted extends Pending {
  readonly operation: Operation;
  readonly request: RequestOf<OperationName>;
}

interface Target {
  readonly sink: RequestSink;
  readonly reader: PayloadReader;
}

export class Router {
  /** Endpoints with their real ports. */
  readonly endpoints: readonly string[];
  /** Monotonic milliseconds at which the loop last took a message. */
  lastLoopTurnMs: number;
  readonly #socket: RouterSocket;
  readonly #clock: Clock;
  readonly #limits: WireLimits;
  readonly #dialects: readonly Dialect[];
  readonly #connections: ConnectionTable;
  readonly #admission: Admission;
  readonly #outbox: Outbox;
  readonly #journal: WireJournal;
  readonly #probe: LoopProbe;
  #loop: Promise<void> | null = null;

  private constructor(
    options: RouterOptions,
    limits: WireLimits,
    { socket, endpoints, probeEndpoint }: BoundSocket,
  ) {
    this.endpoints = endpoints;
    this.lastLoopTurnMs = options.clock.preciseMs();
    this.#socket = socket;
    this.#clock = options.clock;
    this.#limits = limits;
    this.#dialects = offeredDialects(options.dialect);
    this.#connections = new ConnectionTable(this.#limits.connectionCountMax, this.#dialects);
    this.#admission = new Admission(this.#limits);
    this.#journal = new WireJournal(options.log, options.bus);
    this.#outbox = new Outbox({
      socket,
      clock: options.clock,
      limits: this.#limits,
      onLost: (connection, reason, count) => this.#journal.lost(connection, reason, count),
    });
    const [dialect] = this.#dialects;
    this.#probe = new LoopProbe(probeEndpoint, dialect as Dialect, options.clock);
  }

  /** Binds every endpoint. Throws `ERR_ADDRESS` and leaves nothing open when one cannot be. */
  static async bind(options: RouterOptions): Promise<Router> {
    const limits = { ...DEFAULT_WIRE_LIMITS, ...options.limits };
    const { endpoints, log } = options;
    return new Router(options, limits, await openSocket({ endpoints, limits, log }));
  }

  /** Starts the loop. What clients have sent since `bind` has waited in ZMQ. */
  run({ sink, hasher }: RouterTarget): void {
    this.#loop ??= this.#receiveAll({ sink, reader: new PayloadReader(hasher) });
  }

  /** Sends a NOOP through the loop; milliseconds until its reply. Rejects with `ERR_TIMEOUT`. */
  selfPing(timeoutMs: number): Promise<number> {
    return this.#probe.ping(timeoutMs);
  }

  statistics(): Record<string, unknown> {
    return {
      endpoints: this.endpoints,
      dialects: this.#dialects.map(({ name, releases }) => ({ name, releases })),
      is_closing: this.#admission.isClosing,
      connections: this.#connections.count,
      connections_max: this.#limits.connectionCountMax,
      in_flight: this.#admission.inFlightCount,
      in_flight_max: this.#limits.inFlightCountMaxTotal,
      replies_sent: this.#outbox.sentCount,
      replies_queued: this.#outbox.queuedCount,
      replies_queued_bytes: this.#outbox.queuedBytes,
      replies_queued_bytes_max: this.#limits.queueBytesMaxTotal,
      clients_not_reading: this.#outbox.waitingClientCount,
      ...this.#journal.snapshot(),
    };
  }

  /**
   * Answers what is in flight until the deadline, refuses what is new, sends what is ready, and
   * closes. Never rejects.
   */
  async close(options: { deadlineMs?: number } = {}): Promise<void> {
    this.#admission.isClosing = true;
    const endMs = this.#clock.preciseMs() + (options.deadlineMs ?? 5000);
    if (this.#loop) {
      while (this.#admission.inFlightCount > 0 && this.#clock.preciseMs() < endMs) {
        await this.#pause();
      }
      const flushEndMs = Math.min(endMs, this.#clock.preciseMs() + FLUSH_MS_MAX);
      while (!(await this.#outbox.flush()) && this.#clock.preciseMs() < flushEndMs) {
        await this.#pause();
      }
    }
    this.#outbox.close();
    this.#probe.close();
    if (!this.#socket.closed) {
      for (const endpoint of this.endpoints) await removeIpcPath(endpoint);
      this.#socket.linger = CLOSE_LINGER_MS;
      this.#socket.close();
    }
    await this.#loop;
  }

  #pause(delayMs = DRAIN_POLL_MS): Promise<void> {
    return new Promise((resolve) => void this.#clock.after(delayMs, resolve));
  }

  async #receiveAll(target: Target): Promise<void> {
    let batchCount = 0;
    let batchMs = 0;
    while (!this.#socket.closed) {
      let frames: Buffer[];
      try {
        frames = await this.#socket.receive();
      } catch (error) {
        // Closing the socket ends a waiting receive, too.
        if (this.#socket.closed) return;
        this.#journal.receiveFailed(toKvdError(error));
        await this.#pause(RECEIVE_ERROR_PAUSE_MS);
        continue;
      }
      const startMs = this.#clock.preciseMs();
      this.lastLoopTurnMs = startMs;
      this.#handle(frames, target);
      batchCount += 1;
      batchMs += this.#clock.preciseMs() - startMs;
      if (batchCount >= BATCH_COUNT_MAX || batchMs >= BATCH_MS_MAX) {
        await eventLoopTurn();
        batchCount = 0;
        batchMs = 0;
      }
    }
  }

  /** One message from beginning to end. Never throws. */
  #handle(frames: Buffer[], { sink, reader }: Target): void {
    const [identity, uid, op] = frames;
    const connection = this.#connections.of(identity as Buffer);
    this.#journal.receivedCount += 1;
    if (!uid || !op) {
      this.#bad(connection, 'ERR_WIRE_FRAME_COUNT', 'a message of less than two frames');
      return;
    }
    const pending: Pending = { connection, uid, op };
    const id = readOperationFrame(op);
    const dialect = typeof id === 'number' ? dialectOf(connection.candidates, id) : null;
    const operation = dialect?.operationsById.get(id as number);
    if (!dialect || !operation) {
      this.#refuseUnknown(pending, id);
      return;
    }
    connection.adopt(dialect);
    let request: RequestOf<OperationName>;
    try {
      this.#admission.checkSize(operation, frames, reader.tokenCountMax);
      request = operation.decodeRequest(frames, FIRST_PAYLOAD, reader);
    } catch (error) {
      this.#refuseMalformed(pending, operation, toKvdError(error));
      return;
    }
    const accepted: Accepted = { connection, uid, op, operation, request };
    const refusal = this.#admission.refusalOf(operation, connection);
    if (refusal) {
      this.#refuseDecoded(accepted, sink, refusal);
      releasePayloads(frames);
    } else this.#dispatch(accepted, sink, frames);
  }

  #dispatch(accepted: Accepted, sink: RequestSink, frames: Buffer[]): void {
    const { connection, operation, request } = accepted;
    // Copies out of an inline payload may still run when its handler has given up.
    const release = operation.name === 'COMMIT_STORE' ? () => {} : () => releasePayloads(frames);
    let result: unknown;
    try {
      result = sink.dispatch(operation.name, request, connection.context, release);
    } catch (error) {
      this.#refuse(accepted, error);
      release();
      return;
    }
    if (result instanceof Promise) {
      this.#settleLater(
        accepted,
        result,
        (reply) => this.#answer(accepted, reply),
        (error) => this.#refuse(accepted, error),
      );
    } else {
      this.#answer(accepted, result);
      release();
    }
  }

  /** Not let in: what the client is told is the engine's choice, and may have to wait. */
  #refuseDecoded(accepted: Accepted, sink: RequestSink, cause: KvdError): void {
    const { connection, operation, request } = accepted;
    let error: unknown;
    try {
      error = sink.refuse(operation.name, request, connection.context, cause);
    } catch (failure) {
      error = failure;
    }
    const refuse = (due: unknown) => this.#refuse(accepted, due);
    if (error instanceof Promise) this.#settleLater(accepted, error, refuse, refuse);
    else refuse(error);
  }

  #settleLater(
    { connection }: Accepted,
    result: Promise<unknown>,
    onValue: (value: unknown) => void,
    onError: (error: unknown) => void,
  ): void {
    this.#admission.enter(connection);
    const settled = (next: (outcome: unknown) => void) => (outcome: unknown) => {
      this.#admission.leave(connection);
      next(outcome);
    };
    result.then(settled(onValue), settled(onError));
  }

  #answer(accepted: Accepted, reply: unknown): void {
    const { connection, uid, op, operation } = accepted;
    let frame: Uint8Array | null;
    try {
      frame = operation.encodeReply(reply as never);
    } catch (error) {
      this.#refuse(accepted, error);
      return;
    }
    const { identity } = connection;
    this.#outbox.send(connection, frame ? [identity, uid, op, frame] : [identity, uid, op]);
  }

  /** A request that could be read and failed. */
  #refuse(accepted: Accepted, cause: unknown): void {
    const { connection, operation, request } = accepted;
    const error = toKvdError(cause);
    const reply = this.#refusalReply(accepted, operation, error);
    this.#journal.refusal(connection, error, {
      name: operation.name,
      request,
      isAnswered: reply !== null,
    });
    if (reply) this.#send(connection, reply);
  }

  /** The request could not be read. */
  #refuseMalformed(pending: Pending, operation: Operation, error: KvdError): void {
    const { connection, uid, op } = pending;
    // The delimiter of a REQ socket looks like an empty uid; then `op` is the uid, and a reply of
    // the operation's type would be nonsense. A bare one is safe for everybody.
    const reply =
      uid.length === 0 ? bareReply(uid, op) : this.#refusalReply(pending, operation, error);
    const refused = { name: operation.name, request: null, isAnswered: reply !== null };
    if (error.code === 'ERR_OVERLOADED') this.#journal.refusal(connection, error, refused);
    else this.#journal.badMessage(connection, error, refused);
    if (reply) this.#send(connection, reply);
  }

  /** Null where the client is answered by silence. */
  #refusalReply(
    { connection, uid, op }: Pending,
    operation: Operation,
    error: KvdError,
  ): Uint8Array[] | null {
    if (error instanceof WithheldReplyError) return null;
    return connection.dialect.refuse(uid, op, operation, error);
  }

  #refuseUnknown(pending: Pending, id: OperationFrame): void {
    const { connection, uid, op } = pending;
    if (id === 'empty') {
      this.#bad(connection, 'ERR_WIRE_OPERATION', 'a stream control frame without a stream');
      return;
    }
    const shown = typeof id === 'number' ? `operation ${id}` : `an operation frame (${id})`;
    const names = this.#dialects.map((dialect) => dialect.name).join('/');
    const error = this.#bad(
      connection,
      'ERR_WIRE_OPERATION',
      `${shown} is not known in dialect ${names}`,
    );
    this.#send(connection, id === 'text' ? exceptionReply(uid, error) : bareReply(uid, op));
  }

  #bad(
    connection: Connection,
    code: 'ERR_WIRE_FRAME_COUNT' | 'ERR_WIRE_OPERATION',
    problem: string,
  ): KvdError {
    const error = new KvdError(code, problem);
    this.#journal.badMessage(connection, error, null);
    return error;
  }

  #send(connection: Connection, reply: Uint8Array[]): void {
    this.#outbox.send(connection, [connection.identity, ...reply]);
  }
}
