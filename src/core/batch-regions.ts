/**
 * The regions through which lists go into and out of the core, as views that never detach.
 *
 * Object i of a key list is (chunk, namespace) with i = (chunk - firstChunk) * namespaceIds.length
 * + n; see assembly/batch.ts. Longer lists than the regions hold are cut into pieces here.
 */
import { assert } from '../assert.ts';
import { KvdError } from '../errors.ts';
import type { ChunkHashes } from './chunk-hasher.ts';
import { type CoreExports, REGION } from './instance.ts';

export interface ObjectKeys {
  readonly hashes: ChunkHashes;
  readonly firstChunk: number;
  readonly chunkCount: number;
  /** Namespaces (ranks, object groups) that each chunk has an object in. */
  readonly namespaceIds: readonly number[];
}

/** Per object: its slot (NO_SLOT if refused), a code of result.ts, and the lock's generation. */
export interface Reservations {
  readonly slots: Uint32Array;
  readonly codes: Int32Array;
  readonly generations: Uint32Array;
}

/** Ranks times object groups of one chunk; `BATCH_NAMESPACE_COUNT_MAX` of memory-map.ts. */
const NAMESPACE_COUNT_MAX = 4096;
/** Width of a hash in the table; shorter ones are padded with zeros. */
const HASH_SIZE_BYTES = 32;

export class BatchRegions {
  /** Objects of one call. */
  readonly countMax: number;
  readonly slots: Uint32Array;
  readonly codes: Int32Array;
  readonly #hashes: Uint8Array;
  readonly #namespaceIds: Uint32Array;
  readonly #generations: Uint32Array;

  constructor(core: CoreExports, countMax: number) {
    const { buffer } = core.memory;
    const at = (region: number) => core.region_offset(region);
    this.countMax = countMax;
    this.slots = new Uint32Array(buffer, at(REGION.slots), countMax);
    this.codes = new Int32Array(buffer, at(REGION.codes), countMax);
    this.#hashes = new Uint8Array(buffer, at(REGION.keyHashes), HASH_SIZE_BYTES * countMax);
    this.#namespaceIds = new Uint32Array(buffer, at(REGION.namespaces), NAMESPACE_COUNT_MAX);
    this.#generations = new Uint32Array(buffer, at(REGION.generations), countMax);
  }

  /** Pieces of a key list that fit into the regions; usually the list itself. */
  split(keys: ObjectKeys): ObjectKeys[] {
    const width = keys.namespaceIds.length;
    if (width === 0 || width > NAMESPACE_COUNT_MAX) {
      throw new KvdError(
        'ERR_BAD_REQUEST',
        `expected 1 to ${NAMESPACE_COUNT_MAX} ranks and groups of a chunk, got ${width}`,
      );
    }
    const chunkCountMax = Math.floor(this.countMax / width);
    if (keys.chunkCount <= chunkCountMax) return [keys];
    const parts: ObjectKeys[] = [];
    for (let done = 0; done < keys.chunkCount; done += chunkCountMax) {
      const chunkCount = Math.min(chunkCountMax, keys.chunkCount - done);
      parts.push({ ...keys, firstChunk: keys.firstChunk + done, chunkCount });
    }
    return parts;
  }

  /** Loads one piece of a key list. */
  loadKeys(keys: ObjectKeys): void {
    const { hashes, firstChunk, chunkCount, namespaceIds } = keys;
    assert(firstChunk + chunkCount <= hashes.count, 'every chunk of a key list has its hash');
    const { bytes, hashSizeBytes } = hashes;
    if (hashSizeBytes === HASH_SIZE_BYTES) {
      const start = firstChunk * HASH_SIZE_BYTES;
      this.#hashes.set(bytes.subarray(start, start + chunkCount * HASH_SIZE_BYTES));
    } else {
      this.#hashes.fill(0, 0, chunkCount * HASH_SIZE_BYTES);
      for (let chunk = 0; chunk < chunkCount; chunk += 1) {
        const start = (firstChunk + chunk) * hashSizeBytes;
        this.#hashes.set(bytes.subarray(start, start + hashSizeBytes), chunk * HASH_SIZE_BYTES);
      }
    }
    this.#namespaceIds.set(namespaceIds);
  }

  /** First indexes of the pieces of a slot list. */
  starts(length: number): number[] {
    const starts: number[] = [];
    for (let first = 0; first < length; first += this.countMax) starts.push(first);
    return starts;
  }

  /** Loads slots (and their generations) from `first` on, as many as fit; returns how many. */
  loadSlots(slots: Uint32Array, first: number, generations?: Uint32Array): number {
    const count = Math.min(this.countMax, slots.length - first);
    this.slots.set(slots.subarray(first, first + count));
    if (generations) this.#generations.set(generations.subarray(first, first + count));
    return count;
  }

  takeReservations(count: number): Reservations {
    return {
      slots: this.slots.slice(0, count),
      codes: this.codes.slice(0, count),
      generations: this.#generations.slice(0, count),
    };
  }
}

export function concatenate(parts: readonly Uint32Array[]): Uint32Array {
  if (parts.length === 1) return parts[0]!;
  const whole = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let done = 0;
  for (const part of parts) {
    whole.set(part, done);
    done += part.length;
  }
  return whole;
}

export function joinReservations(parts: readonly Reservations[]): Reservations {
  if (parts.length === 1) return parts[0]!;
  const codes = concatenate(parts.map((part) => new Uint32Array(part.codes.buffer)));
  return {
    slots: concatenate(parts.map((part) => part.slots)),
    codes: new Int32Array(codes.buffer),
    generations: concatenate(parts.map((part) => part.generations)),
  };
}
