/**
 * SHA-256 over a stream of small pieces, and the canonical CBOR that `sha256_cbor` hashes.
 *
 * A chunk's message is the CBOR array [prefix, tokens, null]:
 *
 *   83 | 58 20 <prefix, 32 bytes> | <array head: token count> | <integer head per token> | f6
 *
 * It is never stored whole: pieces of at most 16 bytes are written at the end of one open block,
 * and a full block is compressed at once. The only state of the stream, next to the open block, is
 * the number of bytes so far (`total`), which each call takes and returns.
 *
 *   SHA256_BLOCK  0                64               80
 *                 | open block     | overhang <= 16 |     total & 63 = bytes in the open block
 *
 * References: FIPS 180-4; RFC 8949 4.2 (shortest form of heads).
 */
import { SHA256_BLOCK, SHA256_SCHEDULE, SHA256_STATE } from '../memory-map';

const CBOR_UNSIGNED: u32 = 0x00;
const CBOR_BYTES: u32 = 0x40;
const CBOR_TEXT: u32 = 0x60;
const CBOR_ARRAY: u32 = 0x80;
const CBOR_NULL: u8 = 0xf6;

const PREFIX_SIZE: u32 = 32;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
const ROUND_CONSTANTS: usize = memory.data<u32>([
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
]);

/** Digest of CBOR [prefix, tokens, null] into `target`; tokens are `count` big-endian words. */
export function sha256CborChunk(target: usize, prefix: usize, words: usize, count: u32): void {
  resetState();
  let total = appendHead(0, CBOR_ARRAY, 3);
  total = appendHead(total, CBOR_BYTES, PREFIX_SIZE);
  total = appendBytes(total, prefix, PREFIX_SIZE);
  total = appendHead(total, CBOR_ARRAY, count);
  for (let index: u32 = 0; index < count; index++) {
    total = appendHead(total, CBOR_UNSIGNED, bswap<u32>(load<u32>(words + ((<usize>index) << 2))));
  }
  store<u8>(openEnd(total), CBOR_NULL);
  finish(target, advance(total, 1));
}

/** Digest of the CBOR text string of `size` bytes of UTF-8 at `text` into `target`. */
export function sha256CborText(target: usize, text: usize, size: u32): void {
  resetState();
  const total = appendHead(0, CBOR_TEXT, size);
  finish(target, appendBytes(total, text, size));
}

/** First free byte of the open block. */
function openEnd(total: u32): usize {
  return SHA256_BLOCK + (total & 63);
}

/** Accounts for `size` <= 16 bytes that were written at `openEnd(total)`. */
function advance(total: u32, size: u32): u32 {
  if ((total & 63) + size >= 64) {
    compress();
    v128.store(SHA256_BLOCK, v128.load(SHA256_BLOCK, 64));
  }
  return total + size;
}

/** A CBOR head: major type and value in the shortest form. */
function appendHead(total: u32, major: u32, value: u32): u32 {
  const end = openEnd(total);
  if (value < 24) {
    store<u8>(end, major | value);
    return advance(total, 1);
  }
  if (value < 0x100) {
    store<u8>(end, major | 24);
    store<u8>(end, value, 1);
    return advance(total, 2);
  }
  if (value < 0x10000) {
    store<u8>(end, major | 25);
    store<u16>(end, bswap<u16>(<u16>value), 1);
    return advance(total, 3);
  }
  store<u8>(end, major | 26);
  store<u32>(end, bswap<u32>(value), 1);
  return advance(total, 5);
}

function appendBytes(total: u32, source: usize, size: u32): u32 {
  const end = source + size;
  while (source + 16 <= end) {
    v128.store(openEnd(total), v128.load(source));
    total = advance(total, 16);
    source += 16;
  }
  while (source < end) {
    store<u8>(openEnd(total), load<u8>(source));
    total = advance(total, 1);
    source += 1;
  }
  return total;
}

/** Padding: 80, zeros up to 8 bytes before a block's end, length in bits as a big-endian u64. */
function finish(target: usize, total: u32): void {
  let used = total & 63;
  store<u8>(SHA256_BLOCK + used, 0x80);
  used += 1;
  if (used > 56) {
    while (used < 64) store<u8>(SHA256_BLOCK + used++, 0);
    compress();
    used = 0;
  }
  while (used < 56) store<u8>(SHA256_BLOCK + used++, 0);
  store<u64>(SHA256_BLOCK, bswap<u64>((<u64>total) << 3), 56);
  compress();
  for (let offset: usize = 0; offset < 32; offset += 4) {
    store<u32>(target + offset, bswap<u32>(load<u32>(SHA256_STATE + offset)));
  }
}

function resetState(): void {
  v128.store(SHA256_STATE, i32x4(0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a));
  v128.store(SHA256_STATE, i32x4(0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19), 16);
}

/** The first 16 words are the block, each later one mixes four before it. */
function expandSchedule(): void {
  for (let offset: usize = 0; offset < 64; offset += 4) {
    store<u32>(SHA256_SCHEDULE + offset, bswap<u32>(load<u32>(SHA256_BLOCK + offset)));
  }
  for (let at: usize = SHA256_SCHEDULE + 64; at < SHA256_SCHEDULE + 256; at += 4) {
    const early = load<u32>(at - 60);
    const late = load<u32>(at - 8);
    const sigma0 = rotr<u32>(early, 7) ^ rotr<u32>(early, 18) ^ (early >> 3);
    const sigma1 = rotr<u32>(late, 17) ^ rotr<u32>(late, 19) ^ (late >> 10);
    store<u32>(at, load<u32>(at - 64) + sigma0 + load<u32>(at - 28) + sigma1);
  }
}

/** Compresses the block at SHA256_BLOCK into SHA256_STATE. */
function compress(): void {
  expandSchedule();
  let a = load<u32>(SHA256_STATE);
  let b = load<u32>(SHA256_STATE, 4);
  let c = load<u32>(SHA256_STATE, 8);
  let d = load<u32>(SHA256_STATE, 12);
  let e = load<u32>(SHA256_STATE, 16);
  let f = load<u32>(SHA256_STATE, 20);
  let g = load<u32>(SHA256_STATE, 24);
  let h = load<u32>(SHA256_STATE, 28);
  for (let offset: usize = 0; offset < 256; offset += 4) {
    const word = load<u32>(SHA256_SCHEDULE + offset) + load<u32>(ROUND_CONSTANTS + offset);
    const choice = g ^ (e & (f ^ g));
    const majority = (a & b) | (c & (a | b));
    const t1 = h + (rotr<u32>(e, 6) ^ rotr<u32>(e, 11) ^ rotr<u32>(e, 25)) + choice + word;
    const t2 = (rotr<u32>(a, 2) ^ rotr<u32>(a, 13) ^ rotr<u32>(a, 22)) + majority;
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE) + a);
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE, 4) + b, 4);
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE, 8) + c, 8);
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE, 12) + d, 12);
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE, 16) + e, 16);
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE, 20) + f, 20);
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE, 24) + g, 24);
  store<u32>(SHA256_STATE, load<u32>(SHA256_STATE, 28) + h, 28);
}
