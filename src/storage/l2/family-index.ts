/**
 * What one L2 adapter holds, by chunk: all ranks and object groups of a chunk are one *family*,
 * because they are of use only together (spec storage 18.19).
 *
 *   tenant  salt
 *   scope   (tenant, model, world size)       one object, shared by its families
 *   family  (scope, chunk hash)               an entry of the eviction order
 *   member  (kv rank, object group, size)     three numbers in the family's list
 *
 * About 200 bytes for a family of one: names are kept once per scope, hashes as byte strings.
 * Keys are made anew from that when they are needed, which is when something is evicted.
 */
import type { EvictionOrder } from '../../core/policy.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import { SplitMap } from '../../l2/split-map.ts';

export interface Tenant {
  readonly cacheSalt: string;
  scopeCount: number;
  /** Objects of families that are in the order. */
  objectCount: number;
}

interface Scope {
  readonly name: string;
  readonly modelName: string;
  readonly tenant: Tenant;
  /** By hash. */
  readonly families: SplitMap<Family>;
}

export interface Family {
  /** Its number in the order; null = it has left. */
  entry: number | null;
  readonly scope: Scope;
  /** One character per byte. */
  readonly hash: string;
  sizeBytes: number;
  /** `kvRank, objectGroupId, sizeBytes` of each member. */
  readonly members: number[];
}

const FIELDS = 3;
/** `kvRank` begins with the world size. */
const WORLD_SIZE_UNIT = 2 ** 24;

export class FamilyIndex {
  readonly #order: EvictionOrder;
  readonly #tenants = new Map<string, Tenant>();
  readonly #scopes = new Map<string, Scope>();
  readonly #byEntry: (Family | undefined)[] = [];
  /** Of families that are in the order. */
  objectCount = 0;
  /** Objects that found no room in the order: nothing will evict them. */
  untrackedCount = 0;

  constructor(order: EvictionOrder) {
    this.#order = order;
  }

  tenant(cacheSalt: string): Tenant | undefined {
    return this.#tenants.get(cacheSalt);
  }

  byEntry(entry: number): Family | undefined {
    return this.#byEntry[entry];
  }

  /** The object is there, or has another size. A family that was not known is the youngest. */
  find(key: ObjectKey, sizeBytes: number): Family {
    const family = this.#put(key, sizeBytes);
    if (family.entry === null) this.enter(family);
    return family;
  }

  /** The object has been stored just now: its family becomes the youngest. */
  store(key: ObjectKey, sizeBytes: number): Family {
    const family = this.#put(key, sizeBytes);
    if (family.entry === null) this.enter(family);
    else this.#order.insert(family.entry);
    return family;
  }

  /** The family becomes the youngest, as if it were new. Nothing when it is gone. */
  enter(family: Family): void {
    if (family.members.length === 0) return;
    if (family.entry !== null) this.#leave(family);
    const { scope, hash } = family;
    const name = `${scope.name}@${hash}`;
    const entry = this.#order.add({ name, cacheSalt: scope.tenant.cacheSalt });
    if (entry === null) {
      this.untrackedCount += memberCount(family);
      this.#drop(family);
      return;
    }
    family.entry = entry;
    this.#byEntry[entry] = family;
    this.#count(family, memberCount(family));
  }

  /** Undefined: it is not known. */
  touch(key: ObjectKey): Family | undefined {
    const family = this.#lookup(key);
    if (family && family.entry !== null) this.#order.touch(family.entry);
    return family;
  }

  remove(key: ObjectKey): void {
    const family = this.#lookup(key);
    const at = family ? memberIndex(family, key) : -1;
    if (!family || at < 0) return;
    family.sizeBytes -= family.members[at + 2] as number;
    family.members.splice(at, FIELDS);
    if (family.entry !== null) this.#count(family, -1);
    if (family.members.length === 0) this.#drop(family);
  }

  #lookup(key: ObjectKey): Family | undefined {
    return this.#scopes.get(scopeName(key))?.families.get(hashText(key));
  }

  #put(key: ObjectKey, sizeBytes: number): Family {
    const scope = this.#scopes.get(scopeName(key)) ?? this.#addScope(key);
    const hash = hashText(key);
    const family = scope.families.get(hash) ?? this.#addFamily(scope, hash);
    const at = memberIndex(family, key);
    if (at < 0) {
      family.members.push(key.kvRank, key.objectGroupId, sizeBytes);
      family.sizeBytes += sizeBytes;
      if (family.entry !== null) this.#count(family, 1);
    } else {
      family.sizeBytes += sizeBytes - (family.members[at + 2] as number);
      family.members[at + 2] = sizeBytes;
    }
    return family;
  }

  #addScope(key: ObjectKey): Scope {
    const { modelName, cacheSalt } = key;
    const tenant = this.#tenants.get(cacheSalt) ?? { cacheSalt, scopeCount: 0, objectCount: 0 };
    this.#tenants.set(cacheSalt, tenant);
    tenant.scopeCount += 1;
    const scope = { name: scopeName(key), modelName, tenant, families: new SplitMap<Family>() };
    this.#scopes.set(scope.name, scope);
    return scope;
  }

  #addFamily(scope: Scope, hash: string): Family {
    const family = { entry: null, scope, hash, sizeBytes: 0, members: [] };
    scope.families.set(hash, family);
    return family;
  }

  #drop(family: Family): void {
    const { scope, hash } = family;
    scope.families.delete(hash);
    if (family.entry !== null) this.#leave(family);
    if (scope.families.size > 0) return;
    this.#scopes.delete(scope.name);
    const { tenant } = scope;
    tenant.scopeCount -= 1;
    if (tenant.scopeCount === 0) this.#tenants.delete(tenant.cacheSalt);
  }

  #leave(family: Family): void {
    const entry = family.entry as number;
    this.#count(family, -memberCount(family));
    this.#order.remove(entry);
    this.#byEntry[entry] = undefined;
    family.entry = null;
  }

  #count({ scope }: Family, delta: number): void {
    scope.tenant.objectCount += delta;
    this.objectCount += delta;
  }
}

export function memberCount({ members }: Family): number {
  return members.length / FIELDS;
}

export function keysOf({ scope, hash, members }: Family): ObjectKey[] {
  const { modelName, tenant } = scope;
  const chunkHash = Buffer.from(hash, 'latin1');
  const keys: ObjectKey[] = [];
  for (let at = 0; at < members.length; at += FIELDS) {
    const [kvRank, objectGroupId] = [members[at] as number, members[at + 1] as number];
    keys.push({ chunkHash, modelName, kvRank, objectGroupId, cacheSalt: tenant.cacheSalt });
  }
  return keys;
}

function scopeName({ modelName, kvRank, cacheSalt }: ObjectKey): string {
  // A model name never holds `@`, so the parts cannot run into each other.
  return `${Math.floor(kvRank / WORLD_SIZE_UNIT)}@${modelName}@${cacheSalt}`;
}

function hashText({ chunkHash }: ObjectKey): string {
  return Buffer.from(chunkHash.buffer, chunkHash.byteOffset, chunkHash.length).toString('latin1');
}

function memberIndex({ members }: Family, key: ObjectKey): number {
  for (let at = 0; at < members.length; at += FIELDS) {
    if (members[at] === key.kvRank && members[at + 1] === key.objectGroupId) return at;
  }
  return -1;
}
