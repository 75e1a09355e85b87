/** Has the pages of L1 made ahead of what is handed out, so that first copies do not wait. */
import type { Logger } from '../../observability/log.ts';
import type { L1Memory } from './l1-memory.ts';

export class PreparedAhead {
  readonly #memory: L1Memory;
  readonly #log: Logger;
  /** End of the highest range ever handed out. */
  #highWaterBytes = 0;

  constructor(memory: L1Memory, log: Logger) {
    this.#memory = memory;
    this.#log = log;
  }

  /** To be called with the offsets of new objects; −1 = none. */
  note(offsets: Float64Array, sizeBytes: number): void {
    let end = this.#highWaterBytes;
    for (const offset of offsets) {
      if (offset + sizeBytes > end) end = offset + sizeBytes;
    }
    if (end <= this.#highWaterBytes) return;
    this.#highWaterBytes = end;
    try {
      this.#memory.prepareAhead(end);
    } catch (error) {
      // Only an optimisation: without it the first copy to a page is slower.
      this.#log.limited('warn', 'prepare', `L1 pages are not prepared ahead: ${String(error)}`);
    }
  }
}
