/**
 * Cost of the chunk hasher through its typed door, all copies included.
 *
 *   node_modules/.bin/node bench/micro/hash.ts
 *
 * Sketch for blake3: a chunk of 256 tokens is 18 compressions, each a chain of 14 steps of 14
 * dependent one-cycle instructions, so 3500 cycles or about 1 us at 3.5 GHz.
 */
import { bench, do_not_optimize, run } from 'mitata';
import type { HashAlgorithm } from '../../src/core/chunk-hasher.ts';
import { openHasher } from '../../test/support/core-hasher.ts';
import { encodeTokens, lcgTokens } from '../../test/support/token-arrays.ts';

const CHUNK_SIZE_TOKENS = 256;
const TOKEN_COUNT = 131_072;
const CHUNK_COUNT = TOKEN_COUNT / CHUNK_SIZE_TOKENS;
const VOCABULARY = 151_936;

const frame = encodeTokens(lcgTokens(1, TOKEN_COUNT, VOCABULARY));

function open(hashAlgorithm: HashAlgorithm) {
  const seed = hashAlgorithm === 'sha256_cbor' ? { rootHashSeed: Buffer.from('0') } : {};
  return openHasher({
    hashAlgorithm,
    chunkSizeTokens: CHUNK_SIZE_TOKENS,
    tokenCountMax: 1_048_576,
    ...seed,
  });
}

/** Unit and how many of it a call does. */
const units = new Map<string, { unit: string; count: number }>();

function measure(name: string, unit: string, count: number, call: () => unknown): void {
  units.set(name, { unit, count });
  bench(name, () => do_not_optimize(call()));
}

for (const algorithm of ['blake3', 'sha256_cbor', 'builtin'] as const) {
  const hasher = open(algorithm);
  const { span } = hasher.readTokens(frame, 0);
  measure(`hash, ${algorithm}`, 'chunk', CHUNK_COUNT, () => hasher.hashChunks(span));
}
const hasher = open('blake3');
const short = encodeTokens(lcgTokens(1, CHUNK_SIZE_TOKENS, VOCABULARY));
measure('read, 131072 tokens', 'token', TOKEN_COUNT, () => hasher.readTokens(frame, 0));
measure('read and hash, 131072 tokens', 'token', TOKEN_COUNT, () =>
  hasher.hashChunks(hasher.readTokens(frame, 0).span),
);
measure('read and hash, 256 tokens', 'chunk', 1, () =>
  hasher.hashChunks(hasher.readTokens(short, 0).span),
);

const { benchmarks, context } = await run({ format: 'quiet' });
console.log(`${context.cpu.name}, Node ${process.version}, frame of ${frame.length} bytes`);
console.log(`${'call'.padEnd(30)}${'p50 us'.padStart(10)}${'p99 us'.padStart(10)}   p50, each`);
for (const { alias, runs } of benchmarks) {
  const { stats } = runs[0]!;
  const { unit, count } = units.get(alias)!;
  const micros = (nanos: number) => (nanos / 1000).toFixed(2).padStart(10);
  const each = `${(stats!.p50 / count).toFixed(2)} ns/${unit}`;
  console.log(`${alias.padEnd(30)}${micros(stats!.p50)}${micros(stats!.p99)}   ${each}`);
}
