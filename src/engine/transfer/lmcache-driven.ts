/**
 * LMCacheDrivenTransferModule: the server copies between a worker's paged KV cache and L1.
 *
 *   STORE     key ─▶ hashes ─▶ staging in L1 ─▶ gather ─▶ finish       (visible before the reply)
 *   RETRIEVE  key ─▶ hashes ─▶ pinned objects ─▶ scatter ─▶ unpin, release the lookup's holds
 *
 * Invariants:
 *  - Everything that a client said is checked before a byte moves: instance, group count, block
 *    ids, range, rank. Between that check and the submission of the copy nothing waits, so an
 *    instance cannot leave in between; one that leaves later ends its copies first (device.ts).
 *  - A copy that fails publishes nothing. A RETRIEVE that can be seen to fail writes nothing.
 *  - What the worker has been told has failed takes no effect any more: it has given the blocks to
 *    other requests. Queued copies do not start, a running STORE is discarded at its end.
 *  - STORE says `ok` when nothing went wrong, also when the chunks were cached already or L1 has
 *    no room: a cache may forget anything.
 *
 * Failures (spec engine 9.1, 9.3; wire 7.3):
 *  - The reply `[event, false]` needs an event that the client can open: the error carries one.
 *  - A vLLM worker of an old generation takes a failed RETRIEVE for a success and would compute on
 *    garbage. In strict mode it gets no reply, and its next PING is answered with false: it then
 *    reports the blocks as load errors, recomputes, and registers again. A RETRIEVE of a worker
 *    whose id cannot be read gets no reply either: waiting is better than wrong output.
 *
 * (Longer than other files: both directions, and all that a client can be told about them.)
 */
import type { Clock } from '../../clock.ts';
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { Device } from '../../device/device.ts';
import { KvdError, RefusedTransferError, toKvdError, WithheldReplyError } from '../../errors.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { Logger } from '../../observability/log.ts';
import type { CacheKey, InstanceId, RetrieveRequest, StoreRequest, TransferReply } from '../api.ts';
import type { RequestContext } from '../client-traits.ts';
import type { Attempt, EngineModule, HandlerTable } from '../handlers.ts';
import { type InstanceRegistry, type KvCacheInstance, PROCESS_ID_BOUND } from '../instances.ts';
import type { ChunkAnnouncer } from '../kv-events/chunk-announcer.ts';
import { cutBlockIds } from './block-lists.ts';
import { blockAxesOf, formatNamesOf } from './kv-layout.ts';
import {
  acquireCopies,
  countCopiedBytes,
  countCopiedObjects,
  finishCopies,
  type ObjectCopy,
  reserveCopies,
  submitCopies,
  type Transfer,
} from './object-copies.ts';
import type { TransferHasher, TransferSessions, TransferStorage } from './ports.ts';
import { Registrar } from './registrar.ts';
import { checkTransferKey, giveUpRead, objectScopeOf } from './transfer-key.ts';
import { chunkRuns, reported, TransferReport } from './transfer-report.ts';

export interface LMCacheDrivenTransferOptions {
  readonly device: Device;
  readonly storage: TransferStorage;
  readonly sessions: TransferSessions;
  readonly instances: InstanceRegistry;
  readonly hasher: TransferHasher;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  /** Absent: nobody follows what L1 holds. */
  readonly announcer?: Pick<ChunkAnnouncer, 'announce'>;
  readonly strictRetrieve: boolean;
  /** Kernel groups of different windows get objects of their own. */
  readonly hasSeparateObjects: boolean;
  /** The block id of newer engines for "no block". */
  readonly nullBlockId: number;
}

const EMPTY_EVENT = new Uint8Array(0);
const EMPTY_SLOTS = new Uint32Array(0);

export class LMCacheDrivenTransferModule implements EngineModule {
  readonly name = 'lmcache-driven-transfer';
  readonly handlers: HandlerTable;
  readonly #options: LMCacheDrivenTransferOptions;
  readonly #registrar: Registrar;
  /** Copies that were given up and have not ended, with their instances. */
  readonly #stuckCopies = new Map<Attempt, InstanceId>();
  #storeCount = 0;
  #retrieveCount = 0;
  /** Objects whose copy had ended, and which were not readable then. */
  #lostObjectCount = 0;
  #refusedCount = 0;
  #withheldCount = 0;
  #overdueCount = 0;

