/**
 * Calls of readers: finding resident objects and holding them.
 *
 * Three ways to hold, for three kinds of holders (lifecycle.ts): leases end by TTL and are for
 * clients and peers that may vanish; holds are kept in the ledger of a session; pins are for copies
 * that are running. A lease is handed out with its generation, and a release that names one that is
 * over is refused, so a late client cannot take the lease of a later one (18.4).
 */
import {
  generationOf,
  hashOfChunk,
  isKeyBatch,
  isSlotBatch,
  isTime,
  NO_SLOT,
  namespaceOfBatch,
  setCode,
  setGeneration,
  setSlot,
  slotOf,
} from './batch';
import { requeue } from './expiry-queue';
import { addToFigures, subtractFromFigures } from './figures';
import { advanceClock, clockMs, freeIfUnheld, objectFind, removeObject } from './lifecycle';
import { isNamespace } from './namespace';
import {
  DETACHED,
  isObject,
  objectFamily,
  objectHolds,
  objectIsTemporary,
  objectLock,
  objectPins,
  objectState,
  QUEUE_LEASES,
  QUEUE_NONE,
  RESIDENT,
  RESIDENT_TAG,
  setObjectHolds,
  setObjectPins,
} from './object';
import { policyRefresh, policyTouch } from './policy/policy';
import { INVALID_ARGUMENT, KEY_IN_WRONG_STATE, KEY_NOT_EXIST, SUCCESS } from './result';
import { lockAcquire, lockCount, lockGeneration, lockIsHeld, lockRelease } from './ttl-lock';

/** Holds that one call may take on one object. */
export const HOLD_COUNT_MAX: u32 = 65535;
/** Leases of one call on one object are clamped to 1..128, as in the reference. */
const LEASE_COUNT_MAX: i32 = 128;

let readTtlMs: f64 = 0;
let lateReleases: f64 = 0;

export function readingReset(ttlMs: f64): void {
  readTtlMs = ttlMs;
}

/** Releases that came after their lease was over; nothing was released. */
export function lateReleaseCount(): f64 {
  return lateReleases;
}

export function clampLeases(leaseCount: i32): u32 {
  return <u32>max(1, min(leaseCount, LEASE_COUNT_MAX));
}

/** Answers an unknown namespace like an absent object: the door asks without interning. */
function findObject(hash: usize, namespaceId: u32, writerTag: u32): u32 {
  return isNamespace(namespaceId) ? objectFind(hash, namespaceId, writerTag) : 0;
}

/** SLOTS := the objects with this writer tag (0: resident ones), or NO_SLOT. Answers how many. */
export function findBatch(chunkCount: u32, namespaceCount: u32, writerTag: u32): i32 {
  if (!isKeyBatch(chunkCount, namespaceCount)) return INVALID_ARGUMENT;
  let found = 0;
  let i: u32 = 0;
  for (let chunk: u32 = 0; chunk < chunkCount; chunk++) {
    for (let n: u32 = 0; n < namespaceCount; n++) {
      const slot = findObject(hashOfChunk(chunk), namespaceOfBatch(n), writerTag);
      setSlot(i, slot === 0 ? NO_SLOT : slot);
      if (slot !== 0) found += 1;
      i += 1;
    }
  }
  return found;
}

function addHolds(slot: u32, holdCount: u32): void {
  const holds = objectHolds(slot);
  assert(holds <= u32.MAX_VALUE - holdCount, 'an object has too many holds');
  subtractFromFigures(slot);
  setObjectHolds(slot, holds + holdCount);
  addToFigures(slot);
}

/** The longest prefix of whole chunks: holds on every object of it. Answers the chunks. */
export function holdPrefixBatch(chunkCount: u32, namespaceCount: u32, holdCount: u32): i32 {
  if (!isKeyBatch(chunkCount, namespaceCount)) return INVALID_ARGUMENT;
  if (holdCount > HOLD_COUNT_MAX) return INVALID_ARGUMENT;
  for (let chunk: u32 = 0; chunk < chunkCount; chunk++) {
    const first = chunk * namespaceCount;
    for (let n: u32 = 0; n < namespaceCount; n++) {
      const slot = findObject(hashOfChunk(chunk), namespaceOfBatch(n), RESIDENT_TAG);
      if (slot === 0) return <i32>chunk;
      setSlot(first + n, slot);
    }
    if (holdCount === 0) continue;
    for (let n: u32 = 0; n < namespaceCount; n++) addHolds(slotOf(first + n), holdCount);
  }
  return <i32>chunkCount;
}

/**
 * Holds on each of SLOTS, all of which name resident objects that were found in this turn. Nothing
 * is held when one does not.
 */
export function holdBatch(count: u32, holdCount: u32): i32 {
  if (!isSlotBatch(count) || holdCount > HOLD_COUNT_MAX) return INVALID_ARGUMENT;
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    if (!isObject(slot) || objectState(slot) !== RESIDENT) return INVALID_ARGUMENT;
  }
  for (let i: u32 = 0; i < count; i++) addHolds(slotOf(i), holdCount);
  return SUCCESS;
}

/** A RESIDENT object goes with its last reader if it is temporary, a DETACHED one always. */
function afterRelease(slot: u32): void {
  const nowMs = clockMs();
  if (objectState(slot) === DETACHED) {
    freeIfUnheld(slot, nowMs);
  } else if (objectState(slot) === RESIDENT && objectIsTemporary(slot)) {
    if (objectHolds(slot) === 0 && !lockIsHeld(objectLock(slot), nowMs)) removeObject(slot, nowMs);
  }
}

