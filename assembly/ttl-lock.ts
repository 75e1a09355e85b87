/**
 * A lock that its holders may forget to release.
 *
 * One counter and one expiry for all holders: each `lock` renews the expiry of everybody, and at
 * the expiry everybody is dropped at once. Time comes in as an argument, in whole milliseconds.
 * It is used as the write lock of a staged object and as the lease of a resident one (an object
 * has either, never both), so it lies inside the holder record of an object.
 *
 *   +0   f64  expirationMs   locked while now < expirationMs and count > 0
 *   +8   u32  count
 *   +12  u32  generation     grows whenever a new group of holders begins
 *
 * The bare operations are those of storage.md section 3 and let a late holder release the count of
 * a later one. The generation is the cure: it is handed out with the lock, and a release that
 * names an old generation is refused (18.4). It is never reset, also not when the slot gets a new
 * object, so (slot, generation) names one reservation or lease for ever.
 */

export const LOCK_SIZE: u32 = 16;

const COUNT: usize = 8;
const GENERATION: usize = 12;

/** True while somebody holds the lock at `nowMs`. */
export function lockIsHeld(lock: usize, nowMs: f64): bool {
  return load<u32>(lock, COUNT) > 0 && nowMs < load<f64>(lock);
}

/** Takes the lock `times` more and renews its expiry. */
export function lockAcquire(lock: usize, times: u32, nowMs: f64, ttlMs: f64): void {
  const count: u32 = nowMs >= load<f64>(lock) ? 0 : load<u32>(lock, COUNT);
  assert(count <= u32.MAX_VALUE - times, 'a lock has too many holders');
  if (count === 0) store<u32>(lock, load<u32>(lock, GENERATION) + 1, GENERATION);
  store<u32>(lock, count + times, COUNT);
  store<f64>(lock, nowMs + ttlMs);
}

/** Moves the expiry of a lock that somebody has; holders and generation stay. */
export function lockRenew(lock: usize, nowMs: f64, ttlMs: f64): void {
  assert(load<u32>(lock, COUNT) > 0, 'renewed a lock that nobody has');
  store<f64>(lock, nowMs + ttlMs);
}

/** Gives `times` counts back, not below zero. Looks at no clock and keeps the expiry. */
export function lockRelease(lock: usize, times: u32): void {
  const count = load<u32>(lock, COUNT);
  store<u32>(lock, count > times ? count - times : 0, COUNT);
}

/** Drops all holders. The generation stays. */
export function lockReset(lock: usize): void {
  store<f64>(lock, 0);
  store<u32>(lock, 0, COUNT);
}

export function lockGeneration(lock: usize): u32 {
  return load<u32>(lock, GENERATION);
}

export function lockCount(lock: usize): u32 {
  return load<u32>(lock, COUNT);
}

export function lockExpirationMs(lock: usize): f64 {
  return load<f64>(lock);
}
