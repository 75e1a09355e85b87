/**
 * EngineDrivenTransferModule: workers move their bytes themselves (spec engine 6).
 *
 * One PREPARE/COMMIT pair per transfer. Between the two the worker gathers into, or scatters from,
 * slots of the L1 segment that it has mapped; the server copies nothing:
 *
 *   STORE     PREPARE ─▶ staging, pinned ─▶ slots ─▶ (worker writes) ─▶ COMMIT ─▶ readable
 *   RETRIEVE  PREPARE ─▶ objects, pinned ─▶ slots ─▶ (worker reads)  ─▶ COMMIT ─▶ unpinned
 *
 * A worker that cannot map the segment sends its bytes with COMMIT_STORE and gets them from
 * PREPARE_RETRIEVE (inline-transfer.ts). As long as it is not known which of the two a worker is
 * (worker-transports.ts), PREPARE_RETRIEVE answers with slots and data; each kind of worker ignores
 * the other's part.
 *
 * Invariants: those of worker-slots.ts; and nothing waits between the last look at the instance and
 * the use of what was found, so a worker that has left gets no slot.
 *
 * Failures: PREPARE_STORE answers no slots and a COMMIT false, which all workers can bear. A failed
 * read may be answered late, see held-replies.ts.
 *
 * (Longer than other files: both ends of both directions, which share their invariants.)
 */
import type { Clock } from '../../clock.ts';
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import type { Device } from '../../device/device.ts';
import { KvdError, toKvdError } from '../../errors.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import { formatBytes } from '../../units.ts';
import type { InlinePayload, InstanceId, OperationName, ReplyOf, RequestOf } from '../api.ts';
import type { RequestContext } from '../client-traits.ts';
import type { Attempt, EngineModule, HandlerTable } from '../handlers.ts';
import { type InstanceRegistry, PROCESS_ID_BOUND } from '../instances.ts';
import type { ChunkAnnouncer } from '../kv-events/chunk-announcer.ts';
import { onFailure } from '../on-failure.ts';
import { HeldReplies, withheld } from './held-replies.ts';
import { InlineTransfer } from './inline-transfer.ts';
import type { InlineWriter } from './inline-writer.ts';
import { OverdueStores } from './overdue-stores.ts';
import type { NewTransfer } from './pending-transfers.ts';
import type { TransferHasher, TransferSessions, WorkerStorage } from './ports.ts';
import { compactSlots, describeSlots, NO_SLOTS, slotsByChunk } from './slot-lists.ts';
import { chunkRuns, HOST, reported, TransferReport } from './transfer-report.ts';
import { chunkTensorOf } from './worker-layout.ts';
import {
  type AcquiredRead,
  acquireRead,
  checkAttempt,
  EmptyReadError,
  replaced,
} from './worker-reads.ts';
import { WorkerRegistrar } from './worker-registrar.ts';
import { type KeyedRequest, openTransfer, WorkerRequests } from './worker-requests.ts';
import { WorkerSlots } from './worker-slots.ts';
import { WorkerTransports } from './worker-transports.ts';

/** Part of L1 that slots of stopped workers may keep out of use. */
const QUARANTINE_SHARE = 0.05;
const NO_DATA = new Uint8Array(0);
const NOTHING_TO_STORE = { context: { slots: [], chunk_indices: [] } } as const;

/** A promise only where something takes time: long prompts, inline data, workers that were away. */
type Reply<N extends OperationName> = ReplyOf<N> | Promise<ReplyOf<N>>;

export interface EngineDrivenTransferOptions {
  readonly device: Pick<Device, 'copyHostTensors'>;
  readonly storage: WorkerStorage;
  readonly sessions: TransferSessions;
  readonly instances: InstanceRegistry;
  readonly hasher: TransferHasher;
  readonly writer: InlineWriter;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  /** Absent: nobody follows what L1 holds. */
  readonly announcer?: Pick<ChunkAnnouncer, 'announce'>;
  /** L1; without a name workers cannot reach it. */
  readonly pool: { readonly shmName: string | null; readonly sizeBytes: number };
  readonly writeTtlMs: number;
  readonly readTtlMs: number;
  readonly strictRetrieve: boolean;
}

export class EngineDrivenTransferModule implements EngineModule {
  readonly name = 'engine-driven-transfer';
  readonly handlers: HandlerTable;
  readonly #options: EngineDrivenTransferOptions;
  readonly #requests: WorkerRequests;
  readonly #slots: WorkerSlots;
  readonly #transports: WorkerTransports;
  readonly #registrar: WorkerRegistrar;
  readonly #inline: InlineTransfer;
  readonly #held: HeldReplies;
  readonly #overdueStores = new OverdueStores();
  #storeCount = 0;
  #retrieveCount = 0;

