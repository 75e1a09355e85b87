/**
 * Door to the removal records of the core: announced chunks that are whole no more
 * (assembly/removal-records.ts).
 *
 * `ObjectTable` asks after every call that may have left some, so a listener hears of a removal in
 * the turn that made it, before anything can be stored in its place. As long as nothing has been
 * announced there is nothing to ask for.
 */
import { type CoreExports, REGION } from './instance.ts';

/** Chunks that ended, in order; copies. */
export interface RemovedChunks {
  readonly hashes: readonly Uint8Array[];
  /** Of the object that was the first to leave; good in this turn of the event loop. */
  readonly namespaceIds: Uint32Array;
}

export interface RemovalListener {
  removed(chunks: RemovedChunks): void;
  /** All chunks that have been announced are gone. */
  cleared(): void;
  /** Some chunks are gone and it is not known which. */
  lost(): void;
}

const RECORD_SIZE_BYTES = 36;
const NAMESPACE_OFFSET = 32;

export class RemovalRecords {
  readonly #core: CoreExports;
  readonly #countMax: number;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #listener: RemovalListener | null = null;
  /** Of the chunks that have been announced; 0 = none yet. */
  #hashSizeBytes = 0;

  constructor(core: CoreExports) {
    const { buffer } = core.memory;
    const offset = core.region_offset(REGION.removalRecords);
    this.#core = core;
    this.#countMax = core.removals_count_max();
    this.#bytes = new Uint8Array(buffer, offset, this.#countMax * RECORD_SIZE_BYTES);
    this.#view = new DataView(buffer, offset, this.#countMax * RECORD_SIZE_BYTES);
  }

  /** There is one listener: `L1Manager`, which tells all others. */
  listen(listener: RemovalListener): void {
    this.#listener = listener;
  }

  /** From now on there is something to ask for: chunks with hashes of this size. */
  noteAnnounced(hashSizeBytes: number): void {
    this.#hashSizeBytes = hashSizeBytes;
  }

  /** Passes on what the calls since the last time have left. */
  pass(): void {
    if (this.#hashSizeBytes === 0) return;
    const count = this.#core.removals_take();
    if (count === 0 || !this.#listener) return;
    if (count > this.#countMax) this.#listener.lost();
    else this.#listener.removed(this.#copy(count));
  }

  /** The last call has taken every key away: one message for all of them. */
  passCleared(): void {
    if (this.#hashSizeBytes === 0) return;
    this.#core.removals_take();
    this.#listener?.cleared();
  }

  #copy(count: number): RemovedChunks {
    const size = this.#hashSizeBytes;
    const bytes = new Uint8Array(count * size);
    const hashes: Uint8Array[] = [];
    const namespaceIds = new Uint32Array(count);
    for (let i = 0; i < count; i += 1) {
      const at = i * RECORD_SIZE_BYTES;
      bytes.set(this.#bytes.subarray(at, at + size), i * size);
      hashes.push(bytes.subarray(i * size, (i + 1) * size));
      namespaceIds[i] = this.#view.getUint32(at + NAMESPACE_OFFSET, true);
    }
    return { hashes, namespaceIds };
  }
}
