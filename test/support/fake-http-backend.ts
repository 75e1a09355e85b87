/** An HTTP backend whose answers a test sets, and which remembers what it was asked. */
import type {
  AdapterBackend,
  BlockChecksums,
  ChecksumRequest,
  ChecksumTarget,
  HttpBackend,
  L1Limits,
  ObjectListRequest,
  QuotaBackend,
  Readiness,
  RuntimeChanges,
  WarmPrefetch,
  WarmPrefetchOutcome,
} from '../../src/http/backend.ts';
import type { DeleteResult, ListPage } from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import type { AdapterClearResult, AdapterSummary } from '../../src/storage/l2/adapter-control.ts';

/** Adapters that hold nothing but what a test says, and remember what they were asked. */
export class FakeAdapters implements AdapterBackend {
  readonly all: AdapterSummary[] = [];
  readonly listRequests: [number, ObjectListRequest][] = [];
  readonly deletions: [number, readonly ObjectKey[]][] = [];
  page: ListPage | Error = { objects: [], nextToken: null };
  deleteResult: (key: ObjectKey) => DeleteResult = () => 'deleted';
  clears: readonly Omit<AdapterClearResult, 'adapter'>[] = [];

  add(typeName: string, rest: Partial<AdapterSummary> = {}): AdapterSummary {
    const id = this.all.length;
    const state = { isShared: false, isDraining: false, isHealthy: true, canList: true };
    const adapter = { id, typeName, ...state, ...rest };
    this.all.push(adapter);
    return adapter;
  }

  list(): readonly AdapterSummary[] {
    return this.all;
  }

  async listObjects(id: number, request: ObjectListRequest): Promise<ListPage> {
    this.listRequests.push([id, request]);
    if (this.page instanceof Error) throw this.page;
    return this.page;
  }

  async deleteObjects(id: number, keys: readonly ObjectKey[]): Promise<DeleteResult[]> {
    this.deletions.push([id, keys]);
    return keys.map((key) => this.deleteResult(key));
  }

  async clear(): Promise<AdapterClearResult[]> {
    return this.clears.map((result, index) => ({
      adapter: this.all[index] as AdapterSummary,
      ...result,
    }));
  }
}

export class FakeQuotas implements QuotaBackend {
  defaultLimitBytes: number | null = null;
  isEffective = true;
  failure: Error | null = null;
  readonly limits = new Map<string, number>();
  readonly usage = new Map<string, number>();

  list() {
    return [...this.limits].map(([cacheSalt, limitBytes]) => ({ cacheSalt, limitBytes }));
  }

  quotaOf(cacheSalt: string): number | null {
    return this.limits.get(cacheSalt) ?? null;
  }

  async set(cacheSalt: string, limitBytes: number): Promise<void> {
    if (this.failure) throw this.failure;
    this.limits.set(cacheSalt, limitBytes);
  }

  async delete(cacheSalt: string): Promise<boolean> {
    return this.limits.delete(cacheSalt);
  }

  usageBySalt(): ReadonlyMap<string, number> {
    return this.usage;
  }

  usedL1BytesOf(cacheSalt: string): number {
    return cacheSalt === 'alice' ? 2 ** 29 : 0;
  }
}

export class FakeChanges implements RuntimeChanges {
  readonly #adapters: FakeAdapters;
  readonly calls: unknown[] = [];
  failure: Error | null = null;
  isIdle = true;
  limits: L1Limits = { triggerWatermark: 0.8, evictionRatio: 0.2 };

  constructor(adapters: FakeAdapters) {
    this.#adapters = adapters;
  }

  async addAdapter(spec: unknown): Promise<AdapterSummary> {
    this.calls.push(['add', spec]);
    if (this.failure) throw this.failure;
    return this.#adapters.add((spec as { type: string }).type);
  }

  async drainAdapter(id: number, timeoutMs: number): Promise<boolean> {
    this.calls.push(['drain', id, timeoutMs]);
    return this.isIdle;
  }

  async removeAdapter(id: number, timeoutMs: number): Promise<boolean> {
    this.calls.push(['remove', id, timeoutMs]);
    return this.isIdle;
  }

  changeL1(limits: Partial<L1Limits>): L1Limits {
    this.limits = { ...this.limits, ...limits };
    return this.limits;
  }
}

export class FakeHttpBackend implements HttpBackend {
  statusDocument: Record<string, unknown> = { is_healthy: true };
  reason: string | null = null;
  ready: Readiness = { state: 'ready', reasons: [] };
  target: ChecksumTarget | 'not-enabled' | 'unknown' = 'unknown';
  readonly instances = new Set<bigint>();
  readonly clears: boolean[] = [];
  readonly checksumRequests: ChecksumRequest[] = [];
  /** `model/worldSize`. */
  readonly layouts = new Set<string>();
  readonly prefetches: WarmPrefetch[] = [];
  readonly outcomes = new Map<string, WarmPrefetchOutcome | 'pending'>();
  failure: Error | null = null;
  readonly adapters = new FakeAdapters();
  readonly quotas = new FakeQuotas();
  changes: FakeChanges | null = null;
  l1Outcome = { deletedCount: 0, lockedCount: 0 };
  readonly l1Deletions: [readonly ObjectKey[], boolean][] = [];

  status(): Record<string, unknown> {
    if (this.failure) throw this.failure;
    return this.statusDocument;
  }

  unhealthyReason(): string | null {
    return this.reason;
  }

  async readiness(): Promise<Readiness> {
    return this.ready;
  }

  async clear({ isForced }: { isForced: boolean }) {
    this.clears.push(isForced);
    return { removedObjectCount: 3, deferredObjectCount: 1, freedBytes: 4096 };
  }

  deleteFromL1(keys: readonly ObjectKey[], isForced: boolean) {
    this.l1Deletions.push([keys, isForced]);
    return this.l1Outcome;
  }

  checksumTarget(instanceId: bigint): ChecksumTarget | 'not-enabled' | 'unknown' {
    if (typeof this.target === 'string') return this.target;
    return this.instances.has(instanceId) ? this.target : 'unknown';
  }

  async dropInstance(instanceId: bigint): Promise<boolean> {
    return this.instances.delete(instanceId);
  }

  hasLayout(modelName: string, worldSize: number): boolean {
    return this.layouts.has(`${modelName}/${worldSize}`);
  }

  async startPrefetch(prefetch: WarmPrefetch) {
    this.prefetches.push(prefetch);
    const chunkCount = Math.floor(prefetch.tokenIds.length / 256);
    return chunkCount === 0 ? null : { requestId: `p${this.prefetches.length}`, chunkCount };
  }

  takePrefetch(requestId: string): WarmPrefetchOutcome | 'pending' | null {
    return this.outcomes.get(requestId) ?? null;
  }

  async metricsText(): Promise<string> {
    return '# TYPE x gauge\nx 1\n';
  }

  config(): Record<string, unknown> {
    return { mp: { port: 5555 } };
  }

  /** Registers `instanceId` with KV tensors of `blockCount` blocks. */
  addTarget(instanceId: bigint, layerCount: number, blockCount: number | null): void {
    this.instances.add(instanceId);
    this.target = {
      layerCount,
      blockCount,
      checksum: async (request): Promise<BlockChecksums> => {
        this.checksumRequests.push(request);
        return request.isLayerwise ? { layer_0: ['aa'], layer_1: ['bb'] } : ['aa', 'bb'];
      },
    };
  }
}
