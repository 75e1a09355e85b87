/**
 * Dispatch: finds the handler of an operation, keeps the order that clients rely on, bounds what
 * waits, and makes sure that every accepted request settles.
 *
 * Lanes (spec engine 0; spec wire 1, "Execution classes"):
 *
 *   instant   answered in the turn that read it, whatever else is going on
 *   control   FIFO per connection: a QUERY never overtakes its LOOKUP, nor an END_SESSION its FREE
 *   wait      starts in control order, then holds nobody up while it waits
 *   transfer  FIFO per connection, parallel between connections; registrations are in this lane,
 *             too, so a STORE finds the registration that its connection sent before it
 *
 * How a lane works is in `lanes.ts`.
 *
 * A transfer that does not settle before its deadline is answered by its failure and abandoned: if
 * it still waits it never starts, and if it runs its result must not take effect, because the
 * engine has given the blocks to somebody else by then. A failure whose answer has to wait
 * (`HeldReplyError`) frees its lane at once and does not keep `drain` waiting.
 */
import type { Clock } from '../clock.ts';
import { HeldReplyError, KvdError, toKvdError } from '../errors.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import {
  type InstanceId,
  instanceIdOf,
  type OperationName,
  type ReplyOf,
  type RequestOf,
} from './api.ts';
import type { RequestContext } from './client-traits.ts';
import type { Attempt, EngineModule, Handler, RequestSink } from './handlers.ts';
import { Lanes } from './lanes.ts';
import type { StallWatch } from './stall-watch.ts';

export type LaneName = 'instant' | 'control' | 'wait' | 'transfer';

const LANES: Readonly<Record<OperationName, LaneName>> = {
  REGISTER_KV_CACHE: 'transfer',
  UNREGISTER_KV_CACHE: 'transfer',
  STORE: 'transfer',
  RETRIEVE: 'transfer',
  LOOKUP: 'control',
  QUERY_PREFETCH_STATUS: 'control',
  WAIT_PREFETCH_STATUS: 'wait',
  QUERY_PREFETCH_LOOKUP_HITS: 'control',
  FREE_LOOKUP_LOCKS: 'control',
  END_SESSION: 'control',
  REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: 'transfer',
  UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: 'transfer',
  PREPARE_STORE: 'transfer',
  COMMIT_STORE: 'transfer',
  PREPARE_RETRIEVE: 'transfer',
  COMMIT_RETRIEVE: 'transfer',
  CLEAR: 'control',
  GET_CHUNK_SIZE: 'instant',
  PING: 'instant',
  REPORT_BLOCK_ALLOCATION: 'instant',
  NOOP: 'instant',
  CB_REGISTER_KV_CACHE: 'transfer',
  CB_UNREGISTER_KV_CACHE: 'transfer',
  CB_STORE_PRE_COMPUTED: 'transfer',
  CB_LOOKUP_PRE_COMPUTED: 'control',
  CB_RETRIEVE_PRE_COMPUTED: 'transfer',
  CB_STORE_FINAL: 'transfer',
  CB_LOOKUP_PRE_COMPUTED_V2: 'control',
  CB_RETRIEVE_PRE_COMPUTED_V2: 'transfer',
  CB_REGISTER_ROPE_V3: 'transfer',
  CB_UNREGISTER_ROPE_V3: 'transfer',
  CB_RETRIEVE_PRE_COMPUTED_V3: 'transfer',
  CB_UNIFIED_LOOKUP: 'control',
  P2P_LOOKUP_AND_LOCK: 'control',
  P2P_QUERY_LOOKUP_RESULTS: 'control',
  P2P_UNLOCK_OBJECTS: 'control',
  REGISTER_Q_CACHE: 'transfer',
  UNREGISTER_Q_CACHE: 'transfer',
  STORE_Q: 'transfer',
  CB_PROTOCOL_HANDSHAKE: 'instant',
  CB_REORDER_PLAN: 'control',
  GET_EXPERIMENTAL: 'instant',
  SERVER_MODULE_CALL: 'control',
  SUBSCRIBE_KV_EVENTS: 'instant',
};

class DispatchedAttempt implements Attempt {
  readonly arrivedMs: number;
  /** When its handler took it, on the precise clock; null: none has. */
  startedMs: number | null = null;
  readonly #options: AttemptOptions;
  readonly #mark: number;
  /** How long it may have lain unread before it arrived. */
  readonly #unreadMs: number;
  #isAbandoned = false;
  #listener: (() => void) | null = null;

  constructor(options: AttemptOptions) {
    this.arrivedMs = options.clock.preciseMs();
    this.#options = options;
    this.#mark = options.stalls.mark();
    this.#unreadMs = options.stalls.unreadMs;
  }

  get isOverdue(): boolean {
    return this.#options.stalls.stalledMs(this.#mark) > 0;
  }

