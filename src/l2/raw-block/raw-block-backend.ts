/**
 * Values in slots of a raw block device, with an index in memory that is written to the device now
 * and then (spec l2-adapters 4.6).
 *
 * Between checkpoints nothing of the index is on the device: a crash loses what came after the last
 * one, and nothing else (`slot-table.ts` says why). A checkpoint is written
 *   - at an interval, if something has changed and the device was quiet for a moment;
 *   - under steady load after some intervals all the same;
 *   - when no slot is free but some only wait for it;
 *   - on close.
 * One that fails is counted, logged, and tried again at the next occasion.
 *
 * Two stores of one key: the second one waits for the first and finds the value there.
 */
import type { Clock, Timer } from '../../clock.ts';
import { KvdError, toKvdError } from '../../errors.ts';
import type { Logger } from '../../observability/log.ts';
import { formatBytes } from '../../units.ts';
import type {
  DeleteResult,
  L2Backend,
  L2Object,
  ListedObject,
  ListOptions,
  ListPage,
  LoadResult,
  LookupResult,
  StoreResult,
} from '../backend.ts';
import { decodeRawBlockKey, encodeRawBlockKey } from '../key-text.ts';
import type { ObjectKey } from '../object-key.ts';
import type { BlockDevice } from './block-device.ts';
import {
  type CheckpointPlace,
  findCheckpoint,
  parseCheckpoint,
  type Staging,
  writeCheckpoint,
} from './checkpoint.ts';
import {
  type DeviceLayout,
  describeLayout,
  identityOf,
  neededMetaBytes,
  plannedSlotCount,
} from './layout.ts';
import { pageAligned, SlotIo, stagingBytesOf } from './slot-io.ts';
import { type SlotEntry, SlotTable } from './slot-table.ts';

export interface RawBlockOptions {
  readonly device: BlockDevice;
  readonly layout: DeviceLayout;
  readonly storeLaneCount: number;
  readonly loadLaneCount: number;
  readonly checkpoint: {
    /** 0 = only on close and when slots are needed. */
    readonly intervalMs: number;
    readonly quietMs: number;
    readonly isLoaded: boolean;
    readonly isVerified: boolean;
  };
  /** Settings that `status` shows. */
  readonly about: Readonly<Record<string, unknown>>;
  readonly log: Logger;
  readonly clock: Clock;
}

const never = new AbortController().signal;
/** Slots that are looked at for one page, whatever it yields: some milliseconds. */
const LIST_SLOTS_MAX = 8192;
/** Intervals after which a checkpoint is written although the device is busy. */
const BUSY_INTERVALS_MAX = 5;

export class RawBlockBackend implements L2Backend {
  readonly #options: RawBlockOptions;
  readonly #layout: DeviceLayout;
  readonly #table: SlotTable;
  readonly #stores: SlotIo;
  readonly #loads: SlotIo;
  readonly #staging: Staging;
  /** Stores in progress by key; none of them rejects. */
  readonly #storing = new Map<string, Promise<unknown>>();
  #timer: Timer | null = null;
  #newest: CheckpointPlace | null = null;
  #checkpointing: Promise<void> | null = null;
  #persistedChangeCount = 0;
  #busyIntervalCount = 0;
  #ioCount = 0;
  #lastIoMs = 0;
  #checkpointFailureCount = 0;
  #hasCheckpointFailed = false;
  #metadataFullCount = 0;
  #mismatchCount = 0;
  #isClosed = false;

  private constructor(options: RawBlockOptions) {
    this.#options = options;
    const { device, layout } = options;
    this.#layout = layout;
    this.#table = new SlotTable(layout);
    this.#stores = new SlotIo(device, layout, options.storeLaneCount);
    this.#loads = new SlotIo(device, layout, options.loadLaneCount);
    this.#staging = Buffer.from(pageAligned(stagingBytesOf(layout)));
  }

  static async open(options: RawBlockOptions): Promise<RawBlockBackend> {
    const backend = new RawBlockBackend(options);
    await backend.#recover();
    backend.#warnOfSmallMetadata();
    const { clock, checkpoint } = options;
    if (checkpoint.intervalMs > 0) {
      backend.#timer = clock.every(checkpoint.intervalMs, () => backend.#onInterval());
    }
    return backend;
  }

  // ---------------------------------------------------------------- values

