/**
 * Counters over all objects, so that statistics cost nothing to ask for (18.27).
 *
 * What an object contributes follows from its fields alone. Whoever changes such a field calls
 * `subtractFromFigures` before and `addToFigures` after, so the counters are the sum over all
 * objects at any time (`checkTable` in check.ts proves it).
 */
import {
  DETACHED,
  objectHolds,
  objectIsTemporary,
  objectPins,
  objectQueue,
  objectState,
  objectUnits,
  QUEUE_EXPIRED,
  QUEUE_LEASES,
  QUEUE_WRITES,
  RESIDENT,
  STAGED,
} from './object';

export let residentCount: u32 = 0;
export let stagedCount: u32 = 0;
export let stagedUnits: u32 = 0;
export let detachedCount: u32 = 0;
export let detachedUnits: u32 = 0;
/** Staged objects with a live write lock. */
export let writeLockedCount: u32 = 0;
/** Staged objects whose write lock has expired. */
export let expiredCount: u32 = 0;
/** Resident objects with a live lease or a hold. */
export let readLockedCount: u32 = 0;
export let temporaryCount: u32 = 0;
export let pinnedCount: u32 = 0;

function apply(slot: u32, sign: u32): void {
  const state = objectState(slot);
  const queue = objectQueue(slot);
  if (objectPins(slot) > 0) pinnedCount += sign;
  if (state === RESIDENT) {
    residentCount += sign;
    if (queue === QUEUE_LEASES || objectHolds(slot) > 0) readLockedCount += sign;
    if (objectIsTemporary(slot)) temporaryCount += sign;
  } else if (state === STAGED) {
    stagedCount += sign;
    stagedUnits += sign * objectUnits(slot);
    if (queue === QUEUE_WRITES) writeLockedCount += sign;
    else if (queue === QUEUE_EXPIRED) expiredCount += sign;
    if (objectIsTemporary(slot)) temporaryCount += sign;
  } else if (state === DETACHED) {
    detachedCount += sign;
    detachedUnits += sign * objectUnits(slot);
  }
}

/** All counters to 0, for a walk that adds every object again. */
export function resetFigures(): void {
  residentCount = 0;
  stagedCount = 0;
  stagedUnits = 0;
  detachedCount = 0;
  detachedUnits = 0;
  writeLockedCount = 0;
  expiredCount = 0;
  readLockedCount = 0;
  temporaryCount = 0;
  pinnedCount = 0;
}

export function addToFigures(slot: u32): void {
  apply(slot, 1);
}

export function subtractFromFigures(slot: u32): void {
  // Minus one in the arithmetic of u32, which wraps.
  apply(slot, u32.MAX_VALUE);
}
