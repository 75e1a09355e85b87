/**
 * Families: all objects of one chunk for one (model, world size, salt), whatever rank or group.
 *
 * A family owns the chunk hash of its objects, so the 32 bytes are kept once per chunk and not per
 * rank, and it is the unit of eviction (policy/policy.ts). Arrays of small records; the hash lies
 * apart because a search reads only that.
 *
 *   HASHES   +0 32 bytes of chunk hash, padded with zeros
 *   LINKS    +0  scope          all namespaces of a family have this scope (namespace.ts)
 *            +4  memberHead     first object; objects are linked by `memberNext` (object.ts)
 *            +8  previous       link of the policy (next spare record while unused)
 *            +12 next           link of the policy
 *            +16 residentCount  resident objects; the policy knows the family while it is > 0
 *            +20 word           of the policy; bit 31 = the policy tracks the family,
 *                               bit 30 = announced as whole (announcing.ts)
 *
 * A family lives exactly as long as it has members. Records are handed out in order, so that the
 * chunks of one request lie side by side; spare ones are reused last in, first out.
 */
import {
  ENTRY_SIZE,
  entryAt,
  entryTag,
  entryValue,
  hashEquals,
  indexCapacity,
  indexHome,
  indexInsert,
  indexNext,
  indexRemove,
  mixKey,
} from './hash-index';
import { HASH_SIZE, reserveRegion } from './memory-map';

const LINKS_SIZE: u32 = 24;
const MEMBER_HEAD: usize = 4;
const PREVIOUS: usize = 8;
const NEXT: usize = 12;
const RESIDENT_COUNT: usize = 16;
const WORD: usize = 20;
const TRACKED_BIT: u32 = 0x8000_0000;
const ANNOUNCED_BIT: u32 = 0x4000_0000;

let hashes: usize = 0;
let links: usize = 0;
let index: usize = 0;
let capacity: u32 = 0;
let seed: u64 = 0;
let countMax: u32 = 0;
let countUsed: u32 = 0;
let spareHead: u32 = 0;
let count: u32 = 0;

export function familyLayout(familyCountMax: u32, indexSeed: u64): void {
  countMax = familyCountMax;
  seed = indexSeed;
  capacity = indexCapacity(familyCountMax);
  hashes = reserveRegion(<u64>HASH_SIZE * (<u64>familyCountMax + 1));
  links = reserveRegion(<u64>LINKS_SIZE * (<u64>familyCountMax + 1));
  index = reserveRegion(<u64>ENTRY_SIZE * <u64>capacity);
}

/** Forgets all families at once, without a look at their members. */
export function familyReset(): void {
  memory.fill(index, 0, <usize>ENTRY_SIZE * capacity);
  countUsed = 0;
  spareHead = 0;
  count = 0;
}

/** Families alive. */
export function familyCount(): u32 {
  return count;
}

/** One more than the largest family number ever used, for walks over all records. */
export function familyEnd(): u32 {
  return countUsed + 1;
}

function linksAt(family: u32): usize {
  return links + <usize>family * LINKS_SIZE;
}

/** Address of the 32 hash bytes. */
export function familyHash(family: u32): usize {
  return hashes + <usize>family * HASH_SIZE;
}

export function familyScope(family: u32): u32 {
  return load<u32>(linksAt(family));
}

export function familyMemberHead(family: u32): u32 {
  return load<u32>(linksAt(family), MEMBER_HEAD);
}

export function setFamilyMemberHead(family: u32, slot: u32): void {
  store<u32>(linksAt(family), slot, MEMBER_HEAD);
}

export function familyPrevious(family: u32): u32 {
  return load<u32>(linksAt(family), PREVIOUS);
}

export function setFamilyPrevious(family: u32, previous: u32): void {
  store<u32>(linksAt(family), previous, PREVIOUS);
}

export function familyNext(family: u32): u32 {
  return load<u32>(linksAt(family), NEXT);
}

export function setFamilyNext(family: u32, next: u32): void {
  store<u32>(linksAt(family), next, NEXT);
}

export function familyResidentCount(family: u32): u32 {
  return load<u32>(linksAt(family), RESIDENT_COUNT);
}

export function setFamilyResidentCount(family: u32, residentCount: u32): void {
  store<u32>(linksAt(family), residentCount, RESIDENT_COUNT);
}

export function familyIsTracked(family: u32): bool {
  return (load<u32>(linksAt(family), WORD) & TRACKED_BIT) !== 0;
}

export function setFamilyTracked(family: u32, isTracked: bool): void {
  const word = load<u32>(linksAt(family), WORD);
  store<u32>(linksAt(family), isTracked ? word | TRACKED_BIT : word & ~TRACKED_BIT, WORD);
}

export function familyIsAnnounced(family: u32): bool {
  return (load<u32>(linksAt(family), WORD) & ANNOUNCED_BIT) !== 0;
}

export function setFamilyAnnounced(family: u32, isAnnounced: bool): void {
  const word = load<u32>(linksAt(family), WORD);
  store<u32>(linksAt(family), isAnnounced ? word | ANNOUNCED_BIT : word & ~ANNOUNCED_BIT, WORD);
}

/** The family of a chunk, or 0. */
export function familyFind(hash: usize, scope: u32): u32 {
  const tag = mixKey(hash, scope, seed);
  let position = indexHome(tag, capacity);
  while (true) {
    const entry = entryAt(index, position);
    const family = entryValue(entry);
    if (family === 0) return 0;
    if (entryTag(entry) === tag && familyScope(family) === scope) {
      if (hashEquals(familyHash(family), hash)) return family;
    }
    position = indexNext(position, capacity);
  }
}

/** The family of a chunk, made if there is none; 0 when all records are in use. */
export function familyIntern(hash: usize, scope: u32): u32 {
  const found = familyFind(hash, scope);
  if (found !== 0) return found;
  let family = spareHead;
  if (family !== 0) {
    spareHead = familyPrevious(family);
  } else {
    if (countUsed === countMax) return 0;
    countUsed += 1;
    family = countUsed;
  }
  memory.copy(familyHash(family), hash, HASH_SIZE);
  const at = linksAt(family);
  memory.fill(at, 0, LINKS_SIZE);
  store<u32>(at, scope);
  indexInsert(index, capacity, mixKey(hash, scope, seed), family);
  count += 1;
  return family;
}

/** Gives back a family without members that no policy tracks. */
export function familyRelease(family: u32): void {
  assert(familyMemberHead(family) === 0, 'a family with members was released');
  assert(!familyIsTracked(family), 'a family was released that the policy still tracks');
  indexRemove(index, capacity, mixKey(familyHash(family), familyScope(family), seed), family);
  setFamilyPrevious(family, spareHead);
  spareHead = family;
  count -= 1;
}
