/**
 * Sends replies and never waits for a client.
 *
 * The socket is set so that a send succeeds or fails at once (`mandatory`, `sendTimeout: 0`):
 *
 *   taken          ZMQ has it; done
 *   EAGAIN         the client does not read, ZMQ's queue for it is full   → our queue, try again
 *   EHOSTUNREACH   the client is gone                                     → lost, counted
 *
 *        send ──► [ZMQ queue, SNDHWM messages] ──► client
 *          │ EAGAIN
 *          ▼
 *        [queue of this client] ──retry after 1, 2, 4 … 50 ms──► send
 *
 * As long as a client's queue holds something, further replies to it go to the queue's end. The
 * queue is bounded in messages and bytes, and so are all queues together; what does not fit is
 * lost, counted. A reply larger than the bound is taken when its queue is empty, else it could
 * never be sent.
 *
 * ZMQ does not say when it has room again, hence the retries; the delay doubles while nothing
 * moves. Replies of one client may overtake each other by one when ZMQ's queue runs full, which the
 * protocol allows (replies are matched by uid).
 *
 * zeromq.js reports the outcome by a promise, also when it is known at once; one closure a reply
 * is the price.
 */
import type { Clock, Timer } from '../clock.ts';
import type { Connection } from './connections.ts';
import { sizeOfFrames } from './frames.ts';

/** The part of a ROUTER socket that is needed here. */
export interface FrameSender {
  send(frames: Uint8Array[]): Promise<void>;
}

export type LossReason = 'gone' | 'full';

export interface OutboxLimits {
  readonly queueCountMax: number;
  readonly queueBytesMax: number;
  /** All clients together. */
  readonly queueBytesMaxTotal: number;
}

export interface OutboxOptions {
  readonly socket: FrameSender;
  readonly clock: Clock;
  readonly limits: OutboxLimits;
  onLost(connection: Connection, reason: LossReason, count: number): void;
}

const RETRY_DELAY_MS_MIN = 1;
const RETRY_DELAY_MS_MAX = 50;
/** What an entry costs besides its bytes: arrays, buffers, accounting. */
const ENTRY_OVERHEAD_BYTES = 256;

interface Entry {
  readonly frames: Uint8Array[];
  readonly sizeBytes: number;
}

interface ClientQueue {
  readonly connection: Connection;
  readonly entries: Entry[];
  sizeBytes: number;
}

export class Outbox {
  readonly #socket: FrameSender;
  readonly #clock: Clock;
  readonly #limits: OutboxLimits;
  readonly #onLost: OutboxOptions['onLost'];
  readonly #queues = new Map<Connection, ClientQueue>();
  #retryTimer: Timer | null = null;
  #retryDelayMs = RETRY_DELAY_MS_MIN;
  #isFlushing = false;
  sentCount = 0;
  queuedCount = 0;
  queuedBytes = 0;

  constructor(options: OutboxOptions) {
    this.#socket = options.socket;
    this.#clock = options.clock;
    this.#limits = options.limits;
    this.#onLost = options.onLost;
  }