  constructor(options: EngineDrivenTransferOptions) {
    this.#options = options;
    const { instances, hasher, pool, clock, log } = options;
    const quarantineBytesMax = Math.floor(pool.sizeBytes * QUARANTINE_SHARE);
    this.#requests = new WorkerRequests(options);
    this.#slots = new WorkerSlots({ ...options, quarantineBytesMax });
    this.#transports = new WorkerTransports(pool.shmName, log);
    this.#inline = new InlineTransfer(options);
    this.#held = new HeldReplies(clock, instances);
    this.#registrar = new WorkerRegistrar({
      ...options,
      slots: this.#slots,
      transports: this.#transports,
      chunkSizeTokens: hasher.chunkSizeTokens,
    });
    instances.onDrop(({ kind, instanceId }, reason) => {
      if (kind !== 'engine-driven') return;
      this.#transports.forget(instanceId);
      this.#slots.dropInstance(instanceId, reason);
    });
    this.handlers = {
      REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: (request, { client }) =>
        this.#registrar.register(request, client),
      UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: (request) =>
        this.#registrar.unregister(request.instanceId),
      PREPARE_STORE: (request, context, attempt) => this.#prepareStore(request, context, attempt),
      COMMIT_STORE: (request) => this.#commitStore(request),
      PREPARE_RETRIEVE: (request, context, attempt) =>
        this.#prepareRetrieve(request, context, attempt),
      COMMIT_RETRIEVE: (request, context) => this.#commitRetrieve(request, context),
    };
    const { shmName } = pool;
    const where = shmName ? `shared memory ${shmName}, ${formatBytes(pool.sizeBytes)}` : 'inline';
    log.info(`engine-driven transport: ${where}`);
  }

  get quarantinedBytes(): number {
    return this.#slots.quarantinedBytes;
  }

  status(): Record<string, unknown> {
    const { pool, instances } = this.#options;
    const hasShm = pool.shmName !== null;
    return {
      ...instances.engineDrivenStatus(),
      engine_driven_transfer: {
        transport: hasShm ? 'shm' : 'inline',
        shm_name: pool.shmName ?? '',
        pool_size_bytes: hasShm ? pool.sizeBytes : 0,
        inline_fallback_count: this.#transports.fallbackCount,
        store_count: this.#storeCount,
        retrieve_count: this.#retrieveCount,
        held_reply_count: this.#held.count,
        overdue_store_count: this.#overdueStores.count,
        ...this.#inline.status(),
        ...this.#slots.status(),
        ...this.#registrar.status(),
      },
    };
  }

  beginDrain(): void {
    this.#held.withdrawAll();
  }

  async close(): Promise<void> {
    this.#held.withdrawAll();
    await this.#options.instances.close();
    this.#slots.close();
  }

  /** What the client is told about a read that failed, here or before it came here. */
  refuseRetrieve(
    instanceId: InstanceId | null,
    context: RequestContext,
    error: KvdError,
  ): KvdError {
    const { instances, strictRetrieve, log } = this.#options;
    const isVllm =
      instanceId === null ||
      instances.lookupEngineDriven(instanceId) !== undefined ||
      instanceId >= PROCESS_ID_BOUND;
    const isMisreadable = !context.client.reportsFailedRetrieve && isVllm;
    // An empty range names no block, so there is nothing that the client could misread.
    if (!strictRetrieve || !isMisreadable || error instanceof EmptyReadError) return error;
    // Nobody knows whose PING to wait for.
    if (instanceId === null) return withheld(error);
    log.limited(
      'warn',
      `held:${error.code}`,
      `A failed read of instance ${instanceId} is answered after its next PING, so that its ` +
        `worker recomputes: ${error.message}. ${error.row.next}`,
    );
    return this.#held.hold(instanceId, error);
  }

  #prepareStore(
    request: KeyedRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Reply<'PREPARE_STORE'> {
    const startMs = this.#options.clock.preciseMs();
    this.#overdueStores.take(request);
    if (this.#transports.of(request.instanceId) === 'inline') {
      this.#requests.checkKey(request);
      if (attempt.isOverdue) this.#overdueStores.add(request);
      return { context: {} };
    }
    return this.#requests.hashThen(request, (hashes) => {
      checkAttempt(attempt);
      if (!attempt.isOverdue) return this.#reserve(request, context, { hashes, startMs });
      this.#overdueStores.add(request);
      return NOTHING_TO_STORE;
    });
  }

  #reserve(
    request: KeyedRequest,
    context: RequestContext,
    of: { readonly hashes: ChunkHashes; readonly startMs: number },
  ): ReplyOf<'PREPARE_STORE'> {
    const { clock, storage, announcer } = this.#options;
    const { hashes, startMs } = of;
    const { key, instanceId } = request;
    const transfer = this.#requests.check(request, hashes);
    const { instance, keys } = transfer;
    if (keys.chunkCount === 0) return NOTHING_TO_STORE;
    this.#slots.sweep();
    this.#slots.checkRoom(request.instanceId);
    const preparedMs = clock.nowMs();
    const list = compactSlots(storage.reserveStore(keys, instance.object));
    if (list.slots.length > 0) {
      const subject = { kind: 'store', key, instanceId, device: HOST } as const;
      const report = new TransferReport(this.#options, subject, startMs);
      report.start();
      this.#slots.addWrite(openTransfer(request, context, { transfer, list, report }), preparedMs);
    } else {
      // All of it is stored or being stored by others, so no COMMIT will come.
      announcer?.announce({ key: request.key, ...keys });
    }
    const slots = describeSlots(instance, list.offsets);
    return { context: { slots, chunk_indices: list.chunkIndices } };
  }

  #commitStore(request: RequestOf<'COMMIT_STORE'>): Reply<'COMMIT_STORE'> {
    const { data, instanceId } = request;
    if (data.kind !== 'none') return this.#commitData(request, data);
    const commit = () =>
      this.#requests.hashThen(request, (hashes) => this.#commitSlots(request, hashes));
    if (this.#options.instances.lookupEngineDriven(instanceId)) return commit();
    return this.#releaseLate('write', request).then(commit);
  }

  /** The worker has filled the slots of its PREPARE_STORE. */
  #commitSlots(request: KeyedRequest, hashes: ChunkHashes): boolean {
    const { key, instanceId } = request;
    const { storage, announcer } = this.#options;
    const { keys, identity } = this.#requests.check(request, hashes);
    this.#transports.learn(instanceId, 'shm');
    const write = this.#slots.takeWrite(instanceId, identity, key.requestId);
    if (!write) return false;
    const storedCount = storage.finishStore(write.slots);
    announcer?.announce({ key, ...keys });
    this.#storeCount += 1;
    write.report.end({
      objectCount: storedCount,
      sizeBytes: write.sizeBytes,
      ranges: chunkRuns(hashes, keys.firstChunk, slotsByChunk(write, keys.chunkCount)),
    });
    return storedCount === write.slots.length;
  }

  /** The worker sends the bytes of all chunks; those that nobody has are stored. */
  #commitData(
    request: KeyedRequest,
    data: Exclude<InlinePayload, { kind: 'none' }>,
  ): Promise<boolean> {
    const { key, instanceId } = request;
    const subject = { kind: 'store', key, instanceId, device: HOST } as const;
    const report = new TransferReport(this.#options, subject);
    return reported(report, () => this.#storeData(request, data, report));
  }

  async #storeData(
    request: KeyedRequest,
    data: Exclude<InlinePayload, { kind: 'none' }>,
    report: TransferReport,
  ): Promise<boolean> {
    const { key, instanceId } = request;
    const { storage, announcer } = this.#options;
    const hashes = await this.#requests.hash(request);
    const { instance, keys, identity } = this.#requests.check(request, hashes);
    report.start();
    this.#transports.learn(instanceId, 'inline');
    // Nobody fills the slots that a PREPARE_STORE has reserved for this data: begin anew.
    for (const write of this.#slots.takeWritesOfKey(instanceId, identity)) {
      storage.discardStore(write.slots);
      write.report.end();
    }
    if (data.kind === 'malformed') {
      throw new KvdError('ERR_WIRE_PAYLOAD', `data of COMMIT_STORE: ${data.reason}`);
    }
    if (this.#overdueStores.take(request)) {
      throw new KvdError(
        'ERR_TIMEOUT',
        'the server stood still, the worker may have given this up',
      );
    }
    const { object } = instance;
    const list =
      keys.chunkCount === 0 ? NO_SLOTS : compactSlots(storage.reserveStore(keys, object));
    const storedCount = await this.#inline.store(chunkTensorOf(instance), list, data.tensors);
    announcer?.announce({ key, ...keys });
    this.#storeCount += 1;
    report.end({
      objectCount: storedCount,
      sizeBytes: storedCount * object.objectSizeBytes,
      ranges: chunkRuns(hashes, keys.firstChunk, slotsByChunk(list, keys.chunkCount)),
    });
    return storedCount === list.slots.length;
  }

  #prepareRetrieve(
    request: KeyedRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Reply<'PREPARE_RETRIEVE'> {
    const { instanceId } = request;
    const rooms = { ...this.#options, requests: this.#requests, slots: this.#slots };
    const isShm = () => this.#transports.of(instanceId) === 'shm';
    const give = (acquired: AcquiredRead) =>
      isShm() ? this.#giveRead(acquired, NO_DATA) : this.#giveData(acquired);
    const run = () => {
      const acquired = acquireRead(rooms, request, context, attempt);
      return acquired instanceof Promise ? acquired.then(give) : give(acquired);
    };
    return onFailure(run, (error) => {
      throw this.refuseRetrieve(instanceId, context, toKvdError(error));
    });
  }

  async #giveData(acquired: AcquiredRead): Promise<ReplyOf<'PREPARE_RETRIEVE'>> {
    const { instance, read, attempt } = acquired;
    const { objectSizeBytes } = instance.object;
    const fill = () =>
      this.#inline.read(chunkTensorOf(instance), objectSizeBytes, read.offsets, attempt);
    const data = await onFailure(fill, (error) => {
      this.#releaseRead(read);
      throw error;
    });
    return this.#giveRead(acquired, data);
  }

  #giveRead(
    { instance, read, keys, attempt }: AcquiredRead,
    data: Uint8Array,
  ): ReplyOf<'PREPARE_RETRIEVE'> {
    const { instanceId, offsets } = read;
    let isOpen = false;
    try {
      // The worker may have left meanwhile.
      checkAttempt(attempt);
      if (this.#requests.require(instanceId) !== instance) throw replaced(instanceId);
      if (this.#transports.of(instanceId) !== 'inline') {
        this.#slots.addRead(read);
        isOpen = true;
        return { success: true, data, context: { slots: describeSlots(instance, offsets) } };
      }
      this.#retrieveCount += 1;
      endRead(read, keys);
      return { success: true, data, context: {} };
    } finally {
      if (!isOpen) this.#releaseRead(read);
    }
  }

  #releaseRead({ requestId, connectionId, slots, report }: NewTransfer): void {
    const { storage, sessions } = this.#options;
    report.fail('ERR_TIMEOUT');
    storage.releaseRead(slots);
    sessions.consumeHolds(requestId, connectionId, slots);
  }

  #commitRetrieve(request: KeyedRequest, context: RequestContext): Reply<'COMMIT_RETRIEVE'> {
    const { instanceId } = request;
    const commit = () => {
      if (this.#slots.hasReads(instanceId)) {
        return this.#requests.hashThen(request, (hashes) =>
          this.#endRead(request, context, hashes),
        );
      }
      this.#requests.checkKey(request);
      return true;
    };
    if (this.#options.instances.lookupEngineDriven(instanceId)) return commit();
    return this.#releaseLate('read', request).then(commit);
  }

  #endRead(request: KeyedRequest, context: RequestContext, hashes: ChunkHashes): boolean {
    const { sessions } = this.#options;
    const { key, instanceId } = request;
    const { identity, keys } = this.#requests.check(request, hashes);
    const ended = this.#slots.endRead(instanceId, identity, key.requestId);
    if (ended === 'lost') {
      const error = new KvdError('ERR_TIMEOUT', 'the slots were taken back before this COMMIT');
      throw this.refuseRetrieve(instanceId, context, error);
    }
    if (typeof ended === 'object') {
      sessions.consumeHolds(key.requestId, context.connectionId, ended.slots);
      this.#retrieveCount += 1;
      endRead(ended, keys);
    }
    return true;
  }

  /** A worker that was reaped goes on: its slots are free now, whatever it is told. */
  async #releaseLate(kind: 'write' | 'read', request: KeyedRequest): Promise<void> {
    const { key, instanceId } = request;
    if (!this.#slots.hasQuarantine(instanceId)) return;
    const identity = await this.#requests.identify(request);
    this.#slots.releaseLate(kind, instanceId, identity, key.requestId);
  }
}

function endRead({ report, slots, sizeBytes }: NewTransfer, keys: ObjectKeys): void {
  report.end({ objectCount: slots.length, sizeBytes, ranges: [keys] });
}
