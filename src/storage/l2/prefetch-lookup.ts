/**
 * One question to one adapter: which of these objects it has. What it has is locked in it until
 * somebody gives it back, here or at the end of a load (`Loads`).
 */
import type { ObjectKey } from '../../l2/object-key.ts';
import type { AttachedAdapter } from './adapter-table.ts';
import { nameObject } from './layout-names.ts';

/** An object that L1 lacks. */
export interface WantedObject {
  /** Its plain name. */
  readonly key: ObjectKey;
  readonly layoutText: string;
  readonly sizeBytes: number;
}

/** Names of one slice of the event loop, about 1 ms. */
const SLICE_OBJECT_COUNT = 1024;

export class PrefetchLookup {
  readonly adapter: AttachedAdapter;
  /** 1 for each wanted object that it has; null while it is asked, or when it cannot be. */
  found: Uint8Array | null = null;
  /** The names of the wanted objects in this adapter, once it has answered. */
  names: readonly ObjectKey[] = [];
  #isRunning = true;
  #isClosed = false;

  constructor(adapter: AttachedAdapter) {
    this.adapter = adapter;
  }

  /** Never rejects. */
  async run(wanted: readonly WantedObject[], timeoutMs: number): Promise<void> {
    const { store } = this.adapter;
    this.adapter.beginUse();
    try {
      const names = await this.#nameAll(wanted);
      if (this.#isClosed) return;
      const sizesBytes = Float64Array.from(wanted, ({ sizeBytes }) => sizeBytes);
      const found = await store.lookup(names, sizesBytes, timeoutMs);
      this.names = names;
      this.found = found;
      if (this.#isClosed) this.#giveBack(() => true);
    } catch {
      // An adapter that cannot say whose its objects are has none.
    } finally {
      this.#isRunning = false;
      if (this.#isClosed) this.adapter.endUse();
    }
  }

  /** Once. Gives the locks back that no load has taken over, also those of a late answer. */
  close(isTaken: (index: number) => boolean): void {
    this.#isClosed = true;
    if (!this.#isRunning) this.adapter.endUse();
    if (this.found) this.#giveBack((index) => !isTaken(index));
  }

  #giveBack(isDue: (index: number) => boolean): void {
    const due = this.names.filter((_, index) => this.found?.[index] && isDue(index));
    if (due.length > 0) this.adapter.store.unlock(due);
  }

  async #nameAll(wanted: readonly WantedObject[]): Promise<ObjectKey[]> {
    const names: ObjectKey[] = [];
    for (const { key, layoutText } of wanted) {
      const naming = this.adapter.names.forLoad(key, layoutText);
      names.push(nameObject(key, naming instanceof Promise ? await naming : naming));
      if (names.length % SLICE_OBJECT_COUNT === 0) {
        await new Promise((resolve) => setImmediate(resolve));
      }
    }
    return names;
  }
}
