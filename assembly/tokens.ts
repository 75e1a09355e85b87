/**
 * Token reader: the elements of a msgpack array, as they lie in the frame, to big-endian words.
 *
 * Problem. A request carries up to a million token ids as integers of mixed width (1, 2, 3 or 5
 * bytes, in an order that no branch predictor guesses), and the next one's place is known only when
 * this one's tag was read. So the cost is the chain "load tag, find width, add".
 *
 * Approach. Four tokens per step. In a window of 16 bytes, compute for *every* byte i where the
 * next token would begin if one began at i, and let that map follow itself:
 *
 *   next[i] = i + 1 + extra        extra: 1 for a tag cc, 2 for cd, 4 for ce, else 0
 *   next2   = next[next]           next4 = next2[next2]
 *
 *   bytes   cd 01 02 | 07 | ce 00 01 00 00 | cd 12 34 | …
 *   starts  0          3    4                9          12       = 0, next, next2, next3, next4
 *
 * Four tokens end within 20 bytes, and the last one's tag lies within the first 16. The value of a
 * token are the bytes before the next start, right-aligned, which is big endian as it stands.
 * Anything else than the four usual forms (64-bit and signed ones, errors) leaves the window to the
 * plain reader, which also reads the last tokens: nothing is ever read behind `size`.
 *
 * Failure. The result is a code, and TOKEN_ERROR holds element index and byte offset of the element
 * that is wrong. The words decoded before it are of no use; `decodedTokenCount` is 0.
 */
import { MSGPACK, msgpackSizeMax, TOKEN_ERROR, TOKEN_WORDS, tokenCountMax } from './memory-map';
import {
  INVALID_ARGUMENT,
  TOKEN_NOT_INTEGER,
  TOKEN_OUT_OF_RANGE,
  TOKENS_TRUNCATED,
} from './result';

/** Tokens that lie in TOKEN_WORDS. */
export let decodedTokenCount: u32 = 0;

/** Bytes that a step of four tokens may load. */
const WINDOW_SIZE: u32 = 32;

/** Decodes `count` elements from the `size` bytes at MSGPACK. Returns the bytes read, or a code. */
export function decodeTokens(size: u32, count: u32): i32 {
  if (size > msgpackSizeMax || count > tokenCountMax) return INVALID_ARGUMENT;
  decodedTokenCount = 0;
  let offset: u32 = 0;
  let index: u32 = 0;
  while (index < count) {
    if (index + 4 <= count && offset + WINDOW_SIZE <= size) {
      const read = decodeFour(MSGPACK + offset, TOKEN_WORDS + ((<usize>index) << 2));
      if (read !== 0) {
        offset += read;
        index += 4;
        continue;
      }
    }
    const read = decodeOne(MSGPACK + offset, size - offset, TOKEN_WORDS + ((<usize>index) << 2));
    if (read < 0) {
      store<u32>(TOKEN_ERROR, index);
      store<u32>(TOKEN_ERROR, offset, 4);
      return read;
    }
    offset += read;
    index += 1;
  }
  decodedTokenCount = count;
  return <i32>offset;
}

/** Four tokens of the usual forms; returns their size, or 0 if one of them has another form. */
function decodeFour(source: usize, target: usize): u32 {
  const window = v128.load(source);
  const extra = i8x16.swizzle(
    i8x16(1, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    i8x16.sub(window, i8x16.splat(<i8>0xcc)),
  );
  const next = i8x16.add(extra, i8x16(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16));
  const next2 = i8x16.swizzle(next, next);
  const next4 = i8x16.swizzle(next2, next2);

  // From here on each token has four lanes, one per byte of its word.
  const next1 = i8x16.swizzle(next, i8x16.splat(0));
  const start01 = v128.and(next1, i32x4(0, -1, 0, -1));
  const start23 = i8x16.swizzle(next2, start01);
  const start = v128.shuffle<i64>(start01, start23, 0, 2);
  const end = i8x16.swizzle(next, start);
  const tags = i8x16.swizzle(window, start);

  // One byte in all, and yet not below 0x80: none of the four forms.
  const isSingle = i8x16.eq(i8x16.sub(end, start), i8x16.splat(1));
  if (i8x16.bitmask(v128.and(isSingle, tags)) !== 0) return 0;

  // Last byte before the value: the tag, or what precedes a token that is its own value.
  const before = i8x16.add(start, i8x16.gt_s(tags, i8x16.splat(-1)));
  const from = i8x16.add(
    end,
    i8x16(-4, -3, -2, -1, -4, -3, -2, -1, -4, -3, -2, -1, -4, -3, -2, -1),
  );
  const low = i8x16.swizzle(window, from);
  const high = i8x16.swizzle(v128.load(source, 16), i8x16.sub(from, i8x16.splat(16)));
  v128.store(target, v128.and(v128.or(low, high), i8x16.gt_s(from, before)));
  return i8x16.extract_lane_u(next4, 0);
}

/** Bytes behind the tag of an integer; 0 for any other tag. */
function integerSize(tag: u32): u32 {
  // cc..cf unsigned, d0..d3 signed; 1, 2, 4, 8 bytes each.
  return tag >= 0xcc && tag <= 0xd3 ? 1 << (tag & 3) : 0;
}

/** One token of any integer form; returns its size or a code. */
function decodeOne(source: usize, left: u32, target: usize): i32 {
  if (left === 0) return TOKENS_TRUNCATED;
  const tag: u32 = load<u8>(source);
  if (tag < 0x80) {
    store<u32>(target, tag << 24);
    return 1;
  }
  if (tag >= 0xe0) return TOKEN_OUT_OF_RANGE;
  const size = integerSize(tag);
  if (size === 0) return TOKEN_NOT_INTEGER;
  if (left <= size) return TOKENS_TRUNCATED;

  let value: u64 = 0;
  for (let index: u32 = 1; index <= size; index++) value = (value << 8) | load<u8>(source + index);
  const isNegative = tag >= 0xd0 && value >> ((size << 3) - 1) !== 0;
  if (isNegative || value > <u64>u32.MAX_VALUE) return TOKEN_OUT_OF_RANGE;
  store<u32>(target, bswap<u32>(<u32>value));
  return 1 + <i32>size;
}
