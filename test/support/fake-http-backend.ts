/** An HTTP backend whose answers a test sets, and which remembers what it was asked. */
import type {
  BlockChecksums,
  ChecksumRequest,
  ChecksumTarget,
  HttpBackend,
  Readiness,
  WarmPrefetch,
  WarmPrefetchOutcome,
} from '../../src/http/backend.ts';

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
