/**
 * Ghosts: keys of entries that were evicted, remembered without their bytes.
 *
 * Two lists, oldest first, found by key. A key is a 64-bit digest of what it names, so two of them
 * are mixed up once in 2^64, and then a policy errs about one entry. There are as many records as
 * entries; whoever adds one too many loses the oldest, of list 1 before list 0.
 *
 *   GHOST  +0 key, low half  +4 high half  +8 previous, and the list in bit 31  +12 next
 *
 * Found by open addressing (hash-index.ts) with the low half as the tag: 28 bytes per ghost.
 */
import {
  ENTRY_SIZE,
  entryAt,
  entryTag,
  entryValue,
  indexCapacity,
  indexHome,
  indexInsert,
  indexNext,
  indexRemove,
} from '../hash-index';
import { reserveRegion } from '../memory-map';

const GHOST_SIZE: u32 = 16;
const PREVIOUS: usize = 8;
const NEXT: usize = 12;
const LIST_BIT: u32 = 0x8000_0000;

let ghosts: usize = 0;
let index: usize = 0;
let capacity: u32 = 0;
let countMax: u32 = 0;
let countUsed: u32 = 0;
let spareHead: u32 = 0;

let oldest0: u32 = 0;
let oldest1: u32 = 0;
let youngest0: u32 = 0;
let youngest1: u32 = 0;
let count0: u32 = 0;
let count1: u32 = 0;

export function ghostLayout(ghostCountMax: u32): void {
  countMax = ghostCountMax;
  capacity = indexCapacity(ghostCountMax);
  ghosts = reserveRegion(<u64>GHOST_SIZE * (<u64>ghostCountMax + 1));
  index = reserveRegion(<u64>ENTRY_SIZE * <u64>capacity);
}

export function ghostReset(): void {
  // Fresh pages stay untouched where there was never a ghost.
  if (countUsed > 0) memory.fill(index, 0, <usize>ENTRY_SIZE * capacity);
  countUsed = 0;
  spareHead = 0;
  oldest0 = 0;
  oldest1 = 0;
  youngest0 = 0;
  youngest1 = 0;
  count0 = 0;
  count1 = 0;
}

function at(ghost: u32): usize {
  return ghosts + ((<usize>ghost) << 4);
}

export function ghostCount(list: u32): u32 {
  return list === 0 ? count0 : count1;
}

export function ghostOldest(list: u32): u32 {
  return list === 0 ? oldest0 : oldest1;
}

export function ghostNext(ghost: u32): u32 {
  return load<u32>(at(ghost), NEXT);
}

export function ghostKey(ghost: u32): u64 {
  return load<u64>(at(ghost));
}

export function ghostList(ghost: u32): u32 {
  return load<u32>(at(ghost), PREVIOUS) >> 31;
}

/** The ghost of a key, or 0. */
export function ghostFind(key: u64): u32 {
  const tag = <u32>key;
  let position = indexHome(tag, capacity);
  while (true) {
    const entry = entryAt(index, position);
    const ghost = entryValue(entry);
    if (ghost === 0) return 0;
    if (entryTag(entry) === tag && ghostKey(ghost) === key) return ghost;
    position = indexNext(position, capacity);
  }
}

function setEnds(list: u32, oldest: u32, youngest: u32, step: u32): void {
  if (list === 0) {
    oldest0 = oldest;
    youngest0 = youngest;
    count0 += step;
  } else {
    oldest1 = oldest;
    youngest1 = youngest;
    count1 += step;
  }
}

/** Adds a key at the young end of a list; it must be in none. */
export function ghostAdd(list: u32, key: u64): void {
  if (spareHead === 0 && countUsed === countMax) ghostRemove(oldest1 !== 0 ? oldest1 : oldest0);
  let ghost = spareHead;
  if (ghost !== 0) {
    spareHead = ghostNext(ghost);
  } else {
    countUsed += 1;
    ghost = countUsed;
  }
  const youngest = list === 0 ? youngest0 : youngest1;
  store<u64>(at(ghost), key);
  store<u32>(at(ghost), youngest | (list << 31), PREVIOUS);
  store<u32>(at(ghost), 0, NEXT);
  if (youngest !== 0) store<u32>(at(youngest), ghost, NEXT);
  setEnds(list, youngest === 0 ? ghost : ghostOldest(list), ghost, 1);
  indexInsert(index, capacity, <u32>key, ghost);
}

export function ghostRemove(ghost: u32): void {
  const list = ghostList(ghost);
  const previous = load<u32>(at(ghost), PREVIOUS) & ~LIST_BIT;
  const next = ghostNext(ghost);
  if (previous !== 0) store<u32>(at(previous), next, NEXT);
  if (next !== 0) store<u32>(at(next), previous | (list << 31), PREVIOUS);
  const youngest = list === 0 ? youngest0 : youngest1;
  setEnds(
    list,
    previous === 0 ? next : ghostOldest(list),
    next === 0 ? previous : youngest,
    u32.MAX_VALUE,
  );
  indexRemove(index, capacity, load<u32>(at(ghost)), ghost);
  store<u32>(at(ghost), spareHead, NEXT);
  spareHead = ghost;
}
