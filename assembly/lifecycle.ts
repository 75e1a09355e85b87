/**
 * The life of an object: the index of keys and every change of state.
 *
 *            reserve                 finish
 *   FREE ─────────────► STAGED ────────────────► RESIDENT
 *    ▲                   │  writer's only          │  readers see it
 *    │ discard, sweep,   │                         │ delete, clear, evict, last reader of a
 *    │ no holder         ▼                         ▼ temporary object
 *    ├──────────────  key removed from the index (removeObject)
 *    │                   │ somebody still holds the memory
 *    └── last holder ◄── DETACHED
 *
 * A key is (chunk hash, namespace, writer tag); tag 0 is the resident object, every other tag a
 * writer's own staging, so that writers never disturb each other and readers see whole objects
 * only. Holders keep the *memory*, not the key:
 *   lock   write lock of a STAGED object, or leases of a RESIDENT one; TTL (ttl-lock.ts)
 *   holds  of sessions in the server, counted, no TTL
 *   pins   of running copies, counted, no TTL
 * A DETACHED object has lost its key and waits for the last of them. Locks end by themselves, so
 * every locked object is in a queue ordered by expiry (expiry-queue.ts) and `advanceClock` lets go
 * of what has expired.
 *
 * Invariant: figures.ts always equals the sum over all objects.
 */
import { addressSpaceFreeAll, claimRange, freeRange } from './address-space';
import { countDeparture, recordDeparture } from './departures';
import { dueHead, enqueue, requeue } from './expiry-queue';
import {
  familyHash,
  familyIntern,
  familyIsAnnounced,
  familyKey,
  familyMemberHead,
  familyRelease,
  familyReset,
  familyResidentCount,
  familyScope,
  setFamilyAnnounced,
  setFamilyMemberHead,
  setFamilyResidentCount,
} from './family';
import { addToFigures, resetFigures, subtractFromFigures } from './figures';
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
import { reserveRegion } from './memory-map';
import {
  noteAllKeysRemoved,
  noteKeyAdded,
  noteKeyRemoved,
  scopeOf,
  tenantOfScope,
} from './namespace';
import {
  DETACHED,
  FREE,
  fillSlot,
  giveSlotBack,
  memberNext,
  NO_PLACE,
  objectEnd,
  objectFamily,
  objectHolds,
  objectLock,
  objectNamespace,
  objectOffset,
  objectPins,
  objectQueue,
  objectState,
  objectUnits,
  objectWriterTag,
  QUEUE_EXPIRED,
  QUEUE_LEASES,
  QUEUE_NONE,
  QUEUE_WRITES,
  RESIDENT,
  RESIDENT_TAG,
  resetSpareSlots,
  STAGED,
  setMemberNext,
  setObjectState,
  setObjectWriterTag,
  takeSlot,
} from './object';
import { policyInsert, policyRefresh, policyRemove, policyReset } from './policy/policy';
import { recordRemoval } from './removal-records';
import { lockIsHeld, lockReset } from './ttl-lock';

/** Objects that one call may let go: bounds what a jump of the clock can cost. */
const EXPIRY_BUDGET: u32 = 1024;

let index: usize = 0;
let capacity: u32 = 0;
let seed: u64 = 0;
let lastMs: f64 = 0;

export function lifecycleLayout(objectCountMax: u32, indexSeed: u64): void {
  seed = indexSeed;
  capacity = indexCapacity(objectCountMax);
  index = reserveRegion(<u64>ENTRY_SIZE * <u64>capacity);
}

/** The latest time that any call has named. */
export function clockMs(): f64 {
  return lastMs;
}

/** The object of a key, or 0. */
export function objectFind(hash: usize, namespaceId: u32, writerTag: u32): u32 {
  const tag = mixKey(hash, namespaceId, seed);
  let position = indexHome(tag, capacity);
  while (true) {
    const entry = entryAt(index, position);
    const slot = entryValue(entry);
    if (slot === 0) return 0;
    if (
      entryTag(entry) === tag &&
      objectNamespace(slot) === namespaceId &&
      objectWriterTag(slot) === writerTag &&
      hashEquals(familyHash(objectFamily(slot)), hash)
    ) {
      return slot;
    }
    position = indexNext(position, capacity);
  }
}

/** The index tag of an object that still has its key. */
function tagOf(slot: u32): u32 {
  return mixKey(familyHash(objectFamily(slot)), objectNamespace(slot), seed);
}

/** Makes a STAGED object without memory and without lock; 0 when the table is full. */
export function createObject(hash: usize, namespaceId: u32, writerTag: u32, sizeBytes: u32): u32 {
  const slot = takeSlot();
  if (slot === 0) return 0;
  const family = familyIntern(hash, scopeOf(namespaceId));
  if (family === 0) {
    giveSlotBack(slot);
    return 0;
  }
  fillSlot(slot, family, namespaceId, writerTag, sizeBytes);
  setMemberNext(slot, familyMemberHead(family));
  setFamilyMemberHead(family, slot);
  indexInsert(index, capacity, mixKey(hash, namespaceId, seed), slot);
  noteKeyAdded(namespaceId, objectUnits(slot));
  addToFigures(slot);
  return slot;
}

