/**
 * Warm prefetch: what an operator or a router asks to be brought into L1 before the engines do.
 *
 * A job is a prefetch task without holds: what it loads stays as long as eviction lets it. Its
 * outcome is handed out once, and nobody has to come for it: jobs are bounded in number and time.
 */
import { randomUUID } from 'node:crypto';
import type { Clock } from '../clock.ts';
import type { ChunkHasher } from '../core/chunk-hasher.ts';
import { NO_SLOT } from '../core/object-table.ts';
import { tokenSpanOf } from '../core/token-span.ts';
import type { PrefetchTask } from '../storage/prefetch-controller.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import { allRanks, findColumnNamespaces } from './column-namespaces.ts';
import type { InstanceRegistry } from './instances.ts';

/** Of both kinds, running and finished; the oldest one is forgotten for a new one. */
const JOB_COUNT_MAX = 1024;
const JOB_TTL_MS = 600_000;

export interface WarmPrefetchPrompt {
  readonly modelName: string;
  readonly worldSize: number;
  /** From 0 to 2^32 − 1 each. */
  readonly tokenIds: readonly number[];
  readonly cacheSalt: string;
}

interface Job {
  readonly startedMs: number;
  readonly totalKeyCount: number;
  readonly task: PrefetchTask;
}

export interface WarmPrefetchOptions {
  readonly storage: Pick<StorageManager, 'findNamespace' | 'submitPrefetch'>;
  readonly instances: Pick<InstanceRegistry, 'findLayout'>;
  readonly hasher: Pick<ChunkHasher, 'hashPrompt'>;
  readonly clock: Clock;
}

export class WarmPrefetcher {
  readonly #options: WarmPrefetchOptions;
  /** In the order of their start. */
  readonly #jobs = new Map<string, Job>();

  constructor(options: WarmPrefetchOptions) {
    this.#options = options;
  }

  hasLayout(modelName: string, worldSize: number): boolean {
    return this.#options.instances.findLayout(modelName, worldSize) !== undefined;
  }

  /** Null when there is no whole chunk, or no worker of the model any more. */
  async start(
    prompt: WarmPrefetchPrompt,
  ): Promise<{ readonly requestId: string; readonly chunkCount: number } | null> {
    const { storage, instances, hasher, clock } = this.#options;
    const hashes = await hasher.hashPrompt(tokenSpanOf(prompt.tokenIds));
    const layout = instances.findLayout(prompt.modelName, prompt.worldSize);
    if (!layout || hashes.count === 0) return null;
    const ranks = allRanks(prompt.worldSize);
    const { objectGroupIds, groupRules } = layout;
    const namespaceIds = findColumnNamespaces(storage, { ...prompt, ranks, objectGroupIds });
    const keys = { hashes, firstChunk: 0, chunkCount: hashes.count, namespaceIds };
    const task = storage.submitPrefetch(keys, 0, groupRules);
    const requestId = randomUUID().replaceAll('-', '');
    this.#forgetOld();
    const totalKeyCount = hashes.count * namespaceIds.length;
    this.#jobs.set(requestId, { startedMs: clock.nowMs(), totalKeyCount, task });
    return { requestId, chunkCount: hashes.count };
  }

  /** Null: unknown, handed out already, or too old. */
  take(
    requestId: string,
  ): { readonly foundKeyCount: number; readonly totalKeyCount: number } | 'pending' | null {
    this.#forgetOld();
    const job = this.#jobs.get(requestId);
    if (!job) return null;
    const { result } = job.task;
    if (!result) return 'pending';
    this.#jobs.delete(requestId);
    const foundKeyCount = result.slots.reduce((n, slot) => (slot === NO_SLOT ? n : n + 1), 0);
    return { foundKeyCount, totalKeyCount: job.totalKeyCount };
  }

  /** Makes room for one more. */
  #forgetOld(): void {
    const oldestMs = this.#options.clock.nowMs() - JOB_TTL_MS;
    for (const [requestId, { startedMs }] of this.#jobs) {
      if (startedMs > oldestMs && this.#jobs.size < JOB_COUNT_MAX) return;
      this.#jobs.delete(requestId);
    }
  }
}
