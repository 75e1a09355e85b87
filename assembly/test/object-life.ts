/** The life of objects from inside: what the door cannot ask about. */
import { addressFreeUnits } from '../address-space';
import { dueHead, queueHead } from '../expiry-queue';
import { familyCount, familyFind, familyMemberHead } from '../family';
import {
  detachedCount,
  expiredCount,
  readLockedCount,
  residentCount,
  stagedCount,
  writeLockedCount,
} from '../figures';
import { init, namespace_define, table_check, table_init } from '../index';
import { advanceClock, clockMs, objectFind } from '../lifecycle';
import { GENERATIONS, KEY_HASHES, NAMESPACES, SLOTS } from '../memory-map';
import { scopeOf } from '../namespace';
import {
  objectQueue,
  QUEUE_EXPIRED,
  QUEUE_LEASES,
  QUEUE_NONE,
  QUEUE_WRITES,
  RESIDENT_TAG,
} from '../object';
import { isTracked } from '../policy/entry';
import { pinBatch, reserveReadBatch, unpinBatch } from '../reading';
import { clearAll, evict, sweepExpired } from '../reclaiming';
import { DONE, MORE, NOTHING_TO_DO } from '../result';
import { finishWriteBatch, reserveWriteBatch } from '../writing';

const UNIT: u32 = 4096;
const UNITS: u32 = 64;
const WRITE_TTL: f64 = 1000;
const READ_TTL: f64 = 500;
const WRITER: u32 = 7;

/** Two namespaces (ranks) of one scope and one of another. */
function openTable(): void {
  assert(init(256, 16, 64, 64, 16, 1, 2) === 0, 'init');
  assert(table_init(<f64>(UNITS * UNIT), UNIT, 1, WRITE_TTL, READ_TTL) === 0, 'table_init');
  assert(namespace_define(0, 0, 0) === 0, 'rank 0');
  assert(namespace_define(1, 0, 0) === 0, 'rank 1');
  assert(namespace_define(2, 1, 1) === 0, 'another scope');
}

function loadChunks(first: u32, count: u32, ranks: u32): void {
  for (let i: u32 = 0; i < count; i++) {
    const at = KEY_HASHES + <usize>i * 32;
    memory.fill(at, 0, 32);
    store<u32>(at, first + i);
  }
  for (let n: u32 = 0; n < ranks; n++) store<u32>(NAMESPACES + ((<usize>n) << 2), n);
}

/** Reserves and finishes chunks `first..first+count` for ranks 0 and 1. */
function storeChunks(first: u32, count: u32, nowMs: f64): void {
  loadChunks(first, count, 2);
  assert(reserveWriteBatch(count, 2, <f64>UNIT, WRITER, nowMs) === <i32>(2 * count), 'reserve');
  assert(finishWriteBatch(2 * count, 0, 0, true, nowMs) === <i32>(2 * count), 'finish');
}

function slotOfChunk(chunk: u32, namespaceId: u32): u32 {
  loadChunks(chunk, 1, 2);
  return objectFind(KEY_HASHES, namespaceId, RESIDENT_TAG);
}

function checkAll(): void {
  assert(table_check() === 0, 'the table is inconsistent');
}

export function test_ranks_of_one_chunk_share_a_family_and_scopes_do_not(): void {
  openTable();
  storeChunks(1, 3, 0);
  assert(familyCount() === 3, 'one family for each chunk');
  loadChunks(1, 1, 1);
  store<u32>(NAMESPACES, 2);
  assert(reserveWriteBatch(1, 1, <f64>UNIT, WRITER, 0) === 1, 'reserve in another scope');
  assert(familyCount() === 4, 'another scope has its own family');
  assert(familyFind(KEY_HASHES, scopeOf(2)) !== familyFind(KEY_HASHES, scopeOf(0)), 'apart');
  checkAll();
}

export function test_a_family_is_tracked_while_it_has_a_resident_object(): void {
  openTable();
  loadChunks(5, 1, 2);
  assert(reserveWriteBatch(1, 2, <f64>UNIT, WRITER, 0) === 2, 'reserve');
  const family = familyFind(KEY_HASHES, 0);
  assert(!isTracked(family), 'staged objects are no victims');
  assert(finishWriteBatch(1, 0, 0, false, 0) === 1, 'finish rank 0');
  assert(isTracked(family), 'one resident object');
  assert(clearAll(false, 0) === 1, 'clear takes the resident one');
  assert(!isTracked(family), 'no resident object left');
  assert(familyMemberHead(family) !== 0, 'rank 1 is still staged');
  checkAll();
}

export function test_expired_reservations_wait_for_the_sweep_and_pinned_ones_longer(): void {
  openTable();
  loadChunks(1, 2, 1);
  assert(reserveWriteBatch(2, 1, <f64>UNIT, WRITER, 0) === 2, 'reserve');
  const first = load<u32>(SLOTS);
  assert(objectQueue(first) === QUEUE_WRITES, 'locked');
  assert(pinBatch(1) === 0, 'pin the first');
  advanceClock(WRITE_TTL);
  assert(objectQueue(first) === QUEUE_EXPIRED && expiredCount === 2, 'expired');
  assert(writeLockedCount === 0 && stagedCount === 2, 'expired, but still staged');
  // expired: first (pinned), second
  assert(sweepExpired(1, WRITE_TTL) === MORE, 'one visit, the pinned one');
  assert(stagedCount === 2, 'a pinned reservation keeps its memory');
  assert(sweepExpired(8, WRITE_TTL) === DONE, 'both visits');
  assert(stagedCount === 1, 'the other one is reclaimed');
  assert(sweepExpired(8, WRITE_TTL) === NOTHING_TO_DO, 'only the pinned one is left');
  store<u32>(SLOTS, first);
  assert(unpinBatch(1) === 0, 'unpin');
  assert(sweepExpired(8, WRITE_TTL) === DONE, 'now it may go');
  assert(addressFreeUnits() === UNITS, 'all memory is free');
  checkAll();
}

