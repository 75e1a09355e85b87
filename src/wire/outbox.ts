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
 *        [queue of this client] ──retry next turn, after 1, 2, 4 … 50 ms──► send
 *
 * As long as a client's queue holds something, further replies to it go to the queue's end. The
 * queue is bounded in messages and bytes, and so are all queues together; what does not fit is
 * lost, counted. A reply that alone is larger than the bounds (inline data has gigabytes) is taken
 * when the client's queue is empty, else it could never be sent, and takes no room: neither a PING
 * behind it nor other clients lose a reply for it. That is at most one for each client that does
 * not read, and ZMQ holds up to SNDHWM of them already.
 *
 * ZMQ does not say when it has room again, hence the retries: in the next turn of the event loop
 * while something moves (a client that reads is emptied in microseconds), else with a delay that
 * doubles. Replies of one client may overtake each other by one when ZMQ's queue runs full, which
 * the protocol allows (replies are matched by uid).
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

/** 0 = the next turn of the event loop. */
const RETRY_DELAY_MS_FIRST = 0;
const RETRY_DELAY_MS_MAX = 50;
/** Bounds of one slice of retrying: what other messages may wait behind it. */
const FLUSH_COUNT_MAX = 128;
const FLUSH_MS_MAX = 1;
/** What an entry costs besides its bytes: an array and four buffers with their own memory. */
const ENTRY_OVERHEAD_BYTES = 1024;
/** Taken entries that may lie in front of a queue before it is packed. */
const TAKEN_COUNT_MAX = 1024;

interface Entry {
  readonly frames: Uint8Array[];
  readonly sizeBytes: number;
  /** What it takes of the bounds. */
  readonly roomBytes: number;
}

/** First in, first out; entries in front of `#head` have been taken. */
class ClientQueue {
  readonly connection: Connection;
  readonly #entries: (Entry | undefined)[] = [];
  #head = 0;
  sizeBytes = 0;
  roomBytes = 0;

  constructor(connection: Connection) {
    this.connection = connection;
  }

  get count(): number {
    return this.#entries.length - this.#head;
  }

  push(entry: Entry): void {
    this.#entries.push(entry);
  }

  get first(): Entry | undefined {
    return this.#entries[this.#head];
  }

  removeFirst(): void {
    this.#entries[this.#head] = undefined;
    this.#head += 1;
    if (this.#head < TAKEN_COUNT_MAX && this.count > 0) return;
    this.#entries.splice(0, this.#head);
    this.#head = 0;
  }

  clear(): void {
    this.#entries.length = 0;
    this.#head = 0;
    this.sizeBytes = 0;
    this.roomBytes = 0;
  }
}

export class Outbox {
  readonly #socket: FrameSender;
  readonly #clock: Clock;
  readonly #limits: OutboxLimits;
  readonly #onLost: OutboxOptions['onLost'];
  readonly #queues = new Map<Connection, ClientQueue>();
  #retry: Timer | null = null;
  #retryDelayMs = RETRY_DELAY_MS_FIRST;
  #isFlushing = false;
  #roomBytes = 0;
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

  /** One time slice of sending: queues in turn, each at most once. True when all are empty. */
  async flush(): Promise<boolean> {
    if (this.#isFlushing) return false;
    this.#isFlushing = true;
    let hasMoved = false;
    const endMs = this.#clock.preciseMs() + FLUSH_MS_MAX;
    try {
      for (const queue of [...this.#queues.values()]) {
        if (this.#clock.preciseMs() >= endMs) break;
        if (await this.#flushQueue(queue)) hasMoved = true;
        // Behind the others, so that the next slice begins with those that had no turn.
        if (this.#queues.delete(queue.connection) && queue.count > 0) {
          this.#queues.set(queue.connection, queue);
        }
      }
    } finally {
      this.#isFlushing = false;
    }
    this.#retryDelayMs = hasMoved
      ? RETRY_DELAY_MS_FIRST
      : Math.min(Math.max(1, this.#retryDelayMs * 2), RETRY_DELAY_MS_MAX);
    if (this.#queues.size > 0) this.#scheduleRetry();
    return this.#queues.size === 0;
  }

  /** Clients that have replies waiting here. */
  get waitingClientCount(): number {
    return this.#queues.size;
  }

  /** Stops retrying; what is queued is lost. */
  close(): void {
    this.#retry?.cancel();
    this.#retry = null;
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
      queue = new ClientQueue(connection);
      this.#queues.set(connection, queue);
      this.#retryDelayMs = RETRY_DELAY_MS_FIRST;
      this.#scheduleRetry();
    }
    this.#enqueue(queue, frames);
  }

  #enqueue(queue: ClientQueue, frames: Uint8Array[]): void {
    const { queueCountMax, queueBytesMax, queueBytesMaxTotal } = this.#limits;
    const sizeBytes = sizeOfFrames(frames) + ENTRY_OVERHEAD_BYTES;
    const isLargerThanAll = sizeBytes > Math.min(queueBytesMax, queueBytesMaxTotal);
    const roomBytes = isLargerThanAll && queue.count === 0 ? 0 : sizeBytes;
    const hasRoom =
      queue.count < queueCountMax &&
      queue.roomBytes + roomBytes <= queueBytesMax &&
      this.#roomBytes + roomBytes <= queueBytesMaxTotal;
    if (!hasRoom) {
      this.#onLost(queue.connection, 'full', 1);
      return;
    }
    const entry = { frames, sizeBytes, roomBytes };
    queue.push(entry);
    this.#account(queue, entry, 1);
  }

  /** Sends from the front until ZMQ refuses or others have their turn. True when any went out. */
  async #flushQueue(queue: ClientQueue): Promise<boolean> {
    let hasMoved = false;
    for (let attempt = 0; attempt < FLUSH_COUNT_MAX; attempt += 1) {
      const entry = queue.first;
      if (!entry) break;
      try {
        await this.#socket.send(entry.frames);
      } catch (error) {
        if (codeOf(error) !== 'EAGAIN') this.#dropQueue(queue, 'gone');
        return hasMoved;
      }
      // Meanwhile another send may have found out that the client has gone.
      if (queue.first !== entry) break;
      queue.removeFirst();
      this.#account(queue, entry, -1);
      this.sentCount += 1;
      hasMoved = true;
    }
    return hasMoved;
  }

  #account(queue: ClientQueue, { sizeBytes, roomBytes }: Entry, sign: 1 | -1): void {
    queue.sizeBytes += sign * sizeBytes;
    queue.roomBytes += sign * roomBytes;
    this.queuedBytes += sign * sizeBytes;
    this.#roomBytes += sign * roomBytes;
    this.queuedCount += sign;
  }

  #dropQueue(queue: ClientQueue, reason: LossReason): void {
    this.#queues.delete(queue.connection);
    const { count } = queue;
    this.queuedCount -= count;
    this.queuedBytes -= queue.sizeBytes;
    this.#roomBytes -= queue.roomBytes;
    queue.clear();
    if (count > 0) this.#onLost(queue.connection, reason, count);
  }

  #scheduleRetry(): void {
    if (this.#retry) return;
    const run = () => {
      this.#retry = null;
      void this.flush();
    };
    if (this.#retryDelayMs > 0) {
      this.#retry = this.#clock.after(this.#retryDelayMs, run);
      return;
    }
    const handle = setImmediate(run);
    this.#retry = { cancel: () => clearImmediate(handle) };
  }
}

function codeOf(error: unknown): string | undefined {
  return error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
}
