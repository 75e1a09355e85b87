/**
 * A map by object key, made for millions of entries: one small map per (model, rank, group, salt),
 * in it the chunk hashes as one-byte strings. An entry costs about 120 bytes.
 */
import type { ObjectKey } from './object-key.ts';
import { SplitMap } from './split-map.ts';

interface Scope<T> {
  readonly name: string;
  readonly sample: ObjectKey;
  readonly values: SplitMap<T>;
}

export class ObjectMap<T> {
  readonly #scopes = new Map<string, Scope<T>>();
  /** Keys of a batch mostly share their scope. */
  #last: Scope<T> | null = null;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get(key: ObjectKey): T | undefined {
    return this.#find(key)?.values.get(hashText(key));
  }

  has(key: ObjectKey): boolean {
    return this.#find(key)?.values.has(hashText(key)) ?? false;
  }

  set(key: ObjectKey, value: T): void {
    const { values } = this.#find(key) ?? this.#add(key);
    const before = values.size;
    values.set(hashText(key), value);
    this.#size += values.size - before;
  }

  delete(key: ObjectKey): boolean {
    const scope = this.#find(key);
    if (!scope?.values.delete(hashText(key))) return false;
    this.#size -= 1;
    if (scope.values.size === 0) {
      this.#scopes.delete(scope.name);
      this.#last = null;
    }
    return true;
  }

  clear(): void {
    this.#scopes.clear();
    this.#last = null;
    this.#size = 0;
  }

  #find(key: ObjectKey): Scope<T> | undefined {
    if (this.#last && isSameScope(this.#last.sample, key)) return this.#last;
    const scope = this.#scopes.get(scopeName(key));
    if (scope) this.#last = scope;
    return scope;
  }

  #add(key: ObjectKey): Scope<T> {
    const scope = { name: scopeName(key), sample: key, values: new SplitMap<T>() };
    this.#scopes.set(scope.name, scope);
    this.#last = scope;
    return scope;
  }
}

function isSameScope(a: ObjectKey, b: ObjectKey): boolean {
  return (
    a.kvRank === b.kvRank &&
    a.objectGroupId === b.objectGroupId &&
    a.cacheSalt === b.cacheSalt &&
    a.modelName === b.modelName
  );
}

/** `@` stands in neither name. */
function scopeName({ modelName, kvRank, objectGroupId, cacheSalt }: ObjectKey): string {
  return `${modelName}@${kvRank}@${objectGroupId}@${cacheSalt}`;
}

function hashText({ chunkHash }: ObjectKey): string {
  return Buffer.from(chunkHash.buffer, chunkHash.byteOffset, chunkHash.length).toString('latin1');
}
