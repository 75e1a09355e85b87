/**
 * The index of a raw block device, on the device: two containers, written in turn.
 *
 *     block 0   magic[8] │ version u32 │ sequence u64 │ payload bytes u64 │ CRC-32 u32
 *     block 1…  payload: JSON, ASCII
 *
 * The older container is overwritten, its payload first and its head last, with all values and the
 * payload on the device before the head: so at any time one of the two is whole, and names only
 * values that are there.
 *
 * Writing takes a while, and the table changes meanwhile. The walk is by slot; an object that
 * comes or goes behind it is told next time. That is sound because `slot-table.ts` does not give on
 * a slot that this checkpoint may name. An object that moved to another slot during the walk can be
 * in it twice: whoever parses JSON takes the later one, and both are whole.
 *
 * `free_slots` is for readers of 0.5.0, which believe it; 0.5.6 and this server make their own.
 * It holds as many as fit.
 */
import { crc32 } from 'node:zlib';
import { isObject } from '../config-keys.ts';
import type { BlockDevice } from './block-device.ts';
import { type DeviceLayout, slotAtOffset } from './layout.ts';
import { asciiJson, entryJson, type NewEntry, type SlotTable } from './slot-table.ts';

const PAYLOAD_VERSION = 1;
const CONTAINER_COUNT = 2;

/** A container that is whole. */
export interface CheckpointPlace {
  readonly container: number;
  readonly sequence: number;
}

interface Found extends CheckpointPlace {
  readonly payload: Buffer;
}

export interface Checkpoint {
  readonly entries: readonly NewEntry[];
  readonly nextSlot: number;
  /** Entries that point nowhere, or that are of no key of ours. */
  readonly strangeCount: number;
}

/** Memory at a block boundary for blocks on their way. */
export type Staging = Buffer;

// ---------------------------------------------------------------- reading

/** The newest whole one; null when there is none. */
export async function findCheckpoint(
  device: BlockDevice,
  layout: DeviceLayout,
  staging: Staging,
): Promise<Found | null> {
  let newest: Found | null = null;
  for (let container = 0; container < CONTAINER_COUNT; container += 1) {
    const found = await readContainer(device, layout, { container, staging });
    if (found && (!newest || found.sequence > newest.sequence)) newest = found;
  }
  return newest;
}

async function readContainer(
  device: BlockDevice,
  layout: DeviceLayout,
  { container, staging }: { container: number; staging: Staging },
): Promise<Found | null> {
  const { containerBytes, blockAlignBytes, payloadBytesMax } = layout;
  const offset = container * containerBytes;
  const head = staging.subarray(0, blockAlignBytes);
  await device.read([head], offset);
  const isOurs =
    head.toString('latin1', 0, 8) === layout.metaMagic &&
    head.readUInt32LE(8) === layout.metaVersion;
  const sequence = Number(head.readBigUInt64LE(12));
  const payloadBytes = Number(head.readBigUInt64LE(20));
  const crc = head.readUInt32LE(28);
  if (!isOurs || payloadBytes === 0 || payloadBytes > payloadBytesMax) return null;
  const payload = Buffer.allocUnsafe(payloadBytes);
  for (let done = 0; done < payloadBytes; ) {
    const part = staging.subarray(0, blocksOf(layout, payloadBytes - done));
    await device.read([part], offset + blockAlignBytes + done);
    done += part.copy(payload, done);
  }
  return crc32(payload) === crc ? { container, sequence, payload } : null;
}

/** A text instead of a checkpoint says why it is not one of this device. */
export function parseCheckpoint({ payload }: Found, layout: DeviceLayout): Checkpoint | string {
  let data: unknown;
  try {
    data = JSON.parse(payload.toString('utf8'));
  } catch {
    return 'it is not JSON';
  }
  if (!isObject(data)) return 'it is no object';
  const expected = { ...frameOf(layout), capacity_bytes: undefined, data_base_offset: undefined };
  for (const [name, value] of Object.entries(expected)) {
    // Absent ones agree, as with the peer; but there must be a version.
    const given = data[name] ?? (name === 'version' ? null : undefined);
    if (value === undefined || given === undefined || given === value) continue;
    return `its ${name} is ${asciiJson(given)}, here it is ${asciiJson(value)}`;
  }
  const nextSlot = data['next_slot'] ?? 0;
  const isCount = Number.isSafeInteger(nextSlot) && (nextSlot as number) >= 0;
  if (!isCount || (nextSlot as number) > layout.slotCount) {
    return `its next_slot is ${asciiJson(nextSlot)} of ${layout.slotCount}`;
  }
  const given = isObject(data['entries']) ? Object.entries(data['entries']) : [];
  const entries = given.map(([keyText, entry]) => readEntry(keyText, entry, layout));
  const good = entries.filter((entry) => entry !== null);
  return {
    entries: good,
    nextSlot: nextSlot as number,
    strangeCount: entries.length - good.length,
  };
}

function readEntry(keyText: string, entry: unknown, layout: DeviceLayout): NewEntry | null {
  if (!isObject(entry)) return null;
  const { offset, size, shape, dtype, fmt, cached_positions } = entry;
  const slot = typeof offset === 'number' ? slotAtOffset(layout, offset) : null;
  if (slot === null || !Number.isSafeInteger(size)) return null;
  const sizeBytes = size as number;
  if (sizeBytes < 1 || sizeBytes > layout.valueBytesMax) return null;
  const meaning = { shape, dtype, fmt, cached_positions };
  const description = Object.entries(meaning).map(
    ([name, value]) => `"${name}":${asciiJson(value ?? null)}`,
  );
  return { keyText, slot, sizeBytes, description: description.join(',') };
}

