/**
 * S3-FIFO (Yang et al., SOSP 2023) with arrays, as assembly/policy/s3fifo.ts describes it. Evicts
 * one after the other and at once; what is locked is passed over for the rest of the walk.
 */
export class S3FifoModel {
  small: string[] = [];
  main: string[] = [];
  ghosts: string[] = [];
  readonly counters = new Map<string, number>();

  get count(): number {
    return this.small.length + this.main.length;
  }

  insert(name: string): void {
    if (this.counters.has(name)) {
      this.touch(name);
      return;
    }
    const isGhost = this.ghosts.includes(name);
    this.ghosts = this.ghosts.filter((each) => each !== name);
    (isGhost ? this.main : this.small).push(name);
    this.counters.set(name, 0);
  }

  touch(name: string): void {
    const counter = this.counters.get(name);
    if (counter !== undefined) this.counters.set(name, Math.min(3, counter + 1));
  }

  remove(name: string): void {
    this.#drop(name);
    this.ghosts = this.ghosts.filter((each) => each !== name);
    this.#trim();
  }

  evict(count: number, locked: readonly string[]): string[] {
    const victims: string[] = [];
    const passed = new Set<string>();
    while (victims.length < count) {
      const oldestOf = (queue: readonly string[]) => queue.find((name) => !passed.has(name));
      const isSmallFull = this.small.length > Math.floor(this.count / 10);
      const candidate =
        (isSmallFull ? oldestOf(this.small) : undefined) ??
        oldestOf(this.main) ??
        oldestOf(this.small);
      if (candidate === undefined) break;
      const counter = this.counters.get(candidate)!;
      if (locked.includes(candidate)) {
        passed.add(candidate);
      } else if (counter > 0) {
        this.#drop(candidate);
        this.main.push(candidate);
        this.counters.set(candidate, counter - 1);
      } else {
        this.#drop(candidate);
        this.ghosts.push(candidate);
        this.#trim();
        victims.push(candidate);
      }
    }
    return victims;
  }

  #drop(name: string): void {
    this.small = this.small.filter((each) => each !== name);
    this.main = this.main.filter((each) => each !== name);
    this.counters.delete(name);
  }

  #trim(): void {
    while (this.ghosts.length > this.count) this.ghosts.shift();
  }
}
