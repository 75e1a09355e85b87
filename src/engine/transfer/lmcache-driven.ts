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
 *    reports the blocks as load errors, recomputes, and registers again.
 */
import type { Clock } from '../../clock.ts';
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import type { CopyJob, Device } from '../../device/device.ts';
import { KvdError, RefusedTransferError, toKvdError, WithheldReplyError } from '../../errors.ts';
import type { EventBus } from '../../observability/events.ts';
import type { Logger } from '../../observability/log.ts';
import type {
  Attempt,
  EngineModule,
  HandlerTable,
  InstanceId,
  RequestContext,
  RetrieveRequest,
  StoreRequest,
  TransferReply,
} from '../api.ts';
import { type InstanceRegistry, type KvCacheInstance, PROCESS_ID_BOUND } from '../instances.ts';
import { cutBlockIds, skipBlocksPerObject } from './block-lists.ts';
import type { TransferHasher, TransferSessions, TransferStorage } from './ports.ts';
import { Registrar } from './registrar.ts';
import { checkTransferKey, objectKeysOf } from './transfer-key.ts';

export interface LMCacheDrivenTransferOptions {
  readonly device: Device;
  readonly storage: TransferStorage;
  readonly sessions: TransferSessions;
  readonly instances: InstanceRegistry;
  readonly hasher: TransferHasher;
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly log: Logger;
  readonly strictRetrieve: boolean;
}

/** A checked request: nothing in it can be refused any more except by missing bytes. */
interface Transfer {
  readonly instance: KvCacheInstance;
  readonly keys: ObjectKeys;
  readonly blockIds: readonly Uint32Array[];
}

const EMPTY_EVENT = new Uint8Array(0);

export class LMCacheDrivenTransferModule implements EngineModule {
  readonly name = 'lmcache-driven-transfer';
  readonly handlers: HandlerTable;
  readonly #options: LMCacheDrivenTransferOptions;
  readonly #registrar: Registrar;
  /** Instances with a copy that was given up and has not ended. */
  readonly #stuckIds = new Set<InstanceId>();
  #storeCount = 0;
  #retrieveCount = 0;
  #refusedCount = 0;
  #withheldCount = 0;

