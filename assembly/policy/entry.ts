/**
 * What policies know of an entry: its place in one list, and a word that belongs to the policy.
 *
 *   ENTRY  +0 previous  +4 next  +8 word                        (12 bytes; entry 0 is never used)
 *   LIST   +0 oldest    +4 youngest  +8 count  +12 cursor       (16 bytes)
 *
 * An entry is a number: of a family in the object table (family.ts), of a record in a free-standing
 * order (order.ts). Its word is 0 while no policy tracks it.
 *
 * A cursor is a walk from the oldest on: a look, it changes no order. The walk may be interrupted
 * by any change: an entry that leaves its place hands the cursor on to the one after it, so that a
 * walk in slices neither starts over nor follows a dead link.
 */
import { reserveRegion } from '../memory-map';

const ENTRY_SIZE: u32 = 12;
const NEXT: usize = 4;
const WORD: usize = 8;

const YOUNGEST: usize = 4;
const COUNT: usize = 8;
const CURSOR: usize = 12;
const LIST_SIZE: u32 = 16;

let entries: usize = 0;
let lists: usize = 0;
let listCountMax: u32 = 0;

export function entryLayout(entryCountMax: u32, listCount: u32): void {
  listCountMax = listCount;
  entries = reserveRegion(<u64>ENTRY_SIZE * (<u64>entryCountMax + 1));
  lists = reserveRegion(<u64>LIST_SIZE * <u64>listCount);
}

function at(entry: u32): usize {
  return entries + <usize>entry * ENTRY_SIZE;
}

export function entryWord(entry: u32): u32 {
  return load<u32>(at(entry), WORD);
}

export function setEntryWord(entry: u32, word: u32): void {
  store<u32>(at(entry), word, WORD);
}

export function isTracked(entry: u32): bool {
  return entryWord(entry) !== 0;
}

function listAt(list: u32): usize {
  return lists + ((<usize>list) << 4);
}

/** Forgets what is in a list; the words of its entries are the policy's to clear. */
export function listReset(list: u32): void {
  memory.fill(listAt(list), 0, LIST_SIZE);
}

export function listCount(list: u32): u32 {
  return load<u32>(listAt(list), COUNT);
}

/** Numbers of lists are below this. */
export function listEnd(): u32 {
  return listCountMax;
}

/** Puts an entry that is in no list at the young end. */
export function listAppend(list: u32, entry: u32): void {
  const head = listAt(list);
  const youngest = load<u32>(head, YOUNGEST);
  store<u32>(at(entry), youngest);
  store<u32>(at(entry), 0, NEXT);
  if (youngest === 0) store<u32>(head, entry);
  else store<u32>(at(youngest), entry, NEXT);
  store<u32>(head, entry, YOUNGEST);
  store<u32>(head, load<u32>(head, COUNT) + 1, COUNT);
}

/** Takes an entry out of the list that it is in. */
export function listUnlink(list: u32, entry: u32): void {
  const head = listAt(list);
  const previous = load<u32>(at(entry));
  const next = load<u32>(at(entry), NEXT);
  if (load<u32>(head, CURSOR) === entry) store<u32>(head, next, CURSOR);
  if (previous === 0) store<u32>(head, next);
  else store<u32>(at(previous), next, NEXT);
  if (next === 0) store<u32>(head, previous, YOUNGEST);
  else store<u32>(at(next), previous);
  store<u32>(head, load<u32>(head, COUNT) - 1, COUNT);
}

export function listMoveToYoungEnd(list: u32, entry: u32): void {
  if (load<u32>(listAt(list), YOUNGEST) === entry) return;
  listUnlink(list, entry);
  listAppend(list, entry);
}

/** Begins a walk at the oldest. */
export function listRewind(list: u32): void {
  const head = listAt(list);
  store<u32>(head, load<u32>(head), CURSOR);
}

/** The next entry of the walk; 0 when it is over. */
export function listNext(list: u32): u32 {
  const head = listAt(list);
  const entry = load<u32>(head, CURSOR);
  if (entry !== 0) store<u32>(head, load<u32>(at(entry), NEXT), CURSOR);
  return entry;
}

/** A walk that is at its end goes on at this entry. */
export function listResume(list: u32, entry: u32): void {
  const head = listAt(list);
  if (load<u32>(head, CURSOR) === 0) store<u32>(head, entry, CURSOR);
}
