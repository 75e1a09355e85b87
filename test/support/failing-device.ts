/** A block device in memory that can lose power, be full, or refuse buffers. */
import type { BlockDevice } from '../../src/l2/raw-block/block-device.ts';

interface Write {
  readonly position: number;
  readonly bytes: Buffer;
  isDone: boolean;
}

/** What a device may hold after a crash. */
export interface Remains {
  readonly powerLost: Buffer;
  readonly killed: Buffer;
}

export class FailingDevice implements BlockDevice {
  /** Since the last sync, and those that are under way. */
  #unsynced: Write[] = [];
  readonly #bytes: Buffer;
  readonly #durable: Buffer;
  #writeCount = 0;
  /** Thrown by writes at and beyond this position. */
  writeError: Error | null = null;
  writeErrorFrom = 0;
  writeErrorTo = Number.POSITIVE_INFINITY;
  /** Buffers of this memory are refused as the kernel refuses odd addresses. */
  refused: ArrayBufferLike | null = null;
  isClosed = false;
  syncCount = 0;
  /** Called with the number of a write that has begun. */
  onWrite: (writeCount: number) => void = () => {};
  /** Awaited before each read. */
  beforeRead: () => Promise<void> = () => Promise.resolve();

  constructor(content: number | Buffer) {
    this.#bytes = typeof content === 'number' ? Buffer.alloc(content) : Buffer.from(content);
    this.#durable = Buffer.from(this.#bytes);
  }

  get sizeBytes(): number {
    return this.#bytes.length;
  }

  async read(buffers: readonly Uint8Array[], position: number): Promise<void> {
    this.#checkBuffers(buffers);
    await this.beforeRead();
    let at = position;
    for (const buffer of buffers) {
      buffer.set(this.#bytes.subarray(at, at + buffer.length));
      at += buffer.length;
    }
  }

  async write(buffers: readonly Uint8Array[], position: number): Promise<void> {
    this.#checkBuffers(buffers);
    const isFailing = position >= this.writeErrorFrom && position < this.writeErrorTo;
    if (this.writeError && isFailing) throw this.writeError;
    const write = { position, bytes: Buffer.concat(buffers), isDone: false };
    this.#unsynced.push(write);
    this.#writeCount += 1;
    this.onWrite(this.#writeCount);
    // The bytes arrive in a later turn, as with a device.
    await new Promise((resolve) => setImmediate(resolve));
    write.bytes.copy(this.#bytes, position);
    write.isDone = true;
  }

  async sync(): Promise<void> {
    const done = this.#unsynced.filter(({ isDone }) => isDone);
    await new Promise((resolve) => setImmediate(resolve));
    this.syncCount += 1;
    for (const { position, bytes } of done) bytes.copy(this.#durable, position);
    this.#unsynced = this.#unsynced.filter((write) => !done.includes(write));
  }

  async close(): Promise<void> {
    this.isClosed = true;
  }

  /** If it happened now. `keep` says how much is kept of each write that may be lost, 0 to 1. */
  remains(keep: () => number): Remains {
    const powerLost = Buffer.from(this.#durable);
    const killed = Buffer.from(this.#bytes);
    const apply = (image: Buffer, { position, bytes }: Write): void => {
      bytes.copy(image, position, 0, Math.floor((keep() * bytes.length) / 512) * 512);
    };
    for (const write of this.#unsynced) {
      apply(powerLost, write);
      if (!write.isDone) apply(killed, write);
    }
    return { powerLost, killed };
  }

  #checkBuffers(buffers: readonly Uint8Array[]): void {
    if (buffers.every(({ buffer }) => buffer !== this.refused)) return;
    throw Object.assign(new Error('invalid argument'), { code: 'EINVAL' });
  }
}
