/** Lets calls through while the bytes that they move stay below a bound, in the order they come. */

interface Waiter {
  readonly sizeBytes: number;
  readonly pass: () => void;
}

export class ByteGate {
  readonly #maxBytes: number;
  readonly #waiters: Waiter[] = [];
  #inFlightBytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get inFlightBytes(): number {
    return this.#inFlightBytes;
  }

  get waiterCount(): number {
    return this.#waiters.length;
  }

  /**
   * Fulfils with true when `sizeBytes` may be moved, and then they have to be left; with false when
   * the signal is over first. More than the bound pass alone.
   */
  async enter(sizeBytes: number, signal: AbortSignal): Promise<boolean> {
    if (signal.aborted) return false;
    if (this.#waiters.length === 0 && this.#hasRoom(sizeBytes)) {
      this.#inFlightBytes += sizeBytes;
      return true;
    }
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const waiter = { sizeBytes, pass: () => resolve(true) };
    this.#waiters.push(waiter);
    const giveUp = (): void => {
      const index = this.#waiters.indexOf(waiter);
      if (index < 0) return;
      this.#waiters.splice(index, 1);
      resolve(false);
      this.#admit();
    };
    signal.addEventListener('abort', giveUp, { once: true });
    const hasPassed = await promise;
    signal.removeEventListener('abort', giveUp);
    if (!hasPassed || !signal.aborted) return hasPassed;
    // Another call with this signal has given up and let it through.
    this.leave(sizeBytes);
    return false;
  }

  leave(sizeBytes: number): void {
    this.#inFlightBytes -= sizeBytes;
    this.#admit();
  }

  #hasRoom(sizeBytes: number): boolean {
    return this.#inFlightBytes === 0 || this.#inFlightBytes + sizeBytes <= this.#maxBytes;
  }

  #admit(): void {
    for (;;) {
      const waiter = this.#waiters[0];
      if (!waiter || !this.#hasRoom(waiter.sizeBytes)) return;
      this.#waiters.shift();
      this.#inFlightBytes += waiter.sizeBytes;
      waiter.pass();
    }
  }
}