/** STAGED becomes RESIDENT; the key must have no resident object yet. */
export function admitObject(slot: u32): void {
  const family = objectFamily(slot);
  subtractFromFigures(slot);
  enqueue(slot, QUEUE_NONE);
  lockReset(objectLock(slot));
  setObjectWriterTag(slot, RESIDENT_TAG);
  setObjectState(slot, RESIDENT);
  const residentCount = familyResidentCount(family) + 1;
  setFamilyResidentCount(family, residentCount);
  addToFigures(slot);
  if (residentCount === 1) {
    policyInsert(family, familyKey(family), tenantOfScope(familyScope(family)));
  } else {
    policyRefresh(family);
  }
}

function unlinkMember(family: u32, slot: u32): void {
  let member = familyMemberHead(family);
  if (member === slot) {
    setFamilyMemberHead(family, memberNext(slot));
    return;
  }
  while (memberNext(member) !== slot) member = memberNext(member);
  setMemberNext(member, memberNext(slot));
}

/** True while some holder may use the memory of the object. */
export function hasHolders(slot: u32, nowMs: f64): bool {
  return objectPins(slot) > 0 || objectHolds(slot) > 0 || lockIsHeld(objectLock(slot), nowMs);
}

/**
 * Takes the key of an object away. The memory goes with it, or with the last holder.
 * Answers true when the memory is free now.
 */
export function removeObject(slot: u32, nowMs: f64): bool {
  const family = objectFamily(slot);
  subtractFromFigures(slot);
  indexRemove(index, capacity, tagOf(slot), slot);
  unlinkMember(family, slot);
  noteKeyRemoved(objectNamespace(slot), objectUnits(slot));
  if (objectState(slot) === RESIDENT) {
    const residentCount = familyResidentCount(family) - 1;
    setFamilyResidentCount(family, residentCount);
    recordDeparture(familyHash(family), objectNamespace(slot), objectUnits(slot));
    if (residentCount === 0) policyRemove(family, familyKey(family));
    if (familyIsAnnounced(family)) {
      setFamilyAnnounced(family, false);
      recordRemoval(familyHash(family), objectNamespace(slot));
    }
  }
  if (familyMemberHead(family) === 0) familyRelease(family);
  // What has expired is out of the sweep's hands; locks that are live still end by time.
  if (objectQueue(slot) === QUEUE_EXPIRED) enqueue(slot, QUEUE_NONE);
  setObjectState(slot, DETACHED);
  addToFigures(slot);
  return freeIfUnheld(slot, nowMs);
}

/** Frees a DETACHED object that nobody holds any more; anything else stays as it is. */
export function freeIfUnheld(slot: u32, nowMs: f64): bool {
  if (objectState(slot) !== DETACHED || hasHolders(slot, nowMs)) return false;
  subtractFromFigures(slot);
  enqueue(slot, QUEUE_NONE);
  lockReset(objectLock(slot));
  if (objectOffset(slot) !== NO_PLACE) freeRange(objectOffset(slot), objectUnits(slot));
  setObjectState(slot, FREE);
  giveSlotBack(slot);
  return true;
}

/** Units of the objects that lost key and memory in the last `detachAll`. */
export let detachAllFreedUnits: u64 = 0;

/**
 * Takes the keys of all objects away in one walk over the slots, by forgetting the indexes and the
 * free list as a whole: a tenth of the cost of removing them one by one, and without a removal
 * record for each announced chunk, because it is the end of all of them. What somebody holds is
 * DETACHED and keeps its place. Answers how many objects that are; older DETACHED ones, which the
 * walk meets too, are in none of its sums.
 */
export function detachAll(nowMs: f64): u32 {
  memory.fill(index, 0, <usize>ENTRY_SIZE * capacity);
  familyReset();
  policyReset();
  noteAllKeysRemoved();
  resetSpareSlots();
  resetFigures();
  addressSpaceFreeAll();
  detachAllFreedUnits = 0;
  let deferredCount: u32 = 0;
  // From the last slot down, so that low slots are handed out first.
  for (let slot = objectEnd() - 1; slot > 0; slot--) {
    const state = objectState(slot);
    if (state === RESIDENT) countDeparture(objectNamespace(slot), objectUnits(slot));
    if (state !== FREE) {
      if (hasHolders(slot, nowMs)) {
        if (state !== DETACHED) deferredCount += 1;
        if (objectQueue(slot) === QUEUE_EXPIRED) enqueue(slot, QUEUE_NONE);
        setObjectState(slot, DETACHED);
        claimRange(objectOffset(slot), objectUnits(slot));
        addToFigures(slot);
        continue;
      }
      if (state !== DETACHED) detachAllFreedUnits += <u64>objectUnits(slot);
      enqueue(slot, QUEUE_NONE);
      lockReset(objectLock(slot));
      setObjectState(slot, FREE);
    }
    giveSlotBack(slot);
  }
  return deferredCount;
}

function expireNext(queue: u32): bool {
  const slot = dueHead(queue, lastMs);
  if (slot === 0) return false;
  requeue(slot, objectState(slot) === STAGED ? QUEUE_EXPIRED : QUEUE_NONE);
  freeIfUnheld(slot, lastMs);
  return true;
}

/** Moves time forward and lets go of what has expired; answers the time that now holds. */
export function advanceClock(nowMs: f64): f64 {
  if (nowMs > lastMs) lastMs = nowMs;
  let budget = EXPIRY_BUDGET;
  while (budget > 0 && expireNext(QUEUE_WRITES)) budget -= 1;
  while (budget > 0 && expireNext(QUEUE_LEASES)) budget -= 1;
  return lastMs;
}
