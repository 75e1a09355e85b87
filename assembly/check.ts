/**
 * The whole table against its own rules, for tests and for people who distrust a running server.
 * Costs a walk over everything: about half a second for a million objects.
 * Answers 0 or the number of the first broken rule.
 */
import {
  addressBlockCount,
  addressFirstBlock,
  addressFreeUnits,
  addressHeapUnits,
  addressNextBlock,
  blockSize,
  blockStart,
  isAllocated,
} from './address-space';
import {
  familyCount,
  familyEnd,
  familyFind,
  familyHash,
  familyIsAnnounced,
  familyMemberHead,
  familyResidentCount,
  familyScope,
} from './family';
import {
  addToFigures,
  detachedCount,
  detachedUnits,
  expiredCount,
  pinnedCount,
  readLockedCount,
  residentCount,
  stagedCount,
  stagedUnits,
  subtractFromFigures,
  temporaryCount,
  writeLockedCount,
} from './figures';
import { objectFind } from './lifecycle';
import { scopeOf } from './namespace';
import {
  DETACHED,
  FREE,
  memberNext,
  objectEnd,
  objectFamily,
  objectNamespace,
  objectOffset,
  objectQueue,
  objectState,
  objectUnits,
  objectWriterTag,
  QUEUE_LEASES,
  QUEUE_NONE,
  RESIDENT,
  RESIDENT_TAG,
} from './object';
import { isTracked } from './policy/entry';
import { policyCount } from './policy/policy';

/** 1-5: the free list. */
function checkAddressSpace(usedUnits: u32): i32 {
  let freeUnits: u32 = 0;
  let blockCount: u32 = 0;
  let endBefore: u32 = 0;
  for (let block = addressFirstBlock(); block !== 0; block = addressNextBlock(block)) {
    const start = blockStart(block);
    if (blockCount > 0 && start <= endBefore) return 1;
    endBefore = start + blockSize(block);
    freeUnits += blockSize(block);
    blockCount += 1;
  }
  if (endBefore > addressHeapUnits()) return 2;
  if (freeUnits !== addressFreeUnits()) return 3;
  if (blockCount !== addressBlockCount()) return 4;
  return freeUnits + usedUnits === addressHeapUnits() ? 0 : 5;
}

/** 10-16: one object and its ways to be found. */
function checkObject(slot: u32): i32 {
  const state = objectState(slot);
  if (state > DETACHED) return 10;
  if (!isAllocated(objectOffset(slot), objectUnits(slot))) return 11;
  if (state === DETACHED) return 0;
  const family = objectFamily(slot);
  const tag = objectWriterTag(slot);
  if ((state === RESIDENT) !== (tag === RESIDENT_TAG)) return 12;
  if (scopeOf(objectNamespace(slot)) !== familyScope(family)) return 13;
  if (objectFind(familyHash(family), objectNamespace(slot), tag) !== slot) return 14;
  if (familyFind(familyHash(family), familyScope(family)) !== family) return 15;
  const queue = objectQueue(slot);
  const isQueueRight = state === RESIDENT ? queue === QUEUE_NONE || queue === QUEUE_LEASES : true;
  return isQueueRight ? 0 : 16;
}

/** 20-26: families and their members. */
function checkFamilies(attachedCount: u32): i32 {
  let members: u32 = 0;
  let residents: u32 = 0;
  let families: u32 = 0;
  let tracked: u32 = 0;
  const end = familyEnd();
  for (let family: u32 = 1; family < end; family++) {
    const head = familyMemberHead(family);
    if (head === 0) continue;
    families += 1;
    if (isTracked(family)) tracked += 1;
    let residentHere: u32 = 0;
    for (let slot = head; slot !== 0; slot = memberNext(slot)) {
      if (objectFamily(slot) !== family) return 20;
      members += 1;
      if (objectState(slot) === RESIDENT) residentHere += 1;
    }
    if (residentHere !== familyResidentCount(family)) return 21;
    if (isTracked(family) && residentHere === 0) return 22;
    if (familyIsAnnounced(family) && residentHere === 0) return 26;
    residents += residentHere;
  }
  if (members !== attachedCount || residents !== residentCount) return 23;
  if (families !== familyCount()) return 24;
  return tracked === policyCount() ? 0 : 25;
}

/** Every counter of figures.ts must fall to zero when each object is taken out of it. */
function figuresAreZero(): bool {
  const counts = residentCount | stagedCount | detachedCount | writeLockedCount | expiredCount;
  const others = readLockedCount | temporaryCount | pinnedCount | stagedUnits | detachedUnits;
  return (counts | others) === 0;
}

/** 30: the counters. */
function checkFigures(): i32 {
  const end = objectEnd();
  for (let slot: u32 = 1; slot < end; slot++) {
    if (objectState(slot) !== FREE) subtractFromFigures(slot);
  }
  const isRight = figuresAreZero();
  for (let slot: u32 = 1; slot < end; slot++) {
    if (objectState(slot) !== FREE) addToFigures(slot);
  }
  return isRight ? 0 : 30;
}

export function checkTable(): i32 {
  let usedUnits: u32 = 0;
  let attachedCount: u32 = 0;
  const end = objectEnd();
  for (let slot: u32 = 1; slot < end; slot++) {
    const state = objectState(slot);
    if (state === FREE) continue;
    usedUnits += objectUnits(slot);
    if (state !== DETACHED) attachedCount += 1;
    const broken = checkObject(slot);
    if (broken !== 0) return broken;
  }
  let broken = checkAddressSpace(usedUnits);
  if (broken === 0) broken = checkFamilies(attachedCount);
  if (broken === 0) broken = checkFigures();
  return broken;
}
