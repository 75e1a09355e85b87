/**
 * The one linear memory of the core, drawn. Sizes come from `init`; the memory is grown once,
 * there, so that the views of `src/core/` never detach. Nothing here is written at start: fresh
 * WASM memory is zero, every structure takes zero for "empty", and an untouched page costs no
 * resident memory.
 *
 *   0          static data and `abort` strings (laid out by the compiler, up to __heap_base)
 *   +--------- fixed regions that TypeScript has views on ------------------------------------+
 *   | MSGPACK       inputSize          token array as it lies in the frame                    |
 *   | TOKEN_WORDS   4 * tokenCountMax  decoded tokens, u32 big endian, one per token          |
 *   | HASH_OUTPUT   32 * chunkCountMax chained chunk hashes                                   |
 *   | HASH_STATE    2 KiB              root, prefix and scratch of the hashers (drawn below)  |
 *   | KEY_HASHES    32 * batchMax      chunk hashes of a batch, padded with zeros             |
 *   | NAMESPACES    4 * 4096           namespace ids of a batch                               |
 *   | SLOTS         4 * batchMax       slots, in and out                                      |
 *   | CODES         4 * batchMax       results per object                                     |
 *   | GENERATIONS   4 * batchMax       generations per object, in and out                     |
 *   | FIGURES       8 * 32             f64 statistics and the sums of a call                  |
 *   +--------- structures that only the core touches -----------------------------------------+
 *   | (drawn in object.ts, family.ts, namespace.ts, address-space.ts, removal-records.ts)     |
 *   +-----------------------------------------------------------------------------------------+
 *
 * Every region starts at a multiple of 64 (one cache line; SIMD loads never straddle two regions).
 */
import { INVALID_ARGUMENT, MEMORY_LIMIT, SUCCESS } from './result';

const REGION_ALIGN: u64 = 64;
const PAGE_SIZE: u64 = 65536;
const PAGE_COUNT_MAX: u64 = 65536;

/** A msgpack array header takes at most 5 bytes, an integer at most 9. */
const MSGPACK_HEADER_SIZE_MAX: u64 = 5;
const MSGPACK_INTEGER_SIZE_MAX: u64 = 9;
/** Width of a key in the table; shorter hashes are padded with zeros. */
export const HASH_SIZE: u32 = 32;
/** Ranks times object groups of one chunk in one call. */
export const BATCH_NAMESPACE_COUNT_MAX: u32 = 4096;
export const FIGURE_COUNT: u32 = 32;

/** Bounds that follow from the parameters of `init`. */
export let tokenCountMax: u32 = 0;
export let chunkSizeTokens: u32 = 0;
export let chunkCountMax: u32 = 0;
export let batchCountMax: u32 = 0;
export let msgpackSizeMax: u32 = 0;

export let MSGPACK: usize = 0;
export let TOKEN_WORDS: usize = 0;
export let HASH_OUTPUT: usize = 0;
export let KEY_HASHES: usize = 0;
export let NAMESPACES: usize = 0;
export let SLOTS: usize = 0;
export let CODES: usize = 0;
export let GENERATIONS: usize = 0;
export let FIGURES: usize = 0;

/**
 * HASH_STATE. TypeScript reads HASH_ROOT, TOKEN_ERROR and writes HASH_PREFIX; the rest is scratch.
 *
 *   0     HASH_ROOT        32   hash before the first chunk (NONE_HASH)
 *   32    HASH_PREFIX      32   prefix of the first chunk of a call
 *   64    TOKEN_ERROR      8    u32 element index, u32 byte offset of the last decoding error
 *   128   BLAKE3_CV        32   chaining value of a message of one BLAKE3 chunk, and the digest
 *   192   BLAKE3_BLOCK     64   padded last block, left half of a parent
 *   256   BLAKE3_STACK     768  23 subtrees of a 4 GiB message, and the chunk in work
 *   1024  SHA256_STATE     32
 *   1088  SHA256_BLOCK     80   open block and overhang
 *   1216  SHA256_SCHEDULE  256
 */
