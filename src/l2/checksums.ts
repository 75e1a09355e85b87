/**
 * Checksums of what this server has stored since its start, kept in memory: nothing is added to the
 * values, so the peer can read them. A value without one is unchecked. CRC-32 finds what media and
 * networks do to bytes; against people there is the serde `aesgcm`.
 */
import { crc32 } from 'node:zlib';
import type { L2Object } from './backend.ts';
import type { ObjectKey } from './object-key.ts';
import { ObjectMap } from './object-map.ts';
import { inSlices } from './serde/slices.ts';

/** Bytes between two turns of the event loop: about 0.3 ms. */
const SLICE_BYTES = 1024 * 1024;
/** Objects beyond that are unchecked: about 512 MB. */
const OBJECT_COUNT_MAX = 4 * 1024 * 1024;

export async function checksumOf(bytes: Uint8Array): Promise<number> {
  let checksum = 0;
  await inSlices({ count: bytes.length, sliceCount: SLICE_BYTES }, (from, to) => {
    checksum = crc32(bytes.subarray(from, to), checksum);
  });
  return checksum;
}

export class Checksums {
  readonly #values = new ObjectMap<number>();

  set(key: ObjectKey, checksum: number): void {
    if (this.#values.size < OBJECT_COUNT_MAX || this.#values.has(key)) {
      this.#values.set(key, checksum);
    }
  }

  delete(key: ObjectKey): void {
    this.#values.delete(key);
  }

  /** False: these are not the bytes that were stored. */
  async agrees({ key, bytes }: L2Object): Promise<boolean> {
    const expected = this.#values.get(key);
    return expected === undefined || (await checksumOf(bytes)) === expected;
  }
}
