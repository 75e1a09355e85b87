/**
 * The hash of CPython (3.12 and newer) for `(prefix, (token, ...), None)`, a signed 64-bit integer.
 *
 * Integers hash to themselves modulo 2^61 - 1 with their sign; -1 is reserved for errors and
 * becomes -2. Tuples use the xxHash-like accumulator below. None has had a constant hash since
 * 3.12; before, it followed from an address, so older servers cannot share hashes with anyone
 * (spec engine 1.2).
 *
 * Hashes are kept as the reference stores them: 8 bytes, big endian.
 */

export const BUILTIN_SIZE: u32 = 8;

const PRIME_1: u64 = 11400714785074694791;
const PRIME_2: u64 = 14029467366897019727;
const PRIME_5: u64 = 2870177450012600261;
const LENGTH_MIX: u64 = PRIME_5 ^ 3527539;
/** What a tuple hashes to instead of -1. */
const MINUS_ONE_SUBSTITUTE: u64 = 1546275796;
const INTEGER_MODULUS: u64 = (1 << 61) - 1;
const NONE_HASH: u64 = 0xfca86420;

function hashInteger(value: i64): u64 {
  // The magnitude of i64.MIN_VALUE is 2^63, which only the unsigned negation gives.
  const magnitude = value < 0 ? 0 - <u64>value : <u64>value;
  const remainder = magnitude % INTEGER_MODULUS;
  const signed = value < 0 ? 0 - remainder : remainder;
  return signed === u64.MAX_VALUE ? u64.MAX_VALUE - 1 : signed;
}

function mixLane(accumulator: u64, lane: u64): u64 {
  return rotl<u64>(accumulator + lane * PRIME_2, 31) * PRIME_1;
}

function finishTuple(accumulator: u64, length: u64): u64 {
  const hash = accumulator + (length ^ LENGTH_MIX);
  return hash === u64.MAX_VALUE ? MINUS_ONE_SUBSTITUTE : hash;
}

/**
 * Hash of `(prefix, tokens, None)` into the 8 bytes at `target`. The prefix lies at `prefix` as 8
 * big-endian bytes, tokens are `count` big-endian words.
 */
export function builtinChunk(target: usize, prefix: usize, words: usize, count: u32): void {
  let inner = PRIME_5;
  // A token is below 2^61 - 1, so it is its own hash.
  for (let index: u32 = 0; index < count; index++) {
    inner = mixLane(inner, <u64>bswap<u32>(load<u32>(words + ((<usize>index) << 2))));
  }
  let outer = mixLane(PRIME_5, hashInteger(<i64>bswap<u64>(load<u64>(prefix))));
  outer = mixLane(outer, finishTuple(inner, count));
  outer = mixLane(outer, NONE_HASH);
  store<u64>(target, bswap<u64>(finishTuple(outer, 3)));
}