/**
 * Takes `holdCount` holds from each slot. A hold that is not there has been released twice: the
 * call stops at it, and the door ends the process.
 */
export function releaseHoldsBatch(count: u32, holdCount: u32): i32 {
  if (!isSlotBatch(count)) return INVALID_ARGUMENT;
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    if (!isObject(slot) || objectHolds(slot) < holdCount) return INVALID_ARGUMENT;
    subtractFromFigures(slot);
    setObjectHolds(slot, objectHolds(slot) - holdCount);
    addToFigures(slot);
    afterRelease(slot);
  }
  return SUCCESS;
}

export function pinBatch(count: u32): i32 {
  if (!isSlotBatch(count)) return INVALID_ARGUMENT;
  for (let i: u32 = 0; i < count; i++) {
    if (!isObject(slotOf(i))) return INVALID_ARGUMENT;
  }
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    const pins = objectPins(slot);
    assert(pins < u32.MAX_VALUE, 'an object has too many pins');
    if (pins === 0) subtractFromFigures(slot);
    setObjectPins(slot, pins + 1);
    if (pins === 0) addToFigures(slot);
  }
  return SUCCESS;
}

/** Takes one pin from each slot. Stops at a pin that is not there, as `releaseHoldsBatch` does. */
export function unpinBatch(count: u32): i32 {
  if (!isSlotBatch(count)) return INVALID_ARGUMENT;
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    if (!isObject(slot)) return INVALID_ARGUMENT;
    const pins = objectPins(slot);
    if (pins === 0) return INVALID_ARGUMENT;
    if (pins === 1) subtractFromFigures(slot);
    setObjectPins(slot, pins - 1);
    if (pins === 1) addToFigures(slot);
    freeIfUnheld(slot, clockMs());
  }
  return SUCCESS;
}

/** Leases and holds for a resident object, at the present time. */
export function holdObject(slot: u32, leaseCount: u32, holdCount: u32): void {
  if (leaseCount > 0) {
    lockAcquire(objectLock(slot), leaseCount, clockMs(), readTtlMs);
    requeue(slot, QUEUE_LEASES);
  }
  if (holdCount > 0) addHolds(slot, holdCount);
}

/** Leases on every resident object of the keys. Answers how many there were. */
export function reserveReadBatch(
  chunkCount: u32,
  namespaceCount: u32,
  leaseCount: i32,
  nowMs: f64,
): i32 {
  if (!isKeyBatch(chunkCount, namespaceCount) || !isTime(nowMs)) return INVALID_ARGUMENT;
  const leases = clampLeases(leaseCount);
  advanceClock(nowMs);
  const found = findBatch(chunkCount, namespaceCount, RESIDENT_TAG);
  const count = chunkCount * namespaceCount;
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    const isFound = slot !== NO_SLOT;
    if (isFound) holdObject(slot, leases, 0);
    setCode(i, isFound ? SUCCESS : KEY_NOT_EXIST);
    setGeneration(i, isFound ? lockGeneration(objectLock(slot)) : 0);
  }
  return found;
}

function finishReadOf(slot: u32, leaseCount: u32, nowMs: f64): i32 {
  const lock = objectLock(slot);
  if (!lockIsHeld(lock, nowMs)) return KEY_IN_WRONG_STATE;
  lockRelease(lock, leaseCount);
  if (lockCount(lock) === 0) requeue(slot, QUEUE_NONE);
  afterRelease(slot);
  return SUCCESS;
}

/** Gives leases of SLOTS back; with `isChecked` only those whose GENERATIONS still hold. */
export function finishReadBatch(count: u32, leaseCount: i32, isChecked: bool, nowMs: f64): i32 {
  if (!isSlotBatch(count) || !isTime(nowMs)) return INVALID_ARGUMENT;
  const leases = clampLeases(leaseCount);
  const now = advanceClock(nowMs);
  for (let i: u32 = 0; i < count; i++) {
    const slot = slotOf(i);
    let code = KEY_NOT_EXIST;
    if (isObject(slot) && (objectState(slot) === RESIDENT || objectState(slot) === DETACHED)) {
      const isCurrent = !isChecked || lockGeneration(objectLock(slot)) === generationOf(i);
      code = isCurrent ? finishReadOf(slot, leases, now) : KEY_IN_WRONG_STATE;
    }
    if (code === KEY_IN_WRONG_STATE) lateReleases += 1;
    setCode(i, code);
  }
  return SUCCESS;
}

/**
 * Tells the policy, last to first (storage.md 10.2), that the first `usedCount` slots were used,
 * and that the others were placed again. The ranks of one chunk, side by side, are one use.
 */
export function touchBatch(count: u32, usedCount: u32): i32 {
  if (!isSlotBatch(count)) return INVALID_ARGUMENT;
  let family: u32 = 0;
  for (let i = count; i > 0; i--) {
    const slot = slotOf(i - 1);
    if (!isObject(slot) || objectState(slot) !== RESIDENT) continue;
    if (objectFamily(slot) === family) continue;
    family = objectFamily(slot);
    if (i <= usedCount) policyTouch(family);
    else policyRefresh(family);
  }
  return SUCCESS;
}
