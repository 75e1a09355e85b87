/**
 * The only place that calls a backend. Whatever it does, the answer is one result per object:
 * a rejection is an error for each, an answer of another form is an error, too. Each call goes
 *
 *   breaker open? ──▶ gate (bytes in flight) ──▶ breaker, again ──▶ backend ──▶ verdict
 *
 * Reading (lookup, load) and writing (store) have a breaker each: a folder that has become
 * read-only still serves hits. Deletes have none, for a store that is full of errors because it is
 * full needs them; they are few at a time instead. After the back-off of the reading breaker the
 * adapter asks by itself, so that an idle server finds out that its store is back.
 */
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';
import type { Logger } from '../observability/log.ts';
import { failureReason, type L2Operation } from './adapter-counters.ts';
import type {
  DeleteResult,
  L2Backend,
  L2Object,
  LoadResult,
  LookupResult,
  StoreResult,
} from './backend.ts';
import { Breaker, type BreakerState } from './breaker.ts';
import { ByteGate } from './byte-gate.ts';
import { layoutRecordKey } from './layout-record.ts';
import type { ObjectKey } from './object-key.ts';

const DELETE_CALLS_MAX = 4;
/** Nobody stores under it. */
const PROBE_KEY = layoutRecordKey({ modelName: 'kvd-probe', kvRank: 0, objectGroupId: 0 });

/** They say something about one object and nothing about the store. */
const NEUTRAL_REASONS: readonly string[] = ['refused', 'corrupt', 'full', 'locked'];

export interface BackendCallsOptions {
  readonly backend: L2Backend;
  /** Names the adapter in messages: `L2 adapter 0 (fs)`. */
  readonly name: string;
  readonly inFlightMaxBytes: number;
  readonly taskTimeoutMs: number;
  readonly clock: Clock;
  readonly log: Logger;
}

interface Call<R> {
  readonly operation: L2Operation;
  readonly count: number;
  readonly breaker: Breaker | null;
  readonly signal: AbortSignal;
  readonly isAnswer: (result: unknown) => boolean;
  readonly invoke: () => Promise<readonly R[]>;
}

export class BackendCalls {
  readonly #options: BackendCallsOptions;
  readonly #backend: L2Backend;
  readonly #gate: ByteGate;
  readonly #deletes = new ByteGate(DELETE_CALLS_MAX);
  readonly #reading: Breaker;
  readonly #writing: Breaker;

  constructor(options: BackendCallsOptions) {
    const { backend, clock, inFlightMaxBytes } = options;
    this.#options = options;
    this.#backend = backend;
    this.#gate = new ByteGate(inFlightMaxBytes);
    this.#reading = new Breaker(clock, () => void this.#probe());
    this.#writing = new Breaker(clock);
  }