  get isExpired(): boolean {
    const { clock, transferDeadlineMs } = this.#options;
    return clock.preciseMs() - this.arrivedMs + this.#unreadMs >= transferDeadlineMs;
  }

  get isAbandoned(): boolean {
    return this.#isAbandoned;
  }

  onAbandon(listener: () => void): void {
    this.#listener = listener;
  }

  abandon(): void {
    this.#isAbandoned = true;
    this.#listener?.();
  }
}

interface OperationCounters {
  requestCount: number;
  failureCount: number;
}

export interface DispatcherOptions {
  readonly modules: readonly EngineModule[];
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  readonly stalls: StallWatch;
  /** A transfer is answered by its failure after this long. */
  readonly transferDeadlineMs: number;
  /**
   * What a client is told when the dispatch itself or the door refuses its request (shutdown, full
   * lane, deadline, not to be read): not every client can bear every failure. Absent: the error as
   * it is. Without an id nobody knows which worker it was.
   */
  readonly refusals: RefusalTable;
}

type AttemptOptions = Pick<DispatcherOptions, 'clock' | 'stalls' | 'transferDeadlineMs'>;

export type RefusalTable = {
  readonly [N in OperationName]?: (
    instanceId: InstanceId | null,
    context: RequestContext,
    error: KvdError,
  ) => KvdError;
};

/** What the dispatch refuses before a handler has seen it. */
class DispatchRefusal extends KvdError {}

export class Dispatcher implements RequestSink {
  readonly #options: DispatcherOptions;
  readonly #handlers = new Map<OperationName, Handler<OperationName>>();
  readonly #lanes: Lanes;
  readonly #counters = new Map<OperationName, OperationCounters>();
  readonly #failuresByCode = new Map<string, number>();
  #inFlightCount = 0;
  #isDraining = false;
  #drained: (() => void) | null = null;

  constructor(options: DispatcherOptions) {
    this.#options = options;
    this.#lanes = new Lanes(options.clock);
    for (const module of options.modules) {
      for (const [name, handler] of Object.entries(module.handlers)) {
        this.#register(name as OperationName, handler as Handler<OperationName>, module.name);
      }
    }
  }

  get inFlightCount(): number {
    return this.#inFlightCount;
  }

  /** Requests and failures per operation since the start. */
  get counters(): ReadonlyMap<OperationName, Readonly<OperationCounters>> {
    return this.#counters;
  }

  /** Failed requests by error code; the table of codes bounds it. */
  get failuresByCode(): ReadonlyMap<string, number> {
    return this.#failuresByCode;
  }

