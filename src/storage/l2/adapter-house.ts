/**
 * Adapters from their configuration to their end: opens, attaches, drains, closes.
 *
 *   add:    open ─▶ eviction follows it ─▶ attach (stores and lookups use it) ─▶ scan
 *   remove: drain (no new work; what runs ends) ─▶ detach ─▶ eviction lets go ─▶ close
 *
 * Used at start, in the order of the flags, and by whoever changes a running server.
 */
import type { L2Adapter } from '../../l2/adapter.ts';
import type { AdapterSpec, SpecReader } from '../../l2/adapter-spec.ts';
import { type OpenOptions, openAdapter } from '../../l2/open-adapter.ts';
import type { Serde } from '../../l2/serde/serde.ts';
import type { AdapterTable } from './adapter-table.ts';
import type { L2Eviction } from './l2-eviction.ts';

export interface AdapterHouseOptions extends Omit<OpenOptions, 'id'> {
  readonly reader: SpecReader;
  readonly adapters: AdapterTable;
  readonly eviction: Pick<L2Eviction, 'add' | 'remove'>;
}

interface Resident {
  readonly adapter: L2Adapter;
  readonly serde: Serde | null;
}

export class AdapterHouse {
  readonly #options: AdapterHouseOptions;
  /** Ascending by id. */
  readonly #residents = new Map<number, Resident>();
  #nextId = 0;

  constructor(options: AdapterHouseOptions) {
    this.#options = options;
  }

  get adapters(): readonly L2Adapter[] {
    return [...this.#residents.values()].map(({ adapter }) => adapter);
  }

  find(id: number): L2Adapter | undefined {
    return this.#residents.get(id)?.adapter;
  }

  /** Why adapters cannot transform objects of this layout, one text for each that cannot. */
  refusalsOf(layoutText: string): string[] {
    return [...this.#residents.values()].flatMap(({ adapter, serde }) => {
      const refusal = serde?.refusalOf(layoutText) ?? null;
      return refusal === null ? [] : [`L2 adapter ${adapter.id} (${adapter.typeName}): ${refusal}`];
    });
  }

  /** Rejects with `ERR_CONFIG` when it cannot be opened; then nothing is left of it. */
  async add(spec: AdapterSpec): Promise<L2Adapter> {
    const { adapters, eviction } = this.#options;
    const id = this.#nextId;
    this.#nextId += 1;
    const { adapter, serde } = await openAdapter(spec, { ...this.#options, id });
    this.#residents.set(id, { adapter, serde });
    eviction.add(adapter, spec.settings.eviction);
    adapters.attach(adapter);
    adapter.start();
    return adapter;
  }

  /** False: something still uses it after `timeoutMs`; it stays, without new work. */
  async remove(id: number, timeoutMs: number): Promise<boolean> {
    const { adapters, eviction } = this.#options;
    if (!(await adapters.drain(id, timeoutMs))) return false;
    const resident = this.#residents.get(id);
    // Somebody else has asked for the same and was faster.
    if (!resident) return true;
    this.#residents.delete(id);
    adapters.detach(id);
    eviction.remove(id);
    await resident.adapter.close();
    return true;
  }

  /** All of them. `isIdle`: nothing of L1 is in use; else what is has had its time. */
  async close(isIdle = true): Promise<void> {
    const { eviction } = this.#options;
    const residents = [...this.#residents.values()];
    for (const { adapter } of residents) eviction.remove(adapter.id);
    await Promise.all(residents.map(({ adapter }) => adapter.close(isIdle)));
  }
}
