/**
 * What the two transfer paths have in common for a benchmark: a worker that stores a request's
 * blocks, loads them again and says whether they came back.
 */
import type { CacheKey, OperationName, ReplyOf, RequestOf } from '../../engine/api.ts';
import { KvdError } from '../../errors.ts';
import type { KvdClient } from '../client.ts';

export interface BenchWorker {
  readonly mode: 'lmcache_driven' | 'engine_driven';
  /** Where the bytes travel, for people. Known after `register`. */
  readonly transport: string;
  register(): Promise<void>;
  /** Puts the content of request `sequence` into the source blocks. Not part of the store. */
  fill(sequence: number): Promise<void>;
  store(key: CacheKey, sequence: number): Promise<void>;
  retrieve(key: CacheKey, sequence: number): Promise<void>;
  /** Compares every byte that the request touched; null = all right. */
  findDifference(sequence: number): Promise<string | null>;
  unregister(): Promise<void>;
  /** Removes what it has in shared memory. */
  close(): void;
}

/** A client whose calls have one deadline, and for which a refusal is an exception. */
export class Caller {
  readonly #client: KvdClient;
  readonly #timeoutMs: number;

  constructor(client: KvdClient, timeoutMs: number) {
    this.#client = client;
    this.#timeoutMs = timeoutMs;
  }

  async call<N extends OperationName>(name: N, request: RequestOf<N>): Promise<ReplyOf<N>> {
    const { value, error } = await this.tryCall(name, request, this.#timeoutMs);
    if (error) throw new RefusedStepError(`${name}: ${error.error}: ${error.message}`);
    return value as ReplyOf<N>;
  }

  /** With the error map of a refusal in place of an exception. */
  async tryCall<N extends OperationName>(name: N, request: RequestOf<N>, timeoutMs: number) {
    try {
      return await this.#client.call(name, request, timeoutMs);
    } catch (error) {
      if (!isTimeout(error)) throw error;
      // A refused registration is answered by silence, because real clients take any reply for yes.
      const hint = name.startsWith('REGISTER_') ? '; the log of the server says why' : '';
      throw new KvdError('ERR_TIMEOUT', `${name}: ${error.message}${hint}`, { cause: error });
    }
  }
}

/** The server said no; the next request may go better. */
export class RefusedStepError extends Error {
  override readonly name = 'RefusedStepError';
}

export function isTimeout(error: unknown): error is KvdError {
  return error instanceof KvdError && error.code === 'ERR_TIMEOUT';
}
