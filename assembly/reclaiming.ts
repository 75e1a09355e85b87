/**
 * Calls that take keys away: delete, clear, evict, sweep.
 *
 * None of them takes memory from a holder: a forced removal detaches the object and its bytes
 * follow with the last holder (18.5). Eviction and sweep run in slices and answer DONE, MORE or
 * NOTHING_TO_DO. The sums of a call are left in FIGURES (batch.ts).
 */
import { unitsToBytes } from './address-space';
import {
  hashOfChunk,
  isKeyBatch,
  isTime,
  namespaceOfBatch,
  SUM_DEFERRED,
  SUM_FAMILIES,
  SUM_FREED_BYTES,
  SUM_REMOVED,
  setCode,
  setFigure,
} from './batch';
import { queueHead, requeue } from './expiry-queue';
import { familyFind, familyMemberHead } from './family';
import { expiredCount, residentCount, stagedCount } from './figures';
import {
  advanceClock,
  detachAll,
  detachAllFreedUnits,
  hasHolders,
  objectFind,
  removeObject,
} from './lifecycle';
import { isNamespace, scopeOf } from './namespace';
import {
  DETACHED,
  FREE,
  memberNext,
  objectCountLimit,
  objectEnd,
  objectNamespace,
  objectState,
  objectUnits,
  QUEUE_EXPIRED,
  RESIDENT_TAG,
  STAGED,
} from './object';
import { policyTake, policyVictim } from './policy/policy';
import {
  DONE,
  INVALID_ARGUMENT,
  KEY_IS_LOCKED,
  KEY_NOT_EXIST,
  MORE,
  NOTHING_TO_DO,
  SUCCESS,
} from './result';

let freedUnits: u64 = 0;
let removedCount: u32 = 0;
let deferredCount: u32 = 0;
let familiesEvicted: u32 = 0;

function beginSums(): void {
  freedUnits = 0;
  removedCount = 0;
  deferredCount = 0;
  familiesEvicted = 0;
}

function endSums(): void {
  setFigure(SUM_FREED_BYTES, <f64>freedUnits * unitsToBytes(1));
  setFigure(SUM_REMOVED, <f64>removedCount);
  setFigure(SUM_DEFERRED, <f64>deferredCount);
  setFigure(SUM_FAMILIES, <f64>familiesEvicted);
}

function reclaim(slot: u32, nowMs: f64): void {
  const units = objectUnits(slot);
  removedCount += 1;
  if (removeObject(slot, nowMs)) freedUnits += <u64>units;
  else deferredCount += 1;
}

/** The staged objects of a key: reclaims what it may. Answers SUCCESS, KEY_IS_LOCKED or absent. */
function deleteStaged(family: u32, namespaceId: u32, isForced: bool, nowMs: f64): i32 {
  let result = KEY_NOT_EXIST;
  let slot = familyMemberHead(family);
  while (slot !== 0) {
    const next = memberNext(slot);
    if (objectNamespace(slot) === namespaceId && objectState(slot) === STAGED) {
      if (isForced || !hasHolders(slot, nowMs)) {
        reclaim(slot, nowMs);
        if (result === KEY_NOT_EXIST) result = SUCCESS;
      } else {
        result = KEY_IS_LOCKED;
      }
    }
    slot = next;
  }
  return result;
}

function deleteOne(hash: usize, namespaceId: u32, isForced: bool, nowMs: f64): i32 {
  if (!isNamespace(namespaceId)) return KEY_NOT_EXIST;
  const family = familyFind(hash, scopeOf(namespaceId));
  if (family === 0) return KEY_NOT_EXIST;
  const resident = objectFind(hash, namespaceId, RESIDENT_TAG);
  const staged = deleteStaged(family, namespaceId, isForced, nowMs);
  if (resident === 0 || staged === KEY_IS_LOCKED) return staged;
  if (!isForced && hasHolders(resident, nowMs)) return KEY_IS_LOCKED;
  reclaim(resident, nowMs);
  return SUCCESS;
}

/** Deletes keys; `isForced` also those with holders. Out: CODES. Answers the objects removed. */
export function deleteBatch(chunkCount: u32, namespaceCount: u32, isForced: bool, nowMs: f64): i32 {
  if (!isKeyBatch(chunkCount, namespaceCount) || !isTime(nowMs)) return INVALID_ARGUMENT;
  const now = advanceClock(nowMs);
  beginSums();
  let i: u32 = 0;
  for (let chunk: u32 = 0; chunk < chunkCount; chunk++) {
    for (let n: u32 = 0; n < namespaceCount; n++) {
      setCode(i, deleteOne(hashOfChunk(chunk), namespaceOfBatch(n), isForced, now));
      i += 1;
    }
  }
  endSums();
  return <i32>removedCount;
}

