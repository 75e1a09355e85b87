/**
 * The records of objects: the stored bytes of one chunk for one rank and object group.
 * What may happen to an object is in lifecycle.ts; here are its fields only.
 *
 * Three arrays of records, grouped by what is read together (a search reads KEYS only, four objects
 * to a cache line; objects stored by one request lie side by side). Slot 0 is never used.
 *
 *   KEYS     +0 family  +4 namespace  +8 writerTag  +12 u8 state  +13 u8 isTemporary  +14 u8 queue
 *   PLACES   +0 sizeBytes  +4 offset in units  +8 memberNext  +12 stamp of the reserving call
 *   HOLDERS  +0 lock (16 bytes)  +16 holds  +20 pins  +24 queue previous  +28 queue next
 *
 * Bookkeeping per object: 64 bytes here and 12 in the index of lifecycle.ts; with one family (56),
 * its entry in the policy (12) and one free block (20) each that is 164. Policies that remember
 * what they have evicted take 28 more for as many ghosts as objects.
 */
import { addressUnitShift } from './address-space';
import { reserveRegion } from './memory-map';

export const FREE: u32 = 0;
export const STAGED: u32 = 1;
export const RESIDENT: u32 = 2;
export const DETACHED: u32 = 3;

/** Queues of expiry-queue.ts. */
export const QUEUE_NONE: u32 = 0;
export const QUEUE_WRITES: u32 = 1;
export const QUEUE_LEASES: u32 = 2;
export const QUEUE_EXPIRED: u32 = 3;

/** Writer tag of resident objects. */
export const RESIDENT_TAG: u32 = 0;
/** Offset of an object that has no memory yet; only inside a reserving call. */
export const NO_PLACE: u32 = u32.MAX_VALUE;

const KEY_SIZE: u32 = 16;
const NAMESPACE: usize = 4;
const WRITER_TAG: usize = 8;
const STATE: usize = 12;
const IS_TEMPORARY: usize = 13;
const QUEUE: usize = 14;

const PLACE_SIZE: u32 = 16;
const OFFSET: usize = 4;
const MEMBER_NEXT: usize = 8;
const STAMP: usize = 12;

const HOLDER_SIZE: u32 = 32;
const HOLDS: usize = 16;
const PINS: usize = 20;
const QUEUE_PREVIOUS: usize = 24;
const QUEUE_NEXT: usize = 28;

let keys: usize = 0;
let places: usize = 0;
let holders: usize = 0;
let countMax: u32 = 0;
let slotEnd: u32 = 1;
let spareHead: u32 = 0;

export function objectLayout(objectCountMax: u32): void {
  countMax = objectCountMax;
  keys = reserveRegion(<u64>KEY_SIZE * (<u64>objectCountMax + 1));
  places = reserveRegion(<u64>PLACE_SIZE * (<u64>objectCountMax + 1));
  holders = reserveRegion(<u64>HOLDER_SIZE * (<u64>objectCountMax + 1));
}

/** One more than the largest slot ever used, for walks over all objects. */
export function objectEnd(): u32 {
  return slotEnd;
}

export function objectCountLimit(): u32 {
  return countMax;
}

/** Start of KEYS and PLACES, which the door reads. */
export function objectKeysRegion(): usize {
  return keys;
}

export function objectPlacesRegion(): usize {
  return places;
}

function keyAt(slot: u32): usize {
  return keys + ((<usize>slot) << 4);
}

function placeAt(slot: u32): usize {
  return places + ((<usize>slot) << 4);
}

function holderAt(slot: u32): usize {
  return holders + ((<usize>slot) << 5);
}

/** True for a slot that holds an object in any state but FREE. */
export function isObject(slot: u32): bool {
  return slot - 1 < slotEnd - 1 && objectState(slot) !== FREE;
}

export function objectFamily(slot: u32): u32 {
  return load<u32>(keyAt(slot));
}

export function objectNamespace(slot: u32): u32 {
  return load<u32>(keyAt(slot), NAMESPACE);
}

export function objectWriterTag(slot: u32): u32 {
  return load<u32>(keyAt(slot), WRITER_TAG);
}

export function setObjectWriterTag(slot: u32, writerTag: u32): void {
  store<u32>(keyAt(slot), writerTag, WRITER_TAG);
}

export function objectState(slot: u32): u32 {
  return <u32>load<u8>(keyAt(slot), STATE);
}