  dispatch<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    onSettled?: () => void,
  ): ReplyOf<N> | Promise<ReplyOf<N>> {
    const counters = this.#countersOf(name);
    counters.requestCount += 1;
    let attempt: DispatchedAttempt | null = null;
    try {
      // What is answered at once delays no shutdown, and some of it cannot fail (wire 7.3).
      if (this.#isDraining && LANES[name] !== 'instant') {
        throw new DispatchRefusal('ERR_SHUTTING_DOWN', 'the server is shutting down');
      }
      const handler = this.#handlers.get(name) as Handler<N> | undefined;
      if (!handler) throw this.#notEnabled(name);
      attempt = new DispatchedAttempt(this.#options);
      const result = this.#start(name, request, context, attempt, handler);
      if (!(result instanceof Promise)) {
        this.#reportFinished(name, attempt, null);
        return result;
      }
      if (onSettled) result.then(onSettled, onSettled);
      return this.#track(name, request, context, attempt, result);
    } catch (error) {
      const isOwn = error instanceof DispatchRefusal;
      const answer = isOwn ? this.#refusal(name, instanceIdOf(request), context, error) : error;
      if (answer instanceof HeldReplyError) return this.#fail(name, attempt, answer);
      throw this.#countFailure(name, attempt, answer);
    }
  }

  refuse(
    name: OperationName,
    instanceId: InstanceId | null,
    context: RequestContext,
    cause: KvdError,
  ): KvdError | Promise<KvdError> {
    const error = this.#refusal(name, instanceId, context, cause);
    return error instanceof HeldReplyError ? error.due : error;
  }

  /** Refuses new requests and waits until the accepted ones have settled, or `deadlineMs`. */
  async drain(deadlineMs: number): Promise<void> {
    this.#isDraining = true;
    for (const module of this.#options.modules) module.beginDrain?.();
    if (this.#inFlightCount === 0) return;
    await new Promise<void>((resolve) => {
      const timer = this.#options.clock.after(deadlineMs, resolve);
      this.#drained = () => {
        timer.cancel();
        resolve();
      };
    });
  }

  #register(name: OperationName, handler: Handler<OperationName>, moduleName: string): void {
    if (this.#handlers.has(name)) {
      throw new KvdError('ERR_INTERNAL', `${moduleName}: ${name} has a handler already`);
    }
    this.#handlers.set(name, handler);
  }

  #notEnabled(name: OperationName): KvdError {
    const message = `no module of this server handles ${name}`;
    this.#options.log.limited('warn', `not-enabled:${name}`, message);
    return new KvdError('ERR_NOT_ENABLED', message);
  }

  #countersOf(name: OperationName): OperationCounters {
    const known = this.#counters.get(name);
    if (known) return known;
    const counters = { requestCount: 0, failureCount: 0 };
    this.#counters.set(name, counters);
    return counters;
  }

  #countFailure(name: OperationName, attempt: DispatchedAttempt | null, cause: unknown): KvdError {
    const error = toKvdError(cause);
    this.#countersOf(name).failureCount += 1;
    this.#reportFinished(name, attempt, error.code);
    this.#failuresByCode.set(error.code, (this.#failuresByCode.get(error.code) ?? 0) + 1);
    return error;
  }

  /** A request that was refused before anybody took it has taken no time. */
  #reportFinished(
    operation: OperationName,
    attempt: DispatchedAttempt | null,
    error: string | null,
  ): void {
    const { bus, clock } = this.#options;
    if (!bus.hasListeners('request.finished')) return;
    const nowMs = clock.preciseMs();
    const arrivedMs = attempt?.arrivedMs ?? nowMs;
    const queueSeconds = ((attempt?.startedMs ?? nowMs) - arrivedMs) / 1000;
    const seconds = (nowMs - arrivedMs) / 1000;
    bus.publish('request.finished', { operation, queueSeconds, seconds, error });
  }

  #start<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    attempt: DispatchedAttempt,
    handler: Handler<N>,
  ): ReplyOf<N> | Promise<ReplyOf<N>> {
    const lane = LANES[name];
    if (lane === 'instant') {
      attempt.startedMs = attempt.arrivedMs;
      return handler(request, context, attempt);
    }
    const laneId = `${lane === 'transfer' ? 't' : 'c'}${context.connectionId}`;
    const sizeBytes = 'key' in request ? request.key.tokens.bytes.byteLength : 0;
    if (!this.#lanes.hasRoom(laneId, sizeBytes)) {
      throw new DispatchRefusal('ERR_OVERLOADED', 'too many requests of this connection wait');
    }
    const start = () => {
      if (attempt.isAbandoned) throw new KvdError('ERR_TIMEOUT', `${name} waited too long`);
      attempt.startedMs = this.#options.clock.preciseMs();
      return handler(request, context, attempt);
    };
    return this.#lanes.enter({ laneId, start, sizeBytes, isDetached: lane === 'wait' });
  }

  #track<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    attempt: DispatchedAttempt,
    running: Promise<ReplyOf<N>>,
  ): Promise<ReplyOf<N>> {
    this.#inFlightCount += 1;
    const settled = () => {
      this.#inFlightCount -= 1;
      if (this.#inFlightCount === 0) this.#drained?.();
    };
    running.then(settled, settled);
    const answer =
      LANES[name] === 'transfer'
        ? this.#withDeadline(name, request, context, attempt, running)
        : running;
    return answer.then(
      (reply) => {
        this.#reportFinished(name, attempt, null);
        return reply;
      },
      (error) => this.#fail(name, attempt, error),
    );
  }

  /** Rejects with the error, or with the one that a held reply ends in. */
  async #fail(
    name: OperationName,
    attempt: DispatchedAttempt | null,
    error: unknown,
  ): Promise<never> {
    const answer = error instanceof HeldReplyError ? await error.due : error;
    throw this.#countFailure(name, attempt, answer);
  }

  #refusal(
    name: OperationName,
    instanceId: InstanceId | null,
    context: RequestContext,
    error: KvdError,
  ): KvdError {
    return this.#options.refusals[name]?.(instanceId, context, error) ?? error;
  }

  #reportTimeout<N extends OperationName>(name: N, request: RequestOf<N>): void {
    const sessionId = 'key' in request ? request.key.requestId : '';
    const message = `${name} met its deadline`;
    this.#options.bus.publish('timeout.raised', {
      sessionId,
      exceptionType: 'TransferTimeout',
      message,
    });
  }

  #withDeadline<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    attempt: DispatchedAttempt,
    running: Promise<ReplyOf<N>>,
  ): Promise<ReplyOf<N>> {
    const { clock, log, transferDeadlineMs } = this.#options;
    return new Promise((resolve, reject) => {
      let isLate = false;
      const timer = clock.after(transferDeadlineMs, () => {
        isLate = true;
        attempt.abandon();
        this.#reportTimeout(name, request);
        const error = new KvdError(
          'ERR_TIMEOUT',
          `${name} did not end within ${transferDeadlineMs / 1000} s`,
        );
        reject(this.#refusal(name, instanceIdOf(request), context, error));
      });
      running.then(resolve, reject).finally(() => {
        timer.cancel();
        if (isLate) log.limited('warn', `late:${name}`, `${name} ended after its deadline`);
      });
    });
  }
}
