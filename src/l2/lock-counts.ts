/** Objects that somebody has found and not yet loaded: `delete` leaves them. */
import type { ObjectKey } from './object-key.ts';
import { ObjectMap } from './object-map.ts';

export class LockCounts {
  readonly #counts = new ObjectMap<number>();

  /** Objects with at least one lock. */
  get size(): number {
    return this.#counts.size;
  }

  isLocked(key: ObjectKey): boolean {
    return this.#counts.has(key);
  }

  lock(key: ObjectKey): void {
    this.#counts.set(key, (this.#counts.get(key) ?? 0) + 1);
  }

  /** Of an object that is not locked: nothing. */
  unlock(key: ObjectKey): void {
    const count = this.#counts.get(key);
    if (count === undefined) return;
    if (count === 1) this.#counts.delete(key);
    else this.#counts.set(key, count - 1);
  }
}
