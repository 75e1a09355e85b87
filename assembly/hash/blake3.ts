/**
 * BLAKE3, plain hash mode, 32 bytes out.
 *
 * Problem. A prompt is hashed chunk after chunk, and each chunk begins with the hash of the one
 * before it. So nothing can be spread over lanes or threads: what counts is the *latency* of one
 * compression. A chunk of 256 tokens is 32 + 1024 bytes: 16 blocks, then 1, then their parent.
 *
 * Approach. The 4 x 4 state lies in four vectors, one row each, and a round is two vector steps:
 *
 *      a  [ v0   v1   v2   v3  ]      columns: as drawn
 *      b  [ v4   v5   v6   v7  ]      diagonals: rows a, c, d are turned by 3, 1, 2 lanes, so that
 *      c  [ v8   v9   v10  v11 ]      each diagonal lies in one column
 *      d  [ v12  v13  v14  v15 ]
 *
 * The usual form turns b, c and d. But b is the last row that a step finishes and the first one
 * that the next needs, whereas a is ready five operations before: turning a takes the shuffles off
 * the chain of dependent operations. The price is that lane i of a diagonal step works on
 * diagonal i - 1, so its message words are kept in that order:
 *
 *      columns:    x = m0  m2  m4  m6      y = m1  m3  m5  m7
 *      diagonals:  z = m14 m8  m10 m12     w = m15 m9  m11 m13
 *
 * Seven rounds are a loop: the words for the next round are a fixed shuffle of these four vectors.
 *
 * Messages are given as two places: the first 32 bytes (the prefix hash) at `head`, byte i >= 32 at
 * `body + i - 32`. So a chunk is hashed where its tokens lie, without being copied behind its
 * prefix. A block never straddles another border, because 32 is half a block.
 *
 * Longer messages form a tree of 1024-byte BLAKE3 chunks. Its left subtrees are full, hence the
 * chaining values that wait for a partner form a stack with one entry per set bit of the number of
 * chunks done (23 suffice for 4 GiB).
 *
 * Reference: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere".
 */
import { BLAKE3_BLOCK, BLAKE3_CV, BLAKE3_STACK } from '../memory-map';

export const DIGEST_SIZE: u32 = 32;
/** Bytes of a message that come from `head`. */
export const HEAD_SIZE: u32 = 32;

const BLOCK_SIZE: u32 = 64;
const CHUNK_SIZE: u32 = 1024;

const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;

const IV_LOW = i32x4(0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a);
const IV_HIGH = i32x4(0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19);

