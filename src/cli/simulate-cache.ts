/**
 * L1 without its bytes: replays requests through a policy of core.wasm, as the server would.
 *
 * One request is one session: LOOKUP finds the longest prefix, STORE adds every chunk that is
 * missing, END_SESSION tells the policy what was used and what was placed. Eviction is that of
 * `storage/eviction-controller.ts`: from the watermark on down to `watermark - ratio`, and at once
 * when a store finds no room. The chunks of the request itself are held until its end.
 *
 * Not simulated: time (locks that end, requests at the same time) and L2.
 */
import { EvictionOrder, type EvictionPolicy } from '../core/policy.ts';
import type { SimulatedRequest, Workload } from './simulate-workload.ts';

export interface CacheOptions {
  readonly workload: Workload;
  readonly policy: EvictionPolicy;
  readonly sizeBytes: number;
  readonly watermarkRatio: number;
  readonly evictionRatio: number;
}

export interface TenantCounts {
  tokens: number;
  hitTokens: number;
}

export class SimulatedCache {
  readonly perTenant: readonly TenantCounts[];
  evictedChunkCount = 0;
  /** Chunks that found no room. */
  refusedChunkCount = 0;
  readonly #options: CacheOptions;
  readonly #order: EvictionOrder;
  /** Entry of each chunk in the order, 0 = not cached, and the other way round. */
  readonly #entryOf: Uint32Array;
  readonly #chunkOf: Uint32Array;
  /** The request that named a chunk last; it holds it. */
  readonly #heldBy: Uint32Array;
  #requestNumber = 0;
  #usedBytes = 0;

  constructor(options: CacheOptions) {
    const { workload, policy } = options;
    const chunkCount = workload.chunkSizesBytes.length;
    this.#options = options;
    this.#order = EvictionOrder.open({
      policy,
      entryCountMax: Math.max(1, chunkCount),
      tenantCountMax: workload.tenants.length,
    });
    this.#entryOf = new Uint32Array(chunkCount);
    this.#chunkOf = new Uint32Array(chunkCount + 1);
    this.#heldBy = new Uint32Array(chunkCount);
    this.perTenant = workload.tenants.map(() => ({ tokens: 0, hitTokens: 0 }));
  }

  replay(request: SimulatedRequest): void {
    const { chunks } = request;
    this.#requestNumber += 1;
    for (const chunk of chunks) this.#heldBy[chunk] = this.#requestNumber;
    const hitCount = this.#lookUp(request);
    this.#store(request, hitCount);
    for (let i = chunks.length - 1; i >= 0; i -= 1) {
      const entry = this.#entryOf[chunks[i]!]!;
      if (entry === 0) continue;
      if (i < hitCount) this.#order.touch(entry);
      else this.#order.refresh(entry);
    }
    this.#keepWatermark();
  }

  #lookUp({ chunks, tenant }: SimulatedRequest): number {
    const { chunkTokens } = this.#options.workload;
    const counts = this.perTenant[tenant]!;
    let hitCount = 0;
    for (const [i, chunk] of chunks.entries()) {
      counts.tokens += chunkTokens[chunk]!;
      if (hitCount !== i || this.#entryOf[chunk] === 0) continue;
      counts.hitTokens += chunkTokens[chunk]!;
      hitCount += 1;
    }
    return hitCount;
  }

  /** The longest beginning of what is missing that finds room; its last chunk is stored first. */
  #store({ chunks, tenant }: SimulatedRequest, hitCount: number): void {
    const { chunkSizesBytes, tenants } = this.#options.workload;
    const missing = new Set<number>();
    let missingBytes = 0;
    for (const chunk of chunks.subarray(hitCount)) {
      if (this.#entryOf[chunk] !== 0 || missing.has(chunk)) continue;
      if (!this.#makeRoom(missingBytes + chunkSizesBytes[chunk]!)) {
        this.refusedChunkCount += 1;
        continue;
      }
      missing.add(chunk);
      missingBytes += chunkSizesBytes[chunk]!;
    }
    for (const chunk of [...missing].reverse()) {
      const entry = this.#order.add({ name: String(chunk), cacheSalt: tenants[tenant]! });
      // There are as many entries as chunks.
      this.#entryOf[chunk] = entry!;
      this.#chunkOf[entry!] = chunk;
      this.#usedBytes += chunkSizesBytes[chunk]!;
    }
  }

  #makeRoom(sizeBytes: number): boolean {
    const limitBytes = this.#options.sizeBytes - sizeBytes;
    if (this.#usedBytes > limitBytes && limitBytes >= 0) this.#evictTo(limitBytes, true);
    return this.#usedBytes <= limitBytes;
  }

  #keepWatermark(): void {
    const { sizeBytes, watermarkRatio, evictionRatio } = this.#options;
    if (this.#usedBytes < watermarkRatio * sizeBytes) return;
    this.#evictTo(Math.max(0, watermarkRatio - evictionRatio) * sizeBytes, false);
  }

  #evictTo(targetBytes: number, isHeld: boolean): void {
    const { chunkSizesBytes } = this.#options.workload;
    const isEligible = (entry: number) =>
      !isHeld || this.#heldBy[this.#chunkOf[entry]!] !== this.#requestNumber;
    for (const entry of this.#order.victims({ isEligible })) {
      const chunk = this.#chunkOf[entry]!;
      this.#order.remove(entry);
      this.#entryOf[chunk] = 0;
      this.#usedBytes -= chunkSizesBytes[chunk]!;
      this.evictedChunkCount += 1;
      if (this.#usedBytes <= targetBytes) return;
    }
  }
}
