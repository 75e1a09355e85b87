/**
 * Bit sets of a fixed size, over bytes that the caller owns (storage.md 2.7).
 *
 *   bit i lies in byte i / 8 at position i % 8, least significant first
 *
 * A bitmap of `size` bits takes `bitmapBytes(size)` bytes: whole 64-bit words, whose bits from
 * `size` on are always 0, so that counting needs no special case. Positions outside are ignored.
 */

export function bitmapBytes(size: u32): u32 {
  return ((size + 63) >> 6) << 3;
}

/** All bits 0, then the first `prefix` bits 1 (no more than there are). */
export function bitmapReset(bits: usize, size: u32, prefix: u32): void {
  memory.fill(bits, 0, bitmapBytes(size));
  bitmapSetRange(bits, size, 0, prefix);
}

export function bitmapTest(bits: usize, size: u32, position: u32): bool {
  return position < size && ((load<u8>(bits + (position >> 3)) >> (position & 7)) & 1) !== 0;
}

export function bitmapSet(bits: usize, size: u32, position: u32): void {
  if (position >= size) return;
  const at = bits + (position >> 3);
  store<u8>(at, <u8>(<u32>load<u8>(at) | (1 << (position & 7))));
}

export function bitmapClear(bits: usize, size: u32, position: u32): void {
  if (position >= size) return;
  const at = bits + (position >> 3);
  store<u8>(at, <u8>(<u32>load<u8>(at) & ~(1 << (position & 7))));
}

/** Sets the bits from `start` up to, not including, `end`. */
export function bitmapSetRange(bits: usize, size: u32, start: u32, end: u32): void {
  const stop = min(end, size);
  let position = start;
  while (position < stop && (position & 7) !== 0) {
    bitmapSet(bits, size, position);
    position += 1;
  }
  while (position < stop && stop - position >= 8) {
    store<u8>(bits + (position >> 3), 0xff);
    position += 8;
  }
  while (position < stop) {
    bitmapSet(bits, size, position);
    position += 1;
  }
}

export function bitmapPopcount(bits: usize, size: u32): u32 {
  let count: u64 = 0;
  const end = bits + bitmapBytes(size);
  for (let at = bits; at < end; at += 8) count += popcnt(load<u64>(at));
  return <u32>count;
}

/** The highest bit that is 1, or -1. */
export function bitmapHighest(bits: usize, size: u32): i32 {
  let at = bits + bitmapBytes(size);
  while (at > bits) {
    at -= 8;
    const word = load<u64>(at);
    if (word !== 0) return <i32>(((at - bits) << 3) + 63 - <usize>clz(word));
  }
  return -1;
}

/** The first bit from `start` on that is 1, or `size`. */
export function bitmapNextOne(bits: usize, size: u32, start: u32): u32 {
  return nextBit(bits, size, start, 0);
}

/** Bits before the first 1; all of them if there is none. */
export function bitmapLeadingZeros(bits: usize, size: u32): u32 {
  return nextBit(bits, size, 0, 0);
}

/** Bits before the first 0; all of them if there is none. */
export function bitmapLeadingOnes(bits: usize, size: u32): u32 {
  return nextBit(bits, size, 0, u64.MAX_VALUE);
}

/** The first bit from `start` on that is 1 after XOR with `flip`, or `size`. */
function nextBit(bits: usize, size: u32, start: u32, flip: u64): u32 {
  let position = start;
  while (position < size) {
    const word = (load<u64>(bits + ((<usize>position >> 6) << 3)) ^ flip) >> (<u64>position & 63);
    if (word !== 0) return min(size, position + <u32>ctz(word));
    position = (position | 63) + 1;
  }
  return size;
}

/** target = a & b; the size of the result is the smaller one, which is returned. */
export function bitmapAnd(target: usize, a: usize, sizeA: u32, b: usize, sizeB: u32): u32 {
  const size = min(sizeA, sizeB);
  const byteCount: usize = bitmapBytes(size);
  for (let at: usize = 0; at < byteCount; at += 8) {
    store<u64>(target + at, load<u64>(a + at) & load<u64>(b + at));
  }
  trim(target, size);
  return size;
}

/** target = a | b; the size of the result is the smaller one, which is returned. */
export function bitmapOr(target: usize, a: usize, sizeA: u32, b: usize, sizeB: u32): u32 {
  const size = min(sizeA, sizeB);
  const byteCount: usize = bitmapBytes(size);
  for (let at: usize = 0; at < byteCount; at += 8) {
    store<u64>(target + at, load<u64>(a + at) | load<u64>(b + at));
  }
  trim(target, size);
  return size;
}

/** target = ~a, of the same size. */
export function bitmapNot(target: usize, a: usize, size: u32): void {
  const byteCount: usize = bitmapBytes(size);
  for (let at: usize = 0; at < byteCount; at += 8) store<u64>(target + at, ~load<u64>(a + at));
  trim(target, size);
}

/**
 * Copies the u32 items at the set positions to `target`, ascending; positions beyond the items are
 * skipped. Returns how many.
 */
export function bitmapGather(
  bits: usize,
  size: u32,
  items: usize,
  itemCount: u32,
  target: usize,
): u32 {
  const end = min(size, itemCount);
  let count: u32 = 0;
  let position = bitmapNextOne(bits, size, 0);
  while (position < end) {
    store<u32>(target + ((<usize>count) << 2), load<u32>(items + ((<usize>position) << 2)));
    count += 1;
    position = bitmapNextOne(bits, size, position + 1);
  }
  return count;
}

/** Clears the bits from `size` on in the last word. */
function trim(bits: usize, size: u32): void {
  const used: u64 = <u64>size & 63;
  if (used === 0) return;
  const at = bits + bitmapBytes(size) - 8;
  const one: u64 = 1;
  store<u64>(at, load<u64>(at) & ((one << used) - 1));
}
