/**
 * What all L2 adapters have in common, around a backend that only moves bytes.
 *
 *   store  ─▶ room in the capacity ─▶ ┐                            ┌─▶ inventory, counters
 *   load   ─▶ ──────────────────────▶ ├─ BackendCalls ─▶ backend ─▶┤   checksum
 *   lookup ─▶ ──────────────────────▶ │  (gate, health)            ├─▶ sizes, locks
 *   delete ─▶ locks ────────────────▶ ┘                            └─▶ inventory
 *
 * Rules
 *   - Every task has a deadline. Its outcome is there by then; its buffers are free when `released`
 *     settles, which may be later (`task.ts`). What ends late is still counted: it is in the store.
 *   - A hit is a value of exactly the expected size, and is locked until `unlock`; `delete` leaves
 *     locked objects and says so.
 *   - The capacity is a bound: a store reserves its bytes before it begins. What does not fit, also
 *     after `makeRoom`, is refused. Right after a start stores wait for the scan (`store-scan.ts`).
 *   - Objects count once, whoever stores them again (`inventory.ts`). A look-up that finds what
 *     nobody knew of, or misses what should be there, corrects the inventory.
 *   - A batch is cut into parts, so that its objects do not all wait for the slowest.
 */
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';
import type { Logger } from '../observability/log.ts';
import { AdapterCounters, failureReason } from './adapter-counters.ts';
import type { AdapterSettings } from './adapter-spec.ts';
import type {
  DeleteResult,
  L2Backend,
  L2Object,
  ListOptions,
  ListPage,
  LoadResult,
  LookupResult,
  StoreResult,
} from './backend.ts';
import { BackendCalls } from './backend-calls.ts';
import { fillPart, type Part, partsOf } from './batch-parts.ts';
import type { ConfigValues } from './config-keys.ts';
import { Inventory, type L2Listener } from './inventory.ts';
import { isLayoutRecord } from './layout-record.ts';
import { LockCounts } from './lock-counts.ts';
import type { ObjectKey } from './object-key.ts';
import type { L2Task, TaskWork } from './task.ts';
import { TaskRunner, timeUp } from './task-runner.ts';
import type { Usage } from './usage-ledger.ts';

/** A server that stops gives its stores that long to finish. */
const DRAIN_TIMEOUT_MS = 10_000;
/** After that long, what a store still does at the end is left to itself. */
const CLOSE_TIMEOUT_MS = 2_000;

export interface L2AdapterOptions {
  /** 0, 1, 2, …; never given again. */
  readonly id: number;
  readonly typeName: string;
  readonly backend: L2Backend;
  readonly settings: AdapterSettings;
  /** 0 = unbounded. */
  readonly capacityBytes: number;
  /** The configuration without secrets. */
  readonly shown: ConfigValues;
  readonly clock: Clock;
  readonly log: Logger;
}

export class L2Adapter {
  readonly id: number;
  readonly typeName: string;
  readonly settings: AdapterSettings;
  readonly shown: ConfigValues;
  readonly counters = new AdapterCounters();
  readonly #options: L2AdapterOptions;
  readonly #backend: L2Backend;
  readonly #calls: BackendCalls;
  readonly #inventory: Inventory;
  readonly #locks = new LockCounts();
  readonly #tasks: TaskRunner;
  #isDraining = false;

  constructor(options: L2AdapterOptions) {
    const { id, typeName, backend, settings, capacityBytes, clock, log } = options;
    this.id = id;
    this.typeName = typeName;
    this.settings = settings;
    this.shown = options.shown;
    this.#options = options;
    this.#backend = backend;
    const { hasChecksum } = settings;
    const chargedBytes = (sizeBytes: number): number =>
      backend.chargedBytes?.(sizeBytes) ?? sizeBytes;
    const room = { capacityBytes, chargedBytes };
    this.#inventory = new Inventory({ name: this.#name, ...room, hasChecksum, clock, log });
    const { inFlightMaxBytes, taskTimeoutMs } = settings;
    const limits = { inFlightMaxBytes, taskTimeoutMs };
    const { counters } = this;
    this.#tasks = new TaskRunner({ name: this.#name, taskTimeoutMs, counters, clock });
    this.#calls = new BackendCalls({ backend, name: this.#name, ...limits, clock, log });
  }

