/** The whole core, and questions about one object that only the reference's traces ask. */
import { clockMs } from '../lifecycle';
import {
  isObject,
  objectHolds,
  objectIsTemporary,
  objectLock,
  objectPins,
  objectState,
  RESIDENT,
} from '../object';
import { lockIsHeld } from '../ttl-lock';

export * from '../index';

/** True when the object is resident and leased (the reference's `unsafe_read`). */
export function object_is_leased(slot: u32): bool {
  return objectState(slot) === RESIDENT && lockIsHeld(objectLock(slot), clockMs());
}

/** True when nothing holds the object (the reference's `is_key_evictable`, for one object). */
export function object_is_unheld(slot: u32): bool {
  const isLocked = lockIsHeld(objectLock(slot), clockMs());
  return !isLocked && objectHolds(slot) === 0 && objectPins(slot) === 0;
}

export function object_is_temporary(slot: u32): bool {
  return isObject(slot) && objectIsTemporary(slot);
}