  constructor(options: LMCacheDrivenTransferOptions) {
    this.#options = options;
    this.#registrar = new Registrar({
      ...options,
      chunkSizeTokens: options.hasher.chunkSizeTokens,
      hasAccelerator: options.device.kind !== 'cpu',
    });
    this.handlers = {
      REGISTER_KV_CACHE: (request) => this.#registrar.register(request),
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
        refused_transfer_count: this.#refusedCount,
        withheld_retrieve_count: this.#withheldCount,
        stuck_instance_ids: [...this.#stuckIds],
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
    const { blockAxis, name } = layout.format;
    if (blockAxis === null) {
      throw new KvdError('ERR_UNSUPPORTED', `${name} has no block axis to take checksums along`);
    }
    const blockCount = Math.min(...layout.groups.map((group) => group.blockCount));
    const stranger = request.blockIds.find((id) => !(id >= 0 && id < blockCount));
    if (stranger !== undefined) {
      throw new KvdError(
        'ERR_BAD_REQUEST',
        `block id ${stranger} is outside the ${blockCount} blocks of the cache`,
      );
    }
    return await handle.checksumBlocks({ ...request, blockAxis });
  }

  /** What the client is told about a RETRIEVE that failed, here or before it came here. */
  refuseRetrieve(request: RetrieveRequest, context: RequestContext, error: KvdError): KvdError {
    const { instances, strictRetrieve } = this.#options;
    const { instanceId } = request;
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
      return await this.#gather(request, attempt);
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
      return await this.#scatter(request, context, attempt);
    } catch (error) {
      throw this.refuseRetrieve(request, context, toKvdError(error));
    }
  }

  async #gather(request: StoreRequest, attempt: Attempt): Promise<TransferReply> {
    const { clock, storage, bus } = this.#options;
    const startMs = clock.preciseMs();
    const hashes = await this.#hash(request);
    const { instance, keys, blockIds } = this.#check(request, attempt, hashes);
    const { handle, layout } = instance;
    if (keys.chunkCount === 0) return { event: handle.completionEvent(), ok: true };
    handle.waitForEvent(request.event);
    const { slots, offsets } = storage.reserveStore(keys, layout);
    const objectCount = offsets.reduce((count, offset) => (offset >= 0 ? count + 1 : count), 0);
    let event: Uint8Array;
    try {
      const job: CopyJob = { direction: 'gather', objectOffsets: offsets, blockIds };
      const copied = objectCount > 0 ? handle.submit(job) : undefined;
      event = await this.#superviseCopy(instance, attempt, copied);
      // The engine may have given the blocks to somebody else in the middle of the copy.
      this.#checkAttempt(request.instanceId, attempt);
    } catch (error) {
      storage.discardStore(slots);
      throw error;
    }
    storage.finishStore(slots);
    this.#storeCount += 1;
    bus.publish('mp.store.end', {
      requestId: request.key.requestId,
      tokenCount: request.key.endToken - request.key.startToken,
      bytes: objectCount * layout.objectSizeBytes,
      seconds: (clock.preciseMs() - startMs) / 1000,
    });
    return { event, ok: true };
  }

  async #scatter(
    request: RetrieveRequest,
    context: RequestContext,
    attempt: Attempt,
  ): Promise<TransferReply> {
    const { clock, storage, sessions, bus } = this.#options;
    const startMs = clock.preciseMs();
    const hashes = await this.#hash(request);
    const { instance, keys, blockIds } = this.#check(request, attempt, hashes);
    const { handle, layout } = instance;
    if (keys.chunkCount === 0) throw new EmptyRetrieveError();
    handle.waitForEvent(request.event);
    const places = storage.acquireForRead(keys, layout);
    if (!places) {
      throw new KvdError(
        'ERR_DATA_MISSING',
        `not all of ${keys.chunkCount} chunks from chunk ${keys.firstChunk} on are in L1`,
      );
    }
    const { skipFirstTokens } = request;
    const range = { skipFirstTokens, chunkCount: keys.chunkCount };
    let event: Uint8Array;
    try {
      const copied = handle.submit({
        direction: 'scatter',
        objectOffsets: places.offsets,
        blockIds,
        ...(skipFirstTokens > 0 && { skipBlocks: skipBlocksPerObject(layout.groups, range) }),
      });
      event = await this.#superviseCopy(instance, attempt, copied);
    } finally {
      storage.releaseRead(places.slots);
      sessions.consumeHolds(request.key.requestId, context.connectionId, places.slots);
    }
    this.#retrieveCount += 1;
    bus.publish('mp.retrieve.end', {
      requestId: request.key.requestId,
      tokenCount: request.key.endToken - request.key.startToken,
      bytes: keys.chunkCount * layout.objectSizeBytes,
      seconds: (clock.preciseMs() - startMs) / 1000,
    });
    return { event, ok: true };
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
    attempt.onAbandon(() => this.#stuckIds.add(instanceId));
    try {
      return await this.#eventAfter(instance, copied);
    } finally {
      if (attempt.isAbandoned) this.#stuckIds.delete(instanceId);
    }
  }

  /** Throws when the worker has been told, since this request arrived, that it failed. */
  #checkAttempt(instanceId: InstanceId, attempt: Attempt): void {
    if (attempt.isAbandoned || this.#options.instances.isToldFalse(instanceId, attempt.arrivedMs)) {
      throw new KvdError('ERR_TIMEOUT', 'the worker has been told that this transfer failed');
    }
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
    const { hasher, storage, sessions } = this.#options;
    const { key } = request;
    this.#checkAttempt(request.instanceId, attempt);
    const instance = this.#require(request.instanceId);
    const range = checkTransferKey(key, hasher.chunkSizeTokens);
    const blockIds = cutBlockIds(request.blockIds, instance.layout.groups, range.chunkCount);
    const keys = objectKeysOf(storage, { key, range, hashes });
    sessions.recordTransfer(key.requestId, hashes);
    return { instance, keys, blockIds };
  }

  #require(instanceId: InstanceId): KvCacheInstance {
    if (this.#stuckIds.has(instanceId)) {
      throw new KvdError('ERR_TIMEOUT', `a copy of instance_id ${instanceId} does not end`);
    }
    const instance = this.#options.instances.lookup(instanceId);
    if (instance) return instance;
    throw new KvdError('ERR_UNKNOWN_INSTANCE', `instance_id ${instanceId} not registered`);
  }

  #withhold(instanceId: InstanceId, error: KvdError): WithheldReplyError {
    this.#options.instances.oweFalsePing(instanceId);
    this.#withheldCount += 1;
    return new WithheldReplyError(error.code, error.message, { cause: error });
  }

  #refuse(instanceId: InstanceId, context: RequestContext, error: KvdError): KvdError {
    const event = this.#eventForRefusal(instanceId, context);
    if (!event) return this.#withhold(instanceId, error);
    this.#refusedCount += 1;
    return new RefusedTransferError(error.code, error.message, event, { cause: error });
  }

  /** Null when the client would try to open the event and the device can make none. */
  #eventForRefusal(instanceId: InstanceId, context: RequestContext): Uint8Array | null {
    const { device, instances } = this.#options;
    if (context.client.acceptsEmptyEvent) return EMPTY_EVENT;
    try {
      return instances.lookup(instanceId)?.handle.completionEvent() ?? device.anyEvent();
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

/** Unknown ids of 2^22 or more are vLLM workers from before a restart of this server. */
function isVllm(instances: InstanceRegistry, instanceId: InstanceId): boolean {
  const instance = instances.lookup(instanceId);
  return instance ? instance.engineType === 'vllm' : instanceId >= PROCESS_ID_BOUND;
}
