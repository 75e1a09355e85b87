/**
 * Calls of writers: reserve, then finish or discard (storage.md 6.1).
 *
 * A reservation is a staged object of one writer. Nobody sees it before `finish`; when its write
 * lock expires it can no longer be finished, so an abandoned one never becomes readable (18.2).
 * An expired one is handed over to the same writer if the size is the same (18.29), or reclaimed,
 * unless a copy is still running into it. Writers outside of this process pin theirs, too; while
 * one is known to live its reservation is extended, else abandoned.
 *
 * All missing objects of one `reserve` get memory together or not at all; a key that is named twice
 * is one object (18.28). (slot, generation) names one reservation for ever: a slot that has been
 * reclaimed and given to another object has another generation.
 */
import { allocateBatch } from './address-space';
import {
  codeOf,
  generationOf,
  hashOfChunk,
  isKeyBatch,
  isSlotBatch,
  isTime,
  NO_SLOT,
  namespaceOfBatch,
  nextStamp,
  setCode,
  setGeneration,
  setSlot,
  slotOf,
} from './batch';
import { requeue } from './expiry-queue';
import { familyHash } from './family';
import { addToFigures, subtractFromFigures } from './figures';
import {
  admitObject,
  advanceClock,
  clockMs,
  createObject,
  freeIfUnheld,
  hasHolders,
  objectFind,
  removeObject,
} from './lifecycle';
import { GENERATIONS } from './memory-map';
import { isNamespace } from './namespace';
import {
  DETACHED,
  isObject,
  NO_PLACE,
  objectFamily,
  objectLock,
  objectNamespace,
  objectOffset,
  objectPins,
  objectSize,
  objectStamp,
  objectState,
  QUEUE_NONE,
  QUEUE_WRITES,
  RESIDENT,
  RESIDENT_TAG,
  STAGED,
  setObjectOffset,
  setObjectStamp,
  setObjectTemporary,
  sizeToUnits,
} from './object';
import { clampLeases, HOLD_COUNT_MAX, holdObject } from './reading';
import {
  ALREADY_RESIDENT,
  INVALID_ARGUMENT,
  KEY_IN_WRONG_STATE,
  KEY_NOT_EXIST,
  KEY_NOT_WRITABLE,
  SUCCESS,
  TABLE_FULL,
} from './result';
import { lockAcquire, lockGeneration, lockIsHeld, lockRenew, lockReset } from './ttl-lock';

let writeTtlMs: f64 = 0;
/** Objects that the running `reserve` has made and that wait for memory. */
let missingCount: u32 = 0;

export function writingReset(ttlMs: f64): void {
  writeTtlMs = ttlMs;
}

function lockForWriting(slot: u32): void {
  lockAcquire(objectLock(slot), 1, clockMs(), writeTtlMs);
  requeue(slot, QUEUE_WRITES);
}

/**
 * The state of one key of a reserving call, before memory is given out. SLOTS[i] is the staged
 * object if the answer is SUCCESS; a new one is not locked and has no place yet.
 */
function reserveOne(i: u32, hash: usize, namespaceId: u32, tag: u32, size: u32, stamp: u32): i32 {
  const isTemporary = codeOf(i) !== 0;
  setSlot(i, NO_SLOT);
  if (objectFind(hash, namespaceId, RESIDENT_TAG) !== 0) return KEY_NOT_WRITABLE;
  let slot = objectFind(hash, namespaceId, tag);
  if (slot !== 0 && objectStamp(slot) === stamp) {
    setSlot(i, slot);
    return SUCCESS;
  }
  if (slot !== 0 && hasHolders(slot, clockMs())) return KEY_NOT_WRITABLE;
  if (slot !== 0 && objectSize(slot) !== size) {
    removeObject(slot, clockMs());
    slot = 0;
  }
  if (slot !== 0) {
    lockForWriting(slot);
  } else {
    slot = createObject(hash, namespaceId, tag, size);
    if (slot === 0) return TABLE_FULL;
    missingCount += 1;
  }
  subtractFromFigures(slot);
  setObjectTemporary(slot, isTemporary);
  addToFigures(slot);
  setObjectStamp(slot, stamp);
  setSlot(i, slot);
  return SUCCESS;
}

/** True for the object of a reserving call that waits for its memory. */
function isUnplaced(i: u32): bool {
  const slot = slotOf(i);
  return slot !== NO_SLOT && isObject(slot) && objectOffset(slot) === NO_PLACE;
}

