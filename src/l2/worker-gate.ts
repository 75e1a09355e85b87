/**
 * So many calls at once and not more, over all batches of a backend.
 *
 * Each running call has a number that no other has meanwhile, for what is kept once per worker.
 */
export class WorkerGate {
  readonly #workerCount: number;
  readonly #free: number[];
  readonly #waiting: ((worker: number) => void)[] = [];

  constructor(workerCount: number) {
    this.#workerCount = workerCount;
    this.#free = Array.from({ length: workerCount }, (_, worker) => worker);
  }

  /** Results in the order of the items. `work` must not reject. */
  async map<Item, Result>(
    items: readonly Item[],
    work: (item: Item, worker: number) => Promise<Result>,
  ): Promise<Result[]> {
    const results: Result[] = new Array(items.length);
    let nextIndex = 0;
    const lane = async (): Promise<void> => {
      while (nextIndex < items.length) {
        const index = nextIndex;
        nextIndex += 1;
        const worker = await this.#enter();
        try {
          results[index] = await work(items[index] as Item, worker);
        } finally {
          this.#leave(worker);
        }
      }
    };
    const laneCount = Math.min(this.#workerCount, items.length);
    await Promise.all(Array.from({ length: laneCount }, lane));
    return results;
  }

  async #enter(): Promise<number> {
    const worker = this.#free.pop();
    if (worker !== undefined) return worker;
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #leave(worker: number): void {
    const next = this.#waiting.shift();
    if (next) next(worker);
    else this.#free.push(worker);
  }
}
