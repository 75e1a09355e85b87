/** Stores that wait for room, first come first served. */
interface Waiter {
  missingBytes: number;
  readonly resolve: () => void;
}

export class RoomQueue {
  #waiters: Waiter[] = [];

  /** What all of them lack. */
  get neededBytes(): number {
    return this.#waiters.reduce((sum, { missingBytes }) => sum + missingBytes, 0);
  }

  wait(sizeBytes: number): Promise<void> {
    return new Promise((resolve) => {
      this.#waiters.push({ missingBytes: sizeBytes, resolve });
    });
  }

  free(sizeBytes: number): void {
    let bytes = sizeBytes;
    for (const waiter of this.#waiters) {
      const given = Math.min(bytes, waiter.missingBytes);
      waiter.missingBytes -= given;
      bytes -= given;
      if (waiter.missingBytes === 0) waiter.resolve();
    }
    this.#waiters = this.#waiters.filter(({ missingBytes }) => missingBytes > 0);
  }

  /** There is no more: they go on with what they have. */
  giveUp(): void {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const { resolve } of waiters) resolve();
  }
}
