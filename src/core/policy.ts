/**
 * Door to the eviction policies of the core (assembly/policy/policy.ts), each as an order of its
 * own: for what an L2 store holds, and for `kvd simulate`. Inside L1 the object table has one.
 *
 * An order hands out a number for each entry that it is told of. Names, bytes and locks are the
 * caller's: it keeps the numbers beside its own records, tells of every use, and asks for victims.
 *
 *   add ─────────────────▶ entry ── insert (again), touch ──▶ entry ── remove ──▶ number is free
 *   add, isReserved ─▶ on its way ── insert (stored) ──▶ entry
 *
 * One order is one WASM instance: `entryCountMax` entries, whose memory is reserved at once and
 * resident only where used (56 bytes per entry, ghost included). Nothing is allocated later.
 */
import { fatal } from '../assert.ts';
import { readAsset } from '../native.ts';
import { type CoreExports, instantiate, type TrapHandler } from './instance.ts';
import { RESULT, resultName } from './result.ts';

/** Number of each policy in assembly/policy/policy.ts. */
export const POLICY_ID = { noop: 0, LRU: 1, IsolatedLRU: 2, ARC: 3, S3FIFO: 4 } as const;
export type EvictionPolicy = keyof typeof POLICY_ID;
export const EVICTION_POLICIES = Object.keys(POLICY_ID) as readonly EvictionPolicy[];

export interface OrderOptions {
  readonly policy: EvictionPolicy;
  readonly entryCountMax: number;
  /** Tenants with entries at one time; for IsolatedLRU. */
  readonly tenantCountMax?: number;
  /** core.wasm, if it is not the one of this build. */
  readonly wasm?: Uint8Array;
  /** Replaces the end of the process, for tests. Must not return. */
  readonly onTrap?: TrapHandler;
}

export interface NewEntry {
  /** What the entry names: the same name is the same entry when it comes back. */
  readonly name: string;
  readonly cacheSalt?: string;
  /** Not stored yet; `insert` follows. */
  readonly isReserved?: boolean;
}

export interface VictimWalk {
  /** False: the entry stays for now, and its place in the order does too. */
  readonly isEligible: (entry: number) => boolean;
  /** Only entries of this tenant; IsolatedLRU only. */
  readonly cacheSalt?: string;
}

const TENANT_COUNT_MAX = 65_536;

/** Two FNV-1a hashes with different starts: 64 bits for ghosts, which may be wrong now and then. */
function digest(text: string): [low: number, high: number] {
  let low = 0x811c9dc5;
  let high = 0x9e3779b9;
  for (let i = 0; i < text.length; i += 1) {
    const code = text.charCodeAt(i);
    low = Math.imul(low ^ code, 0x01000193);
    high = Math.imul(high ^ code, 0x85ebca6b) ^ (high >>> 13);
  }
  // The index of the ghosts goes by the upper bits of the lower half, which FNV mixes least.
  low = Math.imul(low ^ (low >>> 15), 0x2c1b3c6d);
  return [(low ^ (low >>> 12)) >>> 0, high >>> 0];
}

export class EvictionOrder {
  readonly policy: EvictionPolicy;
  readonly entryCountMax: number;
  readonly #core: CoreExports;
  readonly #onTrap: TrapHandler;
  readonly #tenantCountMax: number;
  /** Entries per tenant, to give numbers of tenants back. */
  readonly #tenants = new Map<string, { readonly id: number; entryCount: number }>();
  readonly #spareTenants: number[] = [];
  /** Salt of each entry, by its number; IsolatedLRU only. */
  readonly #salts: (string | undefined)[] = [];

  private constructor(core: CoreExports, options: OrderOptions, onTrap: TrapHandler) {
    this.policy = options.policy;
    this.entryCountMax = options.entryCountMax;
    this.#tenantCountMax =
      options.policy === 'IsolatedLRU' ? (options.tenantCountMax ?? TENANT_COUNT_MAX) : 1;
    this.#core = core;
    this.#onTrap = onTrap;
    const id = POLICY_ID[options.policy];
    this.#call('order_init', core.order_init(options.entryCountMax, this.#tenantCountMax, id));
  }

