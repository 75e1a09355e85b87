/**
 * Doors to single parts of the core, for the vectors (test/core/*.test.ts): lock, address space,
 * policies, bitmaps. The product reaches them only through the object table.
 */
import {
  addressFirstBlock,
  addressFreeUnits,
  addressHeapUnits,
  addressNextBlock,
  addressSpaceGrow,
  addressSpaceLayout,
  addressSpaceReset,
  allocateBatch,
  blockSize,
  blockStart,
  freeRange,
} from '../address-space';
import {
  bitmapAnd,
  bitmapBytes,
  bitmapClear,
  bitmapGather,
  bitmapHighest,
  bitmapLeadingOnes,
  bitmapLeadingZeros,
  bitmapNextOne,
  bitmapNot,
  bitmapOr,
  bitmapPopcount,
  bitmapReset,
  bitmapSet,
  bitmapSetRange,
  bitmapTest,
} from '../bitmap';
import { familyIntern, familyKey, familyLayout, familyScope } from '../family';
import { beginLayout, endLayout, HASH_OUTPUT, reserveRegion } from '../memory-map';
import { arcCapacity, arcTarget } from '../policy/arc';
import { entryWord } from '../policy/entry';
import { ghostCount, ghostKey, ghostNext, ghostOldest } from '../policy/ghost';
import {
  policyCount,
  policyInsert,
  policyLayout,
  policyRefresh,
  policyRemove,
  policyReserve,
  policySelect,
  policyTake,
  policyTouch,
  policyVictim,
  policyVictimOf,
} from '../policy/policy';
import {
  LOCK_SIZE,
  lockAcquire,
  lockCount,
  lockGeneration,
  lockIsHeld,
  lockRelease,
  lockReset,
} from '../ttl-lock';

const SCRATCH_SIZE: u64 = 65536;
const TENANT_COUNT_MAX: u32 = 64;

let lock: usize = 0;
let scratch: usize = 0;

/** Lays out everything for up to `countMax` families or blocks. Returns the scratch region. */
export function open(countMax: u32): usize {
  assert(beginLayout(64, 16, 16) === 0);
  lock = reserveRegion(LOCK_SIZE);
  scratch = reserveRegion(SCRATCH_SIZE);
  familyLayout(countMax, 0);
  policyLayout(countMax, TENANT_COUNT_MAX);
  addressSpaceLayout(countMax);
  assert(endLayout() === 0);
  return scratch;
}

export function lock_acquire(nowMs: f64, ttlMs: f64): void {
  lockAcquire(lock, 1, nowMs, ttlMs);
}

export function lock_release(): void {
  lockRelease(lock, 1);
}

export function lock_reset(): void {
  lockReset(lock);
}

export function lock_is_held(nowMs: f64): bool {
  return lockIsHeld(lock, nowMs);
}

export function lock_count(): u32 {
  return lockCount(lock);
}

export function lock_generation(): u32 {
  return lockGeneration(lock);
}

export function address_reset(units: u32): void {
  addressSpaceReset(units, 1);
}

/** Start units go to the scratch region. */
export function address_allocate(units: u32, count: u32): i32 {
  return allocateBatch(units, count, scratch);
}

export function address_free(start: u32, units: u32): void {
  freeRange(start, units);
}

export function address_grow(units: u32): void {
  addressSpaceGrow(units);
}

export function address_free_units(): u32 {
  return addressFreeUnits();
}

export function address_heap_units(): u32 {
  return addressHeapUnits();
}

/** Pairs (start, size) of the free blocks go to the scratch region; returns how many. */
export function address_blocks(): u32 {
  let count: u32 = 0;
  for (let block = addressFirstBlock(); block !== 0; block = addressNextBlock(block)) {
    store<u32>(scratch + ((<usize>count) << 3), blockStart(block));
    store<u32>(scratch + ((<usize>count) << 3), blockSize(block), 4);
    count += 1;
  }
  return count;
}

export function policy_select(kind: u32): void {
  policySelect(kind);
}

/** A family for chunk number `chunk`, whose hash is that number; the tenant is its scope. */
export function policy_family(chunk: u32, tenant: u32): u32 {
  memory.fill(HASH_OUTPUT, 0, 32);
  store<u32>(HASH_OUTPUT, chunk);
  return familyIntern(HASH_OUTPUT, tenant);
}

