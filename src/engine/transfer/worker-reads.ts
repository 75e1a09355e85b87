/** PREPARE_RETRIEVE up to the point where a worker has what it asked for, or is refused. */
import type { Clock } from '../../clock.ts';
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import { KvdError, toKvdError } from '../../errors.ts';
import type { EventBus } from '../../observability/event-bus.ts';
import type { InstanceId } from '../api.ts';
import type { RequestContext } from '../client-traits.ts';
import type { Attempt } from '../handlers.ts';
import type { EngineDrivenInstance, InstanceRegistry } from '../instances.ts';
import { onFailure } from '../on-failure.ts';
import type { NewTransfer } from './pending-transfers.ts';
import type { TransferHasher, TransferSessions, WorkerStorage } from './ports.ts';
import { giveUpRead, objectScopeOf } from './transfer-key.ts';
import { HOST, TransferReport } from './transfer-report.ts';
import { type KeyedRequest, openTransfer, type WorkerRequests } from './worker-requests.ts';
import type { WorkerSlots } from './worker-slots.ts';

interface Rooms {
  readonly clock: Clock;
  readonly bus: EventBus;
  readonly instances: InstanceRegistry;
  readonly hasher: TransferHasher;
  readonly storage: Pick<WorkerStorage, 'acquireForRead'>;
  readonly sessions: Pick<TransferSessions, 'recordRetrieve' | 'giveUpRead'>;
  readonly requests: WorkerRequests;
  readonly slots: Pick<WorkerSlots, 'sweep' | 'checkRoom'>;
}

export interface AcquiredRead {
  readonly attempt: Attempt;
  readonly instance: EngineDrivenInstance;
  readonly read: NewTransfer;
  readonly keys: ObjectKeys;
}

/** The objects that a worker reads, pinned. A worker that gets none needs no locks, either. */
export function acquireRead(
  rooms: Rooms,
  request: KeyedRequest,
  context: RequestContext,
  attempt: Attempt,
): AcquiredRead | Promise<AcquiredRead> {
  const { instances, hasher, storage, sessions, requests, slots } = rooms;
  const { key, instanceId } = request;
  const subject = { kind: 'retrieve', key, instanceId, device: HOST } as const;
  const report = new TransferReport(rooms, subject);
  const acquire = (hashes: ChunkHashes): AcquiredRead => {
    checkAttempt(attempt);
    const transfer = requests.check(request, hashes);
    const { instance, keys } = transfer;
    report.start();
    if (keys.chunkCount === 0) throw new EmptyReadError();
    sessions.recordRetrieve(key.requestId, hashes, () => objectScopeOf(key, instances));
    slots.sweep();
    slots.checkRoom(instanceId);
    const places = storage.acquireForRead(keys, instance.object);
    if (places) {
      const list = { ...places, chunkIndices: [...places.slots.keys()] };
      const read = openTransfer(request, context, { transfer, list, report });
      return { attempt, instance, read, keys };
    }
    throw new KvdError(
      'ERR_DATA_MISSING',
      `not all of ${keys.chunkCount} chunks from chunk ${keys.firstChunk} on are in L1`,
    );
  };
  return onFailure(
    () => requests.hashThen(request, acquire),
    (error) => {
      report.fail(toKvdError(error).code);
      giveUpRead(sessions, { key, instanceId, chunkSizeTokens: hasher.chunkSizeTokens }, context);
      throw error;
    },
  );
}

/** A read of no chunks: refused, but harmless to every client. */
export class EmptyReadError extends KvdError {
  constructor() {
    super('ERR_BAD_REQUEST', 'PREPARE_RETRIEVE of an empty range');
  }
}

/** A worker that has been told of a failure does not wait for slots any more. */
export function checkAttempt(attempt: Attempt): void {
  if (attempt.isAbandoned) throw new KvdError('ERR_TIMEOUT', 'the request met its deadline');
}

/** Its worker has left and registered anew since the read began. */
export function replaced(instanceId: InstanceId): KvdError {
  return new KvdError('ERR_UNKNOWN_INSTANCE', `instance_id ${instanceId} was replaced meanwhile`);
}