/** Memory and write locks for what the call has made: for all of it or for nothing. */
function placeMissing(count: u32, units: u32): i32 {
  // GENERATIONS is written last, so until then it serves as the list of offsets.
  const result = allocateBatch(units, missingCount, GENERATIONS);
  if (result !== SUCCESS) return result;
  let used: u32 = 0;
  for (let i: u32 = 0; i < count; i++) {
    if (!isUnplaced(i)) continue;
    setObjectOffset(slotOf(i), generationOf(used));
    lockForWriting(slotOf(i));
    used += 1;
  }
  return SUCCESS;
}

/** Takes back what a failed call has made; every object that had to be made gets the code. */
function dropMissing(count: u32, code: i32): void {
  for (let i: u32 = 0; i < count; i++) {
    if (isUnplaced(i)) setCode(i, code);
  }
  for (let i: u32 = 0; i < count; i++) {
    if (codeOf(i) !== code) continue;
    if (isUnplaced(i)) removeObject(slotOf(i), clockMs());
    setSlot(i, NO_SLOT);
  }
}

/**
 * Reserves all keys for one writer. In: CODES[i] != 0 marks a temporary object. Out: SLOTS, CODES,
 * GENERATIONS. Answers how many keys are reserved.
 */
export function reserveWriteBatch(
  chunkCount: u32,
  namespaceCount: u32,
  sizeBytes: f64,
  writerTag: u32,
  nowMs: f64,
): i32 {
  if (!isKeyBatch(chunkCount, namespaceCount) || !isTime(nowMs)) return INVALID_ARGUMENT;
  if (!(sizeBytes >= 1 && sizeBytes <= <f64>u32.MAX_VALUE)) return INVALID_ARGUMENT;
  if (writerTag === RESIDENT_TAG) return INVALID_ARGUMENT;
  for (let n: u32 = 0; n < namespaceCount; n++) {
    if (!isNamespace(namespaceOfBatch(n))) return INVALID_ARGUMENT;
  }
  advanceClock(nowMs);
  const size = <u32>sizeBytes;
  const stamp = nextStamp();
  const count = chunkCount * namespaceCount;
  let failure = SUCCESS;
  missingCount = 0;
  for (let i: u32 = 0; i < count; i++) {
    const hash = hashOfChunk(i / namespaceCount);
    const code = reserveOne(i, hash, namespaceOfBatch(i % namespaceCount), writerTag, size, stamp);
    setCode(i, code);
    if (code === TABLE_FULL) failure = TABLE_FULL;
  }
  if (failure === SUCCESS) failure = placeMissing(count, sizeToUnits(size));
  if (failure !== SUCCESS) dropMissing(count, failure);
  let reserved = 0;
  for (let i: u32 = 0; i < count; i++) {
    const isReserved = codeOf(i) === SUCCESS;
    setGeneration(i, isReserved ? lockGeneration(objectLock(slotOf(i))) : 0);
    if (isReserved) reserved += 1;
  }
  return reserved;
}

/** A detached reservation: its key is gone, its writer is done, so its memory may go. */
function endDetached(slot: u32): i32 {
  lockReset(objectLock(slot));
  freeIfUnheld(slot, clockMs());
  return KEY_NOT_EXIST;
}

/** STAGED, still locked, and the reservation that the caller means; else why not. */
function checkReservation(i: u32, isChecked: bool): i32 {
  const slot = slotOf(i);
  if (!isObject(slot)) return KEY_NOT_EXIST;
  const lock = objectLock(slot);
  if (isChecked && lockGeneration(lock) !== generationOf(i)) return KEY_IN_WRONG_STATE;
  if (objectState(slot) === DETACHED) return endDetached(slot);
  if (objectState(slot) !== STAGED) return KEY_NOT_EXIST;
  return lockIsHeld(lock, clockMs()) ? SUCCESS : KEY_IN_WRONG_STATE;
}

/** Admits one reservation, or drops its copy where the key has become resident meanwhile. */
function finishOne(i: u32, leaseCount: u32, holdCount: u32): i32 {
  const slot = slotOf(i);
  const hash = familyHash(objectFamily(slot));
  const resident = objectFind(hash, objectNamespace(slot), RESIDENT_TAG);
  if (resident !== 0) {
    lockReset(objectLock(slot));
    requeue(slot, QUEUE_NONE);
    removeObject(slot, clockMs());
    setSlot(i, resident);
    holdObject(resident, leaseCount, holdCount);
    return ALREADY_RESIDENT;
  }
  admitObject(slot);
  holdObject(slot, leaseCount, holdCount);
  return SUCCESS;
}