export function policy_insert(family: u32): void {
  policyInsert(family, familyKey(family), familyScope(family));
}

export function policy_reserve(family: u32): void {
  policyReserve(family, familyKey(family), familyScope(family));
}

export function policy_refresh(family: u32): void {
  policyRefresh(family);
}

export function policy_touch(family: u32): void {
  policyTouch(family);
}

export function policy_remove(family: u32): void {
  policyRemove(family, familyKey(family));
}

export function policy_victim(isFromStart: bool): u32 {
  return policyVictim(isFromStart);
}

export function policy_victim_of(tenant: u32, isFromStart: bool): u32 {
  return policyVictimOf(tenant, isFromStart);
}

export function policy_take(family: u32): bool {
  return policyTake(family);
}

/** The policy's own notes about a family. */
export function policy_word(family: u32): u32 {
  return entryWord(family);
}

export function policy_key(family: u32): u64 {
  return familyKey(family);
}

/** Keys of the ghosts of a list, oldest first, go to the scratch region; returns how many. */
export function policy_ghosts(list: u32): u32 {
  let position = scratch;
  for (let ghost = ghostOldest(list); ghost !== 0; ghost = ghostNext(ghost)) {
    store<u64>(position, ghostKey(ghost));
    position += 8;
  }
  return ghostCount(list);
}

export function policy_arc_capacity(): u32 {
  return arcCapacity();
}

export function policy_arc_target(): f64 {
  return arcTarget();
}

export function policy_count(): u32 {
  return policyCount();
}

/** Bitmap number `n` of the scratch region; each has room for 4096 bits. */
function bitmapAt(n: u32): usize {
  return scratch + <usize>n * 512;
}

export function bitmap_bytes(size: u32): u32 {
  return bitmapBytes(size);
}

export function bitmap_reset(n: u32, size: u32, prefix: u32): void {
  bitmapReset(bitmapAt(n), size, prefix);
}

export function bitmap_set(n: u32, size: u32, position: u32): void {
  bitmapSet(bitmapAt(n), size, position);
}

export function bitmap_clear(n: u32, size: u32, position: u32): void {
  bitmapClear(bitmapAt(n), size, position);
}

export function bitmap_test(n: u32, size: u32, position: u32): bool {
  return bitmapTest(bitmapAt(n), size, position);
}

export function bitmap_set_range(n: u32, size: u32, start: u32, end: u32): void {
  bitmapSetRange(bitmapAt(n), size, start, end);
}

export function bitmap_popcount(n: u32, size: u32): u32 {
  return bitmapPopcount(bitmapAt(n), size);
}

export function bitmap_highest(n: u32, size: u32): i32 {
  return bitmapHighest(bitmapAt(n), size);
}

export function bitmap_next_one(n: u32, size: u32, start: u32): u32 {
  return bitmapNextOne(bitmapAt(n), size, start);
}

export function bitmap_leading_ones(n: u32, size: u32): u32 {
  return bitmapLeadingOnes(bitmapAt(n), size);
}

export function bitmap_leading_zeros(n: u32, size: u32): u32 {
  return bitmapLeadingZeros(bitmapAt(n), size);
}

/** Bitmap 2 := bitmap 0 & bitmap 1; returns its size. */
export function bitmap_and(sizeA: u32, sizeB: u32): u32 {
  return bitmapAnd(bitmapAt(2), bitmapAt(0), sizeA, bitmapAt(1), sizeB);
}

/** Bitmap 2 := bitmap 0 | bitmap 1; returns its size. */
export function bitmap_or(sizeA: u32, sizeB: u32): u32 {
  return bitmapOr(bitmapAt(2), bitmapAt(0), sizeA, bitmapAt(1), sizeB);
}

/** Bitmap 2 := ~ bitmap 0. */
export function bitmap_not(size: u32): void {
  bitmapNot(bitmapAt(2), bitmapAt(0), size);
}

/** Items at bitmap 3, gathered to bitmap 4; returns how many. */
export function bitmap_gather(size: u32, itemCount: u32): u32 {
  return bitmapGather(bitmapAt(0), size, bitmapAt(3), itemCount, bitmapAt(4));
}
