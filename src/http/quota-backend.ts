/** `QuotaBackend` over the quota table, what evicts by it, and what tenants hold in L1. */
import type { NamespaceTable } from '../core/namespaces.ts';
import type { L2Eviction } from '../storage/l2/l2-eviction.ts';
import type { Quota, QuotaTable } from '../storage/l2/quota.ts';
import type { QuotaBackend } from './backend.ts';

export interface QuotaBackendOptions {
  readonly table: QuotaTable;
  readonly eviction: L2Eviction;
  readonly namespaces: Pick<NamespaceTable, 'tenantBytes'>;
}

export class TableQuotas implements QuotaBackend {
  readonly #options: QuotaBackendOptions;

  constructor(options: QuotaBackendOptions) {
    this.#options = options;
  }

  get defaultLimitBytes(): number | null {
    return this.#options.table.defaultLimitBytes;
  }

  get isEffective(): boolean {
    return this.#options.eviction.enforcesQuotas;
  }

  list(): Quota[] {
    return this.#options.table.list();
  }

  quotaOf(cacheSalt: string): number | null {
    return this.#options.table.quotaOf(cacheSalt);
  }

  async set(cacheSalt: string, limitBytes: number): Promise<void> {
    await this.#options.table.set(cacheSalt, limitBytes);
    this.#options.eviction.wake();
  }

  async delete(cacheSalt: string): Promise<boolean> {
    const isKnown = await this.#options.table.delete(cacheSalt);
    this.#options.eviction.wake();
    return isKnown;
  }

  usageBySalt(): ReadonlyMap<string, number> {
    return this.#options.eviction.usageBySalt();
  }

  usedL1BytesOf(cacheSalt: string): number {
    return this.#options.namespaces.tenantBytes(cacheSalt);
  }
}