  /** Takes `frames`, identity first. Returns at once and never throws. */
  send(connection: Connection, frames: Uint8Array[]): void {
    const queue = this.#queues.size === 0 ? undefined : this.#queues.get(connection);
    if (queue) {
      this.#enqueue(queue, frames);
      return;
    }
    this.sentCount += 1;
    try {
      this.#socket.send(frames).then(undefined, (error) => {
        this.sentCount -= 1;
        this.#keep(connection, frames, error);
      });
    } catch (error) {
      // zeromq.js throws instead of rejecting when the socket is closed or busy.
      this.sentCount -= 1;
      this.#keep(connection, frames, error);
    }
  }

  /** Tries every queue once. True when all are empty. */
  async flush(): Promise<boolean> {
    if (this.#isFlushing) return false;
    this.#isFlushing = true;
    let hasMoved = false;
    for (const queue of [...this.#queues.values()]) {
      if (await this.#flushQueue(queue)) hasMoved = true;
    }
    this.#isFlushing = false;
    this.#retryDelayMs = hasMoved
      ? RETRY_DELAY_MS_MIN
      : Math.min(this.#retryDelayMs * 2, RETRY_DELAY_MS_MAX);
    if (this.#queues.size > 0) this.#scheduleRetry();
    return this.#queues.size === 0;
  }

  /** Clients that have replies waiting here. */
  get waitingClientCount(): number {
    return this.#queues.size;
  }

  /** Stops retrying; what is queued is lost. */
  close(): void {
    this.#retryTimer?.cancel();
    this.#retryTimer = null;
    for (const queue of [...this.#queues.values()]) this.#dropQueue(queue, 'gone');
  }

  /** A send failed: keep the reply if the client may still take it. */
  #keep(connection: Connection, frames: Uint8Array[], error: unknown): void {
    if (codeOf(error) !== 'EAGAIN') {
      const queue = this.#queues.get(connection);
      if (queue) this.#dropQueue(queue, 'gone');
      this.#onLost(connection, 'gone', 1);
      return;
    }
    let queue = this.#queues.get(connection);
    if (!queue) {
      queue = { connection, entries: [], sizeBytes: 0 };
      this.#queues.set(connection, queue);
      this.#retryDelayMs = RETRY_DELAY_MS_MIN;
      this.#scheduleRetry();
    }
    this.#enqueue(queue, frames);
  }

  #enqueue(queue: ClientQueue, frames: Uint8Array[]): void {
    const { queueCountMax, queueBytesMax, queueBytesMaxTotal } = this.#limits;
    const sizeBytes = sizeOfFrames(frames) + ENTRY_OVERHEAD_BYTES;
    const isFirst = queue.entries.length === 0;
    const hasRoom =
      queue.entries.length < queueCountMax &&
      (isFirst || queue.sizeBytes + sizeBytes <= queueBytesMax) &&
      (this.queuedBytes === 0 || this.queuedBytes + sizeBytes <= queueBytesMaxTotal);
    if (!hasRoom) {
      this.#onLost(queue.connection, 'full', 1);
      return;
    }
    queue.entries.push({ frames, sizeBytes });
    this.#account(queue, 1, sizeBytes);
  }

  /** Sends from the front until ZMQ refuses. True when at least one went out. */
  async #flushQueue(queue: ClientQueue): Promise<boolean> {
    let hasMoved = false;
    for (;;) {
      // Taken out while ZMQ decides: meanwhile the whole queue may be dropped.
      const entry = queue.entries.shift();
      if (!entry) break;
      this.#account(queue, -1, -entry.sizeBytes);
      try {
        await this.#socket.send(entry.frames);
      } catch (error) {
        if (codeOf(error) === 'EAGAIN' && this.#queues.has(queue.connection)) {
          queue.entries.unshift(entry);
          this.#account(queue, 1, entry.sizeBytes);
        } else {
          this.#dropQueue(queue, 'gone');
          this.#onLost(queue.connection, 'gone', 1);
        }
        return hasMoved;
      }
      this.sentCount += 1;
      hasMoved = true;
    }
    this.#queues.delete(queue.connection);
    return hasMoved;
  }

  #account(queue: ClientQueue, count: number, bytes: number): void {
    queue.sizeBytes += bytes;
    this.queuedBytes += bytes;
    this.queuedCount += count;
  }

  #dropQueue(queue: ClientQueue, reason: LossReason): void {
    this.#queues.delete(queue.connection);
    const count = queue.entries.length;
    this.#account(queue, -count, -queue.sizeBytes);
    queue.entries.length = 0;
    if (count > 0) this.#onLost(queue.connection, reason, count);
  }

  #scheduleRetry(): void {
    if (this.#retryTimer) return;
    this.#retryTimer = this.#clock.after(this.#retryDelayMs, () => {
      this.#retryTimer = null;
      void this.flush();
    });
  }
}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}