// ---------------------------------------------------------------- writing

/** Rejects when the device does not take it, or when it has no room for it. */
export async function writeCheckpoint(
  device: BlockDevice,
  layout: DeviceLayout,
  what: {
    readonly table: SlotTable;
    readonly newest: CheckpointPlace | null;
    readonly staging: Staging;
  },
): Promise<CheckpointPlace> {
  const { table, newest, staging } = what;
  const place = {
    container: newest ? 1 - newest.container : 0,
    sequence: (newest?.sequence ?? 0) + 1,
  };
  const offset = place.container * layout.containerBytes;
  const payload = new PayloadWriter(device, layout, offset, staging);
  await writePayload(payload, layout, table);
  await payload.end();
  await device.sync();
  const head = staging.subarray(0, layout.blockAlignBytes).fill(0);
  head.write(layout.metaMagic, 0, 'latin1');
  head.writeUInt32LE(layout.metaVersion, 8);
  head.writeBigUInt64LE(BigInt(place.sequence), 12);
  head.writeBigUInt64LE(BigInt(payload.sizeBytes), 20);
  head.writeUInt32LE(payload.crc, 28);
  await device.write([head], offset);
  await device.sync();
  return place;
}

async function writePayload(
  payload: PayloadWriter,
  layout: DeviceLayout,
  table: SlotTable,
): Promise<void> {
  await payload.add(`${asciiJson(frameOf(layout)).slice(0, -1)},"entries":{`);
  const namedSlots = new Uint8Array(layout.slotCount);
  let separator = '';
  for (let slot = 0; slot < table.nextSlot; slot += 1) {
    const entry = table.at(slot);
    if (!entry) continue;
    entry.isNamed = true;
    namedSlots[slot] = 1;
    const isFull = payload.add(separator + entryJson(layout, entry));
    if (isFull) await isFull;
    separator = ',';
  }
  const { nextSlot } = table;
  const tail = `],"next_slot":${nextSlot}}`;
  await payload.add('},"free_slots":[');
  separator = '';
  for (let slot = 0; slot < nextSlot; slot += 1) {
    if (namedSlots[slot] === 1) continue;
    if (payload.roomBytes < tail.length + 20) break;
    await payload.add(`${separator}${slot}`);
    separator = ',';
  }
  await payload.add(tail);
}

/** What a checkpoint says of its device. */
function frameOf(layout: DeviceLayout) {
  return {
    version: PAYLOAD_VERSION,
    device_path: layout.devicePath,
    capacity_bytes: layout.capacityBytes,
    block_align: layout.blockAlignBytes,
    header_bytes: layout.headerBytes,
    slot_bytes: layout.slotBytes,
    meta_total_bytes: layout.metaTotalBytes,
    meta_magic: layout.metaMagic,
    meta_version: layout.metaVersion,
    data_base_offset: layout.metaTotalBytes,
  };
}

/** Collects text and writes it whenever the staging memory is full, so that the loop gets turns. */
class PayloadWriter {
  readonly #device: BlockDevice;
  readonly #layout: DeviceLayout;
  readonly #staging: Staging;
  readonly #offset: number;
  #filledBytes = 0;
  #writtenBytes = 0;
  #crc = 0;

  constructor(device: BlockDevice, layout: DeviceLayout, offset: number, staging: Staging) {
    this.#device = device;
    this.#layout = layout;
    this.#offset = offset + layout.blockAlignBytes;
    this.#staging = staging;
  }

  get sizeBytes(): number {
    return this.#writtenBytes + this.#filledBytes;
  }

  get roomBytes(): number {
    return this.#layout.payloadBytesMax - this.sizeBytes;
  }

  get crc(): number {
    return this.#crc;
  }

  /** ASCII. A promise only when something had to be written. */
  add(text: string): Promise<void> | undefined {
    if (text.length > this.roomBytes) {
      throw new Error(
        `the checkpoint exceeds its container of ${this.#layout.payloadBytesMax} bytes`,
      );
    }
    const { length } = this.#staging;
    if (this.#filledBytes + text.length >= length) return this.#addInParts(text);
    this.#filledBytes += this.#staging.write(text, this.#filledBytes, 'latin1');
    return undefined;
  }

  async #addInParts(text: string): Promise<void> {
    for (let done = 0; done < text.length; ) {
      const part = text.slice(done, done + this.#staging.length - this.#filledBytes);
      this.#filledBytes += this.#staging.write(part, this.#filledBytes, 'latin1');
      done += part.length;
      if (this.#filledBytes === this.#staging.length) await this.#flush();
    }
  }

  async end(): Promise<void> {
    if (this.#filledBytes > 0) await this.#flush();
  }

  async #flush(): Promise<void> {
    const filledBytes = this.#filledBytes;
    const blocks = this.#staging.subarray(0, blocksOf(this.#layout, filledBytes));
    blocks.fill(0, filledBytes);
    this.#crc = crc32(this.#staging.subarray(0, filledBytes), this.#crc);
    await this.#device.write([blocks], this.#offset + this.#writtenBytes);
    this.#writtenBytes += filledBytes;
    this.#filledBytes = 0;
  }
}

/** `sizeBytes` in whole blocks; a slice of the staging memory ends where that ends. */
function blocksOf({ blockAlignBytes }: DeviceLayout, sizeBytes: number): number {
  return Math.ceil(sizeBytes / blockAlignBytes) * blockAlignBytes;
}
