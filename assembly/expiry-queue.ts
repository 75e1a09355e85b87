/**
 * Objects that something will happen to by time alone.
 *
 *   WRITES   staged objects with a live write lock
 *   LEASES   resident or detached objects with live leases
 *   EXPIRED  staged objects whose write lock has expired, waiting for the sweep
 *
 * All write locks have one TTL and all leases have one TTL, and time never runs backwards here
 * (`advanceClock`), so appending keeps each queue sorted by expiry and the next one is always the
 * head: no timers, no scan. An object is in one queue at most; its links lie in its holder
 * record. Decisions about locks compare times (ttl-lock.ts) and never rely on the queues, so a
 * queue that is not drained yet makes a figure late, not an answer wrong.
 */
import { addToFigures, subtractFromFigures } from './figures';
import {
  objectLock,
  objectQueue,
  QUEUE_LEASES,
  QUEUE_NONE,
  QUEUE_WRITES,
  queueNext,
  queuePrevious,
  setObjectQueue,
  setQueueNext,
  setQueuePrevious,
} from './object';
import { lockExpirationMs } from './ttl-lock';

let writesHead: u32 = 0;
let writesTail: u32 = 0;
let leasesHead: u32 = 0;
let leasesTail: u32 = 0;
let expiredHead: u32 = 0;
let expiredTail: u32 = 0;

export function queueHead(queue: u32): u32 {
  if (queue === QUEUE_WRITES) return writesHead;
  return queue === QUEUE_LEASES ? leasesHead : expiredHead;
}

function queueTail(queue: u32): u32 {
  if (queue === QUEUE_WRITES) return writesTail;
  return queue === QUEUE_LEASES ? leasesTail : expiredTail;
}

function setQueueHead(queue: u32, slot: u32): void {
  if (queue === QUEUE_WRITES) writesHead = slot;
  else if (queue === QUEUE_LEASES) leasesHead = slot;
  else expiredHead = slot;
}

function setQueueTail(queue: u32, slot: u32): void {
  if (queue === QUEUE_WRITES) writesTail = slot;
  else if (queue === QUEUE_LEASES) leasesTail = slot;
  else expiredTail = slot;
}

function dequeue(slot: u32): void {
  const queue = objectQueue(slot);
  if (queue === QUEUE_NONE) return;
  const previous = queuePrevious(slot);
  const next = queueNext(slot);
  if (previous === 0) setQueueHead(queue, next);
  else setQueueNext(previous, next);
  if (next === 0) setQueueTail(queue, previous);
  else setQueuePrevious(next, previous);
  setObjectQueue(slot, QUEUE_NONE);
}

/** Moves an object to the end of a queue, or out of all queues. Not counted in the figures. */
export function enqueue(slot: u32, queue: u32): void {
  dequeue(slot);
  if (queue === QUEUE_NONE) return;
  const tail = queueTail(queue);
  setQueuePrevious(slot, tail);
  setQueueNext(slot, 0);
  if (tail === 0) setQueueHead(queue, slot);
  else setQueueNext(tail, slot);
  setQueueTail(queue, slot);
  setObjectQueue(slot, queue);
}

/** `enqueue` for an object whose figures are up to date. */
export function requeue(slot: u32, queue: u32): void {
  subtractFromFigures(slot);
  enqueue(slot, queue);
  addToFigures(slot);
}

/** The head of a queue if its lock has expired at `nowMs`, else 0. */
export function dueHead(queue: u32, nowMs: f64): u32 {
  const slot = queueHead(queue);
  return slot !== 0 && nowMs >= lockExpirationMs(objectLock(slot)) ? slot : 0;
}
