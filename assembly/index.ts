/**
 * The exports of core.wasm, and nothing else: names here are the ABI of `src/core/`.
 *
 * Calls work on batches; inputs and outputs lie in the regions of memory-map.ts. A result < 0 is a
 * code of result.ts. Bad arguments give INVALID_ARGUMENT and change nothing; a trap is a bug of
 * ours.
 */

import { unitsToBytes } from './address-space';
import { announceBatch } from './announcing';
import { isTime } from './batch';
import { checkTable } from './check';
import {
  departedRegion,
  departedUnits,
  namedDepartureCountMax,
  namedDepartures,
  namedDeparturesRegion,
  takeDepartures,
  watchDepartures,
} from './departures';
import { familyHash } from './family';
import { hashChunks, initHasher } from './hash/chunk-chain';
import { advanceClock } from './lifecycle';
import { beginLayout, endLayout, layoutSize, regionOffset } from './memory-map';
import { defineNamespace, limitTenant, namespaceObjectCount, tenantUnits } from './namespace';
import { objectKeysRegion, objectPlacesRegion } from './object';
import { isEntry, orderAdd, orderInsert, orderLayout, orderRemove } from './order';
import {
  policyCount,
  policyRefresh,
  policyTake,
  policyTouch,
  policyVictim,
  policyVictimOf,
} from './policy/policy';
import {
  findBatch,
  finishReadBatch,
  holdBatch,
  holdPrefixBatch,
  pinBatch,
  releaseHoldsBatch,
  reserveReadBatch,
  touchBatch,
  unpinBatch,
} from './reading';
import { clearAll, clearSlice, deleteBatch, evict, sweepExpired } from './reclaiming';
import { removalRecordCountMax, removalRecordsRegion, takeRemovals } from './removal-records';
import { ALREADY_INITIALIZED, INVALID_ARGUMENT, NOT_INITIALIZED, SUCCESS } from './result';
import { growArena, tableLayout, tableReset, writeStatistics } from './table';
import { decodeTokens } from './tokens';
import {
  abandonWriteBatch,
  discardWriteBatch,
  extendWriteBatch,
  finishWriteBatch,
  reserveWriteBatch,
} from './writing';

/** Raised with every change of an export, a region or a code. */
export function abi_version(): i32 {
  return 7;
}

let isInitialized: bool = false;
let hasTable: bool = false;
let isTableReady: bool = false;
let isOrderReady: bool = false;

/**
 * Lays out the memory and grows it. Once per instance. With `objectCountMax` 0 there is no table,
 * only the hasher. The seed keeps clients from choosing chunks that collide in the indexes.
 */
export function init(
  tokenCountMax: u32,
  chunkSizeTokens: u32,
  batchCountMax: u32,
  objectCountMax: u32,
  namespaceCountMax: u32,
  seedLow: u32,
  seedHigh: u32,
): i32 {
  if (isInitialized || isOrderReady) return ALREADY_INITIALIZED;
  let result = beginLayout(tokenCountMax, chunkSizeTokens, batchCountMax);
  if (result !== SUCCESS) return result;
  if (objectCountMax > 0) {
    const seed = ((<u64>seedHigh) << 32) | <u64>seedLow;
    result = tableLayout(objectCountMax, namespaceCountMax, seed);
    if (result !== SUCCESS) return result;
    hasTable = true;
  }
  result = endLayout();
  if (result !== SUCCESS) return result;
  isInitialized = true;
  return SUCCESS;
}

/** Byte offset of a region in the memory; see memory-map.ts. */
export function region_offset(id: i32): i32 {
  if (id === 10) return <i32>objectKeysRegion();
  if (id === 11) return <i32>objectPlacesRegion();
  if (id === 12) return <i32>removalRecordsRegion();
  if (id === 13) return <i32>familyHash(0);
  if (id === 14) return <i32>departedRegion();
  if (id === 15) return <i32>namedDeparturesRegion();
  return regionOffset(id);
}

/** Bytes of the memory that some region owns. */
export function layout_size(): f64 {
  return layoutSize();
}

// Object table: batch.ts says how inputs and outputs are numbered.

/** Sets arena, policy (policy/policy.ts) and lock times. Once per instance. */
export function table_init(
  arenaSizeBytes: f64,
  alignBytes: u32,
  policy: u32,
  writeTtlMs: f64,
  readTtlMs: f64,
): i32 {
  if (!isInitialized || !hasTable) return NOT_INITIALIZED;
  if (isTableReady) return ALREADY_INITIALIZED;
  const result = tableReset(arenaSizeBytes, alignBytes, policy, writeTtlMs, readTtlMs);
  isTableReady = result === SUCCESS;
  return result;
}

export function namespace_define(id: u32, scope: u32, tenant: u32): i32 {
  return isTableReady ? defineNamespace(id, scope, tenant) : NOT_INITIALIZED;
}

export function namespace_object_count(id: u32): i32 {
  return isTableReady ? namespaceObjectCount(id) : NOT_INITIALIZED;
}