  store(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly StoreResult[]> {
    return eachAlone(objects, ({ key, bytes }) => this.#storeOne(key, bytes, signal));
  }

  async #storeOne(key: ObjectKey, bytes: Uint8Array, signal: AbortSignal): Promise<StoreResult> {
    const { valueBytesMax } = this.#layout;
    if (bytes.length < 1 || bytes.length > valueBytesMax) {
      throw new KvdError(
        'ERR_L2_REFUSED',
        `a value of ${bytes.length} bytes does not fit a slot, which takes up to ` +
          `${valueBytesMax}: enlarge "slot_bytes"`,
      );
    }
    const keyText = encodeRawBlockKey(key);
    for (;;) {
      signal.throwIfAborted();
      const running = this.#storing.get(keyText);
      if (!running) break;
      await running;
    }
    if (this.#table.get(keyText)?.sizeBytes === bytes.length) return 'present';
    const writing = this.#write(keyText, bytes, signal);
    const ended = writing.then(ignore, ignore).then(() => this.#storing.delete(keyText));
    this.#storing.set(keyText, ended);
    await writing;
    return 'stored';
  }

  async #write(keyText: string, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    const entry = await this.#reserve(keyText, bytes.length, signal);
    const place = { slot: entry.slot, identity: identityOf(keyText) };
    try {
      await this.#counted(this.#stores.write(place, bytes, signal));
    } catch (error) {
      this.#table.cancel(entry);
      throw error;
    }
    this.#table.commit(entry);
  }

  async #reserve(keyText: string, sizeBytes: number, signal: AbortSignal): Promise<SlotEntry> {
    for (;;) {
      signal.throwIfAborted();
      const entry = this.#table.reserve(keyText, sizeBytes);
      if (entry === 'no-metadata') {
        this.#metadataFullCount += 1;
        throw new KvdError(
          'ERR_L2_FULL',
          `the metadata area is full with ${this.#table.keyCount} objects: enlarge ` +
            '"meta_total_bytes"',
        );
      }
      if (entry !== 'no-slot') return entry;
      const isHopeless = this.#table.waitingCount === 0 && !this.#checkpointing;
      if (isHopeless) throw new KvdError('ERR_L2_FULL', 'no free slot');
      await this.checkpoint();
    }
  }

  async lookup(keys: readonly ObjectKey[], _signal: AbortSignal): Promise<readonly LookupResult[]> {
    return eachAlone(keys, async (key) => {
      return this.#table.get(encodeRawBlockKey(key))?.sizeBytes ?? null;
    });
  }

  load(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly LoadResult[]> {
    return eachAlone(objects, ({ key, bytes }) => this.#loadOne(key, bytes, signal));
  }

  async #loadOne(key: ObjectKey, bytes: Uint8Array, signal: AbortSignal): Promise<LoadResult> {
    const keyText = encodeRawBlockKey(key);
    const entry = this.#table.get(keyText);
    if (entry?.sizeBytes !== bytes.length) return 'missing';
    this.#table.enter(entry);
    try {
      const place = { slot: entry.slot, identity: identityOf(keyText) };
      if (await this.#counted(this.#loads.read(place, bytes, signal))) return 'loaded';
    } finally {
      this.#table.leave(entry);
    }
    this.#dropMismatch(entry);
    return 'missing';
  }

  /** Somebody else has written to the device, or it has lost a write. */
  #dropMismatch({ keyText, slot }: SlotEntry): void {
    this.#mismatchCount += 1;
    if (this.#table.get(keyText)?.slot === slot) this.#table.retire(keyText);
    const message = `slot ${slot} of ${this.#layout.devicePath} does not hold what the index says`;
    this.#options.log.limited('warn', 'slot', message);
  }

  delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly DeleteResult[]> {
    return eachAlone(keys, async (key) => {
      signal.throwIfAborted();
      return this.#table.retire(encodeRawBlockKey(key)) ? 'deleted' : 'absent';
    });
  }

  /** Token: the slot to go on from. */
  async list({ modelName, pageSize, token }: ListOptions): Promise<ListPage> {
    const objects: ListedObject[] = [];
    let slot = Number(token ?? 0);
    const endSlot = Math.min(slot + LIST_SLOTS_MAX, this.#table.nextSlot);
    for (; slot < endSlot && objects.length < pageSize; slot += 1) {
      const entry = this.#table.at(slot);
      const key = entry && decodeRawBlockKey(entry.keyText);
      if (!key || (modelName !== null && key.modelName !== modelName)) continue;
      objects.push({ key, sizeBytes: entry.sizeBytes, storedMs: 0 });
    }
    return { objects, nextToken: slot < this.#table.nextSlot ? String(slot) : null };
  }

  chargedBytes(): number {
    return this.#layout.slotBytes;
  }

  status(): Record<string, unknown> {
    const table = this.#table;
    const isHealthy = !this.#isClosed && !this.#hasCheckpointFailed;
    return {
      is_healthy: isHealthy,
      core: {
        is_healthy: isHealthy,
        type: 'RawBlockCore',
        key_namespace: 'object',
        ...describeLayout(this.#layout),
        indexed_key_count: table.keyCount,
        inflight_key_count: this.#storing.size,
        free_slot_count: table.freeCount,
        waiting_slot_count: table.waitingCount,
        next_slot: table.nextSlot,
        metadata_seq: this.#newest?.sequence ?? 0,
        metadata_dirty_total: table.changeCount,
        metadata_persisted: this.#persistedChangeCount,
        metadata_bytes: table.entryBytes,
        metadata_bytes_max: table.entryBytesMax,
        metadata_full_total: this.#metadataFullCount,
        metadata_failed_total: this.#checkpointFailureCount,
        slot_mismatch_total: this.#mismatchCount,
        inflight_io_count: this.#ioCount,
        ...this.#options.about,
      },
    };
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#timer?.cancel();
    // A running one may have begun before the last change.
    await this.#checkpointing?.catch(ignore);
    if (this.#isDirty) await this.checkpoint().catch(ignore);
    await this.#options.device.close();
  }

  async #counted<T>(io: Promise<T>): Promise<T> {
    this.#ioCount += 1;
    try {
      return await io;
    } finally {
      this.#ioCount -= 1;
      this.#lastIoMs = this.#options.clock.nowMs();
    }
  }

  // ---------------------------------------------------------------- checkpoints

  get #isDirty(): boolean {
    return this.#table.changeCount > this.#persistedChangeCount;
  }

  #onInterval(): void {
    if (!this.#isDirty || this.#checkpointing) return;
    const { clock, checkpoint } = this.#options;
    const isQuiet = this.#ioCount === 0 && clock.nowMs() - this.#lastIoMs >= checkpoint.quietMs;
    this.#busyIntervalCount += 1;
    if (!isQuiet && this.#busyIntervalCount < BUSY_INTERVALS_MAX) return;
    // It is counted and logged where it fails.
    this.checkpoint().catch(ignore);
  }

  /** Writes one, or waits for the one that is being written. Rejects when it fails. */
  checkpoint(): Promise<void> {
    this.#checkpointing ??= this.#checkpoint().finally(() => {
      this.#checkpointing = null;
    });
    return this.#checkpointing;
  }

  async #checkpoint(): Promise<void> {
    const table = this.#table;
    const { device, log } = this.#options;
    this.#busyIntervalCount = 0;
    const { changeCount } = table;
    const waiting = table.takeWaiting();
    try {
      const what = { table, newest: this.#newest, staging: this.#staging };
      this.#newest = await writeCheckpoint(device, this.#layout, what);
    } catch (error) {
      table.putBackWaiting(waiting);
      this.#checkpointFailureCount += 1;
      this.#hasCheckpointFailed = true;
      const { message } = error as Error;
      const { devicePath } = this.#layout;
      log.limited('error', 'checkpoint', `no checkpoint was written to ${devicePath}: ${message}`);
      throw error;
    }
    this.#hasCheckpointFailed = false;
    table.addFree(waiting);
    this.#persistedChangeCount = changeCount;
  }

  // ---------------------------------------------------------------- start

  async #recover(): Promise<void> {
    const { device, layout, log, checkpoint } = this.#options;
    const found = await findCheckpoint(device, layout, this.#staging);
    this.#newest = found;
    if (!found) {
      log.info(`${layout.devicePath} has no checkpoint: it begins empty`);
      return;
    }
    const parsed = checkpoint.isLoaded ? parseCheckpoint(found, layout) : 'it was not to be loaded';
    if (typeof parsed === 'string') {
      log.warn(`the checkpoint of ${layout.devicePath} is left out and replaced: ${parsed}`);
      // At once: as long as it is there, it names slots that are written from now on.
      await this.checkpoint();
      return;
    }
    const known = parsed.entries.filter(({ keyText }) => decodeRawBlockKey(keyText) !== null);
    this.#table.restore(known, parsed.nextSlot);
    if (checkpoint.isVerified) await this.#verify();
    const strangeCount = parsed.strangeCount + parsed.entries.length - known.length;
    log.info(
      `${layout.devicePath}: ${this.#table.keyCount} objects, checkpoint ${found.sequence}; ` +
        `${this.#mismatchCount} slots held something else, ${strangeCount} entries were strange`,
    );
  }

  async #verify(): Promise<void> {
    const entries = Array.from({ length: this.#table.nextSlot }, (_, i) => this.#table.at(i));
    const found = entries.filter((entry) => entry !== null);
    let next = 0;
    const work = async (): Promise<void> => {
      for (let entry = found[next++]; entry; entry = found[next++]) {
        const place = { slot: entry.slot, identity: identityOf(entry.keyText) };
        // A slot that cannot be read is as good as one that holds something else.
        const isHeld = await this.#loads.holds(place, entry.sizeBytes, never).catch(() => false);
        if (!isHeld) this.#dropMismatch(entry);
      }
    };
    await Promise.all(Array.from({ length: this.#options.loadLaneCount }, work));
  }

  #warnOfSmallMetadata(): void {
    const { layout, log } = this.#options;
    const plannedCount = plannedSlotCount(layout);
    if (plannedCount >= layout.slotCount) return;
    log.warn(
      `"meta_total_bytes" (${formatBytes(layout.metaTotalBytes)}) has room for about ` +
        `${plannedCount} of ${layout.slotCount} slots, and no more are used: set it to ` +
        `${neededMetaBytes(layout)}, which voids what is stored`,
    );
  }
}

/** One object after the other in order of the batch, all at once; a failure is a value. */
function eachAlone<T, R>(
  items: readonly T[],
  run: (item: T) => Promise<R>,
): Promise<readonly (R | Error)[]> {
  return Promise.all(
    items.map((item) =>
      run(item).catch((error: unknown) => (error instanceof Error ? error : toKvdError(error))),
    ),
  );
}

/** For promises whose failure is told elsewhere. */
function ignore(): void {}