/**
 * Makes the reservations of SLOTS readable, last to first, so that the first chunk is the youngest
 * for the policy (storage.md 10.2). Leases and holds are taken on whatever is resident then, which
 * SLOTS names afterwards. With `isChecked` only reservations whose GENERATIONS still hold.
 * Out: SLOTS, CODES, GENERATIONS (of the leases). Answers how many were admitted.
 */
export function finishWriteBatch(
  count: u32,
  leaseCount: i32,
  holdCount: u32,
  isChecked: bool,
  nowMs: f64,
): i32 {
  if (!isSlotBatch(count) || !isTime(nowMs)) return INVALID_ARGUMENT;
  if (holdCount > HOLD_COUNT_MAX) return INVALID_ARGUMENT;
  const leases: u32 = leaseCount === 0 ? 0 : clampLeases(leaseCount);
  advanceClock(nowMs);
  const stamp = nextStamp();
  let admitted = 0;
  for (let i = count; i > 0; i--) {
    const slot = slotOf(i - 1);
    let code = SUCCESS;
    if (!isObject(slot) || objectState(slot) !== RESIDENT || objectStamp(slot) !== stamp) {
      code = checkReservation(i - 1, isChecked);
      if (code === SUCCESS) {
        code = finishOne(i - 1, leases, holdCount);
        if (code === SUCCESS) {
          setObjectStamp(slot, stamp);
          admitted += 1;
        }
      }
    }
    setCode(i - 1, code);
    setGeneration(i - 1, code >= SUCCESS ? lockGeneration(objectLock(slotOf(i - 1))) : 0);
  }
  return admitted;
}

/**
 * Drops reservations without making them visible; the memory of a running copy follows when it
 * ends. One that has expired (KEY_IN_WRONG_STATE) is left to the sweep.
 */
export function discardWriteBatch(count: u32, isChecked: bool, nowMs: f64): i32 {
  if (!isSlotBatch(count) || !isTime(nowMs)) return INVALID_ARGUMENT;
  advanceClock(nowMs);
  let discarded = 0;
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    const code = checkReservation(i, isChecked);
    if (code === SUCCESS) {
      lockReset(objectLock(slot));
      requeue(slot, QUEUE_NONE);
      removeObject(slot, clockMs());
      discarded += 1;
    }
    setCode(i, code);
  }
  return discarded;
}

/**
 * Renews the time of reservations, also of expired ones as long as their memory is pinned: then
 * nobody can have taken them over. A reservation that is neither live nor pinned is
 * KEY_IN_WRONG_STATE. Answers how many were renewed.
 */
export function extendWriteBatch(count: u32, nowMs: f64): i32 {
  if (!isSlotBatch(count) || !isTime(nowMs)) return INVALID_ARGUMENT;
  advanceClock(nowMs);
  let renewed = 0;
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    let code = KEY_NOT_EXIST;
    if (isObject(slot) && objectState(slot) === STAGED) {
      const isOwned = objectPins(slot) > 0 || lockIsHeld(objectLock(slot), clockMs());
      code = isOwned ? SUCCESS : KEY_IN_WRONG_STATE;
    }
    if (code === SUCCESS) {
      lockRenew(objectLock(slot), clockMs(), writeTtlMs);
      requeue(slot, QUEUE_WRITES);
      renewed += 1;
    }
    setCode(i, code);
  }
  return renewed;
}

/**
 * Takes the keys of pinned reservations away, live or expired: others may store them at once, and
 * the memory stays out of use until the pins are gone. Answers how many keys that were.
 */
export function abandonWriteBatch(count: u32, nowMs: f64): i32 {
  if (!isSlotBatch(count) || !isTime(nowMs)) return INVALID_ARGUMENT;
  for (let i: u32 = 0; i < count; i++) {
    if (!isObject(slotOf(i)) || objectPins(slotOf(i)) === 0) return INVALID_ARGUMENT;
  }
  advanceClock(nowMs);
  let abandoned = 0;
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    if (objectState(slot) !== STAGED) {
      if (objectState(slot) === DETACHED) lockReset(objectLock(slot));
      setCode(i, KEY_NOT_EXIST);
      continue;
    }
    lockReset(objectLock(slot));
    requeue(slot, QUEUE_NONE);
    removeObject(slot, clockMs());
    setCode(i, SUCCESS);
    abandoned += 1;
  }
  return abandoned;
}
