/** The requests of a benchmark: prompts that follow from a number, and their keys. */
import type { CacheKey } from '../../engine/api.ts';
import { tokenSpan } from '../client.ts';
import { mix } from './block-pattern.ts';

const VOCABULARY_SIZE = 50_000;

export interface BenchPrompt {
  readonly sequence: number;
  /** A scheduler's key for all ranks, of the request `name`. */
  lookupKey(name: string): CacheKey;
  /** A worker's key. */
  transferKey(name: string): CacheKey;
}

/** `runName` is part of the keys: what another run stored is never found. */
export function promptOf(sequence: number, tokenCount: number, runName: string): BenchPrompt {
  // The first token alone makes all hashes of the prompt its own.
  const tokens = tokenSpan(
    Array.from({ length: tokenCount }, (_, i) =>
      i === 0 ? sequence : mix(sequence ^ mix(i)) % VOCABULARY_SIZE,
    ),
  );
  const keyOf = (name: string, workerId: number | null): CacheKey => ({
    modelName: runName,
    worldSize: 1,
    workerId,
    tokens,
    startToken: 0,
    endToken: tokenCount,
    requestId: `${runName}-${sequence}-${name}`,
    cacheSalt: '',
    readerCount: null,
    requestConfigs: null,
  });
  return {
    sequence,
    lookupKey: (name) => keyOf(name, null),
    transferKey: (name) => keyOf(name, 0),
  };
}
