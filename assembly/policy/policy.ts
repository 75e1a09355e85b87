/**
 * Which entry goes first. One file per policy, all with the same functions, chosen once.
 *
 *   reset()                     forget everything
 *   insert(entry, key, tenant)  stored; known or not
 *   reserve(entry, key, tenant) will be stored; an `insert` follows
 *   refresh(entry)              placed again, used by nobody: only where order is all there is
 *   touch(entry)                used
 *   remove(entry, key)          gone
 *   victim(isFromStart)         next candidate of a walk, best victim first, 0 at its end; a look
 *   victimOf(tenant, …)         the same among the entries of one tenant
 *   take(entry)                 the candidate may go: false = the policy keeps it this time
 *   count()                     entries tracked
 *
 * Who evicts walks, passes over candidates that are held, asks `take` for the others, and removes
 * those that were granted, at once or later. A policy never sees locks, bytes or time.
 *
 * Entries are *families* in the object table (family.ts): all ranks and object groups of one chunk
 * go together, because a chunk with a missing rank is useless to every rank (18.19). In a
 * free-standing order (order.ts) they are whatever its owner says. `key` is a digest of what the
 * entry names, for ghosts, which outlive it; `tenant` is for one list per tenant.
 * A new policy is one file, one number below and one line in each switch.
 */
import {
  arcCount,
  arcInsert,
  arcRemove,
  arcReserve,
  arcReset,
  arcTake,
  arcTouch,
  arcVictim,
} from './arc';
import { entryLayout } from './entry';
import { ghostLayout } from './ghost';
import {
  isolatedCount,
  isolatedInsert,
  isolatedLayout,
  isolatedRemove,
  isolatedReset,
  isolatedTouch,
  isolatedVictim,
  isolatedVictimOf,
} from './isolated-lru';
import { lruCount, lruInsert, lruRemove, lruReset, lruTouch, lruVictim } from './lru';
import { noopCount, noopInsert, noopRemove, noopReset, noopTouch, noopVictim } from './noop';
import {
  s3fifoCount,
  s3fifoInsert,
  s3fifoRemove,
  s3fifoReset,
  s3fifoTake,
  s3fifoTouch,
  s3fifoVictim,
} from './s3fifo';

export const POLICY_NOOP: u32 = 0;
export const POLICY_LRU: u32 = 1;
export const POLICY_ISOLATED_LRU: u32 = 2;
export const POLICY_ARC: u32 = 3;
export const POLICY_S3FIFO: u32 = 4;
const POLICY_COUNT: u32 = 5;

let kind: u32 = POLICY_NOOP;

export function isPolicy(candidate: u32): bool {
  return candidate < POLICY_COUNT;
}

/** Room for every policy; pages that the chosen one does not use cost nothing. */
export function policyLayout(entryCountMax: u32, tenantCountMax: u32): void {
  // ARC and S3-FIFO have two lists.
  entryLayout(entryCountMax, max(2, tenantCountMax));
  ghostLayout(entryCountMax);
  isolatedLayout();
}

export function policySelect(newKind: u32): void {
  kind = newKind;
  policyReset();
}

export function policyReset(): void {
  if (kind === POLICY_LRU) lruReset();
  else if (kind === POLICY_ISOLATED_LRU) isolatedReset();
  else if (kind === POLICY_ARC) arcReset();
  else if (kind === POLICY_S3FIFO) s3fifoReset();
  else noopReset();
}

export function policyInsert(entry: u32, key: u64, tenant: u32): void {
  if (kind === POLICY_LRU) lruInsert(entry);
  else if (kind === POLICY_ISOLATED_LRU) isolatedInsert(entry, tenant);
  else if (kind === POLICY_ARC) arcInsert(entry, key);
  else if (kind === POLICY_S3FIFO) s3fifoInsert(entry, key);
  else noopInsert(entry);
}

export function policyReserve(entry: u32, key: u64, tenant: u32): void {
  if (kind === POLICY_ARC) arcReserve(entry, key);
  else policyInsert(entry, key, tenant);
}

export function policyRefresh(entry: u32): void {
  if (kind === POLICY_LRU) lruTouch(entry);
  else if (kind === POLICY_ISOLATED_LRU) isolatedTouch(entry);
}

export function policyTouch(entry: u32): void {
  if (kind === POLICY_LRU) lruTouch(entry);
  else if (kind === POLICY_ISOLATED_LRU) isolatedTouch(entry);
  else if (kind === POLICY_ARC) arcTouch(entry);
  else if (kind === POLICY_S3FIFO) s3fifoTouch(entry);
  else noopTouch(entry);
}

export function policyRemove(entry: u32, key: u64): void {
  if (kind === POLICY_LRU) lruRemove(entry);
  else if (kind === POLICY_ISOLATED_LRU) isolatedRemove(entry);
  else if (kind === POLICY_ARC) arcRemove(entry, key);
  else if (kind === POLICY_S3FIFO) s3fifoRemove(entry, key);
  else noopRemove(entry);
}

export function policyVictim(isFromStart: bool): u32 {
  if (kind === POLICY_LRU) return lruVictim(isFromStart);
  if (kind === POLICY_ISOLATED_LRU) return isolatedVictim(isFromStart);
  if (kind === POLICY_ARC) return arcVictim(isFromStart);
  if (kind === POLICY_S3FIFO) return s3fifoVictim(isFromStart);
  return noopVictim(isFromStart);
}

/** Only IsolatedLRU knows tenants apart; the others name nobody. */
export function policyVictimOf(tenant: u32, isFromStart: bool): u32 {
  return kind === POLICY_ISOLATED_LRU ? isolatedVictimOf(tenant, isFromStart) : 0;
}

export function policyTake(entry: u32): bool {
  if (kind === POLICY_ARC) return arcTake(entry);
  if (kind === POLICY_S3FIFO) return s3fifoTake(entry);
  return true;
}

export function policyCount(): u32 {
  if (kind === POLICY_LRU) return lruCount();
  if (kind === POLICY_ISOLATED_LRU) return isolatedCount();
  if (kind === POLICY_ARC) return arcCount();
  if (kind === POLICY_S3FIFO) return s3fifoCount();
  return noopCount();
}
