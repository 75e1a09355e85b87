/**
 * Names of namespaces, interned: the core knows numbers only.
 *
 * A namespace is (model, kv_rank, object group, salt). Namespaces that differ only in rank and
 * group share a *scope* (model, world size, salt), whose objects of one chunk form a family; all
 * scopes of one salt share a *tenant*.
 *
 * The names are chosen by clients, so everything is bounded: `NAMESPACE_COUNT_MAX` ids and
 * `NAME_SIZE_MAX_BYTES` for all names together. When a bound is reached, ids under which no object
 * lies are reused, the longest unused first; if there is none, ERR_OVERLOADED.
 *
 * Therefore an id is good for the turn of the event loop in which it was asked for, and as long as
 * an object (staged or resident) lies under it. Ask again in each turn; it is one Map lookup.
 * Within a turn nothing can go wrong: an id that was asked for during the last `RECENT_COUNT`
 * calls is never reused. Requests that only read use `find`, which makes no entries.
 */
import { KvdError } from '../errors.ts';

export interface NamespaceKey {
  readonly modelName: string;
  readonly worldSize: number;
  readonly workerId: number;
  readonly objectGroupId: number;
  readonly cacheSalt: string;
}

export interface Namespace extends NamespaceKey {
  readonly id: number;
  readonly kvRank: number;
  readonly scope: number;
  readonly tenant: number;
}

/** What `find` answers for a namespace that has never been stored to; no object lies under it. */
export const NO_NAMESPACE = 0xffff_ffff;

export const NAMESPACE_COUNT_MAX = 65_536;
/** All interned names together: as much as a busy server with long salts needs, 100 times over. */
const NAME_SIZE_MAX_BYTES = 32 * 1024 * 1024;
/** Of `tenant_limit`. */
const NO_LIMIT = -1;
/** Ids that were asked for this lately are not reused: one call may name 4096 (memory-map.ts). */
const RECENT_COUNT = 4096;
/** Entries that one search for a reusable id looks at; the next search goes on behind them. */
const SEARCH_COUNT_MAX = 2 * RECENT_COUNT;

export interface NamespaceExports {
  namespace_define(id: number, scope: number, tenant: number): number;
  namespace_object_count(id: number): number;
  tenant_bytes(tenant: number): number;
  tenant_limit(tenant: number, bytes: number): number;
}

interface Entry extends Namespace {
  readonly name: string;
  /** Number of the call that asked for it last. */
  lastUse: number;
  /** Neighbours in the order of use. */
  older: Entry | null;
  newer: Entry | null;
}

/**
 * Entries in the order of use. A Map would keep one, too, but not in constant time: what is taken
 * out and put in again under the same key leaves a hole in its bucket, and among many thousands of
 * other entries the holes stay there for long (80 µs a look-up, seen).
 */
class UseOrder {
  oldest: Entry | null = null;
  #newest: Entry | null = null;

