/**
 * Slots of L1 that workers fill and read themselves, in shared memory, at their own pace.
 *
 *   PREPARE_STORE                                      PREPARE_RETRIEVE
 *        │ reserved, pinned                                 │ pinned
 *        ▼                                                  ▼
 *   pending write ── COMMIT ──▶ readable               pending read ── COMMIT ──▶ unpinned
 *     │  ▲ │                                             │  ▲ │
 *     │  └─┘ time over, but the worker pings             │  └─┘
 *     │                                                  │
 *     ├── time over, reaped ──▶ quarantine ◀─────────────┤     key given up at once, memory kept
 *     │                             └──▶ free            │     (slot-quarantine.ts)
 *     └── left, registered anew ──▶ free ◀───────────────┘
 *
 * Invariants:
 *  - An object becomes readable only by the COMMIT of the transfer that was handed its slot, while
 *    that transfer is pending. Whatever else happens, its bytes are never seen (spec engine 9.3).
 *  - Every pin that a transfer has is given back exactly once.
 *
 * Time is looked at before each request is served and by a timer, so answers do not depend on how
 * often the timer runs. A live worker is extended a bounded number of times: a COMMIT that was lost
 * must not keep a prompt from being cached for the life of its worker.
 */
import type { Clock, Timer } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import type { InstanceId } from '../api.ts';
import type { DropReason, InstanceRegistry } from '../instances.ts';
import { type NewTransfer, type PendingTransfer, PendingTransfers } from './pending-transfers.ts';
import type { TransferSessions, WorkerStorage } from './ports.ts';
import { SlotQuarantine } from './slot-quarantine.ts';

const SWEEP_INTERVAL_MS = 1000;
/** With the default TTL of 10 minutes: after an hour a COMMIT is taken for lost. */
const EXTENSION_COUNT_MAX = 5;
/** Reads, and writes, that one worker may have open; engines run some hundred requests at once. */
export const PENDING_COUNT_MAX = 4096;

/** A worker that left like this uses none of its slots any more. */
const HARMLESS_REASONS: ReadonlySet<DropReason> = new Set<DropReason>([
  'unregistered',
  'replaced',
  'owner-gone',
  'shutdown',
]);

export interface WorkerSlotsOptions {
  readonly storage: WorkerStorage;
  readonly sessions: Pick<TransferSessions, 'consumeHolds'>;
  readonly instances: Pick<InstanceRegistry, 'isPinging'>;
  readonly clock: Clock;
  readonly writeTtlMs: number;
  readonly readTtlMs: number;
  readonly quarantineBytesMax: number;
}

/** What a COMMIT_RETRIEVE finds. */
export type EndedRead = PendingTransfer | 'released' | 'lost' | 'none';

export class WorkerSlots {
  readonly #options: WorkerSlotsOptions;
  readonly #writes = new PendingTransfers();
  readonly #reads = new PendingTransfers();
  readonly #quarantine: SlotQuarantine;
  readonly #timer: Timer;
  #extensionCount = 0;
  #abandonedCount = 0;
  #lateCommitCount = 0;

  constructor(options: WorkerSlotsOptions) {
    this.#options = options;
    const { storage, quarantineBytesMax, clock } = options;
    this.#quarantine = new SlotQuarantine({ storage, bytesMax: quarantineBytesMax });
    this.#timer = clock.every(SWEEP_INTERVAL_MS, () => this.sweep());
  }

  get quarantinedBytes(): number {
    return this.#quarantine.bytes;
  }

  get pendingBytes(): number {
    return this.#writes.bytes + this.#reads.bytes;
  }