  get isHealthy(): boolean {
    return this.#calls.isHealthy;
  }

  /** False: every store would be refused, because the last ones have failed. */
  get canStore(): boolean {
    return this.#calls.canStore;
  }

  get isDraining(): boolean {
    return this.#isDraining;
  }

  get canList(): boolean {
    return this.#backend.list !== undefined;
  }

  /** What an earlier server has left is not known yet. */
  get isScanning(): boolean {
    return this.#inventory.isScanning;
  }

  /** A look-up has promised it to somebody. */
  isLocked(key: ObjectKey): boolean {
    return this.#locks.isLocked(key);
  }

  /** Tasks that have not let go of their buffers. */
  get inFlightTaskCount(): number {
    return this.#tasks.runningCount;
  }

  get inFlightBytes(): number {
    return this.#calls.inFlightBytes;
  }

  usage(): Usage {
    return this.#inventory.usage();
  }

  onChange(listener: L2Listener): void {
    this.#inventory.onChange(listener);
  }

  /** What is asked before a store is refused for want of room. It deletes, and then says so. */
  onFull(makeRoom: (neededBytes: number) => Promise<void>): void {
    this.#inventory.onFull(makeRoom);
  }

  /** Once, when listeners are there: counts what the store holds already, if that is wanted. */
  start(): void {
    if (!this.settings.scansOnStart || !this.canList) return;
    this.#inventory.startScan((options) => this.list(options), this.#tasks.closing);
  }

  store(objects: readonly L2Object[]): L2Task<StoreResult[]> {
    const parts = partsOf(objects, ({ bytes }) => bytes.length);
    return this.#tasks.run('store', objects.length, async (results, signal) => {
      await Promise.all(parts.map((part) => this.#storePart(part, results, signal)));
    });
  }

