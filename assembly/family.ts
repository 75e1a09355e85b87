/**
 * Families: all objects of one chunk for one (model, world size, salt), whatever rank or group.
 *
 * A family owns the chunk hash of its objects, so the 32 bytes are kept once per chunk and not per
 * rank, and it is the unit of eviction: its number is its entry in policy/policy.ts. Arrays of
 * small records; the hash lies apart because a search reads only that.
 *
 *   HASHES   +0 32 bytes of chunk hash, padded with zeros
 *   LINKS    +0  scope          all namespaces of a family have this scope (namespace.ts)
 *            +4  memberHead     first object; objects are linked by `memberNext` (object.ts)
 *            +8  residentCount  resident objects; the policy knows the family while it is > 0;
 *                               bit 31 = announced as whole (announcing.ts)
 *
 * A family lives exactly as long as it has members; the `scope` of an unused record is the next
 * spare one. Records are handed out in order, so that the
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
  mixKeyWide,
} from './hash-index';
import { HASH_SIZE, reserveRegion } from './memory-map';
import { isTracked, setEntryWord } from './policy/entry';

const LINKS_SIZE: u32 = 12;
const MEMBER_HEAD: usize = 4;
const RESIDENT_COUNT: usize = 8;
const ANNOUNCED_BIT: u32 = 0x8000_0000;

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

export function familyResidentCount(family: u32): u32 {
  return load<u32>(linksAt(family), RESIDENT_COUNT) & ~ANNOUNCED_BIT;
}

export function setFamilyResidentCount(family: u32, residentCount: u32): void {
  const announced = load<u32>(linksAt(family), RESIDENT_COUNT) & ANNOUNCED_BIT;
  store<u32>(linksAt(family), residentCount | announced, RESIDENT_COUNT);
}

export function familyIsAnnounced(family: u32): bool {
  return (load<u32>(linksAt(family), RESIDENT_COUNT) & ANNOUNCED_BIT) !== 0;
}

export function setFamilyAnnounced(family: u32, isAnnounced: bool): void {
  const residentCount = familyResidentCount(family);
  store<u32>(
    linksAt(family),
    isAnnounced ? residentCount | ANNOUNCED_BIT : residentCount,
    RESIDENT_COUNT,
  );
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
    spareHead = familyScope(family);
  } else {
    if (countUsed === countMax) return 0;
    countUsed += 1;
    family = countUsed;
  }
  memory.copy(familyHash(family), hash, HASH_SIZE);
  const at = linksAt(family);
  memory.fill(at, 0, LINKS_SIZE);
  store<u32>(at, scope);
  // After a reset of everything at once the word is an earlier family's.
  setEntryWord(family, 0);
  indexInsert(index, capacity, mixKey(hash, scope, seed), family);
  count += 1;
  return family;
}

/** What a policy remembers of a family that is gone. */
export function familyKey(family: u32): u64 {
  return mixKeyWide(familyHash(family), familyScope(family), seed);
}

/** Gives back a family without members that no policy tracks. */
export function familyRelease(family: u32): void {
  assert(familyMemberHead(family) === 0, 'a family with members was released');
  assert(!isTracked(family), 'a family was released that the policy still tracks');
  indexRemove(index, capacity, mixKey(familyHash(family), familyScope(family), seed), family);
  store<u32>(linksAt(family), spareHead);
  spareHead = family;
  count -= 1;
}
