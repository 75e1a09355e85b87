/**
 * What an adapter's store holds, object by object, so that no event counts twice: a value that is
 * stored again replaces its own bytes, and what was never counted is not subtracted.
 *
 *   used + reserved + needed <= capacity      checked before anything is sent
 *
 * `reserved` is what stores in flight may add. So the bound holds at every moment, except for what
 * others put into the same store.
 */
import type { ObjectKey } from './object-key.ts';
import { ObjectMap } from './object-map.ts';

/** Beyond that, objects are stored and not counted: about 2 GB of keys. */
const OBJECT_COUNT_MAX = 16 * 1024 * 1024;

export interface Usage {
  readonly usedBytes: number;
  /** 0 = unbounded. */
  readonly capacityBytes: number;
  readonly objectCount: number;
  /** Salts with at least one byte. */
  readonly bytesBySalt: ReadonlyMap<string, number>;
}

export class UsageLedger {
  readonly capacityBytes: number;
  readonly #sizes = new ObjectMap<number>();
  readonly #bytesBySalt = new Map<string, number>();
  #usedBytes = 0;
  #reservedBytes = 0;

  constructor(capacityBytes: number) {
    this.capacityBytes = capacityBytes;
  }

  usage(): Usage {
    return {
      usedBytes: this.#usedBytes,
      capacityBytes: this.capacityBytes,
      objectCount: this.#sizes.size,
      bytesBySalt: this.#bytesBySalt,
    };
  }

  has(key: ObjectKey): boolean {
    return this.#sizes.has(key);
  }

  sizeOf(key: ObjectKey): number | undefined {
    return this.#sizes.get(key);
  }

  /** Bytes by which `sizeBytes` more would exceed the capacity; at most 0 = they fit. */
  excessOf(sizeBytes: number): number {
    if (this.capacityBytes === 0) return 0;
    return this.#usedBytes + this.#reservedBytes + sizeBytes - this.capacityBytes;
  }

  reserve(sizeBytes: number): void {
    this.#reservedBytes += sizeBytes;
  }

  release(sizeBytes: number): void {
    this.#reservedBytes -= sizeBytes;
  }

  /** Returns true when the object was not known. */
  add(key: ObjectKey, sizeBytes: number): boolean {
    const before = this.#sizes.get(key);
    if (before === undefined && this.#sizes.size >= OBJECT_COUNT_MAX) return false;
    this.#sizes.set(key, sizeBytes);
    this.#change(key.cacheSalt, sizeBytes - (before ?? 0));
    return before === undefined;
  }

  /** Returns true when the object was known. */
  remove(key: ObjectKey): boolean {
    const sizeBytes = this.#sizes.get(key);
    if (sizeBytes === undefined) return false;
    this.#sizes.delete(key);
    this.#change(key.cacheSalt, -sizeBytes);
    return true;
  }

  #change(cacheSalt: string, deltaBytes: number): void {
    this.#usedBytes += deltaBytes;
    const ofSalt = (this.#bytesBySalt.get(cacheSalt) ?? 0) + deltaBytes;
    if (ofSalt > 0) this.#bytesBySalt.set(cacheSalt, ofSalt);
    else this.#bytesBySalt.delete(cacheSalt);
  }
}
