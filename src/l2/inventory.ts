/**
 * What an adapter knows of the content of its store: sizes, checksums, and whom to tell of changes.
 *
 * It knows of an object because this process has stored it, because the scan at start has listed
 * it, or because a look-up has found it. Layout records are in no inventory: nobody evicts them.
 */
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';
import type { Logger } from '../observability/log.ts';
import type { DeleteResult, L2Object, ListedObject, StoreResult } from './backend.ts';
import { Checksums, checksumOf } from './checksums.ts';
import { isLayoutRecord } from './layout-record.ts';
import type { ObjectKey } from './object-key.ts';
import { ObjectMap } from './object-map.ts';
import { type ScanOptions, scanStore } from './store-scan.ts';
import { orAborted } from './task.ts';
import { type Usage, UsageLedger } from './usage-ledger.ts';

const SCAN_RETRY_MS = 10_000;

export interface L2Listener {
  /** Also of what was there already: somebody wanted it. */
  stored(keys: readonly ObjectKey[], sizesBytes: readonly number[]): void;
  /** An earlier server has left them; all of them come in the order of their age, oldest first. */
  found(keys: readonly ObjectKey[], sizesBytes: readonly number[]): void;
  accessed(keys: readonly ObjectKey[]): void;
  deleted(keys: readonly ObjectKey[]): void;
}

export interface InventoryOptions {
  /** Names the adapter in messages. */
  readonly name: string;
  /** 0 = unbounded. */
  readonly capacityBytes: number;
  /** What a value of this size takes of the capacity. */
  readonly chargedBytes: (sizeBytes: number) => number;
  readonly hasChecksum: boolean;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Bytes that are reserved for each object; null = it does not fit. */
export type ReservedRoom = readonly (number | null)[];

export class Inventory {
  readonly #options: InventoryOptions;
  readonly #ledger: UsageLedger;
  readonly #checksums: Checksums | null;
  readonly #listeners: L2Listener[] = [];
  #makeRoom: ((neededBytes: number) => Promise<void>) | null = null;
  /** What was deleted since it began is none of its findings. */
  #scan: { readonly done: Promise<void>; readonly deleted: ObjectMap<true> } | null = null;
  #storeCount = 0;
  /** Of deletions that run: what nobody has stored since they began. */
  readonly #deletions = new Set<ObjectMap<true>>();

  constructor(options: InventoryOptions) {
    this.#options = options;
    this.#ledger = new UsageLedger(options.capacityBytes);
    this.#checksums = options.hasChecksum ? new Checksums() : null;
  }

  /** Of stores that have ended: a look-up that began before says nothing about theirs. */
  get storeCount(): number {
    return this.#storeCount;
  }

  get isScanning(): boolean {
    return this.#scan !== null;
  }

  usage(): Usage {
    return this.#ledger.usage();
  }

  onChange(listener: L2Listener): void {
    this.#listeners.push(listener);
  }

  onFull(makeRoom: (neededBytes: number) => Promise<void>): void {
    this.#makeRoom = makeRoom;
  }

  // ---------------------------------------------------------------- room