  /** Throws `ERR_OVERLOADED` when the worker has too many transfers open. */
  checkRoom(instanceId: InstanceId): void {
    const count = Math.max(this.#writes.countOf(instanceId), this.#reads.countOf(instanceId));
    if (count < PENDING_COUNT_MAX) return;
    throw new KvdError(
      'ERR_OVERLOADED',
      `instance ${instanceId} has ${PENDING_COUNT_MAX} transfers open, which is the bound`,
    );
  }

  /** `preparedMs`: a time before the slots were reserved, so that they outlive the entry. */
  addWrite(transfer: NewTransfer, preparedMs: number): void {
    const deadlineMs = preparedMs + this.#options.writeTtlMs;
    this.#writes.add({ ...transfer, kind: 'write', deadlineMs, extensionCount: 0 });
  }

  addRead(transfer: NewTransfer): void {
    const deadlineMs = this.#options.clock.nowMs() + this.#options.readTtlMs;
    this.#reads.add({ ...transfer, kind: 'read', deadlineMs, extensionCount: 0 });
  }

  /**
   * The write that a COMMIT without data ends; its slots are the caller's to finish. Null when
   * there is none, or when its time was over: then its slots are free now.
   */
  takeWrite(instanceId: InstanceId, identity: string, requestId: string): PendingTransfer | null {
    this.sweep();
    // A late COMMIT may not end a newer reservation of the same request, which nobody has filled.
    if (this.releaseLate('write', instanceId, identity, requestId)) return null;
    return this.#writes.take(instanceId, identity, requestId) ?? null;
  }

  /** The worker is done with a transfer that it was deprived of. False: no such transfer. */
  releaseLate(
    kind: 'write' | 'read',
    instanceId: InstanceId,
    identity: string,
    requestId: string,
  ): boolean {
    if (!this.#quarantine.release({ kind, instanceId, identity, requestId })) return false;
    this.#lateCommitCount += 1;
    return true;
  }

  /** The writes of a key whose data came inline; their slots are the caller's to give back. */
  takeWritesOfKey(instanceId: InstanceId, identity: string): PendingTransfer[] {
    this.sweep();
    return this.#writes.takeKey(instanceId, identity);
  }

  /** Ends a read. Its pins are given back; a pending one is returned. */
  endRead(instanceId: InstanceId, identity: string, requestId: string): EndedRead {
    this.sweep();
    const read = this.#reads.take(instanceId, identity, requestId);
    if (read) {
      this.#options.storage.releaseRead(read.slots);
      return read;
    }
    if (this.releaseLate('read', instanceId, identity, requestId)) return 'released';
    const name = { kind: 'read', instanceId, identity, requestId } as const;
    return this.#quarantine.takeLostRead(name) ? 'lost' : 'none';
  }

  /** False: no COMMIT_RETRIEVE of this worker can end anything. */
  hasReads(instanceId: InstanceId): boolean {
    const { count } = this.#reads;
    return (count > 0 && this.#reads.countOf(instanceId) > 0) || this.hasQuarantine(instanceId);
  }

  hasQuarantine(instanceId: InstanceId): boolean {
    return this.#quarantine.has(instanceId) || this.#quarantine.hasLostReads;
  }

  dropInstance(instanceId: InstanceId, reason: DropReason): void {
    const { storage, sessions } = this.#options;
    const isDone = HARMLESS_REASONS.has(reason);
    for (const write of this.#writes.takeInstance(instanceId)) {
      // Slots that nobody writes to any more must not push others out of the quarantine.
      if (!isDone) {
        this.#abandon(write);
        continue;
      }
      storage.abandonStore(write.slots);
      storage.releaseAbandoned(write.slots);
      write.report.fail('ERR_UNKNOWN_INSTANCE');
    }
    for (const read of this.#reads.takeInstance(instanceId)) {
      sessions.consumeHolds(read.requestId, read.connectionId, read.slots);
      if (!isDone) {
        this.#abandon(read);
        continue;
      }
      storage.releaseRead(read.slots);
      read.report.fail('ERR_UNKNOWN_INSTANCE');
    }
    if (isDone) this.#quarantine.releaseInstance(instanceId);
  }

  /** The worker has registered again: whatever it was taken from before, it has let go of. */
  releaseQuarantine(instanceId: InstanceId): void {
    this.#quarantine.releaseInstance(instanceId);
  }

  /** Ends or extends what is over by now. Cheap when nothing is. */
  sweep(): void {
    const { clock, storage, writeTtlMs, readTtlMs } = this.#options;
    const nowMs = clock.nowMs();
    this.#expire(this.#writes, nowMs, writeTtlMs, (write) => storage.extendStore(write.slots));
    this.#expire(this.#reads, nowMs, readTtlMs, () => {});
    this.#quarantine.releaseDue(nowMs);
  }

  status(): Record<string, unknown> {
    return {
      pending_write_count: this.#writes.count,
      pending_write_bytes: this.#writes.bytes,
      pending_read_count: this.#reads.count,
      pending_read_bytes: this.#reads.bytes,
      extension_count: this.#extensionCount,
      abandoned_transfer_count: this.#abandonedCount,
      late_commit_count: this.#lateCommitCount,
      ...this.#quarantine.status(),
    };
  }

  close(): void {
    this.#timer.cancel();
    this.#quarantine.releaseAll();
  }

  #expire(
    table: PendingTransfers,
    nowMs: number,
    ttlMs: number,
    extend: (transfer: PendingTransfer) => void,
  ): void {
    for (let due = table.firstDue(nowMs); due; due = table.firstDue(nowMs)) {
      const isAlive = this.#options.instances.isPinging(due.instanceId, ttlMs);
      if (isAlive && due.extensionCount < EXTENSION_COUNT_MAX) {
        due.extensionCount += 1;
        this.#extensionCount += 1;
        extend(due);
        table.postpone(due, nowMs + ttlMs);
      } else {
        table.remove(due);
        this.#abandon(due);
      }
    }
  }

  /** Gives a transfer up that its worker may still be busy with. */
  #abandon(transfer: PendingTransfer): void {
    const { clock, storage, writeTtlMs } = this.#options;
    this.#abandonedCount += 1;
    transfer.report.fail('ERR_TIMEOUT');
    if (transfer.kind === 'write') storage.abandonStore(transfer.slots);
    this.#quarantine.add(transfer, clock.nowMs() + writeTtlMs);
  }
}
