/**
 * A backend whose values are transformed on their way: `store` serializes and hands on, `load`
 * loads into a buffer of its own and deserializes into L1.
 *
 *   L1 ──serialize──▶ buffer ──store──▶ backend          one object that fails is left out of the
 *   L1 ◀─deserialize─ buffer ◀──load─── backend          batch, with its error as its result
 *
 * Sizes are those in the store: `lookup` and lists say them, `acceptsSize` compares them, and
 * `store` answers with them. Where a serde cannot tell the size in advance, `load` looks it up.
 * Layout records (`layout-record.ts`) are no tensors: serdes that convert elements leave them.
 */
import { KvdError } from '../../errors.ts';
import type {
  DeleteResult,
  L2Backend,
  L2Object,
  ListOptions,
  ListPage,
  LoadResult,
  LookupResult,
  StoreResult,
} from '../backend.ts';
import { isLayoutRecord, RECORD_SIZE_BYTES } from '../layout-record.ts';
import type { ObjectKey } from '../object-key.ts';
import type { Serde } from './serde.ts';

export function withSerde(backend: L2Backend, serde: Serde): L2Backend {
  return new SerdeBackend(backend, serde);
}

class SerdeBackend implements L2Backend {
  readonly #inner: L2Backend;
  readonly #serde: Serde;
  readonly list?: (options: ListOptions) => Promise<ListPage>;

  constructor(inner: L2Backend, serde: Serde) {
    this.#inner = inner;
    this.#serde = serde;
    if (inner.list) this.list = inner.list.bind(inner);
  }

  async store(objects: readonly L2Object[], signal: AbortSignal): Promise<StoreResult[]> {
    const serialized = await this.#forEach(objects, async (object) => {
      signal.throwIfAborted();
      if (this.#isPlain(object.key)) return object;
      return { key: object.key, bytes: await this.#serde.serialize(object) };
    });
    const { passed, results } = split<L2Object, StoreResult>(serialized);
    signal.throwIfAborted();
    const stored = await this.#inner.store(passed, signal);
    return results((index) => {
      const result = stored[index] ?? noAnswer();
      return result === 'stored' ? (passed[index] as L2Object).bytes.length : result;
    });
  }

  lookup(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly LookupResult[]> {
    return this.#inner.lookup(keys, signal);
  }

  async load(objects: readonly L2Object[], signal: AbortSignal): Promise<LoadResult[]> {
    const sizes = await this.#storedSizes(objects, signal);
    const buffers = objects.map((object, i): L2Object | LoadResult => {
      const size = sizes[i];
      if (size === undefined || size === null) return 'missing';
      if (size instanceof Error) return size;
      if (this.#isPlain(object.key)) return object;
      if (!this.#serde.acceptsSize(size, object.bytes.length)) return 'missing';
      return { key: object.key, bytes: Buffer.allocUnsafeSlow(size) };
    });
    const { passed, results } = split<L2Object, LoadResult>(buffers);
    const loaded = passed.length > 0 ? await this.#inner.load(passed, signal) : [];
    const all = results((index) => loaded[index] ?? noAnswer());
    return this.#forEach(objects, async (object, i) => {
      const result = all[i] as LoadResult;
      const buffer = buffers[i] as L2Object;
      if (result !== 'loaded' || buffer === object) return result;
      signal.throwIfAborted();
      await this.#serde.deserialize(object, buffer.bytes, signal);
      return result;
    });
  }

  delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly DeleteResult[]> {
    return this.#inner.delete(keys, signal);
  }

  acceptsSize(storedBytes: number, sizeBytes: number): boolean {
    if (this.#serde.acceptsSize(storedBytes, sizeBytes)) return true;
    const isRecord = sizeBytes === RECORD_SIZE_BYTES && storedBytes === sizeBytes;
    return isRecord && this.#serde.needsLayout;
  }

  chargedBytes(storedBytes: number): number {
    return this.#inner.chargedBytes?.(storedBytes) ?? storedBytes;
  }

  status(): Record<string, unknown> {
    return { ...this.#inner.status(), serde_wrapped: true, serde: this.#serde.typeName };
  }

  close(): Promise<void> {
    return this.#inner.close();
  }

  #isPlain(key: ObjectKey): boolean {
    return this.#serde.needsLayout && isLayoutRecord(key);
  }

  /** How many bytes each takes in the store. */
  async #storedSizes(
    objects: readonly L2Object[],
    signal: AbortSignal,
  ): Promise<readonly LookupResult[]> {
    const sizes = objects.map((object) => {
      if (this.#isPlain(object.key)) return object.bytes.length;
      try {
        return this.#serde.serializedSize(object);
      } catch (error) {
        return error as Error;
      }
    });
    if (!sizes.includes(null)) return sizes;
    return this.#inner.lookup(
      objects.map(({ key }) => key),
      signal,
    );
  }

  /** At most `workerCount` at a time; what one throws becomes its result. */
  async #forEach<T, R>(
    items: readonly T[],
    work: (item: T, index: number) => Promise<R>,
  ): Promise<(R | Error)[]> {
    const results: (R | Error)[] = new Array(items.length);
    let next = 0;
    const worker = async (): Promise<void> => {
      for (let i = next++; i < items.length; i = next++) {
        try {
          results[i] = await work(items[i] as T, i);
        } catch (error) {
          results[i] = error instanceof Error ? error : new Error(String(error));
        }
      }
    };
    const count = Math.min(this.#serde.workerCount, items.length);
    await Promise.all(Array.from({ length: count }, worker));
    return results;
  }
}

/** Objects that go on, and a function that puts their results among those known already. */
function split<T extends L2Object, R>(items: readonly (T | R | Error)[]) {
  const passed: T[] = [];
  const places = items.map((item): number | R | Error => {
    if (!isObject<T>(item)) return item;
    passed.push(item);
    return passed.length - 1;
  });
  const isPassed = items.map((item) => isObject<T>(item));
  const results = (answer: (index: number) => R): R[] =>
    places.map((place, i) => (isPassed[i] ? answer(place as number) : (place as R)));
  return { passed, results };
}

function isObject<T extends L2Object>(item: unknown): item is T {
  return typeof item === 'object' && item !== null && 'bytes' in item;
}

function noAnswer(): KvdError {
  return new KvdError('ERR_L2_STORE', 'the store has not answered for this object');
}