  /** To be given back with `release`, whatever becomes of the store. */
  async reserve(objects: readonly L2Object[], signal: AbortSignal): Promise<ReservedRoom> {
    if (this.#ledger.capacityBytes === 0) return objects.map(() => 0);
    if (this.#scan) await orAborted(this.#scan.done, signal);
    const growth = objects.reduce((sum, object) => sum + this.#growthOf(object), 0);
    const excessBytes = this.#ledger.excessOf(growth);
    if (excessBytes > 0 && this.#makeRoom) {
      const made = this.#makeRoom(excessBytes).catch((error: Error) => {
        this.#options.log.warn(`${this.#options.name}: eviction failed: ${error.message}`);
      });
      await orAborted(made, signal);
    }
    return objects.map((object) => {
      const bytes = this.#growthOf(object);
      if (bytes > 0 && this.#ledger.excessOf(bytes) > 0) return null;
      this.#ledger.reserve(bytes);
      return bytes;
    });
  }

  release(room: ReservedRoom): void {
    this.#ledger.release(room.reduce<number>((sum, bytes) => sum + (bytes ?? 0), 0));
  }

  fullError(sizeBytes: number): KvdError {
    const { usedBytes, capacityBytes } = this.usage();
    const text = `${sizeBytes} bytes do not fit: ${usedBytes} of ${capacityBytes} are used`;
    return new KvdError('ERR_L2_FULL', `${this.#options.name}: ${text}`);
  }

  /** What a store of it may add to the bytes that are used. */
  #growthOf({ key, bytes }: L2Object): number {
    if (isLayoutRecord(key)) return 0;
    const chargedBytes = this.#options.chargedBytes(bytes.length);
    return Math.max(0, chargedBytes - (this.#ledger.sizeOf(key) ?? 0));
  }

  // ---------------------------------------------------------------- changes

  stored(
    objects: readonly L2Object[],
    answers: readonly StoreResult[],
    checksums: readonly number[],
  ): void {
    this.#storeCount += 1;
    const keys: ObjectKey[] = [];
    const sizes: number[] = [];
    for (const [i, { key, bytes }] of objects.entries()) {
      const answer = answers[i] as StoreResult;
      if (answer instanceof Error) continue;
      if (answer !== 'present' && checksums[i] !== undefined)
        this.#checksums?.set(key, checksums[i]);
      if (isLayoutRecord(key)) continue;
      const storedBytes = typeof answer === 'number' ? answer : bytes.length;
      const sizeBytes = this.#options.chargedBytes(storedBytes);
      if (answer !== 'present' || !this.#ledger.has(key)) this.#ledger.add(key, sizeBytes);
      if (answer !== 'present') for (const keysLeft of this.#deletions) keysLeft.delete(key);
      this.#scan?.deleted.delete(key);
      // What is not counted is not evicted either.
      if (!this.#ledger.has(key)) continue;
      keys.push(key);
      sizes.push(sizeBytes);
    }
    this.#tellStored(keys, sizes);
  }

  accessed(keys: readonly ObjectKey[]): void {
    for (const listener of this.#listeners) listener.accessed(keys);
  }

  /** It is in the store and was not known, or not with this size. */
  learn(key: ObjectKey, storedBytes: number): void {
    const sizeBytes = this.#options.chargedBytes(storedBytes);
    if (isLayoutRecord(key) || this.#ledger.sizeOf(key) === sizeBytes) return;
    if (this.#ledger.add(key, sizeBytes)) this.#tellStored([key], [sizeBytes]);
  }

  /**
   * Deletes by `run`, and forgets what is gone by its answers; not what a store has put there
   * meanwhile, which came before or after: bytes that are counted and gone do less harm than bytes
   * that nobody counts.
   */
  async forgetDeleted(
    keys: readonly ObjectKey[],
    run: () => Promise<DeleteResult[]>,
  ): Promise<DeleteResult[]> {
    const keysLeft = new ObjectMap<true>();
    for (const key of keys) keysLeft.set(key, true);
    this.#deletions.add(keysLeft);
    try {
      const answers = await run();
      const gone = keys.filter((key, i) => !(answers[i] instanceof Error) && keysLeft.has(key));
      for (const key of gone) this.#scan?.deleted.set(key, true);
      this.forget(gone);
      return answers;
    } finally {
      this.#deletions.delete(keysLeft);
    }
  }

  /** They are not in the store any more. */
  forget(keys: readonly ObjectKey[]): void {
    const known: ObjectKey[] = [];
    for (const key of keys) {
      this.#checksums?.delete(key);
      if (this.#ledger.remove(key)) known.push(key);
    }
    if (known.length > 0) for (const listener of this.#listeners) listener.deleted(known);
  }

  #tellStored(keys: readonly ObjectKey[], sizesBytes: readonly number[]): void {
    if (keys.length === 0) return;
    for (const listener of this.#listeners) listener.stored(keys, sizesBytes);
  }

  // ---------------------------------------------------------------- checksums

  /** Empty when none are wanted. */
  async checksumsOf(objects: readonly L2Object[]): Promise<readonly number[]> {
    const checksums: number[] = [];
    if (!this.#checksums) return checksums;
    for (const { bytes } of objects) checksums.push(await checksumOf(bytes));
    return checksums;
  }

  /** False: these are not the bytes that were stored. */
  async agrees(object: L2Object): Promise<boolean> {
    return (await this.#checksums?.agrees(object)) ?? true;
  }

  // ---------------------------------------------------------------- scan

  /** Tries again later when the store cannot be listed. */
  startScan(list: ScanOptions['list'], closing: AbortSignal): void {
    const { log, clock, name } = this.#options;
    const done = scanStore({
      list,
      found: (objects) => this.#found(objects),
      isOver: () => closing.aborted,
    }).then(
      (count) => log.info(`${name} holds ${count} objects from before`),
      (error: Error) => {
        if (closing.aborted) return;
        log.warn(`${name}: what it holds is not known yet: ${error.message}`);
        clock.after(SCAN_RETRY_MS, () => {
          if (!closing.aborted) this.startScan(list, closing);
        });
      },
    );
    const scan = { done, deleted: new ObjectMap<true>() };
    this.#scan = scan;
    void done.then(() => {
      if (this.#scan === scan) this.#scan = null;
    });
  }

  #found(objects: readonly ListedObject[]): void {
    const { chargedBytes } = this.#options;
    const news = objects.filter(
      ({ key, sizeBytes }) =>
        !this.#scan?.deleted.has(key) &&
        !this.#ledger.has(key) &&
        this.#ledger.add(key, chargedBytes(sizeBytes)),
    );
    if (news.length === 0) return;
    const keys = news.map(({ key }) => key);
    const sizesBytes = news.map(({ sizeBytes }) => chargedBytes(sizeBytes));
    for (const listener of this.#listeners) listener.found(keys, sizesBytes);
  }
}
