/** `mock`: values in memory at a chosen speed, to try out what a store of that speed would do. */
import type { Clock } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import { GIB } from '../../units.ts';
import type {
  DeleteResult,
  L2Backend,
  L2BackendType,
  L2Object,
  ListedObject,
  ListOptions,
  ListPage,
  LoadResult,
  LookupResult,
  StoreResult,
} from '../backend.ts';
import { encodeWireKey } from '../key-text.ts';
import type { ObjectKey } from '../object-key.ts';

interface MockOptions {
  readonly capacityBytes: number;
  readonly bytesPerMs: number;
  readonly clock: Clock;
}

interface Value {
  readonly key: ObjectKey;
  readonly bytes: Uint8Array;
  readonly storedMs: number;
}

class MockStore implements L2Backend {
  readonly #options: MockOptions;
  readonly #values = new Map<string, Value>();
  #usedBytes = 0;

  constructor(options: MockOptions) {
    this.#options = options;
  }

  async store(objects: readonly L2Object[], signal: AbortSignal): Promise<StoreResult[]> {
    await this.#delay(objects, signal);
    return objects.map((object) => this.#storeOne(object));
  }

  async lookup(keys: readonly ObjectKey[]): Promise<LookupResult[]> {
    return keys.map((key) => this.#values.get(encodeWireKey(key))?.bytes.length ?? null);
  }

  async load(objects: readonly L2Object[], signal: AbortSignal): Promise<LoadResult[]> {
    await this.#delay(objects, signal);
    return objects.map(({ key, bytes }) => {
      const value = this.#values.get(encodeWireKey(key));
      if (value?.bytes.length !== bytes.length) return 'missing';
      bytes.set(value.bytes);
      return 'loaded';
    });
  }

  async delete(keys: readonly ObjectKey[]): Promise<DeleteResult[]> {
    return keys.map((key) => (this.#remove(encodeWireKey(key)) ? 'deleted' : 'absent'));
  }

  async list({ modelName, pageSize, token }: ListOptions): Promise<ListPage> {
    const objects: ListedObject[] = [...this.#values.values()]
      .filter(({ key }) => modelName === null || key.modelName === modelName)
      .map(({ key, bytes, storedMs }) => ({ key, sizeBytes: bytes.length, storedMs }));
    const start = Number(token ?? 0);
    const end = start + pageSize;
    const nextToken = end < objects.length ? `${end}` : null;
    return { objects: objects.slice(start, end), nextToken };
  }

  status(): Record<string, unknown> {
    return {
      type: 'MockL2Adapter',
      stored_object_count: this.#values.size,
      current_size_bytes: this.#usedBytes,
      max_capacity_bytes: this.#options.capacityBytes,
    };
  }

  async close(): Promise<void> {
    this.#values.clear();
    this.#usedBytes = 0;
  }

  #storeOne({ key, bytes }: L2Object): StoreResult {
    const text = encodeWireKey(key);
    if (this.#values.get(text)?.bytes.length === bytes.length) return 'present';
    this.#remove(text);
    if (this.#usedBytes + bytes.length > this.#options.capacityBytes) {
      return new KvdError('ERR_L2_IO', 'the mock store is full');
    }
    const storedMs = this.#options.clock.wallMs();
    this.#values.set(text, { key, bytes: Uint8Array.from(bytes), storedMs });
    this.#usedBytes += bytes.length;
    return 'stored';
  }

  #remove(text: string): boolean {
    this.#usedBytes -= this.#values.get(text)?.bytes.length ?? 0;
    return this.#values.delete(text);
  }

  /** As long as the bytes take; rejects when the signal ends it. */
  #delay(objects: readonly L2Object[], signal: AbortSignal): Promise<void> {
    const totalBytes = objects.reduce((sum, { bytes }) => sum + bytes.length, 0);
    return new Promise((resolve, reject) => {
      const abort = (): void => {
        timer.cancel();
        reject(new KvdError('ERR_L2_IO', 'broken off', { cause: signal.reason }));
      };
      const timer = this.#options.clock.after(totalBytes / this.#options.bytesPerMs, () => {
        signal.removeEventListener('abort', abort);
        resolve();
      });
      if (signal.aborted) abort();
      else signal.addEventListener('abort', abort, { once: true });
    });
  }
}

export const backendType: L2BackendType = {
  typeName: 'mock',
  about: 'Memory of this process at a chosen speed, for tests and for planning.',
  keys: {
    max_size_gb: { kind: 'number', min: 1 / GIB, about: 'GiB that the store may hold.' },
    mock_bandwidth_gb: { kind: 'number', min: 1 / GIB, about: 'GiB per second and batch.' },
  },
  capacityBytes: (values) => Math.floor((values['max_size_gb'] as number) * GIB),
  async open(values, { clock }) {
    return new MockStore({
      capacityBytes: this.capacityBytes(values),
      bytesPerMs: ((values['mock_bandwidth_gb'] as number) * GIB) / 1000,
      clock,
    });
  },
};
