/**
 * One run of `kvd bench`: workers that store prompts, look them up and load them again, and what
 * is to be said about it.
 *
 * A request goes the way of a real one, with every answer known beforehand:
 *
 *   fill      the worker's blocks with the request's pattern             not measured
 *   LOOKUP    of a prompt that no one has stored     must find nothing   cold_lookup
 *   STORE     (engine-driven: PREPARE, copy, COMMIT)                     cold_store
 *   LOOKUP    again                                  must find it all    warm_lookup
 *   RETRIEVE  into other blocks                                          warm_retrieve
 *   compare   every byte, in the worker              must be equal       not measured
 *
 * A lookup is measured until its result is known. Requests that fail are counted and the run goes
 * on, but an answer that does not come within the time limit ends it: a server that is gone would
 * cost the limit for each remaining request.
 *
 * Several workers share one thread. Copies to and from shared memory run on threads of libuv and
 * comparisons pause every few MiB, but what one worker does on the thread (with inline transfers:
 * all its copies) adds to the latencies of the others. One worker is right for latencies, several
 * are for load.
 *
 * After the requests the workers look up what they stored as fast as they can for a moment, which
 * gives lookups per second. What was stored stays in the cache until it is evicted.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../../clock.ts';
import type { CacheKey } from '../../engine/api.ts';
import { KvdError } from '../../errors.ts';
import { formatBytes } from '../../units.ts';
import type { DialectName } from '../../wire/dialect.ts';
import { KvdClient } from '../client.ts';
import { promptOf } from './bench-requests.ts';
import { type BenchWorker, Caller, isTimeout, RefusedStepError } from './bench-worker.ts';
import { BlockPattern } from './block-pattern.ts';
import { type CacheGeometry, type CacheShape, fitCacheShape } from './cache-shape.ts';
import { EngineDrivenWorker } from './engine-driven-worker.ts';
import { LatencyBook } from './latency-series.ts';
import { LmcacheDrivenWorker } from './lmcache-driven-worker.ts';
import { freeSharedMemoryBytes } from './segment.ts';
import { chooseMode, newInstanceId } from './transfer-mode.ts';

/** Failures that are told one by one; the others are only counted. */
const FAILURE_COUNT_MAX = 10;
/** The server is gone or does its best; either way the user waits for this. */
const UNREGISTER_TIMEOUT_MS = 2_000;
/** Between questions for a result that is not there at once (it may come from a slower tier). */
const POLL_MS = 1;

export interface BenchOptions {
  readonly url: string;
  readonly transferMode: 'auto' | 'lmcache_driven' | 'engine_driven';
  /** The generation of clients to be taken for. */
  readonly dialect: DialectName;
  readonly geometry: CacheGeometry;
  /** Of a prompt; only whole chunks of it are stored. */
  readonly tokenCount: number;
  /** Numbers of the requests: `[firstSequence, endSequence)`. Infinity = until time is up. */
  readonly firstSequence: number;
  readonly endSequence: number;
  readonly durationMs: number;
  readonly intervalMs: number;
  readonly clientCount: number;
  readonly lookupDurationMs: number;
  readonly timeoutMs: number;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly onProgress: (doneCount: number, elapsedMs: number) => void;
}

export interface BenchFailure {
  readonly sequence: number;
  readonly message: string;
}

export interface BenchResult {
  readonly shape: CacheShape;
  readonly mode: BenchWorker['mode'];
  readonly transport: string;
  readonly requestCount: number;
  readonly mismatchCount: number;
  readonly failureCount: number;
  readonly failures: readonly BenchFailure[];
  readonly elapsedMs: number;
  readonly latencies: LatencyBook;
  /** Null when they were not measured. */
  readonly lookupsPerSecond: number | null;
}

/** Throws `ERR_TIMEOUT` when there is no server, `ERR_BAD_REQUEST` for options that do not fit. */
export async function runBench(options: BenchOptions): Promise<BenchResult> {
  const runName = `kvd-bench-${process.pid}-${randomBytes(6).toString('hex')}`;
  const client = KvdClient.connect(options.url, options);
  try {
    const caller = new Caller(client, options.timeoutMs);
    const chunkSizeTokens = await caller.call('GET_CHUNK_SIZE', {});
    const { geometry, tokenCount } = options;
    const shape = fitCacheShape(geometry, { chunkSizeTokens, tokenCountMax: tokenCount });
    const mode = await chooseMode(caller, options.transferMode);
    const run = new BenchRun(options, { runName, shape, mode });
    return await run.finish();
  } finally {
    client.close();
  }
}

interface RunParts {
  readonly runName: string;
  readonly shape: CacheShape;
  readonly mode: BenchWorker['mode'];
}

interface BenchClient {
  readonly client: KvdClient;
  readonly caller: Caller;
  readonly worker: BenchWorker;
}

