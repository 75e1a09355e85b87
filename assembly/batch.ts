/**
 * The shape of a batch: how the input and output regions are numbered.
 *
 * Keyed calls name `chunkCount` hashes in KEY_HASHES and `namespaceCount` ids in NAMESPACES. Object
 * i = chunk * namespaceCount + n: chunks outside, ranks and groups inside. Slot calls name `count`
 * slots in SLOTS. Results go to SLOTS, CODES and GENERATIONS under the same i.
 */
import {
  BATCH_NAMESPACE_COUNT_MAX,
  batchCountMax,
  CODES,
  FIGURES,
  GENERATIONS,
  HASH_SIZE,
  KEY_HASHES,
  NAMESPACES,
  SLOTS,
} from './memory-map';

/** A slot that is not there. */
export const NO_SLOT: u32 = u32.MAX_VALUE;

/** Places of FIGURES where a call leaves its sums. */
export const SUM_FREED_BYTES: u32 = 24;
export const SUM_REMOVED: u32 = 25;
export const SUM_DEFERRED: u32 = 26;
export const SUM_FAMILIES: u32 = 27;

/** The largest whole number that a double counts exactly: the end of time. */
const TIME_MAX_MS: f64 = 9007199254740991;

let stamp: u32 = 0;

/** A number that no earlier call had. */
export function nextStamp(): u32 {
  stamp += 1;
  return stamp;
}

export function isKeyBatch(chunkCount: u32, namespaceCount: u32): bool {
  return (
    namespaceCount > 0 &&
    namespaceCount <= BATCH_NAMESPACE_COUNT_MAX &&
    <u64>chunkCount * <u64>namespaceCount <= <u64>batchCountMax
  );
}

export function isSlotBatch(count: u32): bool {
  return count <= batchCountMax;
}

/** False for NaN too. */
export function isTime(nowMs: f64): bool {
  return nowMs >= 0 && nowMs <= TIME_MAX_MS;
}

export function hashOfChunk(chunk: u32): usize {
  return KEY_HASHES + <usize>chunk * HASH_SIZE;
}

export function namespaceOfBatch(n: u32): u32 {
  return load<u32>(NAMESPACES + ((<usize>n) << 2));
}

export function slotOf(i: u32): u32 {
  return load<u32>(SLOTS + ((<usize>i) << 2));
}

export function setSlot(i: u32, slot: u32): void {
  store<u32>(SLOTS + ((<usize>i) << 2), slot);
}

export function codeOf(i: u32): i32 {
  return load<i32>(CODES + ((<usize>i) << 2));
}

export function setCode(i: u32, code: i32): void {
  store<i32>(CODES + ((<usize>i) << 2), code);
}

export function generationOf(i: u32): u32 {
  return load<u32>(GENERATIONS + ((<usize>i) << 2));
}

export function setGeneration(i: u32, generation: u32): void {
  store<u32>(GENERATIONS + ((<usize>i) << 2), generation);
}

export function setFigure(position: u32, value: f64): void {
  store<f64>(FIGURES + ((<usize>position) << 3), value);
}
