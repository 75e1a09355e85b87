/**
 * What lies where on a raw block device (spec l2-adapters 4.6).
 *
 *     0            C            2C  metaTotalBytes                                   capacityBytes
 *     ├ container 0 ┼ container 1 ┼──┤ slot 0 │ slot 1 │ slot 2 │ …                     │ rest ┤
 *     │                              └ header │ value, padded with zeros to blocks
 *     └ head │ payload                        └ headerBytes
 *        └ blockAlignBytes
 *
 *   slot header   "LMCBLK01" │ identity u64 │ value bytes u64      little-endian, then zeros
 *
 * The identity is a short digest of the key: whoever reads a slot can tell whether it still holds
 * what the index says. Containers are the matter of `checkpoint.ts`.
 */
import { KvdError } from '../../errors.ts';
import { formatBytes } from '../../units.ts';
import { blake2b } from '../blake2b.ts';

export interface LayoutOptions {
  /** As configured: it stands in the checkpoint, and another one there makes it void. */
  readonly devicePath: string;
  readonly slotBytes: number;
  /** 0 = all of the device. */
  readonly capacityBytes: number;
  readonly blockAlignBytes: number;
  readonly headerBytes: number;
  readonly metaTotalBytes: number;
  readonly metaMagic: string;
  readonly metaVersion: number;
}

export interface DeviceLayout extends LayoutOptions {
  readonly containerBytes: number;
  /** The most that the payload of a checkpoint may take. */
  readonly payloadBytesMax: number;
  readonly slotCount: number;
  /** The most that a value may take. */
  readonly valueBytesMax: number;
}

const SLOT_MAGIC = Buffer.from('LMCBLK01', 'latin1');
const IDENTITY_BYTES = 8;
const BLOCK_ALIGN_BYTES_MIN = 512;

/**
 * What one object takes of a checkpoint, for sizing: a model name of 60 characters, a hash of 32
 * bytes, a tenant, and 150 characters of JSON.
 */
const PLANNED_ENTRY_BYTES = 384;

/** Throws `ERR_CONFIG` with what does not fit what. */
export function layOut(options: LayoutOptions, deviceBytes: number): DeviceLayout {
  checkOptions(options);
  const { slotBytes, headerBytes, blockAlignBytes, metaTotalBytes } = options;
  const capacityBytes = Math.min(options.capacityBytes || deviceBytes, deviceBytes);
  const containerBytes = Math.floor(metaTotalBytes / 2 / blockAlignBytes) * blockAlignBytes;
  const slotCount = Math.floor((capacityBytes - metaTotalBytes) / slotBytes);
  if (slotCount < 1) {
    refuse(
      `"device_path" ${options.devicePath} has ${formatBytes(capacityBytes)} to use, too little ` +
        `for "meta_total_bytes" (${formatBytes(metaTotalBytes)}) and one slot ` +
        `(${formatBytes(slotBytes)}): enlarge it, or lower "meta_total_bytes"`,
    );
  }
  return {
    ...options,
    capacityBytes,
    containerBytes,
    payloadBytesMax: containerBytes - blockAlignBytes,
    slotCount,
    valueBytesMax: slotBytes - headerBytes,
  };
}

function checkOptions(options: LayoutOptions): void {
  const { slotBytes, headerBytes, blockAlignBytes, metaTotalBytes, capacityBytes } = options;
  const isPower = (blockAlignBytes & (blockAlignBytes - 1)) === 0;
  if (!isPower || blockAlignBytes < BLOCK_ALIGN_BYTES_MIN) {
    refuse(`"block_align" must be a power of two of at least 512, got ${blockAlignBytes}`);
  }
  const aligned = { slot_bytes: slotBytes, header_bytes: headerBytes };
  for (const [name, bytes] of Object.entries({ ...aligned, meta_total_bytes: metaTotalBytes })) {
    if (bytes % blockAlignBytes === 0) continue;
    refuse(`"${name}" must be a multiple of "block_align" (${blockAlignBytes}), got ${bytes}`);
  }
  if (slotBytes <= headerBytes) {
    refuse(`"slot_bytes" must exceed "header_bytes" (${headerBytes}), got ${slotBytes}`);
  }
  if (metaTotalBytes < 4 * blockAlignBytes) {
    refuse(
      `"meta_total_bytes" must hold two copies of two blocks (${4 * blockAlignBytes}), ` +
        `got ${metaTotalBytes}`,
    );
  }
  if (capacityBytes > 0 && capacityBytes <= metaTotalBytes) {
    refuse(`"capacity_bytes" must exceed "meta_total_bytes" (${metaTotalBytes})`);
  }
  // biome-ignore lint/suspicious/noControlCharactersInRegex: ASCII is what it is.
  if (!/^[\x00-\x7f]{8}$/.test(options.metaMagic)) {
    refuse('"meta_magic" must be 8 ASCII characters');
  }
}

function refuse(message: string): never {
  throw new KvdError('ERR_CONFIG', message);
}

/** As the peer names it in its status. */
export function describeLayout(layout: DeviceLayout): Record<string, unknown> {
  return {
    device_path: layout.devicePath,
    block_align: layout.blockAlignBytes,
    header_bytes: layout.headerBytes,
    slot_bytes: layout.slotBytes,
    meta_total_bytes: layout.metaTotalBytes,
    usable_capacity_bytes: layout.slotCount * layout.slotBytes,
    max_slots: layout.slotCount,
  };
}

/** Slots that can be used before the checkpoint is full, with keys of ordinary length. */
export function plannedSlotCount({ slotCount, payloadBytesMax }: DeviceLayout): number {
  return Math.min(slotCount, Math.floor(payloadBytesMax / PLANNED_ENTRY_BYTES));
}

/** For "meta_total_bytes": room for all slots, in whole MiB. */
export function neededMetaBytes({ slotCount, blockAlignBytes }: DeviceLayout): number {
  const mebibyte = 1024 * 1024;
  const bytes = 2 * (slotCount * PLANNED_ENTRY_BYTES + 2 * blockAlignBytes);
  return Math.ceil(bytes / mebibyte) * mebibyte;
}

export function offsetOfSlot({ metaTotalBytes, slotBytes }: DeviceLayout, slot: number): number {
  return metaTotalBytes + slot * slotBytes;
}

/** Null when no slot begins there. */
export function slotAtOffset(layout: DeviceLayout, offset: number): number | null {
  const slot = (offset - layout.metaTotalBytes) / layout.slotBytes;
  return Number.isInteger(slot) && slot >= 0 && slot < layout.slotCount ? slot : null;
}

export function identityOf(keyText: string): Uint8Array {
  return blake2b(Buffer.from(keyText, 'utf8'), IDENTITY_BYTES);
}

export function writeSlotHeader(target: Buffer, identity: Uint8Array, sizeBytes: number): void {
  SLOT_MAGIC.copy(target);
  target.set(identity, 8);
  target.writeBigUInt64LE(BigInt(sizeBytes), 16);
}

export function isSlotOf(header: Buffer, identity: Uint8Array, sizeBytes: number): boolean {
  return (
    SLOT_MAGIC.equals(header.subarray(0, 8)) &&
    header.subarray(8, 16).equals(identity) &&
    header.readBigUInt64LE(16) === BigInt(sizeBytes)
  );
}
