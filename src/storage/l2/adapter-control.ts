/**
 * What operators may ask of the L2 adapters of a running server: lists, deletions, and changes of
 * the adapters themselves (spec http 5, storage 12). What is running is finished before something
 * is taken away; nothing here is on the data path.
 */
import { KvdError } from '../../errors.ts';
import type { L2Adapter } from '../../l2/adapter.ts';
import { readAdapterSpec, type SpecReader } from '../../l2/adapter-spec.ts';
import type { DeleteResult, ListOptions, ListPage } from '../../l2/backend.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import type { AdapterHouse } from './adapter-house.ts';
import type { AdapterTable } from './adapter-table.ts';

/** A list that people read; more would be a mistake. */
const ADAPTER_COUNT_MAX = 64;
const PAGE_SIZE = 1000;

export interface AdapterControlOptions {
  readonly house: AdapterHouse;
  readonly adapters: AdapterTable;
  readonly reader: SpecReader;
}

/** An L2 adapter, as lists show it. */
export interface AdapterSummary {
  readonly id: number;
  readonly typeName: string;
  /** Other servers use the same store. */
  readonly isShared: boolean;
  readonly isDraining: boolean;
  readonly isHealthy: boolean;
  readonly canList: boolean;
}

export interface AdapterClearResult {
  readonly adapter: AdapterSummary;
  readonly removedObjectCount: number;
  /** Somebody is about to load them. */
  readonly skippedObjectCount: number;
  readonly freedBytes: number;
  /** Why it is not all that should be gone; null = it is. */
  readonly error: string | null;
}

export class AdapterControl {
  readonly #options: AdapterControlOptions;

  constructor(options: AdapterControlOptions) {
    this.#options = options;
  }

  /** Ascending by id. */
  list(): AdapterSummary[] {
    return this.#options.house.adapters.map((adapter) => this.#view(adapter));
  }

  listObjects(id: number, request: Omit<ListOptions, 'signal'>): Promise<ListPage> {
    return this.#get(id).list(request);
  }

  deleteObjects(id: number, keys: readonly ObjectKey[]): Promise<DeleteResult[]> {
    return this.#get(id).delete(keys);
  }

  /** Objects that a lookup has found and not yet loaded stay. */
  async clear(): Promise<AdapterClearResult[]> {
    const { adapters } = this.#options.house;
    return Promise.all(adapters.map((adapter) => this.#clearOne(adapter)));
  }

  /** `given`: as the JSON of `--l2-adapter`. Rejects with `ERR_CONFIG` when it cannot work. */
  async addAdapter(given: unknown): Promise<AdapterSummary> {
    const { house, reader } = this.#options;
    if (house.adapters.length >= ADAPTER_COUNT_MAX) {
      throw new KvdError('ERR_OVERLOADED', `expected at most ${ADAPTER_COUNT_MAX} L2 adapters`);
    }
    const adapter = await house.add(readAdapterSpec(given, 'the adapter', reader));
    return this.#view(adapter);
  }

  /** False: something still uses it after `timeoutMs`. It gets no new work either way. */
  drainAdapter(id: number, timeoutMs: number): Promise<boolean> {
    return this.#options.adapters.drain(id, timeoutMs);
  }

  /** False as with `drainAdapter`; then it is still there. */
  removeAdapter(id: number, timeoutMs: number): Promise<boolean> {
    return this.#options.house.remove(id, timeoutMs);
  }

  #get(id: number): L2Adapter {
    const adapter = this.#options.house.find(id);
    if (!adapter) throw new KvdError('ERR_BAD_REQUEST', `No L2 adapter with id ${id}`);
    return adapter;
  }

  #view({ id, typeName, settings, isHealthy, canList }: L2Adapter): AdapterSummary {
    const { isDraining } = this.#options.adapters.get(id);
    return { id, typeName, isShared: settings.isShared, isDraining, isHealthy, canList };
  }

  async #clearOne(adapter: L2Adapter): Promise<AdapterClearResult> {
    const view = this.#view(adapter);
    let [removedObjectCount, skippedObjectCount, freedBytes] = [0, 0, 0];
    let problem: string | null = null;
    try {
      let token: string | null = null;
      do {
        const page: ListPage = await adapter.list({ modelName: null, pageSize: PAGE_SIZE, token });
        const results = await adapter.delete(page.objects.map(({ key }) => key));
        for (const [i, { sizeBytes }] of page.objects.entries()) {
          const result = results[i];
          if (result === 'deleted') {
            removedObjectCount += 1;
            freedBytes += sizeBytes;
          } else if (result instanceof KvdError && result.code === 'ERR_L2_LOCKED') {
            skippedObjectCount += 1;
          } else if (result instanceof Error) problem ??= result.message;
        }
        token = page.nextToken;
      } while (token !== null);
    } catch (error) {
      // A store without lists, or one that fails half-way: the answer says what was done.
      problem = (error as Error).message;
    }
    return { adapter: view, removedObjectCount, skippedObjectCount, freedBytes, error: problem };
  }
}
