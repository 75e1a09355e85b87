import * as assert from 'uvu/assert';
import { openCoreParts } from '../support/core-parts.ts';
import { policyVectors } from '../support/policy-vectors.ts';
import { suite } from '../support/suite.ts';

interface BitmapVectors {
  facts: {
    bits: string;
    popcount: number;
    count_leading_zeros: number;
    count_leading_ones: number;
    highest_set_bit: number;
    indices: number[];
  }[];
  binary: { a: string; b: string; and: string; or: string; not_a: string }[];
  prefix: { size: number; prefix_bits: number; bits: string }[];
  set_range: { size: number; start: number; end: number; bits: string }[];
  gather: { bits: string; items: number[]; gathered: number[] }[];
}

const vectors = policyVectors<BitmapVectors>('bitmap');
const { parts, scratch } = openCoreParts(1);
/** Words of the scratch region between two bitmaps of assembly/test/parts.ts. */
const BITMAP_WORDS = 128;

function write(n: number, bits: string): number {
  // What was there before must not matter.
  scratch.fill(0xffff_ffff, n * BITMAP_WORDS, (n + 1) * BITMAP_WORDS);
  parts.bitmap_reset(n, bits.length, 0);
  for (const [position, bit] of [...bits].entries()) {
    if (bit === '1') parts.bitmap_set(n, bits.length, position);
  }
  return bits.length;
}

function read(n: number, size: number): string {
  let bits = '';
  for (let i = 0; i < size; i += 1) bits += parts.bitmap_test(n, size, i) ? '1' : '0';
  // Bits beyond the size are 0, in whole words.
  assert.is(parts.bitmap_popcount(n, size), bits.replaceAll('0', '').length);
  return bits;
}

function ones(n: number, size: number): number[] {
  const indexes: number[] = [];
  let position = parts.bitmap_next_one(n, size, 0);
  while (position < size) {
    indexes.push(position);
    position = parts.bitmap_next_one(n, size, position + 1);
  }
  return indexes;
}

suite('bitmap', (test) => {
  test('counts and finds bits as the reference does', () => {
    for (const facts of vectors.facts) {
      const size = write(0, facts.bits);
      assert.is(read(0, size), facts.bits);
      assert.is(parts.bitmap_popcount(0, size), facts.popcount, facts.bits);
      assert.is(parts.bitmap_leading_zeros(0, size), facts.count_leading_zeros, facts.bits);
      assert.is(parts.bitmap_leading_ones(0, size), facts.count_leading_ones, facts.bits);
      assert.is(parts.bitmap_highest(0, size), facts.highest_set_bit, facts.bits);
      assert.equal(ones(0, size), facts.indices, facts.bits);
    }
  });

  test('joins two bitmaps to the size of the smaller one', () => {
    for (const { a, b, and, or, not_a } of vectors.binary) {
      const sizeA = write(0, a);
      const sizeB = write(1, b);
      assert.is(read(2, parts.bitmap_and(sizeA, sizeB)), and, `${a} & ${b}`);
      assert.is(read(2, parts.bitmap_or(sizeA, sizeB)), or, `${a} | ${b}`);
      parts.bitmap_not(sizeA);
      assert.is(read(2, sizeA), not_a, `~${a}`);
    }
  });

  test('starts with a prefix of ones, no longer than itself', () => {
    for (const { size, prefix_bits, bits } of vectors.prefix) {
      scratch.fill(0xffff_ffff, 0, BITMAP_WORDS);
      parts.bitmap_reset(0, size, prefix_bits);
      assert.is(read(0, size), bits, `${prefix_bits} of ${size}`);
    }
  });

  test('sets ranges, cut to its size', () => {
    for (const { size, start, end, bits } of vectors.set_range) {
      parts.bitmap_reset(0, size, 0);
      parts.bitmap_set_range(0, size, start, end);
      assert.is(read(0, size), bits, `${start} to ${end} of ${size}`);
    }
  });

  test('gathers the items at its ones', () => {
    for (const { bits, items, gathered } of vectors.gather) {
      const size = write(0, bits);
      scratch.set(items, 3 * BITMAP_WORDS);
      const count = parts.bitmap_gather(size, items.length);
      assert.equal([...scratch.subarray(4 * BITMAP_WORDS, 4 * BITMAP_WORDS + count)], gathered);
    }
  });

  test('ignores positions beyond its size', () => {
    write(0, '00000');
    for (const position of [0, 4, 5, 99, 2, 2]) parts.bitmap_set(0, 5, position);
    assert.is(read(0, 5), '10101');
    assert.is(parts.bitmap_test(0, 5, 99), 0);
    parts.bitmap_clear(0, 5, 99);
    parts.bitmap_clear(0, 5, 4);
    assert.is(read(0, 5), '10100');
  });
});