  /** The last call that read and the last one that wrote have worked. */
  get isHealthy(): boolean {
    const breakers = [this.#reading, this.#writing];
    return breakers.every(({ state, lastFailure }) => state === 'closed' && lastFailure === '');
  }

  get inFlightBytes(): number {
    return this.#gate.inFlightBytes;
  }

  get canStore(): boolean {
    return this.#writing.state !== 'open';
  }

  store(objects: readonly L2Object[], signal: AbortSignal): Promise<StoreResult[]> {
    return this.#gated(sumOf(objects), {
      operation: 'store',
      count: objects.length,
      breaker: this.#writing,
      signal,
      isAnswer: (result) => result === 'stored' || result === 'present' || isSize(result),
      invoke: () => this.#backend.store(objects, signal),
    });
  }

  load(objects: readonly L2Object[], signal: AbortSignal): Promise<LoadResult[]> {
    return this.#gated(sumOf(objects), {
      operation: 'load',
      count: objects.length,
      breaker: this.#reading,
      signal,
      isAnswer: (result) => result === 'loaded' || result === 'missing',
      invoke: () => this.#backend.load(objects, signal),
    });
  }

  async lookup(keys: readonly ObjectKey[], signal: AbortSignal): Promise<LookupResult[]> {
    if (!this.#reading.mayPass()) return new Array(keys.length).fill(this.#unavailable());
    return this.#askFor(keys, signal);
  }

  async delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<DeleteResult[]> {
    if (!(await this.#deletes.enter(1, signal))) return failAll(keys.length, signal.reason);
    try {
      return await this.#perform({
        operation: 'delete',
        count: keys.length,
        breaker: null,
        signal,
        isAnswer: (result) => result === 'deleted' || result === 'absent',
        invoke: () => this.#backend.delete(keys, signal),
      });
    } finally {
      this.#deletes.leave(1);
    }
  }

  status(): Record<string, unknown> {
    const describe = (breaker: Breaker) => ({
      state: breaker.state satisfies BreakerState,
      open_count: breaker.openCount,
      last_failure: breaker.lastFailure === '' ? null : breaker.lastFailure,
    });
    return {
      is_healthy: this.isHealthy,
      in_flight_bytes: this.#gate.inFlightBytes,
      queued_call_count: this.#gate.waiterCount,
      reading: describe(this.#reading),
      writing: describe(this.#writing),
    };
  }

  close(): void {
    this.#reading.close();
    this.#writing.close();
  }

  async #gated<R>(sizeBytes: number, call: Call<R>): Promise<(R | Error)[]> {
    const { breaker, count, signal } = call;
    if (breaker?.state === 'open') return failAll(count, this.#unavailable());
    if (!(await this.#gate.enter(sizeBytes, signal))) return failAll(count, signal.reason);
    try {
      if (breaker && !breaker.mayPass()) return failAll(count, this.#unavailable());
      return await this.#perform(call);
    } finally {
      this.#gate.leave(sizeBytes);
    }
  }

  #askFor(keys: readonly ObjectKey[], signal: AbortSignal): Promise<LookupResult[]> {
    return this.#perform({
      operation: 'lookup',
      count: keys.length,
      breaker: this.#reading,
      signal,
      isAnswer: (result) => result === null || isSize(result),
      invoke: () => this.#backend.lookup(keys, signal),
    });
  }

  /** To the real end of the call. The verdict about the store does not wait beyond the signal. */
  async #perform<R>(call: Call<R>): Promise<(R | Error)[]> {
    const { breaker, signal, operation } = call;
    let isJudged = breaker === null;
    const onAbort = (): void => {
      isJudged = true;
      const { reason } = signal;
      if (failureReason(reason) === 'timeout') this.#failed(call, reason);
      else breaker?.passed();
    };
    if (!isJudged) signal.addEventListener('abort', onAbort, { once: true });
    const results = await this.#collect(call);
    signal.removeEventListener('abort', onAbort);
    const errors = results.filter((result): result is Error & R => result instanceof Error);
    const failure = errors.find((error) => !NEUTRAL_REASONS.includes(failureReason(error)));
    if (isJudged) {
      if (failure && !signal.aborted) this.#warn(operation, failure);
    } else if (errors.length < results.length) this.#succeeded(call);
    else if (failure) this.#failed(call, failure);
    else breaker?.passed();
    return results;
  }

  async #collect<R>({ operation, count, isAnswer, invoke }: Call<R>): Promise<(R | Error)[]> {
    let answer: unknown;
    try {
      answer = await invoke();
    } catch (error) {
      return failAll(count, error instanceof Error ? error : new Error(String(error)));
    }
    if (!Array.isArray(answer) || answer.length !== count) {
      const got = Array.isArray(answer) ? `${answer.length} results` : String(answer);
      const message = `${operation}: expected ${count} results, got ${got}`;
      return failAll(count, new KvdError('ERR_L2_STORE', message));
    }
    return answer.map((result: unknown) => {
      if (result instanceof Error || isAnswer(result)) return result as R | Error;
      return new KvdError('ERR_L2_STORE', `${operation}: unknown result ${String(result)}`);
    });
  }

  #succeeded({ breaker, operation }: Call<unknown>): void {
    if (!breaker) return;
    if (breaker.state !== 'closed') {
      this.#options.log.info(`${this.#options.name} works again`, { operation });
    }
    breaker.succeeded();
  }

  #failed({ breaker, operation }: Call<unknown>, error: Error): void {
    const before = breaker?.state;
    breaker?.failed(error.message, failureReason(error) === 'timeout');
    this.#warn(operation, error);
    if (breaker?.state === 'open' && before !== 'open') {
      const { log, name } = this.#options;
      log.warn(`${name} is left alone for a while: it fails all the time`, { operation });
    }
  }

  #warn(operation: L2Operation, error: Error): void {
    const { log, name } = this.#options;
    log.limited('warn', `${name} ${operation}`, `${name}: ${operation} failed: ${error.message}`);
  }

  #unavailable(): KvdError {
    const text = `${this.#options.name} is left alone after failures`;
    return new KvdError('ERR_L2_UNAVAILABLE', text);
  }

  /** Half-open: the first question is the adapter's own. */
  async #probe(): Promise<void> {
    if (!this.#reading.mayPass()) return;
    const { clock, taskTimeoutMs, name } = this.#options;
    const abort = new AbortController();
    const timer = clock.after(taskTimeoutMs, () =>
      abort.abort(new KvdError('ERR_L2_TIMEOUT', `${name}: no answer to a probe`)),
    );
    await this.#askFor([PROBE_KEY], abort.signal);
    timer.cancel();
  }
}

function failAll<R>(count: number, error: Error): (R | Error)[] {
  return new Array(count).fill(error);
}

function sumOf(objects: readonly L2Object[]): number {
  return objects.reduce((sum, { bytes }) => sum + bytes.length, 0);
}

function isSize(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}