  /**
   * Which of them are there whole: 1 or 0 for each key. Each hit is locked once until `unlock`.
   * Settles by the deadline and never rejects. `timeoutMs`: if it is to be sooner.
   */
  async lookup(
    keys: readonly ObjectKey[],
    sizesBytes: ArrayLike<number>,
    timeoutMs = Number.POSITIVE_INFINITY,
  ): Promise<Uint8Array> {
    const hits = new Uint8Array(keys.length);
    if (this.#isDraining || keys.length === 0) return hits;
    const { storeCount } = this.#inventory;
    const work: TaskWork<LookupResult> = async (results, signal) => {
      const lookUp = async ({ items, firstIndex }: Part<ObjectKey>): Promise<void> =>
        fillPart(results, firstIndex, await this.#calls.lookup(items, signal));
      await Promise.all(partsOf(keys).map(lookUp));
    };
    const found = await this.#tasks.run('lookup', keys.length, work, timeoutMs).outcome;
    const strays: ObjectKey[] = [];
    for (const [i, key] of keys.entries()) {
      const storedBytes = found[i] as LookupResult;
      if (storedBytes instanceof Error) continue;
      if (storedBytes === null) {
        if (storeCount === this.#inventory.storeCount) this.#inventory.forget([key]);
      } else if (this.#isSize(storedBytes, sizesBytes[i] as number)) {
        hits[i] = 1;
        this.#locks.lock(key);
        this.#inventory.learn(key, storedBytes);
      } else strays.push(key);
    }
    this.#countHits(hits);
    if (strays.length > 0) this.#dropStrays(strays);
    return hits;
  }

  load(objects: readonly L2Object[], timeoutMs?: number): L2Task<LoadResult[]> {
    const parts = partsOf(objects, ({ bytes }) => bytes.length);
    const work: TaskWork<LoadResult> = async (results, signal) => {
      await Promise.all(parts.map((part) => this.#loadPart(part, results, signal)));
    };
    return this.#tasks.run('load', objects.length, work, timeoutMs);
  }

  unlock(keys: readonly ObjectKey[]): void {
    for (const key of keys) this.#locks.unlock(key);
  }

  /** What is locked stays, with `ERR_L2_LOCKED`. */
  delete(keys: readonly ObjectKey[]): Promise<DeleteResult[]> {
    const work: TaskWork<DeleteResult> = async (results, signal) => {
      const open = keys.flatMap((key, index) => {
        if (!this.#locks.isLocked(key)) return [{ key, index }];
        results[index] = new KvdError('ERR_L2_LOCKED', 'somebody is about to load the object');
        return [];
      });
      const deletePart = async ({ items }: Part<{ key: ObjectKey; index: number }>) => {
        const partKeys = items.map(({ key }) => key);
        const answers = await this.#deleteNow(partKeys, signal);
        for (const [i, answer] of answers.entries()) {
          results[(items[i] as { index: number }).index] = answer;
        }
      };
      await Promise.all(partsOf(open).map(deletePart));
    };
    return this.#tasks.run('delete', keys.length, work).outcome;
  }

  /** Rejects with `ERR_UNSUPPORTED` where `canList` is false. */
  async list(options: Omit<ListOptions, 'signal'>): Promise<ListPage> {
    const { list } = this.#backend;
    if (!list) throw new KvdError('ERR_UNSUPPORTED', `${this.#name} cannot list its objects`);
    const { outcome } = this.#tasks.run<ListPage>('list', 1, async (results, signal) => {
      results[0] = await list.call(this.#backend, { ...options, signal });
    });
    const [page] = await outcome;
    if (page instanceof Error) throw page;
    const { objects, nextToken } = page as ListPage;
    return { objects: objects.filter(({ key }) => !isLayoutRecord(key)), nextToken };
  }

  /** An element of `l2_adapters` of `GET /status`. */
  status(): Record<string, unknown> {
    const { usedBytes, capacityBytes, objectCount } = this.usage();
    return {
      ...this.#backend.status(),
      ...this.#calls.status(),
      adapter_id: this.id,
      adapter_type: this.typeName,
      is_draining: this.#isDraining,
      total_bytes_used: usedBytes,
      total_capacity_bytes: capacityBytes,
      known_object_count: objectCount,
      locked_object_count: this.#locks.size,
      in_flight_task_count: this.inFlightTaskCount,
      is_scanning: this.#inventory.isScanning,
      failures: Object.fromEntries(this.counters.failures),
    };
  }

  /** No new stores and hits any more. Settles when nothing is running, or after a task's time. */
  async drain(timeoutMs = this.settings.taskTimeoutMs): Promise<void> {
    this.#isDraining = true;
    await this.#tasks.settled(timeoutMs);
  }

  /** Drains first, so that a normal stop loses nothing. `waits`: unless the time for it is over. */
  async close(waits = true): Promise<void> {
    await this.drain(waits ? Math.min(DRAIN_TIMEOUT_MS, this.settings.taskTimeoutMs) : 0);
    this.#tasks.close(new KvdError('ERR_SHUTTING_DOWN', `${this.#name} is closed`));
    this.#calls.close();
    await this.#tasks.settled(CLOSE_TIMEOUT_MS);
    const { log, clock } = this.#options;
    if (this.#tasks.runningCount > 0) {
      log.error(`${this.#name}: ${this.#tasks.runningCount} tasks hold on to their buffers`);
    }
    const closed = this.#backend.close().catch((error: Error) => {
      log.warn(`${this.#name}: closing failed: ${error.message}`);
    });
    await Promise.race([closed, timeUp(clock, CLOSE_TIMEOUT_MS)]);
  }

  get #name(): string {
    return `L2 adapter ${this.#options.id} (${this.#options.typeName})`;
  }

  // ---------------------------------------------------------------- store

  async #storePart(
    { items, firstIndex }: Part<L2Object>,
    results: (StoreResult | undefined)[],
    signal: AbortSignal,
  ): Promise<void> {
    if (this.#isDraining || !this.#calls.canStore) {
      const reason = this.#isDraining ? 'is being removed' : 'is left alone after failures';
      const error = new KvdError('ERR_L2_UNAVAILABLE', `${this.#name} ${reason}`);
      for (const i of items.keys()) results[firstIndex + i] = error;
      return;
    }
    const room = await this.#inventory.reserve(items, signal);
    const admitted = items.filter((_, i) => room[i] !== null);
    for (const [i, { bytes }] of items.entries()) {
      if (room[i] === null) results[firstIndex + i] = this.#inventory.fullError(bytes.length);
    }
    try {
      if (admitted.length === 0 || signal.aborted) return;
      const checksums = await this.#inventory.checksumsOf(admitted);
      const answers = await this.#calls.store(admitted, signal);
      this.#countStored(admitted, answers);
      this.#inventory.stored(admitted, answers, checksums);
      let next = 0;
      for (const i of items.keys()) if (room[i] !== null) results[firstIndex + i] = answers[next++];
    } finally {
      this.#inventory.release(room);
    }
  }

  #countStored(objects: readonly L2Object[], answers: readonly StoreResult[]): void {
    for (const [i, answer] of answers.entries()) {
      if (answer instanceof Error) continue;
      if (answer === 'present') this.counters.presentCount += 1;
      else {
        this.counters.storedCount += 1;
        this.counters.storedBytes += (objects[i] as L2Object).bytes.length;
      }
    }
  }