  append(entry: Entry): void {
    entry.older = this.#newest;
    entry.newer = null;
    if (this.#newest) this.#newest.newer = entry;
    else this.oldest = entry;
    this.#newest = entry;
  }

  remove(entry: Entry): void {
    if (entry.older) entry.older.newer = entry.newer;
    else this.oldest = entry.newer;
    if (entry.newer) entry.newer.older = entry.older;
    else this.#newest = entry.older;
  }

  moveToEnd(entry: Entry): void {
    if (entry === this.#newest) return;
    this.remove(entry);
    this.append(entry);
  }
}

/** Numbers for names that are kept as long as somebody uses them. */
class IdPool {
  readonly #ids = new Map<string, { id: number; useCount: number }>();
  readonly #spare: number[] = [];
  #next = 0;

  /** `onNew` hears of a name that gets an id. */
  use(name: string, onNew?: (id: number) => void): number {
    let entry = this.#ids.get(name);
    if (!entry) {
      entry = { id: this.#spare.pop() ?? this.#next++, useCount: 0 };
      this.#ids.set(name, entry);
      onNew?.(entry.id);
    }
    entry.useCount += 1;
    return entry.id;
  }

  drop(name: string): void {
    const entry = this.#ids.get(name);
    if (!entry) return;
    entry.useCount -= 1;
    if (entry.useCount > 0) return;
    this.#ids.delete(name);
    this.#spare.push(entry.id);
  }

  *entries(): Generator<[name: string, id: number]> {
    for (const [name, { id }] of this.#ids) yield [name, id];
  }

  idOf(name: string): number | undefined {
    return this.#ids.get(name)?.id;
  }
}

/** Rank field of an object key (engine 2.3). Exceeds 32 bits from 256 ranks on, as it must. */
export function kvRank(worldSize: number, workerId: number): number {
  const high = worldSize * 2 ** 24;
  // The fields overlap for large worlds, so they are joined with OR, in 64 bits.
  const bits = BigInt(high) | (BigInt(workerId) << 16n) | (BigInt(worldSize) << 8n);
  return Number(bits | BigInt(workerId));
}

/** Unambiguous, because the length of the model name stands before it. */
function scopeName(key: NamespaceKey): string {
  return `${key.worldSize}/${key.modelName.length}/${key.modelName}${key.cacheSalt}`;
}

function fullName(key: NamespaceKey): string {
  return `${key.workerId}/${key.objectGroupId}/${scopeName(key)}`;
}

export class NamespaceTable {
  readonly #exports: NamespaceExports;
  readonly #countMax: number;
  readonly #byName = new Map<string, Entry>();
  readonly #order = new UseOrder();
  readonly #byId: (Entry | undefined)[] = [];
  readonly #scopes = new IdPool();
  readonly #tenants = new IdPool();
  readonly #spareIds: number[] = [];
  #nameSize = 0;
  #limitOf: (cacheSalt: string) => number | null = () => null;
  #useCount = 0;

  constructor(exports: NamespaceExports, countMax: number = NAMESPACE_COUNT_MAX) {
    this.#exports = exports;
    this.#countMax = countMax;
  }

  get count(): number {
    return this.#byName.size;
  }

  /** The id of a namespace, made if it is new. */
  intern(key: NamespaceKey): number {
    const name = fullName(key);
    const known = this.#byName.get(name);
    if (known) {
      this.#noteUse(known);
      return known.id;
    }
    this.#makeRoom(name.length);
    // Every id below `byName.size + spareIds.length` is in one of them, so this one is new.
    const id = this.#spareIds.pop() ?? this.#byName.size;
    const scope = this.#scopes.use(scopeName(key));
    const tenant = this.#tenants.use(key.cacheSalt, (id) => this.#limit(id, key.cacheSalt));
    const result = this.#exports.namespace_define(id, scope, tenant);
    if (result !== 0) {
      this.#giveBack(id, key);
      throw new KvdError('ERR_INTERNAL', `namespace_define answers ${result}`);
    }
    const { modelName, worldSize, workerId, objectGroupId, cacheSalt } = key;
    const entry: Entry = {
      modelName,
      worldSize,
      workerId,
      objectGroupId,
      cacheSalt,
      id,
      kvRank: kvRank(worldSize, workerId),
      scope,
      tenant,
      name,
      lastUse: 0,
      older: null,
      newer: null,
    };
    this.#byId[id] = entry;
    this.#byName.set(name, entry);
    this.#order.append(entry);
    this.#nameSize += name.length;
    this.#noteUse(entry);
    return id;
  }

  /** The id of a namespace that exists, or `NO_NAMESPACE`. */
  find(key: NamespaceKey): number {
    const entry = this.#byName.get(fullName(key));
    if (!entry) return NO_NAMESPACE;
    this.#noteUse(entry);
    return entry.id;
  }

  /** Undefined when no object lies under the id any more and it has been dropped. */
  lookup(id: number): Namespace | undefined {
    return this.#byId[id];
  }

  describe(id: number): Namespace {
    const entry = this.#byId[id];
    if (!entry) throw new KvdError('ERR_INTERNAL', `there is no namespace ${id}`);
    return entry;
  }

  /** Arena bytes under keys with this salt. */
  tenantBytes(cacheSalt: string): number {
    const tenant = this.#tenants.idOf(cacheSalt);
    return tenant === undefined ? 0 : this.#exports.tenant_bytes(tenant);
  }

  /**
   * Sets whose bytes IsolatedLRU evicts first: those of tenants above their limit, null = no limit.
   * Call again when a limit has changed.
   */
  limitTenants(limitOf: (cacheSalt: string) => number | null): void {
    this.#limitOf = limitOf;
    for (const [cacheSalt, id] of this.#tenants.entries()) this.#limit(id, cacheSalt);
  }

  #limit(tenant: number, cacheSalt: string): void {
    this.#exports.tenant_limit(tenant, this.#limitOf(cacheSalt) ?? NO_LIMIT);
  }

  #noteUse(entry: Entry): void {
    this.#useCount += 1;
    entry.lastUse = this.#useCount;
    this.#order.moveToEnd(entry);
  }

  #makeRoom(nameSize: number): void {
    while (
      this.#byName.size >= this.#countMax ||
      2 * (this.#nameSize + nameSize) > NAME_SIZE_MAX_BYTES
    ) {
      this.#dropOldest();
    }
  }

  /** Drops the longest unused namespace without objects; every other one looked at moves back. */
  #dropOldest(): void {
    const visitCount = Math.min(this.#byName.size, SEARCH_COUNT_MAX);
    for (let i = 0; i < visitCount; i += 1) {
      const entry = this.#order.oldest as Entry;
      const isRecent = this.#useCount - entry.lastUse < RECENT_COUNT;
      if (!isRecent && this.#exports.namespace_object_count(entry.id) === 0) {
        this.#drop(entry);
        return;
      }
      this.#order.moveToEnd(entry);
    }
    throw new KvdError(
      'ERR_OVERLOADED',
      `expected at most ${this.#countMax} namespaces (model, rank, group, salt) with objects`,
    );
  }

  #drop(entry: Entry): void {
    this.#byName.delete(entry.name);
    this.#order.remove(entry);
    this.#byId[entry.id] = undefined;
    this.#giveBack(entry.id, entry);
    this.#nameSize -= entry.name.length;
  }

  #giveBack(id: number, key: NamespaceKey): void {
    this.#spareIds.push(id);
    this.#scopes.drop(scopeName(key));
    this.#tenants.drop(key.cacheSalt);
  }
}
