/** Attempts for tests that call a handler without the dispatch. */
import type { Attempt } from '../../src/engine/handlers.ts';

/** A request that arrived just now and whose client waits for it. */
export const LIVE_ATTEMPT: Attempt = {
  arrivedMs: 0,
  isAbandoned: false,
  isOverdue: false,
  isExpired: false,
  onAbandon: () => {},
};

/** A request whose client can be told, in the middle of it, that it failed. */
export class AbandonableAttempt implements Attempt {
  readonly arrivedMs: number;
  isAbandoned = false;
  isOverdue = false;
  isExpired = false;
  #listener = () => {};

  constructor(arrivedMs = 0) {
    this.arrivedMs = arrivedMs;
  }

  onAbandon(listener: () => void): void {
    this.#listener = listener;
  }

  abandon(): void {
    this.isAbandoned = true;
    this.#listener();
  }
}
