/**
 * Chunk hashes of a token sequence, chained by their prefix:
 *
 *   root ──► H(root, chunk 0) ──► H(hash 0, chunk 1) ──► H(hash 1, chunk 2) ──► …
 *
 * so that one hash names the whole prefix up to its chunk. A tail shorter than a chunk has no hash.
 *
 *   TOKEN_WORDS  | chunk 0 | chunk 1 | …          4 bytes a token, big endian, from tokens.ts
 *   HASH_PREFIX  | prefix of the first chunk |    root, or the last hash of an earlier call
 *   HASH_OUTPUT  | hash 0 | hash 1 | …            packed, `hashSize` bytes each
 *
 * The root (NONE_HASH) depends on the algorithm only, except for sha256_cbor, where it is the
 * digest of a seed text or 32 random bytes from the caller. Spec: engine.md 1.1, 1.2.
 */
import {
  chunkSizeTokens,
  HASH_OUTPUT,
  HASH_PREFIX,
  HASH_ROOT,
  MSGPACK,
  msgpackSizeMax,
  TOKEN_WORDS,
} from '../memory-map';
import { INVALID_ARGUMENT, NOT_INITIALIZED, SUCCESS } from '../result';
import { decodedTokenCount } from '../tokens';
import { blake3, DIGEST_SIZE } from './blake3';
import { BUILTIN_SIZE, builtinChunk } from './builtin';
import { sha256CborChunk, sha256CborText } from './sha256';

export const ALGORITHM_BLAKE3: i32 = 1;
export const ALGORITHM_SHA256_CBOR: i32 = 2;
export const ALGORITHM_BUILTIN: i32 = 3;

/** The root follows from the algorithm. */
export const SEED_NONE: i32 = 0;
/** The root is the digest of the text at MSGPACK (sha256_cbor). */
export const SEED_TEXT: i32 = 1;
/** The 32 bytes at MSGPACK are the root (sha256_cbor). */
export const SEED_ROOT: i32 = 2;

let algorithm: i32 = 0;
let hashSize: u32 = 0;

/** Chooses the algorithm and computes its root; `seedSize` bytes of seed lie at MSGPACK. */
export function initHasher(chosen: i32, seedKind: i32, seedSize: u32): i32 {
  const takesSeed = chosen === ALGORITHM_SHA256_CBOR;
  if (chosen < ALGORITHM_BLAKE3 || chosen > ALGORITHM_BUILTIN) return INVALID_ARGUMENT;
  if (takesSeed !== (seedKind === SEED_TEXT || seedKind === SEED_ROOT)) return INVALID_ARGUMENT;
  if (seedKind === SEED_ROOT && seedSize !== DIGEST_SIZE) return INVALID_ARGUMENT;
  if (seedSize > msgpackSizeMax) return INVALID_ARGUMENT;

  algorithm = chosen;
  hashSize = chosen === ALGORITHM_BUILTIN ? BUILTIN_SIZE : DIGEST_SIZE;
  if (seedKind === SEED_TEXT) {
    sha256CborText(HASH_ROOT, MSGPACK, seedSize);
  } else if (seedKind === SEED_ROOT) {
    memory.copy(HASH_ROOT, MSGPACK, DIGEST_SIZE);
  } else {
    // hash((0, (0,), None)): an integer prefix is 8 bytes, and a token of zero 4 more.
    memory.fill(MSGPACK, 0, 12);
    if (chosen === ALGORITHM_BLAKE3) blake3(HASH_ROOT, MSGPACK, MSGPACK + DIGEST_SIZE, 12);
    else builtinChunk(HASH_ROOT, MSGPACK, MSGPACK + 8, 1);
  }
  return <i32>hashSize;
}

/** Hashes the first `count` chunks of the decoded tokens, starting from the hash at HASH_PREFIX. */
export function hashChunks(count: u32): i32 {
  if (algorithm === 0) return NOT_INITIALIZED;
  if (count > decodedTokenCount / chunkSizeTokens) return INVALID_ARGUMENT;

  const chunkBytes = chunkSizeTokens << 2;
  let prefix = HASH_PREFIX;
  let words = TOKEN_WORDS;
  let target = HASH_OUTPUT;
  for (let index: u32 = 0; index < count; index++) {
    if (algorithm === ALGORITHM_BLAKE3) {
      blake3(target, prefix, words, DIGEST_SIZE + chunkBytes);
    } else if (algorithm === ALGORITHM_SHA256_CBOR) {
      sha256CborChunk(target, prefix, words, chunkSizeTokens);
    } else {
      builtinChunk(target, prefix, words, chunkSizeTokens);
    }
    prefix = target;
    words += chunkBytes;
    target += hashSize;
  }
  return SUCCESS;
}
