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
 */
import type { Clock } from '../../clock.ts';
import type { Device } from '../../device/device.ts';
import { KvdError, toKvdError } from '../../errors.ts';
import type { EventBus } from '../../observability/events.ts';
import type { Logger } from '../../observability/log.ts';
import { formatBytes } from '../../units.ts';
import type {
  Attempt,
  EngineModule,
  HandlerTable,
  InlinePayload,
  InstanceId,
  ReplyOf,
  RequestContext,
  RequestOf,
} from '../api.ts';
import {
  type DropReason,
  type EngineDrivenInstance,
  type InstanceRegistry,
  PROCESS_ID_BOUND,
} from '../instances.ts';
import { HeldReplies } from './held-replies.ts';
import { InlineTransfer } from './inline-transfer.ts';
import type { InlineWriter } from './inline-writer.ts';
import type { NewTransfer } from './pending-transfers.ts';
import type { TransferHasher, TransferSessions, WorkerStorage } from './ports.ts';
import { compactSlots, describeSlots, NO_SLOTS } from './slot-lists.ts';
import { chunkTensorOf } from './worker-layout.ts';
import { WorkerRegistrar } from './worker-registrar.ts';
import { type KeyedRequest, openTransfer, WorkerRequests } from './worker-requests.ts';
import { WorkerSlots } from './worker-slots.ts';
import { WorkerTransports } from './worker-transports.ts';

