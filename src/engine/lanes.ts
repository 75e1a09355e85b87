/**
 * Lanes: first in, first out per connection, without a cost for the lane that is idle.
 *
 *   idle ──run──▶ handler answers with a value: still idle, no promise was made
 *          └────▶ handler answers with a promise: busy until it settles; what comes meanwhile waits
 *
 * Two bounds per lane, because one LOOKUP of a long prompt keeps 0.6 MB of frames alive: requests,
 * and bytes. A backlog is worked off in slices, so that it does not hold the event loop.
 */
import type { Clock } from '../clock.ts';

/** Requests that may wait in one lane of one connection. */
const QUEUE_COUNT_MAX = 4096;
/** Their frames together: a hundred prompts of 128k tokens. */
const QUEUE_BYTES_MAX = 64 * 1024 * 1024;
/** One slice of a backlog: other connections must not wait longer behind it. */
const SLICE_MS = 2;

interface Waiting {
  readonly start: () => unknown;
  readonly sizeBytes: number;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** Exists only while something runs in it. */
class Lane {
  readonly queue: Waiting[] = [];
  queuedBytes = 0;
}

export interface LaneEntry<T> {
  /** Lane and connection. */
  readonly laneId: string;
  readonly start: () => T | Promise<T>;
  /** Bytes that waiting keeps alive. */
  readonly sizeBytes: number;
  /** Starts in order, then holds nobody up while it waits. */
  readonly isDetached: boolean;
}

export class Lanes {
  readonly #clock: Clock;
  readonly #busy = new Map<string, Lane>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** False when the lane is at a bound: the request must be refused. */
  hasRoom(laneId: string, sizeBytes: number): boolean {
    const lane = this.#busy.get(laneId);
    if (!lane || lane.queue.length === 0) return true;
    return lane.queue.length < QUEUE_COUNT_MAX && lane.queuedBytes + sizeBytes <= QUEUE_BYTES_MAX;
  }

  /** The value when the lane is idle and the handler synchronous, else a promise. */
  enter<T>({ laneId, start, sizeBytes, isDetached }: LaneEntry<T>): T | Promise<T> {
    const lane = this.#busy.get(laneId);
    if (!lane) {
      const result = start();
      if (result instanceof Promise && !isDetached) this.#occupy(laneId, new Lane(), result);
      return result;
    }
    lane.queuedBytes += sizeBytes;
    return new Promise<T>((resolve, reject) => {
      const waiting = { sizeBytes, reject };
      // A detached request settles by itself, so that its promise does not make the lane busy.
      if (isDetached) {
        const run = () => void Promise.resolve(start()).then(resolve, reject);
        lane.queue.push({ ...waiting, start: run, resolve: () => {} });
      } else {
        lane.queue.push({ ...waiting, start, resolve: resolve as (value: unknown) => void });
      }
    });
  }

  #occupy(laneId: string, lane: Lane, running: Promise<unknown>): void {
    this.#busy.set(laneId, lane);
    const next = () => this.#advance(laneId, lane);
    running.then(next, next);
  }

  /** Runs what waits until something takes time again, or the slice is over. */
  #advance(laneId: string, lane: Lane): void {
    const endMs = this.#clock.preciseMs() + SLICE_MS;
    for (let waiting = lane.queue.shift(); waiting; waiting = lane.queue.shift()) {
      lane.queuedBytes -= waiting.sizeBytes;
      const running = startWaiting(waiting);
      if (running) {
        this.#occupy(laneId, lane, running);
        return;
      }
      if (this.#clock.preciseMs() >= endMs) {
        setImmediate(() => this.#advance(laneId, lane));
        return;
      }
    }
    this.#busy.delete(laneId);
  }
}

/** The promise of a handler that takes time, else null. */
function startWaiting(waiting: Waiting): Promise<unknown> | null {
  let result: unknown;
  try {
    result = waiting.start();
  } catch (error) {
    waiting.reject(error);
    return null;
  }
  waiting.resolve(result);
  return result instanceof Promise ? result : null;
}
