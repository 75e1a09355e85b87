/**
 * Least recently used. One list through the families, oldest first (storage.md 10.2).
 *
 *   insert   tracked -> to the young end; else append
 *   touch    tracked -> to the young end; else nothing
 *   remove   unlink
 *   victim   the next of a walk from the oldest; a look, it changes no order
 *
 * The walk may be interrupted by any of the others: a family that leaves its place hands the walk
 * on to the one after it, so that a walk in slices neither starts over nor follows a dead link.
 */
import {
  familyIsTracked,
  familyNext,
  familyPrevious,
  setFamilyNext,
  setFamilyPrevious,
  setFamilyTracked,
} from '../family';

let oldest: u32 = 0;
let youngest: u32 = 0;
let count: u32 = 0;
/** The family that `lruVictim` answers next; 0 at the end of the walk. */
let walk: u32 = 0;

export function lruReset(): void {
  oldest = 0;
  youngest = 0;
  count = 0;
  walk = 0;
}

export function lruCount(): u32 {
  return count;
}

function append(family: u32): void {
  setFamilyPrevious(family, youngest);
  setFamilyNext(family, 0);
  if (youngest === 0) oldest = family;
  else setFamilyNext(youngest, family);
  youngest = family;
}

function unlink(family: u32): void {
  const previous = familyPrevious(family);
  const next = familyNext(family);
  if (walk === family) walk = next;
  if (previous === 0) oldest = next;
  else setFamilyNext(previous, next);
  if (next === 0) youngest = previous;
  else setFamilyPrevious(next, previous);
}

export function lruInsert(family: u32): void {
  if (familyIsTracked(family)) {
    lruTouch(family);
    return;
  }
  append(family);
  setFamilyTracked(family, true);
  count += 1;
}

export function lruTouch(family: u32): void {
  if (!familyIsTracked(family) || family === youngest) return;
  unlink(family);
  append(family);
}

export function lruRemove(family: u32): void {
  if (!familyIsTracked(family)) return;
  unlink(family);
  setFamilyTracked(family, false);
  count -= 1;
}

/** The next family of the walk, oldest first; 0 when the walk is over. */
export function lruVictim(isFromStart: bool): u32 {
  if (isFromStart) walk = oldest;
  const family = walk;
  if (family !== 0) walk = familyNext(family);
  return family;
}