  static open(options: OrderOptions): EvictionOrder {
    const end: TrapHandler = (error) =>
      fatal(error instanceof Error ? error.message : String(error), { policy: options.policy });
    const onTrap = options.onTrap ?? end;
    const core = instantiate(options.wasm ?? readAsset('core.wasm'), onTrap);
    return new EvictionOrder(core, options, onTrap);
  }

  /** Entries that the policy tracks; noop tracks none. */
  get count(): number {
    return this.#call('order_count', this.#core.order_count());
  }

  /** The number of a new entry; null when there is no room for it (remove some first). */
  add({ name, cacheSalt = '', isReserved = false }: NewEntry): number | null {
    const tenant = this.#tenantOf(cacheSalt);
    if (tenant === null) return null;
    const [low, high] = digest(name);
    const entry = this.#core.order_add(low, high, tenant, isReserved ? 1 : 0);
    if (entry === RESULT.TABLE_FULL) return null;
    this.#call('order_add', entry);
    this.#noteAdded(entry, cacheSalt, tenant);
    return entry;
  }

  /** The entry is stored: now, if it was reserved, or once more. */
  insert(entry: number): void {
    this.#call('order_insert', this.#core.order_insert(entry));
  }

  /** The entry was used. */
  touch(entry: number): void {
    this.#call('order_touch', this.#core.order_touch(entry));
  }

  /** The entry was placed again and used by nobody: LRU makes it the youngest. */
  refresh(entry: number): void {
    this.#call('order_refresh', this.#core.order_refresh(entry));
  }

  /** The entry is gone, and its number free. A victim leaves a ghost with some policies. */
  remove(entry: number): void {
    this.#call('order_remove', this.#core.order_remove(entry));
    this.#noteRemoved(entry);
  }

  /**
   * Entries that should go, best victim first, as many as the caller takes from the walk. Each may
   * be removed at once or later; one that is not removed after all keeps its place. Between two of
   * them the order may change, so a walk can be continued in later turns. One walk at a time.
   */
  *victims({ isEligible, cacheSalt }: VictimWalk): Generator<number, void> {
    const tenant = cacheSalt === undefined ? undefined : this.#tenants.get(cacheSalt)?.id;
    if (cacheSalt !== undefined && tenant === undefined) return;
    for (let isFromStart = 1; ; isFromStart = 0) {
      const entry =
        tenant === undefined
          ? this.#call('order_victim', this.#core.order_victim(isFromStart))
          : this.#call('order_victim_of', this.#core.order_victim_of(tenant, isFromStart));
      if (entry === 0) return;
      if (!isEligible(entry)) continue;
      if (this.#call('order_take', this.#core.order_take(entry)) === 1) yield entry;
    }
  }

  #tenantOf(cacheSalt: string): number | null {
    if (this.policy !== 'IsolatedLRU') return 0;
    const known = this.#tenants.get(cacheSalt);
    if (known) return known.id;
    if (this.#tenants.size >= this.#tenantCountMax) return null;
    return this.#spareTenants.at(-1) ?? this.#tenants.size;
  }

  #noteAdded(entry: number, cacheSalt: string, tenant: number): void {
    if (this.policy !== 'IsolatedLRU') return;
    const known = this.#tenants.get(cacheSalt);
    if (known) {
      known.entryCount += 1;
    } else {
      if (this.#spareTenants.at(-1) === tenant) this.#spareTenants.pop();
      this.#tenants.set(cacheSalt, { id: tenant, entryCount: 1 });
    }
    this.#salts[entry] = cacheSalt;
  }

  #noteRemoved(entry: number): void {
    const cacheSalt = this.#salts[entry];
    if (cacheSalt === undefined) return;
    this.#salts[entry] = undefined;
    const tenant = this.#tenants.get(cacheSalt)!;
    tenant.entryCount -= 1;
    if (tenant.entryCount > 0) return;
    this.#tenants.delete(cacheSalt);
    this.#spareTenants.push(tenant.id);
  }

  #call(name: string, result: number): number {
    if (result >= 0) return result;
    return this.#onTrap(new Error(`${name} answers ${resultName(result)}`));
  }
}
