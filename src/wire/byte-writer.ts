/** Bytes one after the other, in a buffer that grows and is used again: the ground of codecs. */
const INITIAL_SIZE_BYTES = 1024;
/** Results above this are handed over instead of copied; the writer then takes a new buffer. */
export const COPY_SIZE_MAX = 4096;

export class ByteWriter {
  protected buffer: Buffer = Buffer.allocUnsafeSlow(INITIAL_SIZE_BYTES);
  protected length = 0;

  /** Forgets what an interrupted caller may have left. */
  reset(): void {
    this.length = 0;
  }

  /** The bytes written since the last call or reset. They belong to the caller. */
  take(): Buffer {
    const written = this.buffer.subarray(0, this.length);
    this.length = 0;
    if (written.length <= COPY_SIZE_MAX) return Buffer.from(written);
    this.buffer = Buffer.allocUnsafeSlow(INITIAL_SIZE_BYTES);
    return written;
  }

  protected writeByte(value: number): void {
    const at = this.reserve(1);
    this.buffer[at] = value;
  }

  /** Makes room for `length` bytes and returns where they go. */
  protected reserve(length: number): number {
    const at = this.length;
    const end = at + length;
    if (end > this.buffer.length) {
      const grown = Buffer.allocUnsafeSlow(Math.max(end, this.buffer.length * 2));
      this.buffer.copy(grown, 0, 0, at);
      this.buffer = grown;
    }
    this.length = end;
    return at;
  }
}