/** Part of L1 that slots of stopped workers may keep out of use. */
const QUARANTINE_SHARE = 0.05;
/** A worker that left like this uses none of its slots any more. */
const HARMLESS_REASONS: ReadonlySet<DropReason> = new Set<DropReason>([
  'unregistered',
  'replaced',
  'owner-gone',
  'shutdown',
]);
const NO_DATA = new Uint8Array(0);

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
      this.#slots.dropInstance(instanceId, HARMLESS_REASONS.has(reason));
    });
    this.handlers = {
      REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: (request) => this.#registrar.register(request),
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
  refuseRetrieve(request: KeyedRequest, context: RequestContext, error: KvdError): KvdError {
    const { instances, strictRetrieve, log } = this.#options;
    const { instanceId } = request;
    const isVllm = instances.lookupEngineDriven(instanceId) || instanceId >= PROCESS_ID_BOUND;
    const isMisreadable = !context.client.reportsFailedRetrieve && isVllm;
    // An empty range names no block, so there is nothing that the client could misread.
    if (!strictRetrieve || !isMisreadable || error instanceof EmptyReadError) return error;
    log.limited(
      'warn',
      `held:${error.code}`,
      `A failed read of instance ${instanceId} is answered after its next PING, so that its ` +
        `worker recomputes: ${error.message}. ${error.row.next}`,
    );
    return this.#held.hold(instanceId, error);
  }

  async #prepareStore(
    request: KeyedRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Promise<ReplyOf<'PREPARE_STORE'>> {
    const { clock, storage } = this.#options;
    const startMs = clock.preciseMs();
    if (this.#transports.of(request.instanceId) === 'inline') {
      this.#requests.checkKey(request);
      return { context: {} };
    }
    const hashes = await this.#requests.hash(request);
    checkAttempt(attempt);
    const transfer = this.#requests.check(request, hashes);
    const { instance, keys } = transfer;
    if (keys.chunkCount === 0) return { context: { slots: [], chunk_indices: [] } };
    this.#slots.sweep();
    this.#slots.checkRoom(request.instanceId);
    const preparedMs = clock.nowMs();
    const list = compactSlots(storage.reserveStore(keys, instance.layout));
    if (list.slots.length > 0) {
      this.#slots.addWrite(openTransfer(request, context, { transfer, list, startMs }), preparedMs);
    }
    const slots = describeSlots(instance, list.offsets);
    return { context: { slots, chunk_indices: list.chunkIndices } };
  }

  async #commitStore(request: RequestOf<'COMMIT_STORE'>): Promise<boolean> {
    const { data } = request;
    if (data.kind === 'none') return await this.#commitSlots(request);
    return await this.#commitData(request, data);
  }

  /** The worker has filled the slots of its PREPARE_STORE. */
  async #commitSlots(request: KeyedRequest): Promise<boolean> {
    const { key, instanceId } = request;
    const { instances, storage } = this.#options;
    if (!instances.lookupEngineDriven(instanceId)) await this.#releaseLate('write', request);
    const hashes = await this.#requests.hash(request);
    const { identity } = this.#requests.check(request, hashes);
    this.#transports.learn(instanceId, 'shm');
    const write = this.#slots.takeWrite(instanceId, identity, key.requestId);
    if (!write) return false;
    const storedCount = storage.finishStore(write.slots);
    this.#storeCount += 1;
    this.#report('mp.store.end', write);
    return storedCount === write.slots.length;
  }

  /** The worker sends the bytes of all chunks; those that nobody has are stored. */
  async #commitData(
    request: KeyedRequest,
    data: Exclude<InlinePayload, { kind: 'none' }>,
  ): Promise<boolean> {
    const { key, instanceId } = request;
    const { clock, storage } = this.#options;
    const startMs = clock.preciseMs();
    const hashes = await this.#requests.hash(request);
    const { instance, keys, identity } = this.#requests.check(request, hashes);
    this.#transports.learn(instanceId, 'inline');
    // Nobody fills the slots that a PREPARE_STORE has reserved for this data: begin anew.
    for (const write of this.#slots.takeWritesOfKey(instanceId, identity)) {
      storage.discardStore(write.slots);
    }
    if (data.kind === 'malformed') {
      throw new KvdError('ERR_WIRE_PAYLOAD', `data of COMMIT_STORE: ${data.reason}`);
    }
    const { layout } = instance;
    const list =
      keys.chunkCount === 0 ? NO_SLOTS : compactSlots(storage.reserveStore(keys, layout));
    const storedCount = await this.#inline.store(chunkTensorOf(instance), list, data.tensors);
    this.#storeCount += 1;
    this.#report('mp.store.end', {
      requestId: key.requestId,
      tokenCount: key.endToken - key.startToken,
      sizeBytes: storedCount * layout.objectSizeBytes,
      startMs,
    });
    return storedCount === list.slots.length;
  }

  async #prepareRetrieve(
    request: KeyedRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Promise<ReplyOf<'PREPARE_RETRIEVE'>> {
    try {
      return await this.#openRead(request, context, attempt);
    } catch (error) {
      throw this.refuseRetrieve(request, context, toKvdError(error));
    }
  }

  async #openRead(
    request: KeyedRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Promise<ReplyOf<'PREPARE_RETRIEVE'>> {
    const { clock, storage, sessions } = this.#options;
    const { key, instanceId } = request;
    const startMs = clock.preciseMs();
    const hashes = await this.#requests.hash(request);
    checkAttempt(attempt);
    const transfer = this.#requests.check(request, hashes);
    const { instance, keys } = transfer;
    if (keys.chunkCount === 0) throw new EmptyReadError();
    this.#slots.sweep();
    this.#slots.checkRoom(instanceId);
    const places = storage.acquireForRead(keys, instance.layout);
    if (!places) {
      throw new KvdError(
        'ERR_DATA_MISSING',
        `not all of ${keys.chunkCount} chunks from chunk ${keys.firstChunk} on are in L1`,
      );
    }
    const list = { ...places, chunkIndices: [...places.slots.keys()] };
    const read = openTransfer(request, context, { transfer, list, startMs });
    const transport = this.#transports.of(instanceId);
    let isOpen = false;
    try {
      const data = transport === 'shm' ? NO_DATA : await this.#readInline(instance, places.offsets);
      // The worker may have left meanwhile.
      checkAttempt(attempt);
      if (this.#requests.require(instanceId) !== instance) throw replaced(instanceId);
      if (transport !== 'inline') {
        this.#slots.addRead(read);
        isOpen = true;
        return { success: true, data, context: { slots: describeSlots(instance, places.offsets) } };
      }
      sessions.consumeHolds(key.requestId, context.connectionId, places.slots);
      this.#retrieveCount += 1;
      this.#report('mp.retrieve.end', read);
      return { success: true, data, context: {} };
    } finally {
      if (!isOpen) storage.releaseRead(places.slots);
    }
  }

  #readInline(instance: EngineDrivenInstance, offsets: Float64Array): Promise<Uint8Array> {
    return this.#inline.read(chunkTensorOf(instance), instance.layout.objectSizeBytes, offsets);
  }

  async #commitRetrieve(request: KeyedRequest, context: RequestContext): Promise<boolean> {
    const { sessions, instances } = this.#options;
    const { key, instanceId } = request;
    if (!instances.lookupEngineDriven(instanceId)) await this.#releaseLate('read', request);
    if (!this.#slots.hasReads(instanceId)) {
      this.#requests.checkKey(request);
      return true;
    }
    const hashes = await this.#requests.hash(request);
    const { identity } = this.#requests.check(request, hashes);
    const ended = this.#slots.endRead(instanceId, identity, key.requestId);
    if (ended === 'lost') {
      const error = new KvdError('ERR_TIMEOUT', 'the slots were taken back before this COMMIT');
      throw this.refuseRetrieve(request, context, error);
    }
    if (typeof ended === 'object') {
      sessions.consumeHolds(key.requestId, context.connectionId, ended.slots);
      this.#retrieveCount += 1;
      this.#report('mp.retrieve.end', ended);
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

  #report(
    event: 'mp.store.end' | 'mp.retrieve.end',
    of: Pick<NewTransfer, 'requestId' | 'tokenCount' | 'sizeBytes' | 'startMs'>,
  ): void {
    const { clock, bus } = this.#options;
    const { requestId, tokenCount, sizeBytes: bytes, startMs } = of;
    const seconds = (clock.preciseMs() - startMs) / 1000;
    bus.publish(event, { requestId, tokenCount, bytes, seconds });
  }
}

/** A read of no chunks: refused, but harmless to every client. */
class EmptyReadError extends KvdError {
  constructor() {
    super('ERR_BAD_REQUEST', 'PREPARE_RETRIEVE of an empty range');
  }
}

/** A worker that has been told of a failure does not wait for slots any more. */
function checkAttempt(attempt: Attempt): void {
  if (attempt.isAbandoned) throw new KvdError('ERR_TIMEOUT', 'the request met its deadline');
}

function replaced(instanceId: InstanceId): KvdError {
  return new KvdError('ERR_UNKNOWN_INSTANCE', `instance_id ${instanceId} was replaced meanwhile`);
}
