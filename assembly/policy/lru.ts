/**
 * Least recently used. One list, oldest first (storage.md 10.2).
 *
 *   insert   tracked -> to the young end; else append
 *   refresh  to the young end
 *   touch    to the young end
 *   remove   unlink
 *   victim   the next of a walk from the oldest
 *   take     yes
 *
 * The word of an entry is 1.
 */
import {
  isTracked,
  listAppend,
  listCount,
  listMoveToYoungEnd,
  listNext,
  listReset,
  listRewind,
  listUnlink,
  setEntryWord,
} from './entry';

const ALL: u32 = 0;

export function lruReset(): void {
  listReset(ALL);
}

export function lruCount(): u32 {
  return listCount(ALL);
}

export function lruInsert(entry: u32): void {
  if (isTracked(entry)) {
    listMoveToYoungEnd(ALL, entry);
    return;
  }
  listAppend(ALL, entry);
  setEntryWord(entry, 1);
}

export function lruTouch(entry: u32): void {
  if (isTracked(entry)) listMoveToYoungEnd(ALL, entry);
}

export function lruRemove(entry: u32): void {
  if (!isTracked(entry)) return;
  listUnlink(ALL, entry);
  setEntryWord(entry, 0);
}

export function lruVictim(isFromStart: bool): u32 {
  if (isFromStart) listRewind(ALL);
  return listNext(ALL);
}
