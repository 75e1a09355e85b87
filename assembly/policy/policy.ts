/**
 * Which family goes first. One file per policy, all with the same functions, chosen at `init`.
 *
 *   reset()              forget everything
 *   insert(family)       an object of the family was admitted
 *   touch(family)        the family was used
 *   remove(family)       the family has no resident object any more
 *   victim(isFromStart)  next candidate of a walk, best victim first, 0 at its end; a look only
 *   count()              families tracked
 *
 * Entries are *families* (family.ts): all ranks and object groups of one chunk go together, because
 * a chunk with a missing rank is useless to every rank (18.19). The caller decides whether a
 * candidate is eligible and passes over it if not; a policy never sees locks.
 *
 * Room for the other policies: a family record has two links and a word that belong to the policy
 * (family.ts): a list number and a frequency fit into the word. The tenant of a family is
 * `tenantOfScope(familyScope(family))`, for one list per tenant. A ghost outlives its objects, so
 * it is a record of the policy's own region and not a family.
 * A new policy is one file, one number below and one line in each switch.
 */
import { lruCount, lruInsert, lruRemove, lruReset, lruTouch, lruVictim } from './lru';
import { noopCount, noopInsert, noopRemove, noopReset, noopTouch, noopVictim } from './noop';

export const POLICY_NOOP: u32 = 0;
export const POLICY_LRU: u32 = 1;
const POLICY_COUNT: u32 = 2;

let kind: u32 = POLICY_NOOP;

export function isPolicy(candidate: u32): bool {
  return candidate < POLICY_COUNT;
}

export function policySelect(newKind: u32): void {
  kind = newKind;
  policyReset();
}

export function policyReset(): void {
  if (kind === POLICY_LRU) lruReset();
  else noopReset();
}

export function policyInsert(family: u32): void {
  if (kind === POLICY_LRU) lruInsert(family);
  else noopInsert(family);
}

export function policyTouch(family: u32): void {
  if (kind === POLICY_LRU) lruTouch(family);
  else noopTouch(family);
}

export function policyRemove(family: u32): void {
  if (kind === POLICY_LRU) lruRemove(family);
  else noopRemove(family);
}

export function policyVictim(isFromStart: bool): u32 {
  return kind === POLICY_LRU ? lruVictim(isFromStart) : noopVictim(isFromStart);
}

export function policyCount(): u32 {
  return kind === POLICY_LRU ? lruCount() : noopCount();
}