/** Bytes of the arena under keys of a tenant. */
export function tenant_bytes(tenant: u32): f64 {
  return isTableReady ? <f64>tenantUnits(tenant) * unitsToBytes(1) : 0;
}

/** Eviction by IsolatedLRU begins with tenants above their limit; a negative one ends it. */
export function tenant_limit(tenant: u32, bytes: f64): i32 {
  return isTableReady ? limitTenant(tenant, bytes) : NOT_INITIALIZED;
}

/** `writerTag` 0: resident objects; else what that writer has staged. */
export function table_find(chunkCount: u32, namespaceCount: u32, writerTag: u32): i32 {
  return isTableReady ? findBatch(chunkCount, namespaceCount, writerTag) : NOT_INITIALIZED;
}

export function table_hold_prefix(chunkCount: u32, namespaceCount: u32, holdCount: u32): i32 {
  return isTableReady ? holdPrefixBatch(chunkCount, namespaceCount, holdCount) : NOT_INITIALIZED;
}

export function table_hold(count: u32, holdCount: u32): i32 {
  return isTableReady ? holdBatch(count, holdCount) : NOT_INITIALIZED;
}

export function table_release_holds(count: u32, holdCount: u32): i32 {
  return isTableReady ? releaseHoldsBatch(count, holdCount) : NOT_INITIALIZED;
}

export function table_pin(count: u32): i32 {
  return isTableReady ? pinBatch(count) : NOT_INITIALIZED;
}

export function table_unpin(count: u32): i32 {
  return isTableReady ? unpinBatch(count) : NOT_INITIALIZED;
}

/** The first `usedCount` of the slots were used, the others placed again. */
export function table_touch(count: u32, usedCount: u32): i32 {
  return isTableReady ? touchBatch(count, usedCount) : NOT_INITIALIZED;
}

export function table_reserve_read(
  chunkCount: u32,
  namespaceCount: u32,
  leaseCount: i32,
  nowMs: f64,
): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  return reserveReadBatch(chunkCount, namespaceCount, leaseCount, nowMs);
}

export function table_finish_read(count: u32, leaseCount: u32, isChecked: i32, nowMs: f64): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  return finishReadBatch(count, leaseCount, isChecked !== 0, nowMs);
}

export function table_reserve_write(
  chunkCount: u32,
  namespaceCount: u32,
  sizeBytes: f64,
  writerTag: u32,
  nowMs: f64,
): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  return reserveWriteBatch(chunkCount, namespaceCount, sizeBytes, writerTag, nowMs);
}

export function table_finish_write(
  count: u32,
  leaseCount: i32,
  holdCount: u32,
  isChecked: i32,
  nowMs: f64,
): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  return finishWriteBatch(count, leaseCount, holdCount, isChecked !== 0, nowMs);
}

export function table_discard_write(count: u32, isChecked: i32, nowMs: f64): i32 {
  return isTableReady ? discardWriteBatch(count, isChecked !== 0, nowMs) : NOT_INITIALIZED;
}

export function table_extend_write(count: u32, nowMs: f64): i32 {
  return isTableReady ? extendWriteBatch(count, nowMs) : NOT_INITIALIZED;
}

export function table_abandon_write(count: u32, nowMs: f64): i32 {
  return isTableReady ? abandonWriteBatch(count, nowMs) : NOT_INITIALIZED;
}

export function table_delete(chunkCount: u32, namespaceCount: u32, isForced: i32, nowMs: f64): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  return deleteBatch(chunkCount, namespaceCount, isForced !== 0, nowMs);
}

export function table_clear(isForced: i32, nowMs: f64): i32 {
  return isTableReady ? clearAll(isForced !== 0, nowMs) : NOT_INITIALIZED;
}

export function table_clear_slice(isForced: i32, firstSlot: u32, slotCount: u32, nowMs: f64): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  return clearSlice(isForced !== 0, firstSlot, slotCount, nowMs);
}

export function table_evict(
  bytesToFree: f64,
  familyBudget: u32,
  isContinued: i32,
  nowMs: f64,
): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  return evict(bytesToFree, familyBudget, isContinued !== 0, nowMs);
}

export function table_sweep_expired(budget: u32, nowMs: f64): i32 {
  return isTableReady ? sweepExpired(budget, nowMs) : NOT_INITIALIZED;
}

/** Announces the chunks of KEY_HASHES that are whole; CODES has one entry per chunk. */
export function table_announce(chunkCount: u32, namespaceCount: u32): i32 {
  return isTableReady ? announceBatch(chunkCount, namespaceCount) : NOT_INITIALIZED;
}

/** Records of removal-records.ts that the calls since the last take have left. */
export function removals_take(): i32 {
  return isTableReady ? <i32>takeRemovals() : NOT_INITIALIZED;
}

/** Records that there is room for. */
export function removals_count_max(): i32 {
  return isTableReady ? <i32>removalRecordCountMax() : NOT_INITIALIZED;
}

