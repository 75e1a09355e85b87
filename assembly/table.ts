/**
 * The table as a whole: building it, growing its arena, its figures.
 */
import {
  addressBlockCount,
  addressFreeUnits,
  addressHeapUnits,
  addressLargestUnits,
  addressSpaceGrow,
  addressSpaceLayout,
  addressSpaceReset,
  unitsToBytes,
} from './address-space';
import { setFigure } from './batch';
import { departuresLayout } from './departures';
import { familyCount, familyLayout } from './family';
import {
  detachedCount,
  detachedUnits,
  expiredCount,
  pinnedCount,
  readLockedCount,
  residentCount,
  stagedCount,
  stagedUnits,
  temporaryCount,
  writeLockedCount,
} from './figures';
import { lifecycleLayout } from './lifecycle';
import { batchCountMax } from './memory-map';
import { namespaceLayout } from './namespace';
import { objectEnd, objectLayout } from './object';
import { isPolicy, policyCount, policyLayout, policySelect } from './policy/policy';
import { lateReleaseCount, readingReset } from './reading';
import { removalRecordsLayout } from './removal-records';
import { INVALID_ARGUMENT, SUCCESS } from './result';
import { writingReset } from './writing';

/** Index entries are numbered with u32, and 1.5 times as many must fit. */
const OBJECT_COUNT_MAX: u32 = 0x4000_0000;

/** Bytes of the arena beyond the last whole unit: free for ever, of no use. */
let tailBytes: f64 = 0;

/** Reserves the regions of the table. The arena is set by `tableReset`. */
export function tableLayout(objectCountMax: u32, namespaceCountMax: u32, indexSeed: u64): i32 {
  if (objectCountMax === 0 || objectCountMax > OBJECT_COUNT_MAX) return INVALID_ARGUMENT;
  if (namespaceCountMax === 0) return INVALID_ARGUMENT;
  namespaceLayout(namespaceCountMax);
  objectLayout(objectCountMax);
  lifecycleLayout(objectCountMax, indexSeed);
  familyLayout(objectCountMax, indexSeed);
  policyLayout(objectCountMax, namespaceCountMax);
  addressSpaceLayout(objectCountMax);
  // No call but a walk over the whole table can end more chunks than a batch has objects.
  removalRecordsLayout(min(objectCountMax, batchCountMax));
  departuresLayout(namespaceCountMax);
  return SUCCESS;
}

/** Sets arena, policy and lock times. */
export function tableReset(
  arenaSizeBytes: f64,
  alignBytes: u32,
  policy: u32,
  writeTtlMs: f64,
  readTtlMs: f64,
): i32 {
  if (alignBytes === 0 || popcnt(alignBytes) !== 1) return INVALID_ARGUMENT;
  if (!isPolicy(policy) || !(writeTtlMs >= 0) || !(readTtlMs >= 0)) return INVALID_ARGUMENT;
  if (!(arenaSizeBytes >= 0 && arenaSizeBytes / <f64>alignBytes < <f64>u32.MAX_VALUE)) {
    return INVALID_ARGUMENT;
  }
  addressSpaceReset(<u32>(arenaSizeBytes / <f64>alignBytes), alignBytes);
  tailBytes = arenaSizeBytes - unitsToBytes(addressHeapUnits());
  policySelect(policy);
  readingReset(readTtlMs);
  writingReset(writeTtlMs);
  return SUCCESS;
}

/** Appends memory at the end of the arena, rounded up to whole units. */
export function growArena(sizeBytes: f64): i32 {
  const unit = unitsToBytes(1);
  if (!(sizeBytes >= 0)) return INVALID_ARGUMENT;
  const units = Math.ceil(sizeBytes / unit);
  if (<f64>addressHeapUnits() + units >= <f64>u32.MAX_VALUE) return INVALID_ARGUMENT;
  if (units > 0) addressSpaceGrow(<u32>units);
  return SUCCESS;
}

/** Writes the figures in the order of `STATISTICS` in src/core/object-table.ts. */
export function writeStatistics(): void {
  const heapUnits = addressHeapUnits();
  setFigure(0, <f64>residentCount);
  setFigure(1, <f64>stagedCount);
  setFigure(2, <f64>detachedCount);
  setFigure(3, <f64>writeLockedCount);
  setFigure(4, <f64>readLockedCount);
  setFigure(5, <f64>temporaryCount);
  setFigure(6, <f64>pinnedCount);
  setFigure(7, <f64>expiredCount);
  setFigure(8, unitsToBytes(heapUnits - addressFreeUnits()));
  setFigure(9, unitsToBytes(stagedUnits));
  setFigure(10, unitsToBytes(detachedUnits));
  setFigure(11, unitsToBytes(heapUnits) + tailBytes);
  setFigure(12, unitsToBytes(addressLargestUnits()));
  setFigure(13, <f64>addressBlockCount());
  setFigure(14, <f64>familyCount());
  setFigure(15, <f64>policyCount());
  setFigure(16, <f64>(objectEnd() - 1));
  setFigure(17, lateReleaseCount());
}
