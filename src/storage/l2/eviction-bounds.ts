/**
 * When something has to leave an L2 adapter, and of whom: the watermark over its capacity, and the
 * quotas of the tenants over all adapters (spec storage 10.7, 10.8; field lessons 3.3).
 *
 *   LRU, ARC, S3FIFO   used >= watermark * capacity          a part of all objects
 *   IsolatedLRU        tenant's bytes in all adapters        a part of the tenant's objects;
 *                        >= watermark * its limit              all of them when the limit is 0
 *                      used >= watermark * capacity          a part of each tenant's objects
 */
import type { EvictionSettings } from '../../l2/adapter-spec.ts';
import type { FamilyIndex } from './family-index.ts';
import type { StoreUsage } from './managed-store.ts';

/** What the tenants may hold and do hold, over all adapters. */
export interface TenantQuotas {
  /** Null: exempt. */
  limitBytesOf(cacheSalt: string): number | null;
  usedBytesOf(cacheSalt: string): number;
}

/** Objects to take from the front of the order. */
export interface Part {
  /** Null: of all tenants. */
  readonly cacheSalt: string | null;
  readonly objectCount: number;
}

export interface EvictionBoundsOptions {
  readonly settings: EvictionSettings;
  readonly index: FamilyIndex;
  readonly quotas: TenantQuotas;
  readonly usage: () => StoreUsage;
}

export class EvictionBounds {
  readonly #options: EvictionBoundsOptions;
  readonly #isIsolated: boolean;

  constructor(options: EvictionBoundsOptions) {
    this.#options = options;
    this.#isIsolated = options.settings.policy === 'IsolatedLRU';
  }

  /** At or over the watermark of the capacity. */
  get isFull(): boolean {
    const { usedBytes, capacityBytes } = this.#options.usage();
    return (
      capacityBytes > 0 && usedBytes >= this.#options.settings.triggerWatermark * capacityBytes
    );
  }

  /** Of the whole adapter or of its tenant. */
  isOver(cacheSalt: string): boolean {
    return this.isFull || this.#quotaRatio(cacheSalt) > 0;
  }

  /** What one cycle takes. Empty: nothing is over a bound. */
  findParts(): Part[] {
    const { settings, index } = this.#options;
    const { evictionRatio } = settings;
    if (this.#isIsolated) {
      const parts = this.#findPartsOver((cacheSalt) => this.#quotaRatio(cacheSalt));
      if (parts.length > 0 || !this.isFull) return parts;
      return this.#findPartsOver(() => evictionRatio);
    }
    const { objectCount } = index;
    if (!this.isFull || objectCount === 0) return [];
    return [{ cacheSalt: null, objectCount: partOf(objectCount, evictionRatio) }];
  }

  /**
   * Whose objects make room for a store: of the tenant that is most over its quota, else of the
   * one that has most. Null: the policy does not tell tenants apart.
   */
  tenantForRoom(): string | null {
    if (!this.#isIsolated) return null;
    const { quotas, usage, index } = this.#options;
    let most = { isOver: false, bytes: 0, cacheSalt: null as string | null };
    for (const [cacheSalt, ownBytes] of usage().bytesBySalt) {
      if (!index.tenant(cacheSalt)?.objectCount) continue;
      const limitBytes = quotas.limitBytesOf(cacheSalt);
      const overBytes = limitBytes === null ? 0 : quotas.usedBytesOf(cacheSalt) - limitBytes;
      const isOver = overBytes > 0;
      const bytes = isOver ? overBytes : ownBytes;
      const isMore = isOver === most.isOver ? bytes > most.bytes : isOver;
      if (isMore) most = { isOver, bytes, cacheSalt };
    }
    return most.cacheSalt;
  }

  #findPartsOver(ratioOf: (cacheSalt: string) => number): Part[] {
    const { index, usage } = this.#options;
    const parts: Part[] = [];
    for (const cacheSalt of usage().bytesBySalt.keys()) {
      const objectCount = index.tenant(cacheSalt)?.objectCount ?? 0;
      const ratio = objectCount > 0 ? ratioOf(cacheSalt) : 0;
      if (ratio > 0) parts.push({ cacheSalt, objectCount: partOf(objectCount, ratio) });
    }
    return parts;
  }

  /** 0: the tenant is within its quota. */
  #quotaRatio(cacheSalt: string): number {
    if (!this.#isIsolated) return 0;
    const { quotas, settings } = this.#options;
    const limitBytes = quotas.limitBytesOf(cacheSalt);
    if (limitBytes === null) return 0;
    if (quotas.usedBytesOf(cacheSalt) < settings.triggerWatermark * limitBytes) return 0;
    return limitBytes === 0 ? 1 : settings.evictionRatio;
  }
}

/** The reference's rule (spec storage 10.2). */
function partOf(objectCount: number, ratio: number): number {
  return Math.max(1, Math.trunc(objectCount * ratio));
}
