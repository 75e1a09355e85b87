/**
 * One LRU list per tenant (storage.md 10.3, 18.16): nobody's burst throws out what others use.
 *
 * Inside a list everything is as in lru.ts. Between the lists, a walk goes
 *
 *   1. through the tenants that are over their limit (namespace.ts), down to it;
 *   2. in rounds over all lists: after round r a list has given r / 32 of what it had, rounded up,
 *      so that whatever part of the memory is wanted, every tenant gives the same part of its own.
 *
 * `isolatedVictimOf` walks one list only, for callers with limits of their own.
 *
 *   TENANT  +0 previous + 1  +4 next + 1                                            (20 bytes)
 *           +8 the last walk that met the list  +12 its count then  +16 entries named since
 *
 * The tenants with entries are linked in the order in which they first had one. The word of an
 * entry is its tenant + 1, which is also the number of its list + 1.
 */
import { reserveRegion } from '../memory-map';
import { isTenantOverLimit } from '../namespace';
import {
  entryWord,
  isTracked,
  listAppend,
  listCount,
  listEnd,
  listMoveToYoungEnd,
  listNext,
  listReset,
  listRewind,
  listUnlink,
  setEntryWord,
} from './entry';

const TENANT_SIZE: u32 = 20;
const NEXT: usize = 4;
const WALK: usize = 8;
const COUNT: usize = 12;
const NAMED: usize = 16;
/** With the usual ratio of 0.2 each list is met six times, and rounding hardly shows. */
const ROUND_COUNT: u64 = 32;
const NO_ROUND: u32 = u32.MAX_VALUE;

let tenants: usize = 0;
let first: u32 = 0;
let last: u32 = 0;
let count: u32 = 0;

/** The walk: its number, where it is, its round (0 = limits), and the next one with a victim. */
let walk: u32 = 0;
let current: u32 = 0;
let round: u32 = 0;
let nextRound: u32 = NO_ROUND;

export function isolatedLayout(): void {
  tenants = reserveRegion(<u64>TENANT_SIZE * <u64>listEnd());
}

function at(tenant: u32): usize {
  return tenants + <usize>tenant * TENANT_SIZE;
}

function link(tenant: u32): void {
  store<u32>(at(tenant), last);
  store<u32>(at(tenant), 0, NEXT);
  meet(tenant);
  if (last === 0) first = tenant + 1;
  else store<u32>(at(last - 1), tenant + 1, NEXT);
  last = tenant + 1;
}

function unlink(tenant: u32): void {
  const previous = load<u32>(at(tenant));
  const next = load<u32>(at(tenant), NEXT);
  if (current === tenant + 1) current = next;
  if (previous === 0) first = next;
  else store<u32>(at(previous - 1), next, NEXT);
  if (next === 0) last = previous;
  else store<u32>(at(next - 1), previous);
}

export function isolatedReset(): void {
  for (let place = first; place !== 0; place = load<u32>(at(place - 1), NEXT)) listReset(place - 1);
  first = 0;
  last = 0;
  count = 0;
  current = 0;
}

export function isolatedCount(): u32 {
  return count;
}

export function isolatedCountOf(tenant: u32): u32 {
  return tenant < listEnd() ? listCount(tenant) : 0;
}

export function isolatedInsert(entry: u32, tenant: u32): void {
  if (isTracked(entry)) {
    isolatedTouch(entry);
    return;
  }
  if (listCount(tenant) === 0) link(tenant);
  listAppend(tenant, entry);
  setEntryWord(entry, tenant + 1);
  count += 1;
}

export function isolatedTouch(entry: u32): void {
  if (isTracked(entry)) listMoveToYoungEnd(entryWord(entry) - 1, entry);
}

export function isolatedRemove(entry: u32): void {
  if (!isTracked(entry)) return;
  const tenant = entryWord(entry) - 1;
  listUnlink(tenant, entry);
  setEntryWord(entry, 0);
  count -= 1;
  if (listCount(tenant) === 0) unlink(tenant);
}

/** Begins the walk of a list. */
function meet(tenant: u32): void {
  store<u32>(at(tenant), walk, WALK);
  store<u32>(at(tenant), listCount(tenant), COUNT);
  store<u32>(at(tenant), 0, NAMED);
  listRewind(tenant);
}

/** The next of the tenant's list, if it is its turn. */
function nextOf(tenant: u32): u32 {
  if (load<u32>(at(tenant), WALK) !== walk) meet(tenant);
  const listCountThen = <u64>load<u32>(at(tenant), COUNT);
  const named = load<u32>(at(tenant), NAMED);
  const due = (listCountThen * <u64>round + ROUND_COUNT - 1) / ROUND_COUNT;
  if (round === 0 ? isTenantOverLimit(tenant) : <u64>named < due) {
    const entry = listNext(tenant);
    if (entry !== 0) store<u32>(at(tenant), named + 1, NAMED);
    return entry;
  }
  const itsRound =
    listCountThen === 0 ? NO_ROUND : <u32>((named * ROUND_COUNT) / listCountThen) + 1;
  nextRound = min(nextRound, itsRound);
  return 0;
}

export function isolatedVictim(isFromStart: bool): u32 {
  if (isFromStart) {
    walk += 1;
    round = 0;
    nextRound = NO_ROUND;
    current = first;
  }
  while (true) {
    while (current !== 0) {
      const entry = nextOf(current - 1);
      if (entry !== 0) return entry;
      current = load<u32>(at(current - 1), NEXT);
    }
    // A list that is at its end asks for no round: then the walk is over.
    if (nextRound === NO_ROUND) return 0;
    round = nextRound;
    nextRound = NO_ROUND;
    current = first;
  }
}

export function isolatedVictimOf(tenant: u32, isFromStart: bool): u32 {
  if (tenant >= listEnd()) return 0;
  if (isFromStart) listRewind(tenant);
  return listNext(tenant);
}
