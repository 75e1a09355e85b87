/**
 * S3-FIFO: Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache eviction",
 * SOSP 2023, on the interface of storage.md 10.5.
 *
 *   SMALL  new entries, a tenth of all: whoever is not used here goes soon ("quick demotion")
 *   MAIN   entries that were used, or that came back
 *   GHOST  keys of entries that were evicted, as many as there are entries
 *
 *   insert   ghost -> MAIN, else SMALL; nothing ever moves inside a queue
 *   touch    counter + 1, up to 3
 *   victim   the oldest of SMALL while it has more than a tenth, else of MAIN, else of SMALL
 *   take     counter > 0 -> no: once more through MAIN with counter - 1 (from SMALL this is the
 *            promotion, in MAIN the second chance); counter 0 -> yes
 *   remove   who was taken turns into a ghost
 *
 * Different from the paper: one use is enough to leave SMALL for MAIN (the paper's threshold is
 * two), because one use of a chunk is one request, not one read; and a victim of MAIN leaves a
 * ghost, too. Only who really could be evicted at this moment is asked to `take`, so a walk past
 * held entries costs nobody a counter, and an entry that was taken and is not removed after all
 * stays where it is.
 *
 * Word: 1 in SMALL or 2 in MAIN, +4 taken, counter in bits 3 and 4.
 */
import {
  entryWord,
  listAppend,
  listCount,
  listNext,
  listReset,
  listResume,
  listRewind,
  listUnlink,
  setEntryWord,
} from './entry';
import { ghostAdd, ghostCount, ghostFind, ghostOldest, ghostRemove, ghostReset } from './ghost';

const SMALL: u32 = 0;
const MAIN: u32 = 1;
const GHOST: u32 = 0;
/** One part of so many belongs to SMALL. */
const SMALL_PART: u32 = 10;

const IN_SMALL: u32 = 1;
const IN_MAIN: u32 = 2;
const TAKEN: u32 = 4;
const COUNTER_SHIFT: u32 = 3;
const COUNTER_MAX: u32 = 3;

export function s3fifoReset(): void {
  listReset(SMALL);
  listReset(MAIN);
  ghostReset();
}

export function s3fifoCount(): u32 {
  return listCount(SMALL) + listCount(MAIN);
}

function append(list: u32, entry: u32, counter: u32): void {
  listAppend(list, entry);
  setEntryWord(entry, (list === SMALL ? IN_SMALL : IN_MAIN) | (counter << COUNTER_SHIFT));
}

function unlink(entry: u32): void {
  listUnlink((entryWord(entry) & IN_SMALL) !== 0 ? SMALL : MAIN, entry);
  setEntryWord(entry, 0);
}

export function s3fifoInsert(entry: u32, key: u64): void {
  const word = entryWord(entry);
  if (word !== 0) {
    setEntryWord(entry, word & ~TAKEN);
    s3fifoTouch(entry);
    return;
  }
  const ghost = ghostFind(key);
  if (ghost !== 0) ghostRemove(ghost);
  append(ghost !== 0 ? MAIN : SMALL, entry, 0);
}

export function s3fifoTouch(entry: u32): void {
  const word = entryWord(entry);
  if (word === 0 || word >> COUNTER_SHIFT === COUNTER_MAX) return;
  const one: u32 = 1;
  setEntryWord(entry, word + (one << COUNTER_SHIFT));
}

/** Who was taken turns into a ghost; anybody else is forgotten. */
export function s3fifoRemove(entry: u32, key: u64): void {
  const word = entryWord(entry);
  if (word !== 0) {
    unlink(entry);
    if ((word & TAKEN) !== 0) ghostAdd(GHOST, key);
  } else {
    const ghost = ghostFind(key);
    if (ghost !== 0) ghostRemove(ghost);
  }
  while (ghostCount(GHOST) > s3fifoCount()) ghostRemove(ghostOldest(GHOST));
}

export function s3fifoVictim(isFromStart: bool): u32 {
  if (isFromStart) {
    listRewind(SMALL);
    listRewind(MAIN);
  }
  let entry: u32 = 0;
  if (listCount(SMALL) > s3fifoCount() / SMALL_PART) entry = listNext(SMALL);
  if (entry === 0) entry = listNext(MAIN);
  return entry !== 0 ? entry : listNext(SMALL);
}

export function s3fifoTake(entry: u32): bool {
  const word = entryWord(entry);
  const counter = word >> COUNTER_SHIFT;
  if (counter === 0) {
    setEntryWord(entry, word | TAKEN);
    return true;
  }
  unlink(entry);
  append(MAIN, entry, counter - 1);
  listResume(MAIN, entry);
  return false;
}
