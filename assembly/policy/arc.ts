/**
 * ARC: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, in the
 * variant of the reference (storage.md 10.5).
 *
 *   T1  entries used once        B1  ghosts of entries that left from T1
 *   T2  entries used again       B2  ghosts of entries that left from T2
 *
 * A return from B1 says that T1 is too small, one from B2 that T2 is: `target`, the size wanted for
 * T1 (p of the paper), moves accordingly. Victims come from T1 while it is at least that large.
 *
 * Different from the paper, because the cache is counted in bytes and evicts ahead of need:
 *   - the capacity (c) is the largest number of entries that there ever was;
 *   - who leaves is chosen at one time (`take`) and gone at another (`remove`); only then it turns
 *     into a ghost, and if it is stored again in between, it does not;
 *   - an entry can be announced before it is stored (`reserve`); the store is then no second use.
 *
 * Word: 1 in T1 or 2 in T2, +4 reserved, +8 taken.
 */
import {
  entryWord,
  listAppend,
  listCount,
  listNext,
  listReset,
  listRewind,
  listUnlink,
  setEntryWord,
} from './entry';
import {
  ghostAdd,
  ghostCount,
  ghostFind,
  ghostList,
  ghostOldest,
  ghostRemove,
  ghostReset,
} from './ghost';

/** Lists of entries. */
const T1: u32 = 0;
const T2: u32 = 1;
/** Lists of ghosts. */
const B1: u32 = 0;
const B2: u32 = 1;

const IN_T1: u32 = 1;
const IN_T2: u32 = 2;
const RESERVED: u32 = 4;
const TAKEN: u32 = 8;

let capacity: u32 = 0;
let target: f64 = 0;
/** Entries of T1 that the walk has not taken. */
let leftInT1: u32 = 0;

export function arcReset(): void {
  listReset(T1);
  listReset(T2);
  ghostReset();
  capacity = 0;
  target = 0;
  leftInT1 = 0;
}

export function arcCount(): u32 {
  return listCount(T1) + listCount(T2);
}

export function arcCapacity(): u32 {
  return capacity;
}

export function arcTarget(): f64 {
  return target;
}

function append(list: u32, entry: u32, flags: u32): void {
  listAppend(list, entry);
  setEntryWord(entry, flags | (list === T1 ? IN_T1 : IN_T2));
  if (list === T1) leftInT1 += 1;
}

function unlink(entry: u32): void {
  const word = entryWord(entry);
  const isInT1 = (word & IN_T1) !== 0;
  listUnlink(isInT1 ? T1 : T2, entry);
  if (isInT1 && (word & TAKEN) === 0 && leftInT1 > 0) leftInT1 -= 1;
  setEntryWord(entry, 0);
}

/** Moves the target as the paper does when a ghost returns, and ends the ghost. */
function adapt(ghost: u32): void {
  const hit = ghostList(ghost);
  const ratio = <f64>ghostCount(1 - hit) / <f64>ghostCount(hit);
  const delta = Math.max(1, ratio);
  target = hit === B1 ? Math.min(<f64>capacity, target + delta) : Math.max(0, target - delta);
  ghostRemove(ghost);
}

function trim(): void {
  const entryCount = arcCount();
  if (entryCount > capacity) capacity = entryCount;
  while (ghostCount(B1) > 0 && listCount(T1) + ghostCount(B1) > capacity) {
    ghostRemove(ghostOldest(B1));
  }
  while (entryCount + ghostCount(B1) + ghostCount(B2) > 2 * capacity) {
    ghostRemove(ghostCount(B2) > 0 ? ghostOldest(B2) : ghostOldest(B1));
  }
}

export function arcInsert(entry: u32, key: u64): void {
  const word = entryWord(entry);
  if (word === 0) {
    const ghost = ghostFind(key);
    if (ghost !== 0) adapt(ghost);
    append(ghost !== 0 ? T2 : T1, entry, 0);
    trim();
  } else if ((word & RESERVED) !== 0) {
    setEntryWord(entry, word & ~(RESERVED | TAKEN));
  } else {
    unlink(entry);
    append(T2, entry, 0);
  }
}

/** The entry is on its way: it counts as used once, and its `insert` does not count again. */
export function arcReserve(entry: u32, key: u64): void {
  if (entryWord(entry) !== 0) unlink(entry);
  const ghost = ghostFind(key);
  if (ghost !== 0) adapt(ghost);
  append(T1, entry, RESERVED);
  trim();
}

export function arcTouch(entry: u32): void {
  const word = entryWord(entry);
  if (word === 0) return;
  unlink(entry);
  append(T2, entry, word & (RESERVED | TAKEN));
}

/** Who was taken turns into a ghost; anybody else is forgotten. */
export function arcRemove(entry: u32, key: u64): void {
  const word = entryWord(entry);
  if (word !== 0) {
    unlink(entry);
    if ((word & TAKEN) !== 0) ghostAdd((word & IN_T1) !== 0 ? B1 : B2, key);
  } else {
    const ghost = ghostFind(key);
    if (ghost !== 0) ghostRemove(ghost);
  }
  trim();
}

export function arcVictim(isFromStart: bool): u32 {
  if (isFromStart) {
    trim();
    target = Math.min(target, <f64>capacity);
    leftInT1 = listCount(T1);
    listRewind(T1);
    listRewind(T2);
  }
  let entry: u32 = 0;
  if (<f64>leftInT1 >= Math.floor(target)) entry = listNext(T1);
  if (entry === 0) entry = listNext(T2);
  return entry !== 0 ? entry : listNext(T1);
}

export function arcTake(entry: u32): bool {
  const word = entryWord(entry);
  if ((word & IN_T1) !== 0 && leftInT1 > 0) leftInT1 -= 1;
  setEntryWord(entry, word | TAKEN);
  return true;
}