/** From this share of the slots on, forgetting everything costs less than removing each. */
const SHARE_FOR_DETACH_ALL: u32 = 64;

/** Clears the slots from `firstSlot` on, up to but without `end`. */
function clearSlots(isForced: bool, firstSlot: u32, end: u32, nowMs: f64): void {
  for (let slot = firstSlot; slot < end; slot++) {
    const state = objectState(slot);
    if (state === FREE || state === DETACHED) continue;
    if (isForced || !hasHolders(slot, nowMs)) reclaim(slot, nowMs);
  }
}

/** Takes away every key without holders, or every key at all. Answers the objects removed. */
export function clearAll(isForced: bool, nowMs: f64): i32 {
  if (!isTime(nowMs)) return INVALID_ARGUMENT;
  const now = advanceClock(nowMs);
  beginSums();
  const attached = residentCount + stagedCount;
  // Below it, filling the indexes would also make pages resident that were never used.
  if (isForced && attached > objectCountLimit() / SHARE_FOR_DETACH_ALL) {
    deferredCount = detachAll(now);
    freedUnits = detachAllFreedUnits;
    removedCount = attached;
  } else {
    clearSlots(isForced, 1, objectEnd(), now);
  }
  endSums();
  return <i32>removedCount;
}

/**
 * One slice of a clear: `slotCount` slots from `firstSlot` on. Answers the slot to go on with, or 0
 * after the last one. Objects keep their slots, so the slices together meet every object that was
 * there before the first; what is stored between them may lie before or behind the walk.
 */
export function clearSlice(isForced: bool, firstSlot: u32, slotCount: u32, nowMs: f64): i32 {
  if (!isTime(nowMs) || firstSlot === 0 || slotCount === 0) return INVALID_ARGUMENT;
  const now = advanceClock(nowMs);
  beginSums();
  const limit = objectEnd();
  const end = slotCount < limit - min(firstSlot, limit) ? firstSlot + slotCount : limit;
  clearSlots(isForced, firstSlot, end, now);
  endSums();
  return end < limit ? <i32>end : 0;
}

/** Reclaims up to `budget` expired reservations; those of running copies go to the back. */
function sweep(budget: u32, nowMs: f64): i32 {
  const waiting = expiredCount;
  const visits = min(budget, waiting);
  const before = removedCount;
  for (let i: u32 = 0; i < visits; i++) {
    const slot = queueHead(QUEUE_EXPIRED);
    if (hasHolders(slot, nowMs)) requeue(slot, QUEUE_EXPIRED);
    else reclaim(slot, nowMs);
  }
  if (visits < waiting) return MORE;
  return removedCount === before ? NOTHING_TO_DO : DONE;
}

export function sweepExpired(budget: u32, nowMs: f64): i32 {
  if (!isTime(nowMs)) return INVALID_ARGUMENT;
  const now = advanceClock(nowMs);
  beginSums();
  const result = sweep(budget, now);
  endSums();
  return result;
}

/** True when every object of the family may go. */
function isEvictable(family: u32, nowMs: f64): bool {
  for (let slot = familyMemberHead(family); slot !== 0; slot = memberNext(slot)) {
    if (hasHolders(slot, nowMs)) return false;
  }
  return true;
}

function evictFamily(family: u32, nowMs: f64): void {
  // The family is released with its last member, so the next member is read before.
  let slot = familyMemberHead(family);
  while (slot !== 0) {
    const next = memberNext(slot);
    reclaim(slot, nowMs);
    slot = next;
  }
  familiesEvicted += 1;
}

/**
 * One slice of eviction: expired reservations first, then whole families in the order of the
 * policy, skipping those with a holder, until `bytesToFree` are free (DONE), `familyBudget`
 * families were looked at (MORE) or there is no candidate left (NOTHING_TO_DO; something may have
 * been freed). With `isContinued` the walk goes on where the slice before has stopped, so that
 * many held families at its beginning are passed only once.
 */
export function evict(bytesToFree: f64, familyBudget: u32, isContinued: bool, nowMs: f64): i32 {
  if (!isTime(nowMs) || !(bytesToFree >= 0)) return INVALID_ARGUMENT;
  const now = advanceClock(nowMs);
  beginSums();
  sweep(familyBudget, now);
  const bytesPerUnit = unitsToBytes(1);
  let result = MORE;
  let isFromStart = !isContinued;
  for (let visited: u32 = 0; visited <= familyBudget; visited++) {
    if (<f64>freedUnits * bytesPerUnit >= bytesToFree) {
      result = DONE;
      break;
    }
    if (visited === familyBudget) break;
    const family = policyVictim(isFromStart);
    isFromStart = false;
    if (family === 0) {
      result = NOTHING_TO_DO;
      break;
    }
    if (isEvictable(family, now) && policyTake(family)) evictFamily(family, now);
  }
  endSums();
  return result;
}