class BenchRun {
  readonly #options: BenchOptions;
  readonly #parts: RunParts;
  readonly #pattern: BlockPattern;
  readonly #latencies = new LatencyBook();
  readonly #clients: BenchClient[] = [];
  readonly #failures: BenchFailure[] = [];
  #nextSequence: number;
  #requestCount = 0;
  #failureCount = 0;
  #mismatchCount = 0;
  /** Aborted when an answer has not come. */
  readonly #timeout = new AbortController();
  /** No further step is taken, for either reason. */
  readonly #end: AbortSignal;
  #startMs = 0;

  constructor(options: BenchOptions, parts: RunParts) {
    this.#options = options;
    this.#parts = parts;
    this.#nextSequence = options.firstSequence;
    this.#end = AbortSignal.any([options.signal, this.#timeout.signal]);
    this.#pattern = new BlockPattern(
      parts.shape.planes.reduce((max, { pieceBytes }) => Math.max(max, pieceBytes), 0),
    );
  }

  async finish(): Promise<BenchResult> {
    const { clock } = this.#options;
    try {
      await this.#open();
      this.#startMs = clock.preciseMs();
      await Promise.all(this.#clients.map((client) => this.#work(client)));
      const elapsedMs = clock.preciseMs() - this.#startMs;
      const lookupsPerSecond = await this.#measureLookups();
      return {
        shape: this.#parts.shape,
        mode: this.#parts.mode,
        transport: this.#clients[0]?.worker.transport ?? '',
        requestCount: this.#requestCount,
        mismatchCount: this.#mismatchCount,
        failureCount: this.#failureCount,
        failures: this.#failures,
        elapsedMs,
        latencies: this.#latencies,
        lookupsPerSecond,
      };
    } finally {
      await this.#close();
    }
  }

  async #open(): Promise<void> {
    const { clientCount, url, clock, dialect, timeoutMs } = this.#options;
    const { shape, mode, runName } = this.#parts;
    const neededBytes = 2 * shape.requestBytes * clientCount;
    const freeBytes = freeSharedMemoryBytes();
    if (mode === 'lmcache_driven' && neededBytes > freeBytes) {
      throw new KvdError(
        'ERR_BAD_REQUEST',
        `the workers need ${formatBytes(neededBytes)} of /dev/shm, ` +
          `where ${formatBytes(freeBytes)} are free`,
      );
    }
    for (let i = 0; i < clientCount; i += 1) {
      const client = KvdClient.connect(url, { clock, dialect });
      const caller = new Caller(client, timeoutMs);
      const pattern = this.#pattern;
      const common = { caller, instanceId: newInstanceId(), modelName: runName, shape, pattern };
      const worker =
        mode === 'lmcache_driven'
          ? new LmcacheDrivenWorker(common)
          : new EngineDrivenWorker({ ...common, clock, latencies: this.#latencies });
      this.#clients.push({ client, caller, worker });
      await worker.register();
    }
  }

  async #close(): Promise<void> {
    const { clock } = this.#options;
    const goodbyes = Promise.allSettled(this.#clients.map(({ worker }) => worker.unregister()));
    const { promise: tooLong, resolve } = Promise.withResolvers<void>();
    const timer = clock.after(this.#timeout.signal.aborted ? 0 : UNREGISTER_TIMEOUT_MS, resolve);
    await Promise.race([goodbyes, tooLong]);
    timer.cancel();
    for (const { client, worker } of this.#clients) {
      client.close();
      worker.close();
    }
  }

  async #work(client: BenchClient): Promise<void> {
    const { clock, endSequence, durationMs, intervalMs, onProgress } = this.#options;
    const hasTime = () => clock.preciseMs() - this.#startMs < durationMs;
    while (!this.#end.aborted && this.#nextSequence < endSequence && hasTime()) {
      const sequence = this.#nextSequence;
      this.#nextSequence += 1;
      await this.#serveOne(client, sequence);
      onProgress(this.#requestCount, clock.preciseMs() - this.#startMs);
      if (intervalMs > 0 && this.#nextSequence < endSequence) await this.#pause(intervalMs);
    }
  }

  async #serveOne(client: BenchClient, sequence: number): Promise<void> {
    try {
      const isWhole = await this.#request(client, sequence);
      if (isWhole) this.#requestCount += 1;
    } catch (error) {
      this.#requestCount += 1;
      this.#failureCount += 1;
      if (isTimeout(error)) this.#timeout.abort();
      this.#note(sequence, (error as Error).message);
    }
  }

  /** False when it was broken off. Throws when a step failed. */
  async #request({ caller, worker }: BenchClient, sequence: number): Promise<boolean> {
    const { runName, shape } = this.#parts;
    const prompt = promptOf(sequence, shape.tokenCount, runName);
    const cold = prompt.lookupKey('cold');
    const warm = prompt.lookupKey('warm');
    const target = prompt.transferKey('warm');
    const steps: (() => Promise<void>)[] = [
      () => worker.fill(sequence),
      () => this.#lookUpAs('cold_lookup', { caller, key: cold, expected: 0 }),
      () => this.#time('cold_store', () => worker.store(prompt.transferKey('cold'), sequence)),
      () => this.#lookUpAs('warm_lookup', { caller, key: warm, expected: shape.chunkCount }),
      () => this.#time('warm_retrieve', () => worker.retrieve(target, sequence)),
      () => this.#compare(worker, sequence),
    ];
    try {
      for (const step of steps) {
        if (this.#end.aborted) return false;
        await step();
      }
      return true;
    } catch (error) {
      if (isTimeout(error)) this.#timeout.abort();
      throw error;
    } finally {
      // Whatever happened: locks of the lookups must not stay until their lease ends.
      if (!this.#timeout.signal.aborted) {
        await caller.call('END_SESSION', { requestId: cold.requestId });
        await caller.call('END_SESSION', { requestId: warm.requestId });
      }
    }
  }

  async #compare(worker: BenchWorker, sequence: number): Promise<void> {
    const difference = await worker.findDifference(sequence);
    if (difference === null) return;
    this.#mismatchCount += 1;
    this.#note(sequence, difference);
  }

  async #lookUpAs(
    step: string,
    options: { readonly caller: Caller; readonly key: CacheKey; readonly expected: number },
  ): Promise<void> {
    const { caller, key, expected } = options;
    let hits = 0;
    await this.#time(step, async () => {
      hits = await this.#lookUp(caller, key);
    });
    if (hits === expected) return;
    const hint = expected === 0 ? '' : '; is the L1 of the server large enough?';
    throw new RefusedStepError(`LOOKUP: expected ${expected} cached chunks, got ${hits}${hint}`);
  }

  /** Chunks that are cached, and now locked for the request. */
  async #lookUp(caller: Caller, key: CacheKey): Promise<number> {
    const { clock, timeoutMs } = this.#options;
    const startMs = clock.preciseMs();
    await caller.call('LOOKUP', { key, tpSize: 1 });
    for (;;) {
      const hits = await caller.call('QUERY_PREFETCH_STATUS', { requestId: key.requestId });
      if (hits !== null) return hits;
      if (clock.preciseMs() - startMs > timeoutMs) {
        throw new KvdError('ERR_TIMEOUT', `LOOKUP: no result within ${timeoutMs} ms`);
      }
      await this.#pause(POLL_MS);
    }
  }

  /** Null when there is nothing to look up, or no answer. */
  async #measureLookups(): Promise<number | null> {
    const { clock, lookupDurationMs, firstSequence } = this.#options;
    if (lookupDurationMs === 0 || this.#end.aborted || this.#nextSequence === firstSequence)
      return null;
    const startMs = clock.preciseMs();
    try {
      const counts = await Promise.all(
        this.#clients.map(({ caller }, index) => this.#repeatLookup(caller, index, startMs)),
      );
      const count = counts.reduce((sum, one) => sum + one, 0);
      return (1000 * count) / (clock.preciseMs() - startMs);
    } catch (error) {
      this.#failureCount += 1;
      this.#note(this.#nextSequence - 1, `repeated lookups: ${(error as Error).message}`);
      return null;
    }
  }

  /** Closed loop: asks for a prompt that was stored, gives its locks back, and asks again. */
  async #repeatLookup(caller: Caller, index: number, startMs: number): Promise<number> {
    const { clock, lookupDurationMs, firstSequence } = this.#options;
    const { runName, shape } = this.#parts;
    const sequence = Math.max(firstSequence, this.#nextSequence - 1 - index);
    const prompt = promptOf(sequence, shape.tokenCount, runName);
    let count = 0;
    while (!this.#end.aborted && clock.preciseMs() - startMs < lookupDurationMs) {
      const key = prompt.lookupKey(`repeated-${index}-${count}`);
      let hits = 0;
      await this.#time('lookup', async () => {
        hits = await this.#lookUp(caller, key);
      });
      count += 1;
      if (hits > 0) await caller.call('FREE_LOOKUP_LOCKS', { key, tpSize: 1 });
      await caller.call('END_SESSION', { requestId: key.requestId });
    }
    return count;
  }

  async #time(step: string, run: () => Promise<void>): Promise<void> {
    const { clock } = this.#options;
    const startMs = clock.preciseMs();
    await run();
    this.#latencies.add(step, clock.preciseMs() - startMs);
  }

  /** Ends early when the run is over. */
  async #pause(ms: number): Promise<void> {
    if (this.#end.aborted) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    const wake = () => resolve();
    const timer = this.#options.clock.after(ms, wake);
    this.#end.addEventListener('abort', wake, { once: true });
    await promise;
    timer.cancel();
    this.#end.removeEventListener('abort', wake);
  }

  #note(sequence: number, message: string): void {
    if (this.#failures.length < FAILURE_COUNT_MAX) this.#failures.push({ sequence, message });
  }
}
