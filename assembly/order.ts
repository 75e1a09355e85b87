/**
 * A free-standing order: a policy (policy/policy.ts) over the entries of somebody else, with no
 * object table beside it. For what L2 stores hold, and for `kvd simulate`.
 *
 * An instance of the core is either a table or an order. The order hands out the numbers of its
 * entries and keeps what the policy asks about them:
 *
 *   RECORD  +0 key of the entry, u64  +8 tenant (of an unused record the next spare one)
 *           +12 1 while the record is in use                                        (16 bytes)
 *
 * Bytes, locks and names are the owner's. Bookkeeping per entry: 16 bytes here, 12 for its place,
 * 28 for a ghost.
 */
import { beginLayout, endLayout, reserveRegion } from './memory-map';
import {
  isPolicy,
  policyInsert,
  policyLayout,
  policyRemove,
  policyReserve,
  policySelect,
} from './policy/policy';
import { INVALID_ARGUMENT, SUCCESS, TABLE_FULL } from './result';

/** Entries are numbered with 31 bits in ghost.ts, and 1.5 times as many must fit into an index. */
const ENTRY_COUNT_MAX: u32 = 0x4000_0000;
const RECORD_SIZE: u32 = 16;
const TENANT: usize = 8;
const IS_USED: usize = 12;

let records: usize = 0;
let countMax: u32 = 0;
let countUsed: u32 = 0;
let spareHead: u32 = 0;
let tenantCountMax: u32 = 0;

/** Lays the memory out and grows it. */
export function orderLayout(entryCountMax: u32, tenantCount: u32, policy: u32): i32 {
  if (entryCountMax === 0 || entryCountMax > ENTRY_COUNT_MAX) return INVALID_ARGUMENT;
  if (tenantCount === 0 || !isPolicy(policy)) return INVALID_ARGUMENT;
  countMax = entryCountMax;
  tenantCountMax = tenantCount;
  // No request regions to speak of: an order has neither tokens nor batches.
  let result = beginLayout(1, 1, 1);
  if (result !== SUCCESS) return result;
  records = reserveRegion(<u64>RECORD_SIZE * (<u64>entryCountMax + 1));
  policyLayout(entryCountMax, tenantCount);
  result = endLayout();
  if (result === SUCCESS) policySelect(policy);
  return result;
}

function recordAt(entry: u32): usize {
  return records + ((<usize>entry) << 4);
}

/** True for an entry that was added and not removed. */
export function isEntry(entry: u32): bool {
  return entry - 1 < countUsed && load<u32>(recordAt(entry), IS_USED) !== 0;
}

function tenantOf(entry: u32): u32 {
  return load<u32>(recordAt(entry), TENANT);
}

/** A new entry, stored or on its way. Answers its number. */
export function orderAdd(key: u64, tenant: u32, isReserved: bool): i32 {
  if (tenant >= tenantCountMax) return INVALID_ARGUMENT;
  let entry = spareHead;
  if (entry !== 0) {
    spareHead = tenantOf(entry);
  } else {
    if (countUsed === countMax) return TABLE_FULL;
    countUsed += 1;
    entry = countUsed;
  }
  store<u64>(recordAt(entry), key);
  store<u32>(recordAt(entry), tenant, TENANT);
  store<u32>(recordAt(entry), 1, IS_USED);
  if (isReserved) policyReserve(entry, key, tenant);
  else policyInsert(entry, key, tenant);
  return <i32>entry;
}

/** The entry is stored, for the first time if it was reserved, else again. */
export function orderInsert(entry: u32): i32 {
  if (!isEntry(entry)) return INVALID_ARGUMENT;
  policyInsert(entry, load<u64>(recordAt(entry)), tenantOf(entry));
  return SUCCESS;
}

/** The entry is gone; its number will be used again. */
export function orderRemove(entry: u32): i32 {
  if (!isEntry(entry)) return INVALID_ARGUMENT;
  policyRemove(entry, load<u64>(recordAt(entry)));
  store<u32>(recordAt(entry), spareHead, TENANT);
  store<u32>(recordAt(entry), 0, IS_USED);
  spareHead = entry;
  return SUCCESS;
}
