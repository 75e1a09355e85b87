/**
 * Slots that were taken back from a worker which may still use them.
 *
 * A worker that was stopped (SIGSTOP, a hung host) and goes on does not know that its time was
 * over: it writes into its slots, or reads from them, as if nothing had happened. Their memory must
 * not belong to somebody else by then. So it stays pinned here, without a key and without a
 * meaning, until the worker says that it is done (a late COMMIT), leaves or registers again, or
 * until one more write TTL has passed (spec engine 9.3).
 *
 * The price is L1 memory, so it is bounded: beyond the bound what has waited longest is let go.
 * Each time is counted; `/status` shows it as `quarantine_overflow_count`.
 *
 * A worker whose *read* slots were let go may have read somebody else's bytes. That is remembered
 * for a bounded number of reads, and their COMMIT_RETRIEVE is refused.
 */
import type { InstanceId } from '../api.ts';
import { type PendingTransfer, PendingTransfers } from './pending-transfers.ts';
import type { WorkerStorage } from './ports.ts';

/** Each costs a key of at most some KiB; a worker has far fewer reads open. */
const LOST_READ_COUNT_MAX = 1024;

/** What a COMMIT says about the transfer that it means. */
export type TransferName = Pick<PendingTransfer, 'kind' | 'instanceId' | 'identity' | 'requestId'>;

export interface SlotQuarantineOptions {
  readonly storage: Pick<WorkerStorage, 'releaseAbandoned' | 'releaseRead'>;
  readonly bytesMax: number;
}

export class SlotQuarantine {
  readonly #options: SlotQuarantineOptions;
  readonly #table = new PendingTransfers();
  readonly #lostReads = new Set<string>();
  #overflowCount = 0;

  constructor(options: SlotQuarantineOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#table.count;
  }

  get bytes(): number {
    return this.#table.bytes;
  }

  /** Keeps the slots of an abandoned transfer out of use until `untilMs`. */
  add(transfer: PendingTransfer, untilMs: number): void {
    const identity = identityWith(transfer.kind, transfer.identity);
    this.#table.add({ ...transfer, identity, deadlineMs: untilMs });
    while (this.#table.bytes > this.#options.bytesMax) {
      this.#overflowCount += 1;
      this.#letGo(this.#table.first as PendingTransfer);
    }
  }

  /** The worker is done with this very transfer: its slots are free. False when it is not here. */
  release({ kind, instanceId, identity, requestId }: TransferName): boolean {
    const transfer = this.#table.take(instanceId, identityWith(kind, identity), requestId);
    if (transfer) this.#free(transfer);
    return transfer !== undefined;
  }

  /** The worker has left, or begins anew: it uses none of its slots any more. */
  releaseInstance(instanceId: InstanceId): void {
    for (const transfer of this.#table.takeInstance(instanceId)) this.#free(transfer);
  }

  releaseDue(nowMs: number): void {
    for (let due = this.#table.firstDue(nowMs); due; due = this.#table.firstDue(nowMs)) {
      this.#letGo(due);
    }
  }

  releaseAll(): void {
    for (let next = this.#table.first; next; next = this.#table.first) {
      this.#table.remove(next);
      this.#free(next);
    }
  }

  has(instanceId: InstanceId): boolean {
    return this.#table.countOf(instanceId) > 0;
  }

  /** True once for a read whose slots were let go before its worker was done. */
  takeLostRead({ kind, instanceId, identity, requestId }: TransferName): boolean {
    const name = { instanceId, requestId, identity: identityWith(kind, identity) };
    return this.#lostReads.delete(textOf(name));
  }

  get hasLostReads(): boolean {
    return this.#lostReads.size > 0;
  }

  status(): Record<string, unknown> {
    return {
      quarantined_transfer_count: this.count,
      quarantined_bytes: this.bytes,
      quarantine_bytes_max: this.#options.bytesMax,
      quarantine_overflow_count: this.#overflowCount,
    };
  }

  /** Frees slots although the worker may still use them. */
  #letGo(transfer: PendingTransfer): void {
    this.#table.remove(transfer);
    this.#free(transfer);
    if (transfer.kind !== 'read') return;
    this.#lostReads.add(textOf(transfer));
    if (this.#lostReads.size <= LOST_READ_COUNT_MAX) return;
    const oldest = this.#lostReads.values().next().value as string;
    this.#lostReads.delete(oldest);
  }

  #free({ kind, slots }: PendingTransfer): void {
    const { storage } = this.#options;
    if (kind === 'write') storage.releaseAbandoned(slots);
    else storage.releaseRead(slots);
  }
}

/** Reads and writes of one key lie in one table. */
function identityWith(kind: 'write' | 'read', identity: string): string {
  return `${kind} ${identity}`;
}

function textOf({ instanceId, requestId, identity }: Omit<TransferName, 'kind'>): string {
  return `${instanceId} ${requestId}\0${identity}`;
}
