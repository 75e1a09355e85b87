/** A chunk hasher over a fresh instance of the core that has no object table. */
import { ChunkHasher, type ChunkHashes, type HashAlgorithm } from '../../src/core/chunk-hasher.ts';
import { type CoreExports, instantiate } from '../../src/core/instance.ts';
import { RESULT } from '../../src/core/result.ts';
import { readAsset } from '../../src/native.ts';

export interface OpenHasherOptions {
  chunkSizeTokens: number;
  hashAlgorithm?: HashAlgorithm;
  tokenCountMax?: number;
  rootHashSeed?: Uint8Array;
  rootHashIsRandom?: boolean;
}

const wasm = readAsset('core.wasm');

export function openCore(tokenCountMax: number, chunkSizeTokens: number): CoreExports {
  const core = instantiate(wasm, (error) => {
    throw error;
  });
  const result = core.init(tokenCountMax, chunkSizeTokens, 16, 0, 0, 0, 0);
  if (result !== RESULT.SUCCESS) throw new Error(`init answers ${result}`);
  return core;
}

export function openHasher(options: OpenHasherOptions): ChunkHasher {
  const full = { hashAlgorithm: 'blake3', tokenCountMax: 16_384, ...options } as const;
  return new ChunkHasher(openCore(full.tokenCountMax, full.chunkSizeTokens), full);
}

export function toHex(hashes: ChunkHashes): string[] {
  const { bytes, count, hashSizeBytes } = hashes;
  return Array.from({ length: count }, (_, index) =>
    Buffer.from(bytes.subarray(index * hashSizeBytes, (index + 1) * hashSizeBytes)).toString('hex'),
  );
}