  constructor(options: LMCacheDrivenTransferOptions) {
    this.#options = options;
    this.#registrar = new Registrar({
      ...options,
      chunkSizeTokens: options.hasher.chunkSizeTokens,
      hasAccelerator: options.device.kind !== 'cpu',
    });
    this.handlers = {
      REGISTER_KV_CACHE: (request, context) => this.#registrar.register(request, context.client),
      UNREGISTER_KV_CACHE: (request) => this.#registrar.unregister(request.instanceId),
      STORE: (request, context, attempt) => this.#store(request, context, attempt),
      RETRIEVE: (request, context, attempt) => this.#retrieve(request, context, attempt),
    };
  }

  status(): Record<string, unknown> {
    const { instances } = this.#options;
    return {
      ...instances.contextStatus(),
      lmcache_driven_transfer: {
        store_count: this.#storeCount,
        retrieve_count: this.#retrieveCount,
        lost_object_count: this.#lostObjectCount,
        refused_transfer_count: this.#refusedCount,
        withheld_retrieve_count: this.#withheldCount,
        overdue_transfer_count: this.#overdueCount,
        stuck_instance_ids: [...new Set(this.#stuckCopies.values())],
        closing_instance_count: instances.closingCount,
        ...this.#registrar.status(),
      },
    };
  }

  close(): Promise<void> {
    return this.#options.instances.close();
  }

  /**
   * MD5 per run of blocks of a worker's cache (spec http 5.8). Rejects with `ERR_UNKNOWN_INSTANCE`,
   * `ERR_UNSUPPORTED` (the layout has no block axis) or `ERR_BAD_REQUEST`.
   */
  async checksumBlocks(request: {
    readonly instanceId: InstanceId;
    readonly blockIds: readonly number[];
    readonly blocksPerChecksum: number;
    readonly isLayerwise: boolean;
  }): Promise<string[][]> {
    const { handle, layout } = this.#require(request.instanceId);
    const blockAxes = blockAxesOf(layout, handle.tensors.length);
    if (blockAxes === null) {
      throw new KvdError(
        'ERR_UNSUPPORTED',
        `${formatNamesOf(layout)} has no block axis to take checksums along`,
      );
    }
    const blockCount = Math.min(...layout.groups.map((group) => group.blockCount));
    const stranger = request.blockIds.find((id) => !(id >= 0 && id < blockCount));
    if (stranger !== undefined) {
      throw new KvdError(
        'ERR_BAD_REQUEST',
        `block id ${stranger} is outside the ${blockCount} blocks of the cache`,
      );
    }
    return await handle.checksumBlocks({ ...request, blockAxes });
  }

  /** What the client is told about a RETRIEVE that failed, here or before it came here. */
  refuseRetrieve(
    instanceId: InstanceId | null,
    context: RequestContext,
    error: KvdError,
  ): KvdError {
    const { instances, strictRetrieve } = this.#options;
    const isMisreadable = !context.client.reportsFailedRetrieve && isVllm(instances, instanceId);
    // An empty range names no block, so there is nothing that the client could misread.
    if (!strictRetrieve || !isMisreadable || error instanceof EmptyRetrieveError) {
      return this.#refuse(instanceId, context, error);
    }
    return this.#withhold(instanceId, error);
  }

  async #store(
    request: StoreRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Promise<TransferReply> {
    try {
      const report = this.#report('store', request);
      return await reported(report, () => this.#gather(request, context, attempt, report));
    } catch (error) {
      throw this.#refuse(request.instanceId, context, toKvdError(error));
    }
  }

  async #retrieve(
    request: RetrieveRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Promise<TransferReply> {
    try {
      const report = this.#report('retrieve', request);
      return await reported(report, () => this.#scatter(request, context, attempt, report));
    } catch (error) {
      throw this.refuseRetrieve(request.instanceId, context, toKvdError(error));
    }
  }

  async #gather(
    request: StoreRequest,
    { client }: RequestContext,
    attempt: Attempt,
    report: TransferReport,
  ): Promise<TransferReply> {
    const { storage, sessions, announcer, nullBlockId } = this.#options;
    const hashes = await this.#hash(request);
    const transfer = this.#check(request, attempt, hashes);
    const { instance, range } = transfer;
    sessions.recordTransfer(request.key.requestId, hashes);
    report.start();
    if (range.chunkCount === 0) {
      const event = instance.handle.completionEvent();
      report.end();
      return { event, ok: true };
    }
    instance.handle.waitForEvent(request.event);
    const nullBlocks = client.sendsNullBlocks ? { id: nullBlockId, lists: request.blockIds } : null;
    const copies = reserveCopies(storage, transfer, nullBlocks);
    const sizeBytes = countCopiedBytes(copies);
    const { handle } = instance;
    let event: Uint8Array;
    try {
      event = await this.#superviseCopy(instance, attempt, submitCopies(handle, copies));
      // The engine may have given the blocks to somebody else in the middle of the copy.
      this.#checkAttempt(request.instanceId, attempt);
    } catch (error) {
      for (const { slots } of copies) storage.discardStore(slots);
      throw error;
    }
    this.#finish(request.key, copies);
    announcer?.announce({ key: request.key, hashes, ...range });
    this.#storeCount += 1;
    const objectCount = countCopiedObjects(copies);
    const ranges = chunkRuns(hashes, range.firstChunk, copies[0]?.slots ?? EMPTY_SLOTS);
    report.end({ objectCount, sizeBytes, ranges });
    return { event, ok: true };
  }

  #report(kind: 'store' | 'retrieve', { key, instanceId }: StoreRequest): TransferReport {
    const { device } = this.#options;
    return new TransferReport(this.#options, { kind, key, instanceId, device: device.kind });
  }

  /** A cache may forget anything, so a STORE that was overtaken is no failure; it is counted. */
  #finish(key: CacheKey, copies: readonly ObjectCopy[]): void {
    const lostCount = finishCopies(this.#options.storage, copies);
    if (lostCount === 0) return;
    this.#lostObjectCount += lostCount;
    const message = `${lostCount} objects are not kept: cleared, or past --l1-write-ttl-seconds`;
    const { requestId } = key;
    this.#options.log.limited('warn', 'store-lost', `STORE: ${message}`, { requestId });
  }

  async #scatter(
    request: RetrieveRequest,
    context: RequestContext,
    attempt: Attempt,
    report: TransferReport,
  ): Promise<TransferReply> {
    const { storage, sessions } = this.#options;
    const { transfer, copies } = await this.#openRead(request, context, attempt, report);
    const { instance, hashes, range } = transfer;
    let event: Uint8Array;
    try {
      event = await this.#superviseCopy(instance, attempt, submitCopies(instance.handle, copies));
    } finally {
      for (const { slots } of copies) {
        storage.releaseRead(slots);
        sessions.consumeHolds(request.key.requestId, context.connectionId, slots);
      }
    }
    this.#retrieveCount += 1;
    const sizeBytes = countCopiedBytes(copies);
    const objectCount = range.chunkCount;
    report.end({ objectCount, sizeBytes, ranges: [{ hashes, ...range }] });
    return { event, ok: true };
  }

  /** The objects that a RETRIEVE reads, pinned. A worker that gets none needs no locks, either. */
  async #openRead(
    request: RetrieveRequest,
    context: RequestContext,
    attempt: Attempt,
    report: TransferReport,
  ): Promise<{ transfer: Transfer; copies: ObjectCopy[] }> {
    const { instances, hasher, storage, sessions } = this.#options;
    const { key, instanceId, skipFirstTokens } = request;
    try {
      const hashes = await this.#hash(request);
      const transfer = this.#check(request, attempt, hashes);
      const { instance, range } = transfer;
      report.start();
      if (range.chunkCount === 0) throw new EmptyRetrieveError();
      sessions.recordRetrieve(key.requestId, hashes, () => objectScopeOf(key, instances));
      instance.handle.waitForEvent(request.event);
      const copies = acquireCopies(storage, transfer, skipFirstTokens);
      if (copies) return { transfer, copies };
      throw new KvdError(
        'ERR_DATA_MISSING',
        `not all of ${range.chunkCount} chunks from chunk ${range.firstChunk} on are in L1`,
      );
    } catch (error) {
      giveUpRead(sessions, { key, instanceId, chunkSizeTokens: hasher.chunkSizeTokens }, context);
      throw error;
    }
  }

  /**
   * The event covers the job that was just submitted, so it is taken before the wait. The wait is
   * what makes the bytes visible before the reply on devices without events; it must not be left
   * out when there is no event, because the caller gives the memory of the copy back.
   */
  async #eventAfter(
    instance: KvCacheInstance,
    copied: Promise<void> | undefined,
  ): Promise<Uint8Array> {
    try {
      return instance.handle.completionEvent();
    } finally {
      await copied;
    }
  }

  /** A copy that outlives its answer makes its instance stuck until the copy ends. */
  async #superviseCopy(
    instance: KvCacheInstance,
    attempt: Attempt,
    copied: Promise<void> | undefined,
  ): Promise<Uint8Array> {
    const { instanceId } = instance;
    attempt.onAbandon(() => this.#stuckCopies.set(attempt, instanceId));
    try {
      return await this.#eventAfter(instance, copied);
    } finally {
      this.#stuckCopies.delete(attempt);
    }
  }

  /**
   * Throws when the worker takes the transfer for failed: it has been told so since the request
   * arrived, or may have decided so while this process stood still. vLLM does when a heartbeat
   * fails; others wait for their answer, but not for ever.
   */
  #checkAttempt(instanceId: InstanceId, attempt: Attempt): void {
    const { instances } = this.#options;
    if (attempt.isAbandoned || instances.isToldFalse(instanceId, attempt.arrivedMs)) {
      throw new KvdError('ERR_TIMEOUT', 'the worker has been told that this transfer failed');
    }
    if (!attempt.isExpired && !(attempt.isOverdue && isVllm(instances, instanceId))) return;
    this.#overdueCount += 1;
    throw new KvdError('ERR_TIMEOUT', 'the server stood still, the worker may have given this up');
  }

  #hash(request: StoreRequest): ChunkHashes | Promise<ChunkHashes> {
    const { instances, hasher } = this.#options;
    instances.refresh(request.instanceId);
    this.#require(request.instanceId);
    checkTransferKey(request.key, hasher.chunkSizeTokens);
    return hasher.hashPrompt(request.key.tokens, request.key.endToken);
  }

  /** Looks the instance up again: it may have left while a long prompt was hashed. */
  #check(request: StoreRequest, attempt: Attempt, hashes: ChunkHashes): Transfer {
    const { key } = request;
    this.#checkAttempt(request.instanceId, attempt);
    const instance = this.#require(request.instanceId);
    const range = checkTransferKey(key, this.#options.hasher.chunkSizeTokens);
    const blockIds = cutBlockIds(request.blockIds, instance.layout.groups, range.chunkCount);
    return { instance, key, range, hashes, blockIds };
  }

  #require(instanceId: InstanceId): KvCacheInstance {
    if ([...this.#stuckCopies.values()].includes(instanceId)) {
      throw new KvdError('ERR_TIMEOUT', `a copy of instance_id ${instanceId} does not end`);
    }
    const instance = this.#options.instances.lookup(instanceId);
    if (instance) return instance;
    throw new KvdError('ERR_UNKNOWN_INSTANCE', `instance_id ${instanceId} not registered`);
  }

  #withhold(instanceId: InstanceId | null, error: KvdError): WithheldReplyError {
    if (instanceId !== null) this.#options.instances.oweFalsePing(instanceId);
    this.#withheldCount += 1;
    return new WithheldReplyError(error.code, error.message, { cause: error });
  }

  #refuse(instanceId: InstanceId | null, context: RequestContext, error: KvdError): KvdError {
    const event = this.#eventForRefusal(instanceId, context);
    if (!event) return this.#withhold(instanceId, error);
    this.#refusedCount += 1;
    return new RefusedTransferError(error.code, error.message, event, { cause: error });
  }

  /** Null when the client would try to open the event and the device can make none. */
  #eventForRefusal(instanceId: InstanceId | null, context: RequestContext): Uint8Array | null {
    const { device, instances } = this.#options;
    if (context.client.acceptsEmptyEvent) return EMPTY_EVENT;
    try {
      const instance = instanceId === null ? undefined : instances.lookup(instanceId);
      return instance?.handle.completionEvent() ?? device.anyEvent();
    } catch (error) {
      const reason = toKvdError(error).message;
      this.#options.log.limited('error', 'no-event', `The device makes no events: ${reason}`);
      return null;
    }
  }
}

/** A RETRIEVE of no chunks: refused as in the reference, but harmless to every client. */
class EmptyRetrieveError extends KvdError {
  constructor() {
    super('ERR_BAD_REQUEST', 'RETRIEVE of an empty range');
  }
}

/** Unknown ids of 2^22 or more are vLLM workers of before a restart; null may be anybody. */
function isVllm(instances: InstanceRegistry, instanceId: InstanceId | null): boolean {
  if (instanceId === null) return true;
  const instance = instances.lookup(instanceId);
  return instance ? instance.engineType === 'vllm' : instanceId >= PROCESS_ID_BOUND;
}
