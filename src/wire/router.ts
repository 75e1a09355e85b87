/**
 * The ZMQ door: one ROUTER socket, one loop, every request answered exactly once.
 *
 *          receive ──► connection, dialect, call ──► decode ──► admit ──► sink.dispatch
 *             ▲                 │ unknown             │ bad      │ no       │ value   │ promise
 *             │                 ▼                     ▼          ▼          ▼         ▼ later
 *          [ROUTER] ◄── outbox ◄── answers ◄────── sink.refuse ──┴──── reply, stream ◄┘
 *
 * Invariants
 *   - Nothing that arrives stops the loop. What can fail for one message is inside `#handle`, which
 *     turns every error into that request's reply; errors of `receive` itself are logged and slow
 *     the loop down, never end it.
 *   - Each request leaves through a method of `Answers`, once. Silence remains only
 *     where spec wire 7.3 asks for it: fewer than two client frames have nobody to answer, an empty
 *     operation frame is control of a stream, and failures that the client would take for success
 *     are withheld.
 *   - A request whose operation is known is refused in the engine's words only (`sink.refuse`): a
 *     failure that its client would take for success stays silent, also under overload, and also
 *     when the request cannot be read.
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
import {
  type InstanceId,
  instanceIdOf,
  type OperationName,
  type RequestOf,
} from '../engine/api.ts';
import type { RequestSink } from '../engine/handlers.ts';
import { type KvdError, toKvdError } from '../errors.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import { Admission } from './admission.ts';
import { Answers } from './answers.ts';
import { type Connection, ConnectionTable } from './connections.ts';
import { DialectDetection } from './detection.ts';
import { type Dialect, type DialectChoice, type DialectName, offeredDialects } from './dialect.ts';
import { removeIpcPath } from './endpoints.ts';
import { FIRST_PAYLOAD, readOperationFrame, releasePayloads } from './frames.ts';
import { LoopProbe } from './loop-probe.ts';
import { type LossReason, Outbox } from './outbox.ts';
import { type Accepted, type Named, readInstanceId } from './received.ts';
import { PayloadReader, type TokenReader } from './schema.ts';
import { type BoundSocket, openSocket } from './socket.ts';
import { StreamTable } from './streams.ts';
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
  readonly dialect: DialectChoice;
}

/** What stands behind the door. */
export interface RouterTarget {
  readonly sink: RequestSink;
  /** The chunk hasher; decoding a key reads its tokens. */
  readonly hasher: TokenReader;
}

export interface DialectCounts {
  readonly dialects: readonly {
    readonly name: DialectName;
    readonly releases: string;
    readonly clients: number;
    readonly requests: number;
  }[];
  readonly clients_undetermined: number;
}

/** Pause after an error of `receive`, so that a lasting one cannot occupy the process. */
const RECEIVE_ERROR_PAUSE_MS = 10;
/** How often a closing router looks whether its replies have gone. */
const DRAIN_POLL_MS = 2;

/** How long a closing router tries to reach clients that do not read. */
const FLUSH_MS_MAX = 500;

interface Target {
  readonly sink: RequestSink;
  readonly reader: PayloadReader;
}

export class Router {
  /** Endpoints with their real ports. */
  readonly endpoints: readonly string[];
  readonly #socket: RouterSocket;
  readonly #clock: Clock;
  readonly #limits: WireLimits;
  readonly #dialects: readonly Dialect[];
  readonly #connections: ConnectionTable;
  readonly #admission: Admission;
  readonly #outbox: Outbox;
  readonly #journal: WireJournal;
  readonly #detection: DialectDetection;
  readonly #streams: StreamTable;
  readonly #answers: Answers;
  readonly #probe: LoopProbe;
  /** Requests since the start, by the dialect in which they were understood. */
  readonly #requestCounts: Record<DialectName, number> = { A: 0, B: 0, C: 0 };
  #loop: Promise<void> | null = null;
  #isDry = true;

