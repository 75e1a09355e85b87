/**
 * BLAKE2b (RFC 7693) without key, for digests of any length: `node:crypto` has the 64-byte one
 * only, and the peer's names use 8 bytes. The length is part of the parameters, so a short digest
 * is not the beginning of a long one.
 *
 * 64-bit words are pairs of 32-bit ones, low half first: word i is at 2i and 2i+1.
 */
import { assert } from '../assert.ts';

const BLOCK_BYTES = 128;
const DIGEST_BYTES_MAX = 64;
const ROUND_COUNT = 12;

/** The first 64 bits of the fractional parts of the square roots of the first eight primes. */
const INITIAL = Uint32Array.of(
  ...[0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1],
  ...[0xa54ff53a, 0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab],
  ...[0x137e2179, 0x5be0cd19],
);

/** Order of the message words per round; rounds 10 and 11 repeat 0 and 1. */
const SCHEDULE = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
] as const;

/** Columns, then diagonals. */
const MIXES = [
  [0, 4, 8, 12],
  [1, 5, 9, 13],
  [2, 6, 10, 14],
  [3, 7, 11, 15],
  [0, 5, 10, 15],
  [1, 6, 11, 12],
  [2, 7, 8, 13],
  [3, 4, 9, 14],
] as const;

export function blake2b(input: Uint8Array, digestBytes: number): Uint8Array {
  assert(
    Number.isInteger(digestBytes) && digestBytes >= 1 && digestBytes <= DIGEST_BYTES_MAX,
    `a BLAKE2b digest has 1 to 64 bytes, not ${digestBytes}`,
  );
  const state = INITIAL.slice();
  // Parameter block of sequential, unkeyed hashing: digest length, key length 0, fanout 1, depth 1.
  state[0] = (state[0] as number) ^ 0x0101_0000 ^ digestBytes;
  const block = new Uint8Array(BLOCK_BYTES);
  // An empty input is one block of zeros.
  const lastOffset = Math.max(0, Math.ceil(input.length / BLOCK_BYTES) - 1) * BLOCK_BYTES;
  for (let offset = 0; offset <= lastOffset; offset += BLOCK_BYTES) {
    const isLast = offset === lastOffset;
    block.fill(0).set(input.subarray(offset, offset + BLOCK_BYTES));
    compress(state, block, isLast ? input.length : offset + BLOCK_BYTES, isLast);
  }
  const digest = new Uint8Array(DIGEST_BYTES_MAX);
  const view = new DataView(digest.buffer);
  for (let i = 0; i < 16; i += 1) view.setUint32(i * 4, state[i] as number, true);
  return digest.slice(0, digestBytes);
}

function compress(state: Uint32Array, block: Uint8Array, byteCount: number, isLast: boolean): void {
  const words = new Uint32Array(32);
  const view = new DataView(block.buffer);
  for (let i = 0; i < 32; i += 1) words[i] = view.getUint32(i * 4, true);
  const work = new Uint32Array(32);
  work.set(state);
  work.set(INITIAL, 16);
  work[24] = (work[24] as number) ^ byteCount;
  work[25] = (work[25] as number) ^ Math.floor(byteCount / 2 ** 32);
  if (isLast) {
    work[28] = ~(work[28] as number);
    work[29] = ~(work[29] as number);
  }
  for (let round = 0; round < ROUND_COUNT; round += 1) {
    const order = SCHEDULE[round % SCHEDULE.length] as readonly number[];
    MIXES.forEach(([a, b, c, d], i) => {
      addWord(work, a, b, words, order[2 * i] as number);
      xorRotate(work, d, a, 32);
      addWord(work, c, d);
      xorRotate(work, b, c, 24);
      addWord(work, a, b, words, order[2 * i + 1] as number);
      xorRotate(work, d, a, 16);
      addWord(work, c, d);
      xorRotate(work, b, c, 63);
    });
  }
  for (let i = 0; i < 16; i += 1) {
    state[i] = (state[i] as number) ^ (work[i] as number) ^ (work[i + 16] as number);
  }
}

/** work[a] += work[b] (+ words[m]). */
function addWord(work: Uint32Array, a: number, b: number, words?: Uint32Array, m = 0): void {
  const more = words ? (words[2 * m] as number) : 0;
  const moreHigh = words ? (words[2 * m + 1] as number) : 0;
  const low = (work[2 * a] as number) + (work[2 * b] as number) + more;
  work[2 * a + 1] =
    (work[2 * a + 1] as number) +
    (work[2 * b + 1] as number) +
    moreHigh +
    Math.floor(low / 2 ** 32);
  work[2 * a] = low;
}

/** work[a] = (work[a] ^ work[b]) rotated right by `bits`. */
function xorRotate(work: Uint32Array, a: number, b: number, bits: number): void {
  let low = (work[2 * a] as number) ^ (work[2 * b] as number);
  let high = (work[2 * a + 1] as number) ^ (work[2 * b + 1] as number);
  if (bits >= 32) [low, high] = [high, low];
  const rest = bits % 32;
  if (rest !== 0) {
    [low, high] = [(low >>> rest) | (high << (32 - rest)), (high >>> rest) | (low << (32 - rest))];
  }
  work[2 * a] = low;
  work[2 * a + 1] = high;
}
