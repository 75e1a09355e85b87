/**
 * Door to the departures of the core: readable objects that have left the index, counted by
 * namespace, some of them by name (assembly/departures.ts).
 *
 * Whoever watches takes what there is after each call that may have removed something, in the same
 * turn of the event loop: namespace ids are good for no longer.
 */
import { type CoreExports, REGION } from './instance.ts';
import { NAMESPACE_COUNT_MAX } from './namespaces.ts';

export interface Departures {
  readonly objectCount: number;
  readonly bytes: number;
  readonly byNamespace: readonly { readonly namespaceId: number; readonly objectCount: number }[];
  /** Chunk hashes as text, a character for each byte (Latin-1). */
  readonly named: readonly { readonly namespaceId: number; readonly chunkHash: string }[];
  /** Should have been named, too, but there was no room. */
  readonly unnamedCount: number;
}

const DEPARTED_SIZE_WORDS = 2;
const NAMED_SIZE_BYTES = 36;
const NAMESPACE_OFFSET = 32;

export class DepartureWatch {
  readonly #core: CoreExports;
  readonly #namedMax: number;
  /** One entry for each namespace that has lost objects; null while nobody watches. */
  #departed: Uint32Array | null = null;
  readonly #named: Buffer;
  readonly #view: DataView;

  constructor(core: CoreExports) {
    const { buffer } = core.memory;
    this.#core = core;
    this.#namedMax = core.departures_named_max();
    const named = core.region_offset(REGION.namedDepartures);
    this.#named = Buffer.from(buffer, named, NAMED_SIZE_BYTES * this.#namedMax);
    this.#view = new DataView(buffer, named, NAMED_SIZE_BYTES * this.#namedMax);
  }

  /** Objects are named whose hash begins with a big-endian number below this; 0 = none. */
  start(hashThreshold: number): void {
    this.#core.departures_watch(hashThreshold);
    const departed = this.#core.region_offset(REGION.departed);
    const wordCount = DEPARTED_SIZE_WORDS * NAMESPACE_COUNT_MAX;
    this.#departed = new Uint32Array(this.#core.memory.buffer, departed, wordCount);
  }

  /** Null when nothing has left since the last time, or nobody has started. */
  take(hashSizeBytes: number): Departures | null {
    const departed = this.#departed;
    if (!departed) return null;
    const namedTotal = this.#core.departures_named_count();
    const bytes = this.#core.departures_bytes();
    const count = this.#core.departures_take();
    if (count === 0) return null;
    const byNamespace = Array.from({ length: count }, (_, i) => ({
      namespaceId: departed[i * DEPARTED_SIZE_WORDS] as number,
      objectCount: departed[i * DEPARTED_SIZE_WORDS + 1] as number,
    }));
    const namedCount = Math.min(namedTotal, this.#namedMax);
    return {
      objectCount: byNamespace.reduce((sum, { objectCount }) => sum + objectCount, 0),
      bytes,
      byNamespace,
      named: Array.from({ length: namedCount }, (_, i) => this.#namedAt(i, hashSizeBytes)),
      unnamedCount: namedTotal - namedCount,
    };
  }

  #namedAt(index: number, hashSizeBytes: number) {
    const at = index * NAMED_SIZE_BYTES;
    const namespaceId = this.#view.getUint32(at + NAMESPACE_OFFSET, true);
    return { namespaceId, chunkHash: this.#named.toString('latin1', at, at + hashSizeBytes) };
  }
}