/** Keeps account of objects that leave from now on (departures.ts); threshold 0 to 2^32. */
export function departures_watch(hashThreshold: f64): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  if (!(hashThreshold >= 0 && hashThreshold <= 4294967296.0)) return INVALID_ARGUMENT;
  watchDepartures(<u64>hashThreshold);
  return SUCCESS;
}

/** Records of DEPARTED that the calls since the last take have left. */
export function departures_take(): i32 {
  return isTableReady ? <i32>takeDepartures() : NOT_INITIALIZED;
}

/** Objects that NAMED tells of, or would if there were room; before `departures_take`. */
export function departures_named_count(): i32 {
  return isTableReady ? <i32>namedDepartures() : NOT_INITIALIZED;
}

/** Records that NAMED has room for. */
export function departures_named_max(): i32 {
  return isTableReady ? <i32>namedDepartureCountMax() : NOT_INITIALIZED;
}

/** Bytes of the objects that have left; before `departures_take`. */
export function departures_bytes(): f64 {
  return isTableReady ? <f64>departedUnits() * unitsToBytes(1) : 0;
}

export function table_grow_arena(sizeBytes: f64): i32 {
  return isTableReady ? growArena(sizeBytes) : NOT_INITIALIZED;
}

/** Fills FIGURES as of `nowMs` (table.ts). */
export function table_statistics(nowMs: f64): i32 {
  if (!isTableReady) return NOT_INITIALIZED;
  if (!isTime(nowMs)) return INVALID_ARGUMENT;
  advanceClock(nowMs);
  writeStatistics();
  return SUCCESS;
}

/** Walks everything. 0, or the number of the rule that is broken (check.ts). */
export function table_check(): i32 {
  return isTableReady ? checkTable() : NOT_INITIALIZED;
}

// Free-standing order (order.ts): in place of `init`, for an instance that is nothing else.

/** Once per instance, which then has neither table nor hasher. */
export function order_init(entryCountMax: u32, tenantCountMax: u32, policy: u32): i32 {
  if (isInitialized || isOrderReady) return ALREADY_INITIALIZED;
  const result = orderLayout(entryCountMax, tenantCountMax, policy);
  isOrderReady = result === SUCCESS;
  return result;
}

/** The key in two halves. Answers the number of the entry, or TABLE_FULL. */
export function order_add(keyLow: u32, keyHigh: u32, tenant: u32, isReserved: i32): i32 {
  if (!isOrderReady) return NOT_INITIALIZED;
  return orderAdd(((<u64>keyHigh) << 32) | <u64>keyLow, tenant, isReserved !== 0);
}

export function order_insert(entry: u32): i32 {
  return isOrderReady ? orderInsert(entry) : NOT_INITIALIZED;
}

export function order_touch(entry: u32): i32 {
  if (!isOrderReady) return NOT_INITIALIZED;
  if (!isEntry(entry)) return INVALID_ARGUMENT;
  policyTouch(entry);
  return SUCCESS;
}

export function order_refresh(entry: u32): i32 {
  if (!isOrderReady) return NOT_INITIALIZED;
  if (!isEntry(entry)) return INVALID_ARGUMENT;
  policyRefresh(entry);
  return SUCCESS;
}

export function order_remove(entry: u32): i32 {
  return isOrderReady ? orderRemove(entry) : NOT_INITIALIZED;
}

/** The next candidate of a walk, or 0. */
export function order_victim(isFromStart: i32): i32 {
  return isOrderReady ? <i32>policyVictim(isFromStart !== 0) : NOT_INITIALIZED;
}

export function order_victim_of(tenant: u32, isFromStart: i32): i32 {
  return isOrderReady ? <i32>policyVictimOf(tenant, isFromStart !== 0) : NOT_INITIALIZED;
}

/** 1: the candidate may go. */
export function order_take(entry: u32): i32 {
  if (!isOrderReady) return NOT_INITIALIZED;
  if (!isEntry(entry)) return INVALID_ARGUMENT;
  return policyTake(entry) ? 1 : 0;
}

export function order_count(): i32 {
  return isOrderReady ? <i32>policyCount() : NOT_INITIALIZED;
}

// Chunk hasher: tokens.ts and hash/.

/**
 * Chooses the hash algorithm and computes its root at HASH_ROOT, from `seedSize` bytes at MSGPACK.
 * Returns the bytes of a hash. Kinds and algorithms: hash/chunk-chain.ts.
 */
export function hasher_init(algorithm: i32, seedKind: i32, seedSize: u32): i32 {
  return isInitialized ? initHasher(algorithm, seedKind, seedSize) : NOT_INITIALIZED;
}

/** Decodes `count` array elements from `size` bytes at MSGPACK. Returns the bytes read. */
export function tokens_decode(size: u32, count: u32): i32 {
  return isInitialized ? decodeTokens(size, count) : NOT_INITIALIZED;
}

/** Hashes the first `count` chunks of the decoded tokens to HASH_OUTPUT; the first one's prefix
 * lies at HASH_PREFIX. */
export function hash_chunks(count: u32): i32 {
  return hashChunks(count);
}
