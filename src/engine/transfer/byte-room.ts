/**
 * A bound on bytes that are in use at the same time. Who finds no room waits for it, first come
 * first served; waiting is bounded by the deadlines and the number of the requests that wait. What
 * is larger than the whole room has it to itself: it could never be served otherwise.
 */
export class ByteRoom {
  readonly bytesMax: number;
  readonly #waiting: { readonly sizeBytes: number; readonly enter: () => void }[] = [];
  #usedBytes = 0;

  constructor(bytesMax: number) {
    this.bytesMax = bytesMax;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  get waitingCount(): number {
    return this.#waiting.length;
  }

  /** Runs `use` when there is room for it, and gives the room back when it has settled. */
  async within<T>(sizeBytes: number, use: () => Promise<T>): Promise<T> {
    if (this.#waiting.length === 0 && this.#fits(sizeBytes)) this.#usedBytes += sizeBytes;
    else await new Promise<void>((enter) => this.#waiting.push({ sizeBytes, enter }));
    try {
      return await use();
    } finally {
      this.#usedBytes -= sizeBytes;
      this.#admit();
    }
  }

  #admit(): void {
    for (let next = this.#waiting[0]; next && this.#fits(next.sizeBytes); next = this.#waiting[0]) {
      this.#waiting.shift();
      this.#usedBytes += next.sizeBytes;
      next.enter();
    }
  }

  #fits(sizeBytes: number): boolean {
    return this.#usedBytes === 0 || this.#usedBytes + sizeBytes <= this.bytesMax;
  }
}
