/** An L2 adapter in memory that records its calls, and holds, fails or belies any of them. */
import type { L2Object, LoadResult, StoreResult } from '../../src/l2/backend.ts';
import { isLayoutRecord } from '../../src/l2/layout-record.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import type { L2Task } from '../../src/l2/task.ts';
import type { L2Store } from '../../src/storage/l2/l2-store.ts';

type Kind = 'store' | 'lookup' | 'load';

/** A call that waits. */
export interface HeldCall {
  readonly kind: Kind;
  readonly keys: readonly string[];
  /** It goes on as if nothing had been. */
  release(): void;
  /** Its outcome is a failure now; what it does to the buffers comes with `release`. */
  timeOut(error?: Error): void;
}

export function nameOf(key: ObjectKey): string {
  const { chunkHash, modelName, kvRank, objectGroupId, cacheSalt } = key;
  const hash = Buffer.from(chunkHash).toString('hex');
  return `${hash}@${modelName}@${kvRank}@${objectGroupId}@${cacheSalt}`;
}

export class ScriptedStore implements L2Store {
  readonly id: number;
  readonly typeName = 'scripted';
  readonly settings = { inFlightMaxBytes: 2 ** 28 };
  canStore = true;
  readonly values = new Map<string, Uint8Array>();
  /** Locks of lookups that have not been given back. */
  readonly locks = new Map<string, number>();
  /** Calls in order, layout records left out. */
  readonly calls: { readonly kind: Kind; readonly keys: readonly string[] }[] = [];
  readonly held: HeldCall[] = [];
  /** Kinds of calls that are held from now on. */
  readonly holds = new Set<Kind>();
  /** Answers an error instead of doing something. */
  failure: (kind: Kind, name: string) => Error | null = () => null;
  /** Says so in a lookup, whatever is there. */
  claimsAll = false;

  constructor(id = 0) {
    this.id = id;
  }

  get lockCount(): number {
    return [...this.locks.values()].reduce((sum, count) => sum + count, 0);
  }

  callsOf(kind: Kind): (readonly string[])[] {
    return this.calls.filter((call) => call.kind === kind).map(({ keys }) => keys);
  }

  store(objects: readonly L2Object[]): L2Task<readonly StoreResult[]> {
    return this.#task('store', objects, ({ key, bytes }) => {
      const name = nameOf(key);
      const failure = this.failure('store', name);
      if (failure) return failure;
      this.values.set(name, Uint8Array.from(bytes));
      return 'stored';
    });
  }

  load(objects: readonly L2Object[]): L2Task<readonly LoadResult[]> {
    return this.#task('load', objects, ({ key, bytes }) => {
      const name = nameOf(key);
      const failure = this.failure('load', name);
      if (failure) return failure;
      const value = this.values.get(name);
      if (value?.length !== bytes.length) return 'missing';
      bytes.set(value);
      return 'loaded';
    });
  }

  async lookup(keys: readonly ObjectKey[], sizesBytes: ArrayLike<number>): Promise<Uint8Array> {
    const names = keys.map(nameOf);
    await this.#enter('lookup', names, () => {});
    return Uint8Array.from(names, (name, i) => {
      const isHit = this.claimsAll || this.values.get(name)?.length === sizesBytes[i];
      if (!isHit || this.failure('lookup', name)) return 0;
      this.locks.set(name, (this.locks.get(name) ?? 0) + 1);
      return 1;
    });
  }

  unlock(keys: readonly ObjectKey[]): void {
    for (const name of keys.map(nameOf)) {
      const count = this.locks.get(name) ?? 0;
      if (count === 0) throw new Error(`unlock of ${name}, which is not locked`);
      if (count === 1) this.locks.delete(name);
      else this.locks.set(name, count - 1);
    }
  }

  status(): Record<string, unknown> {
    return { type: this.typeName };
  }

  releaseAll(): void {
    this.holds.clear();
    for (const call of this.held.splice(0)) call.release();
  }

  #task<T>(
    kind: Kind,
    objects: readonly L2Object[],
    run: (object: L2Object) => T,
  ): L2Task<readonly (T | Error)[]> {
    const names = objects.map(({ key }) => nameOf(key));
    const isRecord = objects.every(({ key }) => isLayoutRecord(key));
    let onTimeOut: (error?: Error) => void = () => {};
    const late = new Promise<readonly (T | Error)[]>((resolve) => {
      onTimeOut = (error = new Error('too late')) => resolve(objects.map(() => error));
    });
    const done = isRecord
      ? Promise.resolve().then(() => objects.map(run))
      : this.#enter(kind, names, onTimeOut).then(() => objects.map(run));
    return { outcome: Promise.race([done, late]), released: done.then(() => {}) };
  }

  #enter(kind: Kind, keys: readonly string[], timeOut: HeldCall['timeOut']): Promise<void> {
    this.calls.push({ kind, keys });
    if (!this.holds.has(kind)) return Promise.resolve();
    return new Promise((resolve) => void this.held.push({ kind, keys, release: resolve, timeOut }));
  }
}
