/**
 * An L2 backend in memory that does what the test says: answers, waits until told, rejects, lies.
 * Calls that wait are answered by `calls[i].answer()`; until then they hold their buffers.
 */
import type {
  DeleteResult,
  L2Backend,
  L2Object,
  ListOptions,
  ListPage,
  LoadResult,
  LookupResult,
  StoreResult,
} from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';

export type Operation = 'store' | 'lookup' | 'load' | 'delete';

/** `answer` at once, `wait` for the test, `reject`, or answer what `lie` makes of the truth. */
export type Conduct =
  | 'answer'
  | 'wait'
  | { readonly reject: Error }
  | { readonly lie: (truth: readonly unknown[]) => unknown };

export interface Call {
  readonly operation: Operation;
  readonly keys: readonly ObjectKey[];
  readonly signal: AbortSignal;
  isOver: boolean;
  /** Does the work of a call that waits. */
  answer(): void;
  reject(error: Error): void;
}

export class ScriptedBackend implements L2Backend {
  readonly values = new Map<string, { key: ObjectKey; bytes: Uint8Array; storedMs: number }>();
  readonly calls: Call[] = [];
  /** What calls do from now on. */
  conduct: Conduct | ((operation: Operation) => Conduct) = 'answer';
  isClosed = false;
  /** Of the next value that is stored. */
  storedMs = 1;

  store(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly StoreResult[]> {
    const keys = objects.map(({ key }) => key);
    return this.#perform('store', keys, signal, () =>
      objects.map(({ key, bytes }): StoreResult => {
        if (this.values.has(scriptedName(key))) return 'present';
        this.plant(key, bytes);
        return 'stored';
      }),
    );
  }

  lookup(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly LookupResult[]> {
    return this.#perform('lookup', keys, signal, () =>
      keys.map((key) => this.values.get(scriptedName(key))?.bytes.length ?? null),
    );
  }

  load(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly LoadResult[]> {
    const keys = objects.map(({ key }) => key);
    return this.#perform('load', keys, signal, () =>
      objects.map(({ key, bytes }): LoadResult => {
        const value = this.values.get(scriptedName(key))?.bytes;
        if (value?.length !== bytes.length) return 'missing';
        bytes.set(value);
        return 'loaded';
      }),
    );
  }

  delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly DeleteResult[]> {
    return this.#perform('delete', keys, signal, () =>
      keys.map((key) => (this.values.delete(scriptedName(key)) ? 'deleted' : 'absent')),
    );
  }

  async list({ modelName, pageSize, token }: ListOptions): Promise<ListPage> {
    const first = token === null ? 0 : Number(token);
    const all = [...this.values.values()].filter(
      ({ key }) => modelName === null || key.modelName === modelName,
    );
    const next = first + pageSize;
    return {
      objects: all
        .slice(first, next)
        .map(({ key, bytes, storedMs }) => ({ key, sizeBytes: bytes.length, storedMs })),
      nextToken: next < all.length ? String(next) : null,
    };
  }

  status(): Record<string, unknown> {
    return { type: 'Scripted' };
  }

  async close(): Promise<void> {
    this.isClosed = true;
  }

  plant(key: ObjectKey, bytes: Uint8Array): void {
    const value = { key, bytes: Uint8Array.from(bytes), storedMs: this.storedMs };
    this.values.set(scriptedName(key), value);
  }

  /** Calls that wait, oldest first. */
  waiting(operation?: Operation): Call[] {
    return this.calls.filter(
      (call) => !call.isOver && (operation === undefined || call.operation === operation),
    );
  }

  #perform<T>(
    operation: Operation,
    keys: readonly ObjectKey[],
    signal: AbortSignal,
    work: () => readonly T[],
  ): Promise<readonly T[]> {
    const conduct = typeof this.conduct === 'function' ? this.conduct(operation) : this.conduct;
    const { promise, resolve, reject } = Promise.withResolvers<readonly T[]>();
    const end = (settle: () => void): void => {
      call.isOver = true;
      settle();
    };
    const call: Call = {
      operation,
      keys,
      signal,
      isOver: false,
      answer: () => end(() => resolve(work())),
      reject: (error) => end(() => reject(error)),
    };
    this.calls.push(call);
    if (conduct === 'answer') call.answer();
    else if (conduct === 'wait') return promise;
    else if ('reject' in conduct) call.reject(conduct.reject);
    else end(() => resolve(conduct.lie(work()) as readonly T[]));
    return promise;
  }
}

export function scriptedName(key: ObjectKey): string {
  const { chunkHash, modelName, kvRank, objectGroupId, cacheSalt } = key;
  const hash = Buffer.from(chunkHash).toString('hex');
  return JSON.stringify([hash, modelName, kvRank, objectGroupId, cacheSalt]);
}
