/**
 * What the blocks of a benchmark contain: bytes that follow from the request's number, the plane
 * and the block, so that they can be expected again without having been kept.
 *
 * Every piece is a window into one buffer of noise, at a place that its three numbers are mixed
 * to. A piece costs no generation and no copy, and comparing with one runs at memory speed. Two
 * pieces are equal only if they begin at the same of 2^22 places: bytes of another block, layer or
 * request do not pass for the right ones.
 */

const PLACE_COUNT = 1 << 22;
const NOISE_SEED = 0x9e37_79b9;

export class BlockPattern {
  readonly #noise: Buffer;

  constructor(pieceBytesMax: number) {
    const words = new Uint32Array(Math.ceil((PLACE_COUNT + pieceBytesMax) / 4));
    let state = NOISE_SEED;
    for (let i = 0; i < words.length; i += 1) {
      // xorshift32: no pattern that a shift by some bytes would reproduce.
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      words[i] = state;
    }
    this.#noise = Buffer.from(words.buffer);
  }

  /** A view; never write to it. */
  piece(
    sequence: number,
    at: { readonly plane: number; readonly block: number },
    sizeBytes: number,
  ): Buffer {
    const place = mix(mix(mix(sequence) ^ at.plane) ^ at.block) & (PLACE_COUNT - 1);
    return this.#noise.subarray(place, place + sizeBytes);
  }
}

/** Spreads the bits of a 32-bit number over all of it (the finalizer of MurmurHash3). */
export function mix(value: number): number {
  let bits = Math.imul(value ^ (value >>> 16), 0x85eb_ca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2_ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

/** The numbers `first` to `first + count − 1` in an order that follows from `seed`. */
export function shuffledIds(first: number, count: number, seed: number): Uint32Array {
  const ids = Uint32Array.from({ length: count }, (_, i) => first + i);
  for (let i = count - 1; i > 0; i -= 1) {
    const j = mix(seed ^ i) % (i + 1);
    const id = ids[i] as number;
    ids[i] = ids[j] as number;
    ids[j] = id;
  }
  return ids;
}
