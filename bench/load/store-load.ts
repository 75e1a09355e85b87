/**
 * Load: one worker that stores prompts back to back, in a process of its own. What it stores is
 * never read; when L1 is full, kvd evicts.
 */
import { KvdClient } from '../../src/client/client.ts';
import { promptOf } from '../../src/client/load/bench-requests.ts';
import { type BenchWorker, Caller } from '../../src/client/load/bench-worker.ts';
import { BlockPattern } from '../../src/client/load/block-pattern.ts';
import { type CacheGeometry, fitCacheShape } from '../../src/client/load/cache-shape.ts';
import { EngineDrivenWorker } from '../../src/client/load/engine-driven-worker.ts';
import { LatencyBook } from '../../src/client/load/latency-series.ts';
import { LmcacheDrivenWorker } from '../../src/client/load/lmcache-driven-worker.ts';
import { newInstanceId } from '../../src/client/load/transfer-mode.ts';
import { systemClock } from '../../src/clock.ts';
import { Child, serve } from './child.ts';

const TIMEOUT_MS = 60_000;
/** A model of 8 billion parameters: 32 MiB per chunk of 256 tokens. */
const GEOMETRY: CacheGeometry = {
  blockCount: null,
  slotsPerBlock: 16,
  groups: [
    {
      kvSize: 2,
      headCount: 8,
      headSize: 128,
      dtype: 'bfloat16',
      itemSizeBytes: 2,
      layerCount: 32,
    },
  ],
};
const TOKENS_PER_STORE = 1024;

interface LoadPlan {
  readonly url: string;
  readonly mode: BenchWorker['mode'];
  readonly modelName: string;
}

export interface LoadResult {
  readonly storeCount: number;
  readonly bytes: number;
  readonly seconds: number;
  readonly transport: string;
}

type LoadRequest = LoadPlan | 'begin' | 'end' | 'unregister';

export class StoreLoad {
  readonly #child = new Child<LoadRequest>(import.meta.filename);

  static async open(plan: LoadPlan): Promise<StoreLoad> {
    const load = new StoreLoad();
    await load.#child.ask(plan);
    return load;
  }

  /** Returns after the first store. */
  async begin(): Promise<void> {
    await this.#child.ask('begin');
  }

  end(): Promise<LoadResult> {
    return this.#child.ask('end');
  }

  async stop(): Promise<void> {
    await this.#child.ask('unregister');
    await this.#child.stop();
  }
}

// ---------------------------------------------------------------- in the process of its own

interface OpenLoad {
  readonly worker: BenchWorker;
  readonly modelName: string;
  readonly requestBytes: number;
}

async function open({ url, mode, modelName }: LoadPlan): Promise<OpenLoad> {
  const caller = new Caller(KvdClient.connect(url), TIMEOUT_MS);
  const chunkSizeTokens = await caller.call('GET_CHUNK_SIZE', {});
  const shape = fitCacheShape(GEOMETRY, { chunkSizeTokens, tokenCountMax: TOKENS_PER_STORE });
  const pattern = new BlockPattern(Math.max(...shape.planes.map(({ pieceBytes }) => pieceBytes)));
  const common = { caller, instanceId: newInstanceId(), modelName, shape, pattern };
  const worker =
    mode === 'lmcache_driven'
      ? new LmcacheDrivenWorker(common)
      : new EngineDrivenWorker({ ...common, clock: systemClock, latencies: new LatencyBook() });
  await worker.register();
  await worker.fill(0);
  return { worker, modelName, requestBytes: shape.requestBytes };
}

class Load {
  #open: OpenLoad | null = null;
  #sequence = 0;
  #isEnding = false;
  #run: Promise<LoadResult> | null = null;

  async handle(request: LoadRequest): Promise<LoadResult | null> {
    if (typeof request === 'object') {
      this.#open = await open(request);
      return null;
    }
    if (request === 'end') {
      this.#isEnding = true;
      return await (this.#run as Promise<LoadResult>);
    }
    if (request === 'unregister') {
      await this.#open?.worker.unregister();
      this.#open?.worker.close();
      return null;
    }
    this.#isEnding = false;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#run = this.#repeat(this.#open as OpenLoad, resolve);
    this.#run.catch(reject);
    await promise;
    return null;
  }

  async #repeat(
    { worker, modelName, requestBytes }: OpenLoad,
    onFirst: () => void,
  ): Promise<LoadResult> {
    const startMs = performance.now();
    let storeCount = 0;
    while (!this.#isEnding) {
      const prompt = promptOf(this.#sequence, TOKENS_PER_STORE, modelName);
      await worker.store(prompt.transferKey('store'), this.#sequence);
      this.#sequence += 1;
      storeCount += 1;
      onFirst();
    }
    const seconds = (performance.now() - startMs) / 1000;
    return { storeCount, bytes: storeCount * requestBytes, seconds, transport: worker.transport };
  }
}

if (import.meta.main) {
  const load = new Load();
  serve<LoadRequest>((request) => load.handle(request));
}