export function test_memory_of_a_cleared_object_follows_with_its_lease(): void {
  openTable();
  storeChunks(1, 1, 0);
  loadChunks(1, 1, 2);
  assert(reserveReadBatch(1, 2, 1, 10) === 2, 'lease both ranks');
  assert(clearAll(true, 20) === 2, 'a forced clear takes both keys');
  assert(residentCount === 0 && detachedCount === 2, 'the memory stays');
  assert(readLockedCount === 0, 'what has no key is not counted as locked');
  assert(addressFreeUnits() === UNITS - 2, 'the memory is not free');
  advanceClock(10 + READ_TTL - 1);
  assert(detachedCount === 2, 'the leases are still live');
  advanceClock(10 + READ_TTL);
  assert(detachedCount === 0 && addressFreeUnits() === UNITS, 'the leases are over');
  checkAll();
}

export function test_a_renewed_lease_goes_to_the_end_of_its_queue(): void {
  openTable();
  storeChunks(1, 1, 0);
  loadChunks(1, 1, 1);
  assert(reserveReadBatch(1, 1, 1, 0) === 1, 'rank 0 at 0');
  store<u32>(NAMESPACES, 1);
  assert(reserveReadBatch(1, 1, 1, 100) === 1, 'rank 1 at 100');
  const rank0 = slotOfChunk(1, 0);
  const rank1 = slotOfChunk(1, 1);
  assert(queueHead(QUEUE_LEASES) === rank0, 'rank 0 expires first');
  loadChunks(1, 1, 1);
  assert(reserveReadBatch(1, 1, 1, 200) === 1, 'rank 0 again at 200');
  assert(queueHead(QUEUE_LEASES) === rank1, 'now rank 1 expires first');
  assert(dueHead(QUEUE_LEASES, 100 + READ_TTL - 1) === 0, 'not yet');
  assert(dueHead(QUEUE_LEASES, 100 + READ_TTL) === rank1, 'rank 1 is due');
  advanceClock(100 + READ_TTL);
  assert(objectQueue(rank1) === QUEUE_NONE && objectQueue(rank0) === QUEUE_LEASES, 'one is over');
  checkAll();
}

export function test_time_does_not_run_backwards(): void {
  openTable();
  assert(advanceClock(5000) === 5000, 'forward');
  assert(advanceClock(10) === 5000, 'an older time changes nothing');
  loadChunks(1, 1, 1);
  assert(reserveWriteBatch(1, 1, <f64>UNIT, WRITER, 20) === 1, 'reserve at an older time');
  advanceClock(5000 + WRITE_TTL - 1);
  assert(writeLockedCount === 1, 'locked since 5000');
  assert(clockMs() === 5000 + WRITE_TTL - 1, 'the clock');
  checkAll();
}

export function test_a_slot_that_is_reused_refuses_its_old_generation(): void {
  openTable();
  loadChunks(1, 1, 1);
  assert(reserveWriteBatch(1, 1, <f64>UNIT, WRITER, 0) === 1, 'first reservation');
  const slot = load<u32>(SLOTS);
  const generation = load<u32>(GENERATIONS);
  assert(sweepExpired(8, WRITE_TTL) === DONE, 'it expires and is reclaimed');
  loadChunks(2, 1, 1);
  assert(reserveWriteBatch(1, 1, <f64>UNIT, WRITER, WRITE_TTL) === 1, 'second reservation');
  assert(load<u32>(SLOTS) === slot, 'the slot is reused');
  store<u32>(GENERATIONS, generation);
  assert(finishWriteBatch(1, 0, 0, true, WRITE_TTL) === 0, 'the first writer is too late');
  assert(residentCount === 0 && stagedCount === 1, 'the second reservation is untouched');
  checkAll();
}

export function test_eviction_walks_on_over_held_families_in_slices(): void {
  openTable();
  // oldest 1 2 3 4 youngest, each of two units
  for (let chunk: u32 = 1; chunk <= 4; chunk++) storeChunks(chunk, 1, 0);
  store<u32>(SLOTS, slotOfChunk(1, 0));
  assert(pinBatch(1) === 0, 'pin a rank of chunk 1');
  store<u32>(SLOTS, slotOfChunk(2, 1));
  assert(pinBatch(1) === 0, 'pin a rank of chunk 2');
  const bytes = <f64>(2 * UNIT);
  assert(evict(bytes, 1, false, 0) === MORE, 'chunk 1 is held');
  assert(evict(bytes, 1, true, 0) === MORE, 'chunk 2 is held');
  assert(evict(bytes, 1, true, 0) === DONE, 'chunk 3 goes');
  assert(slotOfChunk(3, 0) === 0 && slotOfChunk(3, 1) === 0, 'with both ranks');
  assert(slotOfChunk(1, 1) !== 0 && slotOfChunk(2, 0) !== 0, 'held families stay whole');
  assert(evict(bytes * 8, 100, false, 0) === NOTHING_TO_DO, 'chunk 4 goes, then nothing is left');
  assert(residentCount === 4, 'the held ones');
  checkAll();
}
