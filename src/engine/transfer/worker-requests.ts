/**
 * From a request of an engine-driven worker to the objects it means, in two steps with a wait of
 * the caller's between them: long prompts are hashed in slices.
 *
 * `check` looks at everything again and answers at once, so what the caller does in the same turn
 * still holds: the worker is registered and its namespace ids are good.
 */
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import { KvdError } from '../../errors.ts';
import type { InstanceId, RequestOf } from '../api.ts';
import type { RequestContext } from '../client-traits.ts';
import type { EngineDrivenInstance, InstanceRegistry } from '../instances.ts';
import { identityOf, type NewTransfer } from './pending-transfers.ts';
import type { TransferHasher, TransferSessions, WorkerStorage } from './ports.ts';
import type { SlotList } from './slot-lists.ts';
import { checkTransferKey, objectKeysOf } from './transfer-key.ts';
import type { TransferReport } from './transfer-report.ts';

export type KeyedRequest = RequestOf<'PREPARE_STORE'>;

/** A checked request. */
export interface WorkerTransfer {
  readonly instance: EngineDrivenInstance;
  readonly keys: ObjectKeys;
  readonly identity: string;
}

export interface WorkerRequestsOptions {
  readonly instances: InstanceRegistry;
  readonly hasher: TransferHasher;
  readonly storage: Pick<WorkerStorage, 'internNamespace'>;
  readonly sessions: Pick<TransferSessions, 'recordTransfer'>;
}

export class WorkerRequests {
  readonly #options: WorkerRequestsOptions;

  constructor(options: WorkerRequestsOptions) {
    this.#options = options;
  }

  /** Throws `ERR_UNKNOWN_INSTANCE` or `ERR_BAD_REQUEST` before anything is hashed. */
  hash(request: KeyedRequest): ChunkHashes | Promise<ChunkHashes> {
    const { key } = request;
    this.checkKey(request);
    return this.#options.hasher.hashPrompt(key.tokens, key.endToken);
  }

  /** Goes on in the same turn when the prompt is short enough to be hashed at once. */
  hashThen<T>(
    request: KeyedRequest,
    next: (hashes: ChunkHashes) => T | Promise<T>,
  ): T | Promise<T> {
    const hashes = this.hash(request);
    return hashes instanceof Promise ? hashes.then(next) : next(hashes);
  }

  check({ key, instanceId }: KeyedRequest, hashes: ChunkHashes): WorkerTransfer {
    const { hasher, storage, sessions } = this.#options;
    const instance = this.require(instanceId);
    const range = checkTransferKey(key, hasher.chunkSizeTokens);
    const keys = objectKeysOf(storage, { key, range, hashes });
    sessions.recordTransfer(key.requestId, hashes);
    return { instance, keys, identity: identityOf(key, range, hashes) };
  }

  /** All that can be said about a request without its hashes. */
  checkKey({ key, instanceId }: KeyedRequest): void {
    const { instances, hasher } = this.#options;
    instances.refresh(instanceId);
    this.require(instanceId);
    checkTransferKey(key, hasher.chunkSizeTokens);
  }

  /** What a request of a worker that may be unknown is about. */
  async identify({ key }: KeyedRequest): Promise<string> {
    const { hasher } = this.#options;
    const range = checkTransferKey(key, hasher.chunkSizeTokens);
    return identityOf(key, range, await hasher.hashPrompt(key.tokens, key.endToken));
  }

  require(instanceId: InstanceId): EngineDrivenInstance {
    const instance = this.#options.instances.lookupEngineDriven(instanceId);
    if (instance) return instance;
    throw new KvdError('ERR_UNKNOWN_INSTANCE', `instance_id ${instanceId} not registered`);
  }
}

/** The transfer that a PREPARE opens on these slots. */
export function openTransfer(
  { key, instanceId }: KeyedRequest,
  { connectionId }: RequestContext,
  of: {
    readonly transfer: WorkerTransfer;
    readonly list: SlotList;
    readonly report: TransferReport;
  },
): NewTransfer {
  const { transfer, list, report } = of;
  return {
    ...list,
    instanceId,
    identity: transfer.identity,
    requestId: key.requestId,
    connectionId,
    sizeBytes: list.slots.length * transfer.instance.object.objectSizeBytes,
    report,
  };
}
