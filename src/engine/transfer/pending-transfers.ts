/**
 * A table of transfers that wait for their worker: which slots, for which key, until when.
 *
 * A key is found by instance, identity and request id. The identity is the key without its request
 * id; equal ones may be pending several times, in a list, so that a repeated request never hides
 * an earlier one's slots. What was added last is found first: a worker that had to ask again has
 * only seen the newer answer, and the older slots hold nothing of it.
 *
 * All entries of a table get the same time from when they are added or postponed, so the order of
 * insertion is the order of their deadlines and the next one is always the first.
 */
import type { ChunkHashes } from '../../core/chunk-hasher.ts';
import type { CacheKey, InstanceId } from '../api.ts';
import type { TransferRange } from './transfer-key.ts';
import type { TransferReport } from './transfer-report.ts';

export interface PendingTransfer {
  readonly kind: 'write' | 'read';
  readonly instanceId: InstanceId;
  readonly identity: string;
  readonly requestId: string;
  readonly connectionId: number;
  /** Pinned; a write's are reserved, too. */
  readonly slots: Uint32Array;
  readonly offsets: Float64Array;
  /** For each slot, the chunk of the key's range that it holds. */
  readonly chunkIndices: readonly number[];
  readonly sizeBytes: number;
  /** Open until the transfer ends, one way or another. */
  readonly report: TransferReport;
  deadlineMs: number;
  extensionCount: number;
}

/** What a PREPARE knows; kind and time are the matter of the table. */
export type NewTransfer = Omit<PendingTransfer, 'kind' | 'deadlineMs' | 'extensionCount'>;

/** Equal for requests that mean the same objects, whatever their request ids. */
export function identityOf(key: CacheKey, range: TransferRange, hashes: ChunkHashes): string {
  const { firstChunk, chunkCount, workerId } = range;
  if (chunkCount === 0) return '';
  const { bytes, hashSizeBytes } = hashes;
  // The hash of the last chunk names the whole prefix.
  const end = (firstChunk + chunkCount) * hashSizeBytes;
  const last = Buffer.from(bytes.buffer, bytes.byteOffset + end - hashSizeBytes, hashSizeBytes);
  const { worldSize, cacheSalt, modelName } = key;
  // The salt has no NUL, so the parts cannot run into each other.
  const place = `${firstChunk}+${chunkCount} ${workerId}/${worldSize}`;
  return `${place} ${last.toString('latin1')} ${cacheSalt}\0${modelName}`;
}

type ByIdentity = Map<string, PendingTransfer[]>;

export class PendingTransfers {
  /** In the order of deadlines. */
  readonly #all = new Set<PendingTransfer>();
  readonly #byInstance = new Map<InstanceId, ByIdentity>();
  readonly #countByInstance = new Map<InstanceId, number>();
  #bytes = 0;

  get count(): number {
    return this.#all.size;
  }

  get bytes(): number {
    return this.#bytes;
  }

  countOf(instanceId: InstanceId): number {
    return this.#countByInstance.get(instanceId) ?? 0;
  }

  add(transfer: PendingTransfer): void {
    const { instanceId, identity } = transfer;
    this.#all.add(transfer);
    this.#bytes += transfer.sizeBytes;
    this.#countByInstance.set(instanceId, this.countOf(instanceId) + 1);
    const byIdentity: ByIdentity = this.#byInstance.get(instanceId) ?? new Map();
    this.#byInstance.set(instanceId, byIdentity);
    const list = byIdentity.get(identity);
    if (list) list.push(transfer);
    else byIdentity.set(identity, [transfer]);
  }

  /** Removes the newest transfer of this very request. */
  take(instanceId: InstanceId, identity: string, requestId: string): PendingTransfer | undefined {
    const list = this.#byInstance.get(instanceId)?.get(identity);
    const transfer = list?.findLast((one) => one.requestId === requestId);
    if (transfer) this.remove(transfer);
    return transfer;
  }

  /** Removes the transfers of all requests for this key. */
  takeKey(instanceId: InstanceId, identity: string): PendingTransfer[] {
    const list = [...(this.#byInstance.get(instanceId)?.get(identity) ?? [])];
    for (const transfer of list) this.remove(transfer);
    return list;
  }

  takeInstance(instanceId: InstanceId): PendingTransfer[] {
    const list = [...(this.#byInstance.get(instanceId)?.values() ?? [])].flat();
    for (const transfer of list) this.remove(transfer);
    return list;
  }

  /** The one whose deadline comes first. */
  get first(): PendingTransfer | undefined {
    return this.#all.values().next().value;
  }

  /** The first one if its time is over. */
  firstDue(nowMs: number): PendingTransfer | undefined {
    const { first } = this;
    return first && first.deadlineMs <= nowMs ? first : undefined;
  }

  postpone(transfer: PendingTransfer, deadlineMs: number): void {
    this.#all.delete(transfer);
    transfer.deadlineMs = deadlineMs;
    this.#all.add(transfer);
  }

  remove(transfer: PendingTransfer): void {
    const { instanceId, identity } = transfer;
    if (!this.#all.delete(transfer)) return;
    this.#bytes -= transfer.sizeBytes;
    const count = this.countOf(instanceId) - 1;
    if (count > 0) this.#countByInstance.set(instanceId, count);
    else this.#countByInstance.delete(instanceId);
    const byIdentity = this.#byInstance.get(instanceId) as ByIdentity;
    const list = byIdentity.get(identity) as PendingTransfer[];
    list.splice(list.indexOf(transfer), 1);
    if (list.length === 0) byIdentity.delete(identity);
    if (byIdentity.size === 0) this.#byInstance.delete(instanceId);
  }
}
