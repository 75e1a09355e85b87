/** An L2 adapter as eviction sees it: only its accounts, and what it was asked to delete. */
import { KvdError } from '../../src/errors.ts';
import type { DeleteResult } from '../../src/l2/backend.ts';
import type { L2Listener } from '../../src/l2/inventory.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { UsageLedger } from '../../src/l2/usage-ledger.ts';
import type { ManagedStore } from '../../src/storage/l2/managed-store.ts';

export class EvictedStore implements ManagedStore {
  readonly id: number;
  readonly typeName = 'double';
  readonly deletes: (readonly ObjectKey[])[] = [];
  isScanning = false;
  /** Null: deletes are done at once; else they wait. */
  gate: Promise<void> | null = null;
  deleteFailure: Error | null = null;
  locks: (key: ObjectKey) => boolean = () => false;
  /** Refuses these though nobody has locked them. */
  refuses: (key: ObjectKey) => boolean = () => false;
  makeRoom: (neededBytes: number) => Promise<void> = () => Promise.resolve();
  readonly #ledger: UsageLedger;
  readonly #listeners: L2Listener[] = [];

  constructor({ id = 0, capacityBytes = 0 } = {}) {
    this.id = id;
    this.#ledger = new UsageLedger(capacityBytes);
  }

  store(objects: readonly (readonly [ObjectKey, number])[]): void {
    const keys = objects.map(([key]) => key);
    const sizes = objects.map(([, sizeBytes]) => sizeBytes);
    for (const [key, sizeBytes] of objects) this.#ledger.add(key, sizeBytes);
    for (const listener of this.#listeners) listener.stored(keys, sizes);
  }

  /** What a scan lists, oldest first. */
  find(objects: readonly (readonly [ObjectKey, number])[]): void {
    for (const [key, sizeBytes] of objects) this.#ledger.add(key, sizeBytes);
    const keys = objects.map(([key]) => key);
    const sizes = objects.map(([, sizeBytes]) => sizeBytes);
    for (const listener of this.#listeners) listener.found(keys, sizes);
  }

  access(keys: readonly ObjectKey[]): void {
    for (const listener of this.#listeners) listener.accessed(keys);
  }

  has(key: ObjectKey): boolean {
    return this.#ledger.has(key);
  }

  async delete(keys: readonly ObjectKey[]): Promise<DeleteResult[]> {
    this.deletes.push(keys);
    if (this.deleteFailure) throw this.deleteFailure;
    await this.gate;
    const refused = new KvdError('ERR_L2_LOCKED', 'refused');
    const results = keys.map((key) => (this.refuses(key) ? refused : 'deleted'));
    const gone = keys.filter((key) => !this.refuses(key));
    for (const key of gone) this.#ledger.remove(key);
    for (const listener of this.#listeners) listener.deleted(gone);
    return results;
  }

  isLocked(key: ObjectKey): boolean {
    return this.locks(key);
  }

  usage() {
    return this.#ledger.usage();
  }

  onChange(listener: L2Listener): void {
    this.#listeners.push(listener);
  }

  onFull(makeRoom: (neededBytes: number) => Promise<void>): void {
    this.makeRoom = makeRoom;
  }
}
