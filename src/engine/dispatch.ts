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
 * A lane that is idle runs a handler at once and in the same call, so the common request costs no
 * promise. A handler that answers with a promise makes its lane busy until the promise settles;
 * later requests of that lane queue up to a bound and are then refused.
 *
 * A transfer that does not settle before its deadline is answered by its failure; the late result
 * only leaves a log line.
 */
import type { Clock } from '../clock.ts';
import { KvdError, toKvdError, WithheldReplyError } from '../errors.ts';
import type { Logger } from '../observability/log.ts';
import type {
  EngineModule,
  Handler,
  OperationName,
  ReplyOf,
  RequestContext,
  RequestOf,
  RequestSink,
} from './api.ts';

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
};

/** A success reply is all that their clients know, so a failed one stays silent (wire 7.3). */
const REGISTRATIONS: ReadonlySet<OperationName> = new Set<OperationName>([
  'REGISTER_KV_CACHE',
  'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
  'CB_REGISTER_KV_CACHE',
  'CB_REGISTER_ROPE_V3',
]);

/** Requests that may wait in one lane of one connection. */
const LANE_QUEUE_MAX = 4096;

interface Waiting {
  readonly start: () => unknown;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** One FIFO of one connection. Exists only while something runs in it. */
class Lane {
  isBusy = false;
  readonly queue: Waiting[] = [];
}

interface OperationCounters {
  requestCount: number;
  failureCount: number;
}

export interface DispatcherOptions {
  readonly modules: readonly EngineModule[];
  readonly clock: Clock;
  readonly log: Logger;
  /** A transfer is answered by its failure after this long. */
  readonly transferDeadlineMs: number;
  /** The error of a RETRIEVE that met its deadline: strict clients must not get a reply. */
  readonly onRetrieveDeadline: (
    request: RequestOf<'RETRIEVE'>,
    context: RequestContext,
  ) => KvdError;
}

export class Dispatcher implements RequestSink {
  readonly #options: DispatcherOptions;
  readonly #handlers = new Map<OperationName, Handler<OperationName>>();
  readonly #lanes = new Map<string, Lane>();
  readonly #counters = new Map<OperationName, OperationCounters>();
  readonly #failuresByCode = new Map<string, number>();
  #inFlightCount = 0;
  #isDraining = false;
  #drained: (() => void) | null = null;

  constructor(options: DispatcherOptions) {
    this.#options = options;
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
  ): ReplyOf<N> | Promise<ReplyOf<N>> {
    const counters = this.#countersOf(name);
    counters.requestCount += 1;
    try {
      if (this.#isDraining) {
        throw new KvdError('ERR_SHUTTING_DOWN', 'the server is shutting down');
      }
      const handler = this.#handlers.get(name) as Handler<N> | undefined;
      if (!handler) throw this.#notEnabled(name);
      const start = () => handler(request, context);
      const lane = LANES[name];
      const result = lane === 'instant' ? start() : this.#enter(lane, context, start);
      if (!(result instanceof Promise)) return result;
      return this.#track(name, request, context, result);
    } catch (error) {
      throw this.#countFailure(counters, error);
    }
  }

  /** Refuses new requests and waits until the accepted ones have settled, or `deadlineMs`. */
  async drain(deadlineMs: number): Promise<void> {
    this.#isDraining = true;
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
    return REGISTRATIONS.has(name)
      ? new WithheldReplyError('ERR_NOT_ENABLED', message)
      : new KvdError('ERR_NOT_ENABLED', message);
  }

  #countersOf(name: OperationName): OperationCounters {
    const known = this.#counters.get(name);
    if (known) return known;
    const counters = { requestCount: 0, failureCount: 0 };
    this.#counters.set(name, counters);
    return counters;
  }

  #countFailure(counters: OperationCounters, cause: unknown): KvdError {
    const error = toKvdError(cause);
    counters.failureCount += 1;
    this.#failuresByCode.set(error.code, (this.#failuresByCode.get(error.code) ?? 0) + 1);
    return error;
  }

  #enter<T>(
    laneName: 'control' | 'wait' | 'transfer',
    context: RequestContext,
    start: () => T | Promise<T>,
  ): T | Promise<T> {
    const isWait = laneName === 'wait';
    const id = `${laneName === 'transfer' ? 't' : 'c'}${context.connectionId}`;
    const lane = this.#lanes.get(id);
    if (!lane?.isBusy) {
      const result = start();
      if (result instanceof Promise && !isWait) this.#occupy(id, lane ?? new Lane(), result);
      return result;
    }
    if (lane.queue.length >= LANE_QUEUE_MAX) {
      throw new KvdError(
        'ERR_OVERLOADED',
        `${LANE_QUEUE_MAX} requests of this connection wait already`,
      );
    }
    // A waiting request must not make the lane busy: it settles by itself, the lane goes on.
    return new Promise<T>((resolve, reject) => {
      const run = isWait ? () => void Promise.resolve(start()).then(resolve, reject) : start;
      lane.queue.push({ start: run, resolve: isWait ? () => {} : (resolve as never), reject });
    });
  }

  #occupy(id: string, lane: Lane, running: Promise<unknown>): void {
    lane.isBusy = true;
    this.#lanes.set(id, lane);
    const next = () => this.#advance(id, lane);
    running.then(next, next);
  }

  /** Runs what waits in a lane until something there takes time again. */
  #advance(id: string, lane: Lane): void {
    lane.isBusy = false;
    for (let waiting = lane.queue.shift(); waiting; waiting = lane.queue.shift()) {
      let result: unknown;
      try {
        result = waiting.start();
      } catch (error) {
        waiting.reject(error);
        continue;
      }
      waiting.resolve(result);
      if (result instanceof Promise) {
        this.#occupy(id, lane, result);
        return;
      }
    }
    this.#lanes.delete(id);
  }

  #track<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    running: Promise<ReplyOf<N>>,
  ): Promise<ReplyOf<N>> {
    this.#inFlightCount += 1;
    const settled = () => {
      this.#inFlightCount -= 1;
      if (this.#inFlightCount === 0) this.#drained?.();
    };
    running.then(settled, settled);
    const answer =
      LANES[name] === 'transfer' ? this.#withDeadline(name, request, context, running) : running;
    return answer.catch((error) => {
      throw this.#countFailure(this.#countersOf(name), error);
    });
  }

  #withDeadline<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    running: Promise<ReplyOf<N>>,
  ): Promise<ReplyOf<N>> {
    const { clock, log, transferDeadlineMs, onRetrieveDeadline } = this.#options;
    return new Promise((resolve, reject) => {
      let isLate = false;
      const timer = clock.after(transferDeadlineMs, () => {
        isLate = true;
        reject(
          name === 'RETRIEVE'
            ? onRetrieveDeadline(request as RequestOf<'RETRIEVE'>, context)
            : new KvdError('ERR_TIMEOUT', deadlineMessage(name, transferDeadlineMs)),
        );
      });
      running.then(resolve, reject).finally(() => {
        timer.cancel();
        if (isLate) log.limited('warn', `late:${name}`, `${name} ended after its deadline`);
      });
    });
  }
}

export function deadlineMessage(name: OperationName, deadlineMs: number): string {
  return `${name} did not end within ${deadlineMs / 1000} s`;
}
