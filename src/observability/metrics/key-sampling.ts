/**
 * Which chunks the lifecycle histograms follow (spec observability 5.1).
 *
 * The first four bytes of a chunk hash, read as an unsigned big-endian integer, are compared with
 * `rate * 2^32`. A hash is as good as a random number, so that takes its share of all chunks; it is
 * the same share after a restart and in every part of kvd, so one chunk is followed everywhere or
 * nowhere. Where hashes are not words, as for blocks of an engine, a coin is thrown.
 */
import { randomInt } from 'node:crypto';

const WORD_COUNT = 2 ** 32;

/** A number from 0 up to, but not including, 1. */
export type Random = () => number;

export const systemRandom: Random = () => randomInt(WORD_COUNT) / WORD_COUNT;

/** 0 follows nothing, 2^32 everything. */
export function hashThresholdOf(rate: number): number {
  return Math.floor(rate * WORD_COUNT);
}

/** `hashWord`: the first four bytes of a chunk hash, big-endian. */
export function isSampled(hashWord: number, threshold: number): boolean {
  return hashWord < threshold;
}

/** The first four bytes at `offset`, as `isSampled` takes them. */
export function hashWordAt(bytes: Uint8Array, offset: number): number {
  const high = ((bytes[offset] as number) << 8) | (bytes[offset + 1] as number);
  const low = ((bytes[offset + 2] as number) << 8) | (bytes[offset + 3] as number);
  return high * 0x1_0000 + low;
}

/**
 * A coin thrown once for each (`seed`, `id`): the same answer each time, with nothing to remember.
 * `seed` is a random word. The mixing is the end of MurmurHash3, of which every output bit depends
 * on every input bit.
 */
export function isTossed(seed: number, id: number, threshold: number): boolean {
  let word = seed ^ Math.imul(id, 0x9e37_79b1);
  word = Math.imul(word ^ (word >>> 16), 0x85eb_ca6b);
  word = Math.imul(word ^ (word >>> 13), 0xc2b2_ae35);
  return (word ^ (word >>> 16)) >>> 0 < threshold;
}