export function setObjectState(slot: u32, state: u32): void {
  store<u8>(keyAt(slot), <u8>state, STATE);
}

export function objectIsTemporary(slot: u32): bool {
  return load<u8>(keyAt(slot), IS_TEMPORARY) !== 0;
}

export function setObjectTemporary(slot: u32, isTemporary: bool): void {
  store<u8>(keyAt(slot), isTemporary ? 1 : 0, IS_TEMPORARY);
}

export function objectQueue(slot: u32): u32 {
  return <u32>load<u8>(keyAt(slot), QUEUE);
}

export function setObjectQueue(slot: u32, queue: u32): void {
  store<u8>(keyAt(slot), <u8>queue, QUEUE);
}

export function objectSize(slot: u32): u32 {
  return load<u32>(placeAt(slot));
}

/** Units that `sizeBytes` bytes take in the arena. */
export function sizeToUnits(sizeBytes: u32): u32 {
  const shift = <u64>addressUnitShift();
  const one: u64 = 1;
  return <u32>((<u64>sizeBytes + (one << shift) - 1) >> shift);
}

export function objectUnits(slot: u32): u32 {
  return sizeToUnits(objectSize(slot));
}

export function objectOffset(slot: u32): u32 {
  return load<u32>(placeAt(slot), OFFSET);
}

export function setObjectOffset(slot: u32, offset: u32): void {
  store<u32>(placeAt(slot), offset, OFFSET);
}

export function memberNext(slot: u32): u32 {
  return load<u32>(placeAt(slot), MEMBER_NEXT);
}

export function setMemberNext(slot: u32, next: u32): void {
  store<u32>(placeAt(slot), next, MEMBER_NEXT);
}

/** The call that reserved or admitted the object last, to recognise duplicates inside a call. */
export function objectStamp(slot: u32): u32 {
  return load<u32>(placeAt(slot), STAMP);
}

export function setObjectStamp(slot: u32, stamp: u32): void {
  store<u32>(placeAt(slot), stamp, STAMP);
}

/** Address of the lock, for the functions of ttl-lock.ts. */
export function objectLock(slot: u32): usize {
  return holderAt(slot);
}

export function objectHolds(slot: u32): u32 {
  return load<u32>(holderAt(slot), HOLDS);
}

export function setObjectHolds(slot: u32, holds: u32): void {
  store<u32>(holderAt(slot), holds, HOLDS);
}

export function objectPins(slot: u32): u32 {
  return load<u32>(holderAt(slot), PINS);
}

export function setObjectPins(slot: u32, pins: u32): void {
  store<u32>(holderAt(slot), pins, PINS);
}

export function queuePrevious(slot: u32): u32 {
  return load<u32>(holderAt(slot), QUEUE_PREVIOUS);
}

export function setQueuePrevious(slot: u32, previous: u32): void {
  store<u32>(holderAt(slot), previous, QUEUE_PREVIOUS);
}

export function queueNext(slot: u32): u32 {
  return load<u32>(holderAt(slot), QUEUE_NEXT);
}

export function setQueueNext(slot: u32, next: u32): void {
  store<u32>(holderAt(slot), next, QUEUE_NEXT);
}

/** Forgets which slots are spare, for a walk that gives them all back. */
export function resetSpareSlots(): void {
  spareHead = 0;
}

/** A slot without an object, or 0 when all are taken. */
export function takeSlot(): u32 {
  const spare = spareHead;
  if (spare !== 0) {
    spareHead = objectFamily(spare);
    return spare;
  }
  if (slotEnd > countMax) return 0;
  slotEnd += 1;
  return slotEnd - 1;
}

export function giveSlotBack(slot: u32): void {
  store<u32>(keyAt(slot), spareHead);
  spareHead = slot;
}

/** Makes a taken slot a STAGED object that has no memory and no lock yet. */
export function fillSlot(
  slot: u32,
  family: u32,
  namespaceId: u32,
  writerTag: u32,
  sizeBytes: u32,
): void {
  const key = keyAt(slot);
  store<u32>(key, family);
  store<u32>(key, namespaceId, NAMESPACE);
  store<u32>(key, writerTag, WRITER_TAG);
  store<u32>(key, STAGED, STATE);
  const place = placeAt(slot);
  store<u32>(place, sizeBytes);
  store<u32>(place, NO_PLACE, OFFSET);
}