  private constructor(
    options: RouterOptions,
    limits: WireLimits,
    { socket, endpoints, probeEndpoint }: BoundSocket,
  ) {
    this.endpoints = endpoints;
    this.#socket = socket;
    this.#clock = options.clock;
    this.#limits = limits;
    this.#dialects = offeredDialects(options.dialect);
    this.#admission = new Admission(limits);
    this.#journal = new WireJournal(options.log, options.bus);
    this.#detection = new DialectDetection(this.#dialects);
    this.#outbox = new Outbox({
      socket,
      clock: options.clock,
      limits,
      onLost: (connection, reason, count) => this.#lost(connection, reason, count),
    });
    this.#streams = new StreamTable({
      limits,
      send: (connection, frames) => this.#outbox.send(connection, [connection.identity, ...frames]),
      onFailed: ({ connection, call, request }, error) => {
        const failed = { operation: call.operation, request, isAnswered: true };
        this.#journal.refusal(connection, error, failed);
      },
    });
    this.#connections = new ConnectionTable(
      limits.connectionCountMax,
      this.#dialects,
      (forgotten) => this.#streams.end(forgotten),
    );
    this.#answers = new Answers({
      outbox: this.#outbox,
      journal: this.#journal,
      streams: this.#streams,
      detection: this.#detection,
      dialectNames: this.#dialects.map(({ name }) => name).join('/'),
    });
    const newest = this.#dialects.at(-1) as Dialect;
    this.#probe = new LoopProbe(probeEndpoint, newest, options.clock);
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

  /** True when the loop has handled what there was and waits. */
  get isDry(): boolean {
    return this.#isDry;
  }

  /** Sends a NOOP through the loop; milliseconds until its reply. Rejects with `ERR_TIMEOUT`. */
  selfPing(timeoutMs: number): Promise<number> {
    return this.#probe.ping(timeoutMs);
  }

  /** Connections and requests of each dialect that is offered, and connections of any so far. */
  dialectCounts(): DialectCounts {
    const { undetermined, ...clients } = this.#connections.countByDialect();
    const dialects = this.#dialects.map(({ name, releases }) => ({
      name,
      releases,
      clients: clients[name],
      requests: this.#requestCounts[name],
    }));
    return { dialects, clients_undetermined: undetermined };
  }

  statistics(): Record<string, unknown> {
    return {
      endpoints: this.endpoints,
      ...this.dialectCounts(),
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
      streams: this.#streams.count,
      streams_max: this.#limits.streamCountMaxTotal,
      stream_parts_sent: this.#streams.partCount,
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
      // The last thing: a subscriber that is told earlier comes back while the door still answers.
      this.#streams.endAll();
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
      this.#isDry = true;
      try {
        frames = await this.#socket.receive();
      } catch (error) {
        // Closing the socket ends a waiting receive, too.
        if (this.#socket.closed) return;
        this.#journal.receiveFailed(toKvdError(error));
        await this.#pause(RECEIVE_ERROR_PAUSE_MS);
        continue;
      }
      this.#isDry = false;
      const startMs = this.#clock.preciseMs();
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
      this.#answers.bad(connection, 'ERR_WIRE_FRAME_COUNT', 'a message of less than two frames');
      return;
    }
    const id = readOperationFrame(op);
    if (id === 'empty') {
      this.#streams.control(connection, uid, frames[FIRST_PAYLOAD]);
      return;
    }
    const resolved = this.#detection.resolve(connection, id, frames);
    if (!resolved) {
      this.#answers.refuseUnknown({ connection, uid, op }, id);
      return;
    }
    const { dialect, call } = resolved;
    connection.adopt(dialect);
    this.#requestCounts[dialect.name] += 1;
    const named: Named = { connection, uid, op, dialect, call, request: null };
    let request: RequestOf<OperationName>;
    try {
      this.#admission.checkSize(call, frames, reader.tokenCountMax);
      request = call.decodeRequest(frames, FIRST_PAYLOAD, reader);
    } catch (error) {
      // The delimiter of a REQ socket looks like an empty uid, and nothing is where it should be.
      if (uid.length === 0) this.#answers.refuse(named, error);
      else {
        const instanceId = readInstanceId(call.operation.name, frames, reader);
        this.#refuseAtDoor(named, sink, instanceId, toKvdError(error));
      }
      return;
    }
    const accepted: Accepted = { connection, uid, op, dialect, call, request };
    const refusal = this.#admission.refusalOf(call, connection);
    if (refusal) {
      this.#refuseAtDoor(accepted, sink, instanceIdOf(request), refusal);
      releasePayloads(frames);
    } else this.#dispatch(accepted, sink, frames);
  }

  #dispatch(accepted: Accepted, sink: RequestSink, frames: Buffer[]): void {
    const { connection, call, request } = accepted;
    const { name } = call.operation;
    // Copies out of an inline payload may still run when its handler has given up.
    const release = name === 'COMMIT_STORE' ? () => {} : () => releasePayloads(frames);
    let result: unknown;
    try {
      result = sink.dispatch(name, request, connection.context, release);
    } catch (error) {
      this.#answers.refuse(accepted, error);
      release();
      return;
    }
    if (result instanceof Promise) {
      this.#admission.settleLater(
        connection,
        result,
        (reply) => this.#answers.answer(accepted, reply),
        (error) => this.#answers.refuse(accepted, error),
      );
    } else {
      this.#answers.answer(accepted, result);
      release();
    }
  }

  #refuseAtDoor(
    named: Named,
    sink: RequestSink,
    instanceId: InstanceId | null,
    cause: KvdError,
  ): void {
    const { connection, call } = named;
    const turnedAway = { name: call.operation.name, instanceId, cause };
    const refuse = (error: unknown) => this.#answers.refuse(named, error);
    this.#admission.turnAway(connection, turnedAway, sink, refuse);
  }

  #lost(connection: Connection, reason: LossReason, count: number): void {
    this.#journal.lost(connection, reason, count);
    if (reason === 'gone') this.#streams.drop(connection);
    else this.#streams.end(connection);
  }
}