  // ---------------------------------------------------------------- lookup and load

  #isSize(storedBytes: number, sizeBytes: number): boolean {
    return this.#backend.acceptsSize?.(storedBytes, sizeBytes) ?? storedBytes === sizeBytes;
  }

  #countHits(hits: Uint8Array): void {
    const hitCount = hits.reduce((sum, hit) => sum + hit, 0);
    this.counters.hitCount += hitCount;
    this.counters.missCount += hits.length - hitCount;
  }

  /** Values of a wrong size will never be hits. In a shared store they may be somebody else's. */
  #dropStrays(keys: readonly ObjectKey[]): void {
    this.counters.addFailure('lookup', 'wrong_size', keys.length);
    if (!this.settings.isShared) void this.delete(keys);
  }

  async #loadPart(
    { items, firstIndex }: Part<L2Object>,
    results: (LoadResult | undefined)[],
    signal: AbortSignal,
  ): Promise<void> {
    const answers = await this.#calls.load(items, signal);
    const good: L2Object[] = [];
    const bad: ObjectKey[] = [];
    for (const [i, object] of items.entries()) {
      let answer = answers[i] as LoadResult;
      if (answer === 'loaded' && !(await this.#inventory.agrees(object))) {
        answer = new KvdError('ERR_L2_CORRUPT', `${this.#name}: a value has another checksum`);
      }
      results[firstIndex + i] = answer;
      if (answer === 'loaded') good.push(object);
      else if (answer === 'missing') this.counters.vanishedCount += 1;
      else if (failureReason(answer) === 'corrupt') bad.push(object.key);
    }
    if (bad.length > 0) this.#discard(bad);
    if (good.length === 0 || signal.aborted) return;
    this.counters.loadedCount += good.length;
    this.counters.loadedBytes += good.reduce((sum, { bytes }) => sum + bytes.length, 0);
    this.#inventory.accessed(good.map(({ key }) => key));
  }

  /** Damaged values, locked or not: who has found them will miss them. */
  #discard(keys: readonly ObjectKey[]): void {
    const { log } = this.#options;
    log.limited('error', `${this.#name} corrupt`, `${this.#name}: damaged values are deleted`);
    this.#tasks.run<DeleteResult>('delete', keys.length, async (results, signal) => {
      fillPart(results, 0, await this.#deleteNow(keys, signal));
    });
  }

  // ---------------------------------------------------------------- delete

  async #deleteNow(keys: readonly ObjectKey[], signal: AbortSignal): Promise<DeleteResult[]> {
    const answers = await this.#inventory.forgetDeleted(keys, () =>
      this.#calls.delete(keys, signal),
    );
    this.counters.deletedCount += answers.filter((answer) => answer === 'deleted').length;
    return answers;
  }
}