// A swizzle by a constant is one instruction, and its constant stays in a register.
function rotate16(v: v128): v128 {
  return i8x16.swizzle(v, i8x16(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
}

function rotate8(v: v128): v128 {
  return i8x16.swizzle(v, i8x16(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12));
}

function rotate12(v: v128): v128 {
  return v128.or(i32x4.shr_u(v, 12), i32x4.shl(v, 20));
}

function rotate7(v: v128): v128 {
  return v128.or(i32x4.shr_u(v, 7), i32x4.shl(v, 25));
}

/**
 * Compresses one block into the chaining value at `cv` (in place). The block's first 32 bytes lie
 * at `low`, the others at `high`. Counters above 2^32 cannot occur in a 4 GiB memory.
 */
function compress(
  cv: usize,
  low: usize,
  high: usize,
  counter: u32,
  blockSize: u32,
  flags: u32,
): void {
  let a = v128.load(cv);
  let b = v128.load(cv, 16);
  let c = IV_LOW;
  let d = i32x4.splat(0);
  d = i32x4.replace_lane(d, 0, counter);
  d = i32x4.replace_lane(d, 2, blockSize);
  d = i32x4.replace_lane(d, 3, flags);

  const m0 = v128.load(low);
  const m4 = v128.load(low, 16);
  const m8 = v128.load(high);
  const m12 = v128.load(high, 16);
  let x = v128.shuffle<i32>(m0, m4, 0, 2, 4, 6);
  let y = v128.shuffle<i32>(m0, m4, 1, 3, 5, 7);
  let z = v128.shuffle<i32>(m8, m12, 0, 2, 4, 6);
  let w = v128.shuffle<i32>(m8, m12, 1, 3, 5, 7);
  z = v128.shuffle<i32>(z, z, 3, 0, 1, 2);
  w = v128.shuffle<i32>(w, w, 3, 0, 1, 2);

  for (let round = 0; ; round++) {
    a = i32x4.add(i32x4.add(a, x), b);
    d = rotate16(v128.xor(d, a));
    c = i32x4.add(c, d);
    b = rotate12(v128.xor(b, c));
    a = i32x4.add(i32x4.add(a, y), b);
    d = rotate8(v128.xor(d, a));
    c = i32x4.add(c, d);
    b = rotate7(v128.xor(b, c));

    a = v128.shuffle<i32>(a, a, 3, 0, 1, 2);
    c = v128.shuffle<i32>(c, c, 1, 2, 3, 0);
    d = v128.shuffle<i32>(d, d, 2, 3, 0, 1);

    a = i32x4.add(i32x4.add(a, z), b);
    d = rotate16(v128.xor(d, a));
    c = i32x4.add(c, d);
    b = rotate12(v128.xor(b, c));
    a = i32x4.add(i32x4.add(a, w), b);
    d = rotate8(v128.xor(d, a));
    c = i32x4.add(c, d);
    b = rotate7(v128.xor(b, c));

    a = v128.shuffle<i32>(a, a, 1, 2, 3, 0);
    c = v128.shuffle<i32>(c, c, 3, 0, 1, 2);
    d = v128.shuffle<i32>(d, d, 2, 3, 0, 1);
    if (round === 6) break;

    // The permutation 2 6 3 10 7 0 4 13 1 11 12 5 9 14 15 8, in steps that are one instruction.
    const x3x0z2w3 = v128.shuffle<i32>(x, v128.shuffle<i32>(z, w, 0, 1, 2, 7), 3, 0, 6, 7);
    const w0w1y0z3 = v128.shuffle<i32>(w, v128.shuffle<i32>(y, z, 0, 0, 7, 7), 0, 1, 4, 6);
    const z1z0w2y2 = v128.shuffle<i32>(z, v128.shuffle<i32>(w, y, 2, 2, 6, 6), 1, 0, 4, 6);
    const x1x2y1y3 = v128.shuffle<i32>(x, y, 1, 2, 5, 7);
    x = v128.shuffle<i32>(x1x2y1y3, x1x2y1y3, 0, 2, 3, 1);
    y = v128.shuffle<i32>(x3x0z2w3, x3x0z2w3, 0, 2, 1, 3);
    z = v128.shuffle<i32>(w0w1y0z3, w0w1y0z3, 0, 2, 3, 1);
    w = v128.shuffle<i32>(z1z0w2y2, z1z0w2y2, 0, 2, 3, 1);
  }
  v128.store(cv, v128.xor(a, c));
  v128.store(cv, v128.xor(b, d), 16);
}

function resetChainingValue(cv: usize): void {
  v128.store(cv, IV_LOW);
  v128.store(cv, IV_HIGH, 16);
}

/** Copies the `size` < 64 bytes of a last block behind its `low` and `high` into a zeroed block. */
function padBlock(low: usize, high: usize, size: u32): void {
  const zero = i32x4.splat(0);
  for (let offset: usize = 0; offset < 64; offset += 16) v128.store(BLAKE3_BLOCK + offset, zero);
  let index: u32 = 0;
  while (index < size) {
    const source = (index < HEAD_SIZE ? low : high - HEAD_SIZE) + index;
    if (size - index >= 16) {
      v128.store(BLAKE3_BLOCK + index, v128.load(source));
      index += 16;
    } else {
      store<u8>(BLAKE3_BLOCK + index, load<u8>(source));
      index += 1;
    }
  }
}

/**
 * Chaining value of the BLAKE3 chunk number `counter` into `cv`. Its first 32 bytes lie at `low`,
 * byte i >= 32 at `high + i - 32`; `size` is 0..1024. `rootFlag` is ROOT if it is the only one.
 */
function hashChunk(
  cv: usize,
  low: usize,
  high: usize,
  size: u32,
  counter: u32,
  rootFlag: u32,
): void {
  resetChainingValue(cv);
  let flags = CHUNK_START;
  let left = size;
  while (left > BLOCK_SIZE) {
    compress(cv, low, high, counter, BLOCK_SIZE, flags);
    low = high + HEAD_SIZE;
    high = low + HEAD_SIZE;
    left -= BLOCK_SIZE;
    flags = 0;
  }
  flags |= CHUNK_END | rootFlag;
  if (left === BLOCK_SIZE) {
    compress(cv, low, high, counter, BLOCK_SIZE, flags);
  } else {
    padBlock(low, high, left);
    compress(cv, BLAKE3_BLOCK, BLAKE3_BLOCK + HEAD_SIZE, counter, left, flags);
  }
}

/** Parent of the two chaining values at `pair` and `pair + 32`, into `cv` (which may be `pair`). */
function hashParent(cv: usize, pair: usize, rootFlag: u32): void {
  const left = v128.load(pair);
  const right = v128.load(pair, 16);
  v128.store(BLAKE3_BLOCK, left);
  v128.store(BLAKE3_BLOCK, right, 16);
  resetChainingValue(cv);
  compress(cv, BLAKE3_BLOCK, pair + DIGEST_SIZE, 0, BLOCK_SIZE, PARENT | rootFlag);
}

/** Digest of a message of `size` bytes (see the head comment) into the 32 bytes at `target`. */
export function blake3(target: usize, head: usize, body: usize, size: u32): void {
  if (size <= CHUNK_SIZE) {
    hashChunk(BLAKE3_CV, head, body, size, 0, ROOT);
  } else {
    hashTree(head, body, size);
  }
  v128.store(target, v128.load(BLAKE3_CV));
  v128.store(target, v128.load(BLAKE3_CV, 16), 16);
}

/** Root of a message of more than one BLAKE3 chunk, into BLAKE3_CV. */
function hashTree(head: usize, body: usize, size: u32): void {
  let top = BLAKE3_STACK;
  let low = head;
  let high = body;
  let left = size;
  let counter: u32 = 0;
  // Every chunk but the last: push it, then join it with each finished subtree of its own size.
  while (left > CHUNK_SIZE) {
    hashChunk(top, low, high, CHUNK_SIZE, counter, 0);
    top += DIGEST_SIZE;
    counter += 1;
    for (let subtrees = counter; (subtrees & 1) === 0; subtrees >>= 1) {
      top -= DIGEST_SIZE;
      hashParent(top - DIGEST_SIZE, top - DIGEST_SIZE, 0);
    }
    low = high + (CHUNK_SIZE - HEAD_SIZE);
    high = low + HEAD_SIZE;
    left -= CHUNK_SIZE;
  }
  // The last one is the right-most leaf: it closes all waiting subtrees, up to the root.
  hashChunk(top, low, high, left, counter, 0);
  while (top > BLAKE3_STACK + DIGEST_SIZE) {
    top -= DIGEST_SIZE;
    hashParent(top, top, 0);
  }
  hashParent(BLAKE3_CV, BLAKE3_STACK, ROOT);
}