const HASH_STATE_SIZE: u64 = 2048;
export let HASH_ROOT: usize = 0;
export let HASH_PREFIX: usize = 0;
export let TOKEN_ERROR: usize = 0;
export let BLAKE3_CV: usize = 0;
export let BLAKE3_BLOCK: usize = 0;
export let BLAKE3_STACK: usize = 0;
export let SHA256_STATE: usize = 0;
export let SHA256_BLOCK: usize = 0;
export let SHA256_SCHEDULE: usize = 0;

function placeHashState(base: usize): void {
  HASH_ROOT = base;
  HASH_PREFIX = base + 32;
  TOKEN_ERROR = base + 64;
  BLAKE3_CV = base + 128;
  BLAKE3_BLOCK = base + 192;
  BLAKE3_STACK = base + 256;
  SHA256_STATE = base + 1024;
  SHA256_BLOCK = base + 1088;
  SHA256_SCHEDULE = base + 1216;
}

/** First byte that no region has; u64 so that an overflow shows before it wraps. */
let cursor: u64 = 0;

/** Reserves `size` bytes at the next line. Only valid between `beginLayout` and `endLayout`. */
export function reserveRegion(size: u64): usize {
  const at = cursor;
  cursor = (at + size + REGION_ALIGN - 1) & ~(REGION_ALIGN - 1);
  return <usize>at;
}

/** Places the regions that TypeScript sees. The structures reserve theirs afterwards. */
export function beginLayout(tokens: u32, chunkSize: u32, batch: u32): i32 {
  if (tokens === 0 || chunkSize === 0 || batch === 0) return INVALID_ARGUMENT;
  tokenCountMax = tokens;
  chunkSizeTokens = chunkSize;
  chunkCountMax = tokens / chunkSize + 1;
  batchCountMax = batch;
  const inputSize = MSGPACK_HEADER_SIZE_MAX + MSGPACK_INTEGER_SIZE_MAX * <u64>tokens;
  if (inputSize > <u64>u32.MAX_VALUE) return MEMORY_LIMIT;
  msgpackSizeMax = <u32>inputSize;
  cursor = (<u64>__heap_base + REGION_ALIGN - 1) & ~(REGION_ALIGN - 1);

  // One line of slack: the readers may load whole vectors over the end of the input.
  MSGPACK = reserveRegion(inputSize + REGION_ALIGN);
  TOKEN_WORDS = reserveRegion(4 * <u64>tokens + REGION_ALIGN);
  HASH_OUTPUT = reserveRegion(<u64>HASH_SIZE * <u64>chunkCountMax);
  placeHashState(reserveRegion(HASH_STATE_SIZE));
  KEY_HASHES = reserveRegion(<u64>HASH_SIZE * <u64>batch);
  NAMESPACES = reserveRegion(4 * <u64>BATCH_NAMESPACE_COUNT_MAX);
  SLOTS = reserveRegion(4 * <u64>batch);
  CODES = reserveRegion(4 * <u64>batch);
  GENERATIONS = reserveRegion(4 * <u64>batch);
  FIGURES = reserveRegion(8 * <u64>FIGURE_COUNT);
  return SUCCESS;
}

/** Grows the memory to what was reserved: the only growth in the life of an instance. */
export function endLayout(): i32 {
  const pageCount = (cursor + PAGE_SIZE - 1) / PAGE_SIZE;
  if (pageCount > PAGE_COUNT_MAX) return MEMORY_LIMIT;
  const missing = <i32>pageCount - memory.size();
  if (missing > 0 && memory.grow(missing) < 0) return MEMORY_LIMIT;
  return SUCCESS;
}

/** Bytes of the memory that some region owns. */
export function layoutSize(): f64 {
  return <f64>cursor;
}

/** Offsets for the views of `src/core/`; the ids are those of `REGION` in `src/core/core.ts`. */
export function regionOffset(id: i32): i32 {
  switch (id) {
    case 0:
      return <i32>MSGPACK;
    case 1:
      return <i32>TOKEN_WORDS;
    case 2:
      return <i32>HASH_OUTPUT;
    case 3:
      return <i32>HASH_ROOT;
    case 4:
      return <i32>KEY_HASHES;
    case 5:
      return <i32>NAMESPACES;
    case 6:
      return <i32>SLOTS;
    case 7:
      return <i32>CODES;
    case 8:
      return <i32>GENERATIONS;
    case 9:
      return <i32>FIGURES;
    default:
      return INVALID_ARGUMENT;
  }
}
