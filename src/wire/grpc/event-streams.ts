/**
 * Replies of many parts: the next one is asked of the engine when HTTP/2 has taken the last, so a
 * client that does not read costs one part and what its window holds. There are no acks; the
 * client ends a stream by cancelling the call.
 *
 * A stream is no request in flight: a server that closes does not wait for it. Bounds: streams of
 * a client, and of all together.
 */
import type { ReplyStream } from '../../engine/api.ts';
import { KvdError, toKvdError } from '../../errors.ts';
import type { Connection } from '../connections.ts';
import type { WireLimits } from '../wire-limits.ts';
import type { Exchange } from './exchange.ts';
import { transcodeReply } from './reply-transcoder.ts';
import { type GrpcStatus, statusOf } from './status.ts';

export interface EventStreamsOptions {
  readonly limits: Pick<WireLimits, 'streamCountMax' | 'streamCountMaxTotal'>;
  /** A part could not be made or encoded; the stream has ended. */
  onFailed(exchange: Exchange, error: KvdError): void;
}

export class EventStreams {
  readonly #options: EventStreamsOptions;
  readonly #open = new Set<Exchange>();
  readonly #counts = new Map<Connection, number>();
  partCount = 0;

  constructor(options: EventStreamsOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#open.size;
  }

  /** Takes over `source` and sends its first part. Throws `ERR_OVERLOADED` and cancels it. */
  open(exchange: Exchange, source: ReplyStream<unknown>): void {
    const { connection } = exchange;
    const { streamCountMax, streamCountMaxTotal } = this.#options.limits;
    const ownCount = this.#counts.get(connection) ?? 0;
    if (ownCount >= streamCountMax || this.count >= streamCountMaxTotal) {
      source.cancel();
      throw new KvdError(
        'ERR_OVERLOADED',
        `the client has ${ownCount} open streams and the server ${this.count}; ` +
          `the bounds are ${streamCountMax} and ${streamCountMaxTotal}`,
      );
    }
    if (exchange.isOver) {
      source.cancel();
      return;
    }
    this.#open.add(exchange);
    this.#counts.set(connection, ownCount + 1);
    exchange.onOver(() => {
      this.#open.delete(exchange);
      const left = (this.#counts.get(connection) ?? 1) - 1;
      if (left === 0) this.#counts.delete(connection);
      else this.#counts.set(connection, left);
      source.cancel();
    });
    this.#pull(exchange, source);
  }

  /** The server closes. */
  endAll(status: GrpcStatus): void {
    for (const exchange of [...this.#open]) exchange.fail(status);
  }

  #pull(exchange: Exchange, source: ReplyStream<unknown>): void {
    source
      .next()
      .then((part) => {
        if (exchange.isOver) return;
        if (part === null) exchange.end();
        else this.#send(exchange, source, part);
      })
      .catch((cause: unknown) => {
        const error = toKvdError(cause);
        this.#options.onFailed(exchange, error);
        exchange.fail(statusOf(error));
      });
  }

  #send(exchange: Exchange, source: ReplyStream<unknown>, part: unknown): void {
    const { table, call } = exchange.method;
    const message = transcodeReply(table.reply, call.operation.encodeReply(part as never));
    this.partCount += 1;
    exchange.send(message, () => this.#pull(exchange, source));
  }
}
