/**
 * What `kvd simulate` replays: requests as lists of chunk numbers, whatever they came from.
 *
 * A chunk is a number, so that a replay costs array accesses and no text; what the text was is kept
 * nowhere. `makeWorkload` makes requests up:
 *
 *   prompt = shared prefix, chosen by Zipf's law among those of the tenant + a suffix of its own
 *   scan   = a prompt that comes once, in whole
 *
 * Everything comes from one seed: equal options give equal requests.
 */
export interface SimulatedRequest {
  readonly tenant: number;
  readonly chunks: Uint32Array;
}

export interface Workload {
  readonly requests: readonly SimulatedRequest[];
  /** Bytes of each chunk, by its number. */
  readonly chunkSizesBytes: Float64Array;
  /** Tokens of each chunk, by its number. */
  readonly chunkTokens: Float64Array;
  /** '' is the one without a cache salt. */
  readonly tenants: readonly string[];
}

export interface SyntheticOptions {
  readonly requestCount: number;
  readonly tenantCount: number;
  readonly prefixCount: number;
  readonly prefixChunks: number;
  readonly suffixChunks: number;
  /** 0 = all prefixes alike; 1 = Zipf's law. */
  readonly zipfExponent: number;
  /** Part of the requests that are scans. */
  readonly scanRatio: number;
  readonly chunkSizeBytes: number;
  readonly chunkSizeTokens: number;
  readonly seed: number;
}

/** Numbers in [0, 1) from a seed (mulberry32): good enough to choose prompts by. */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Sums of the weights of ranks 1, 2, …, for `chooseRank`. */
function zipfSums(count: number, exponent: number): Float64Array {
  const sums = new Float64Array(count);
  let sum = 0;
  for (let rank = 0; rank < count; rank += 1) {
    sum += (rank + 1) ** -exponent;
    sums[rank] = sum;
  }
  return sums;
}

/** The rank whose part of the sum `share` (0 to 1) falls into. */
function chooseRank(sums: Float64Array, share: number): number {
  const wanted = share * sums[sums.length - 1]!;
  let low = 0;
  let high = sums.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sums[middle]! > wanted) high = middle;
    else low = middle + 1;
  }
  return low;
}

export function makeWorkload(options: SyntheticOptions): Workload {
  const { requestCount, tenantCount, prefixCount, prefixChunks, suffixChunks } = options;
  const random = randomFrom(options.seed);
  const sums = zipfSums(prefixCount, options.zipfExponent);
  // Prefixes have the first numbers; what comes once is numbered from there on.
  let nextChunk = tenantCount * prefixCount * prefixChunks;
  const requests: SimulatedRequest[] = [];
  for (let i = 0; i < requestCount; i += 1) {
    const tenant = Math.floor(random() * tenantCount);
    const isScan = random() < options.scanRatio;
    const prefix = tenant * prefixCount + chooseRank(sums, random());
    const chunks = new Uint32Array(prefixChunks + suffixChunks);
    for (let chunk = 0; chunk < chunks.length; chunk += 1) {
      const isShared = chunk < prefixChunks && !isScan;
      chunks[chunk] = isShared ? prefix * prefixChunks + chunk : nextChunk++;
    }
    requests.push({ tenant, chunks });
  }
  return {
    requests,
    chunkSizesBytes: new Float64Array(nextChunk).fill(options.chunkSizeBytes),
    chunkTokens: new Float64Array(nextChunk).fill(options.chunkSizeTokens),
    tenants:
      tenantCount === 1 ? [''] : Array.from({ length: tenantCount }, (_, i) => `tenant-${i}`),
  };
}
