/**
 * A stretch of host memory that kvd owns: the bytes of L1.
 *
 * Addresses are reserved at once, pages come later. `prepareAhead` lets a thread of the shim fill
 * in pages a bounded way beyond the highest used byte, so that copies meet pages that exist and an
 * idle server stays small:
 *
 *      0          used up to here      prepared                          sizeBytes
 *      ├───────────────┤ ── window ──────▶ ┤ ┄┄┄ addresses only ┄┄┄┄┄┄┄┄┄┄┄ ┤
 *      window = as much again as is used, at least 32 MiB, at most 256 MiB
 *
 * Views. One ArrayBuffer spans the whole memory and is made on first use. `close` detaches it, so
 * a view that somebody kept reads as empty instead of as a segmentation fault. Devices that copy
 * to the memory hold it (`retain`): closing it under them is a broken invariant of ours.
 */
import { assert } from '../assert.ts';
import { alignUp, MIB } from '../units.ts';
import type { Handle, Segment, Shim } from './shim.ts';

const WINDOW_BYTES_MIN = 32 * MIB;
const WINDOW_BYTES_MAX = 256 * MIB;
/** Every small object would wake the thread up; it works in pieces of this size anyway. */
const TARGET_STEP_BYTES = 2 * MIB;

export class HostMemory {
  readonly sizeBytes: number;
  readonly #shim: Shim;
  readonly #segment: Segment;
  #preparer: Handle | null = null;
  #buffer: ArrayBuffer | null = null;
  #highWaterBytes = 0;
  #targetBytes = 0;
  #holderCount = 0;
  #isOpen = true;
  #isKept = false;

  /** `sizeBytes` may be less than the segment, which is rounded up to its page size. */
  constructor(shim: Shim, segment: Segment, sizeBytes: number) {
    assert(sizeBytes <= segment.sizeBytes, 'memory larger than its segment');
    this.#shim = shim;
    this.#segment = segment;
    this.sizeBytes = sizeBytes;
  }

  /** For plans of `device/` alone. */
  get base(): bigint {
    return this.#segment.base;
  }

  /** For plans of `device/` alone. */
  get segment(): Segment {
    return this.#segment;
  }

  /** Bytes from the start on that are in use or whose pages exist. */
  get preparedBytes(): number {
    if (this.#preparer === null) return 0;
    return Math.min(this.#shim.preparerState(this.#preparer).preparedBytes, this.sizeBytes);
  }

  /** Null while pages come; else why the kernel gave no more of them. */
  get preparationCode(): number | null {
    if (this.#preparer === null) return null;
    return this.#shim.preparerState(this.#preparer).code || null;
  }

  /** Populates pages beyond `highWaterBytes`, the end of the highest object so far. Cheap. */
  prepareAhead(highWaterBytes: number): void {
    assert(this.#isOpen, 'memory is closed');
    if (highWaterBytes <= this.#highWaterBytes) return;
    this.#highWaterBytes = highWaterBytes;
    this.#preparer ??= this.#shim.openPreparer(this.#segment);
    const windowBytes = Math.min(Math.max(highWaterBytes, WINDOW_BYTES_MIN), WINDOW_BYTES_MAX);
    const wantedBytes = alignUp(highWaterBytes + windowBytes, TARGET_STEP_BYTES);
    const targetBytes = Math.min(wantedBytes, this.sizeBytes);
    if (targetBytes === this.#targetBytes) return;
    this.#targetBytes = targetBytes;
    this.#shim.setPreparerTarget(this.#preparer, highWaterBytes, targetBytes);
  }

  view(offset: number, length: number): Uint8Array {
    assert(this.#isOpen, 'memory is closed');
    assert(
      Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= 0 && length >= 0,
      `view of ${length} bytes at ${offset}`,
    );
    assert(offset + length <= this.sizeBytes, `view to ${offset + length} of ${this.sizeBytes}`);
    this.#buffer ??= this.#shim.viewMemory(this.#segment.base, this.sizeBytes);
    return new Uint8Array(this.#buffer, offset, length);
  }

  retain(): void {
    assert(this.#isOpen, 'memory is closed');
    this.#holderCount += 1;
  }

  release(): void {
    assert(this.#holderCount > 0, 'memory released more often than retained');
    this.#holderCount -= 1;
  }

  /**
   * Somebody still writes to it and cannot be stopped. `close` leaves it mapped, and the end of the
   * process takes it: what comes late must not land in what is mapped there next.
   */
  keepMapped(): void {
    this.#isKept = true;
  }

  async close(): Promise<void> {
    if (!this.#isOpen) return;
    assert(this.#holderCount === 0, `memory closed under ${this.#holderCount} devices`);
    this.#isOpen = false;
    // A transfer to length 0 is the way to detach a buffer: its views become empty.
    this.#buffer?.transfer(0);
    if (this.#preparer !== null) await this.#shim.closePreparer(this.#preparer);
    if (!this.#isKept) await this.#shim.closeSegment(this.#segment);
  }
}
