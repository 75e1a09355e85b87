/**
 * A connection that is made again whenever it breaks, and that is never waited for.
 *
 *            dial                   opened
 *   ┌─ away ──────▶ dialling ──────────────▶ ready
 *   │   ▲              │ refused, too slow    │ error, end, or silent for too long
 *   │   └──────────────┴──────────────────────┘
 *   └─ closed (from anywhere)
 *
 * Away lasts from 100 ms, doubling, to 5 s, with up to a quarter added by chance, so that a server
 * that comes back is found soon and not by all at once. It begins at 100 ms again after a
 * connection that answered something.
 *
 * Silence: commands are pipelined, and one of many may have to wait for large values before it. So
 * what is bounded is the time without any reply while at least one command waits. A server that
 * stopped answering costs the connection: closing it is the only way to end a command that is
 * already on the wire, and to know that nothing reads or writes its buffer any more.
 */
import { randomInt } from 'node:crypto';
import type { RedisArgument } from '@redis/client';
import type { Clock, Timer } from '../../clock.ts';
import type { Logger } from '../../observability/log.ts';
import type { RedisConnection } from './connection.ts';

export interface LinkOptions {
  readonly dial: (onDown: (error: Error) => void) => RedisConnection;
  readonly requestTimeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly clock: Clock;
  readonly log: Logger;
  /** For log lines: `resp 10.0.0.7:6379`. */
  readonly where: string;
}

const AWAY_MS_MIN = 100;
const AWAY_MS_MAX = 5_000;

export class RedisLink {
  readonly #options: LinkOptions;
  #connection: RedisConnection | null = null;
  #isReady = false;
  #isClosed = false;
  #awayMs = AWAY_MS_MIN;
  #timer: Timer | null = null;
  /** Of the commands without a reply: what ends them, should the library forget to. */
  readonly #waiting = new Set<(error: Error) => void>();
  #replyMs = 0;
  #watch: Timer | null = null;
  #brokenCount = 0;
  #lastError: string | null = null;
  readonly #firstDial = Promise.withResolvers<void>();

  constructor(options: LinkOptions) {
    this.#options = options;
    this.#dial();
  }

  get isReady(): boolean {
    return this.#isReady;
  }

  /** Connections that could not be made or broke. */
  get brokenCount(): number {
    return this.#brokenCount;
  }

  get lastError(): string | null {
    return this.#lastError;
  }

  /** Resolves when the first attempt to connect has ended, well or not. */
  get firstDialEnded(): Promise<void> {
    return this.#firstDial.promise;
  }

  nodeNames(): readonly string[] {
    return this.#isReady ? (this.#connection?.nodeNames() ?? []) : [];
  }

  /** Rejects at once without a connection, and at the latest when the silence has lasted. */
  send(key: string, args: RedisArgument[]): Promise<unknown> {
    return this.#wait((connection) => connection.send(key, args));
  }

  /** Until it settles, the target belongs to the connection. */
  load(name: string, target: Uint8Array): Promise<number | null> {
    return this.#wait((connection) => connection.load(name, target));
  }

  sendToNode(name: string, args: RedisArgument[]): Promise<unknown> {
    return this.#wait((connection) => connection.sendToNode(name, args));
  }

  close(): void {
    this.#isClosed = true;
    this.#timer?.cancel();
    this.#drop(new Error('closed'));
    this.#firstDial.resolve();
  }

  #dial(): void {
    const { clock, connectTimeoutMs } = this.#options;
    const connection = this.#options.dial((error) => this.#breakOff(connection, error));
    this.#connection = connection;
    this.#timer = clock.after(connectTimeoutMs, () =>
      this.#breakOff(connection, new Error(`no connection within ${connectTimeoutMs} ms`)),
    );
    connection.opened.then(
      () => this.#open(connection),
      (error: Error) => this.#breakOff(connection, error),
    );
  }

  #open(connection: RedisConnection): void {
    if (connection !== this.#connection) return;
    this.#timer?.cancel();
    this.#isReady = true;
    this.#firstDial.resolve();
    if (this.#lastError !== null) {
      this.#options.log.limited('info', `${this.#options.where} up`, 'connected', {
        server: this.#options.where,
      });
    }
  }

  /** Of the connection that is in use; what an older one has to say no longer matters. */
  #breakOff(connection: RedisConnection, error: Error): void {
    if (connection !== this.#connection || this.#isClosed) return;
    this.#drop(error);
    this.#brokenCount += 1;
    this.#lastError = error.message;
    this.#firstDial.resolve();
    const { clock, log, where } = this.#options;
    log.limited('warn', `${where} down`, 'connection lost: misses until it is back', {
      server: where,
      reason: error.message,
    });
    const delayMs = this.#awayMs + randomInt(Math.ceil(this.#awayMs / 4));
    this.#awayMs = Math.min(2 * this.#awayMs, AWAY_MS_MAX);
    this.#timer = clock.after(delayMs, () => this.#dial());
  }

  #drop(error: Error): void {
    this.#timer?.cancel();
    this.#isReady = false;
    const connection = this.#connection;
    this.#connection = null;
    try {
      connection?.destroy();
    } catch {
      // It was not open any more; nothing holds on to it.
    }
    for (const end of this.#waiting) end(error);
    this.#waiting.clear();
  }

  #wait<T>(send: (connection: RedisConnection) => Promise<T>): Promise<T> {
    const connection = this.#connection;
    const { clock, requestTimeoutMs, where } = this.#options;
    if (connection === null || !this.#isReady) {
      return Promise.reject(new Error(`no connection to ${where} (${this.#lastError})`));
    }
    if (this.#waiting.size === 0) this.#replyMs = clock.nowMs();
    this.#watch ??= clock.after(requestTimeoutMs, () => this.#checkSilence());
    return new Promise((resolve, reject) => {
      this.#waiting.add(reject);
      const end = (): void => {
        this.#replyMs = clock.nowMs();
        this.#waiting.delete(reject);
      };
      send(connection).then(
        (reply) => {
          this.#awayMs = AWAY_MS_MIN;
          end();
          resolve(reply);
        },
        (error: Error) => {
          end();
          reject(error);
        },
      );
    });
  }

  #checkSilence(): void {
    this.#watch = null;
    if (this.#waiting.size === 0) return;
    const { clock, requestTimeoutMs } = this.#options;
    const leftMs = this.#replyMs + requestTimeoutMs - clock.nowMs();
    if (leftMs > 0) {
      this.#watch = clock.after(leftMs, () => this.#checkSilence());
    } else if (this.#connection !== null) {
      this.#breakOff(this.#connection, new Error(`no reply for ${requestTimeoutMs} ms`));
    }
  }
}
