/**
 * Replies of many parts: one message each, of which at most one is on its way (spec wire 8.2).
 *
 *   client                                   door                           engine
 *     [uid, op, payloads] ─────────────────►  open ───────────────────────►  ReplyStream
 *     ◄───────────────── [uid, op, part]      pull ── next() ─────────────►
 *     [uid, <empty>, "ack"] ───────────────►  pull ── next() ─────────────►  … (waits for events)
 *     ◄───────────────── [uid, op, part]
 *     [uid, <empty>, "cancel"] ────────────►  end ─── cancel() ───────────►
 *     ◄───────────────── [uid, op]            end of the stream
 *
 * A stream is `pulling` (the engine owes a part) or waits for an ack (the client does); it is never
 * both, so a client that does not read costs one part. Control for a stream that is not open, or
 * with other words, means nothing: acks and ends pass each other on the way.
 *
 * A stream is no request in flight: a server that closes does not wait for it. It ends
 *
 *   by the client      cancel, or another stream under the same uid
 *   by the engine      `next` gives null (subscription replaced, reaped, disabled)
 *   by the door        the client has gone, was forgotten, does not read; the server closes
 *
 * Bounds: streams of a connection and of all together. One more is refused like any request. A
 * client that vanished before its ack is never heard of again, and ZMQ does not tell; what the
 * engine has ended meanwhile is therefore closed before anybody is refused for it.
 */
import type { ReplyStream } from '../engine/api.ts';
import { KvdError, toKvdError } from '../errors.ts';
import type { Connection } from './connections.ts';
import type { Accepted } from './received.ts';
import type { WireLimits } from './wire-limits.ts';

export interface StreamTableOptions {
  readonly limits: Pick<WireLimits, 'streamCountMax' | 'streamCountMaxTotal'>;
  /** Frames without the identity. */
  send(connection: Connection, frames: Uint8Array[]): void;
  /** A part could not be made or encoded; the stream ends. */
  onFailed(request: Accepted, error: KvdError): void;
}

interface OpenStream {
  readonly request: Accepted;
  readonly source: ReplyStream<unknown>;
  /** The engine has been asked for a part. */
  isPulling: boolean;
  isOpen: boolean;
}

const ACK = Buffer.from('ack');
const CANCEL = Buffer.from('cancel');

export class StreamTable {
  readonly #options: StreamTableOptions;
  /** By uid. Connections without streams are not in it. */
  readonly #streams = new Map<Connection, Map<string, OpenStream>>();
  /** Open streams of all connections. */
  count = 0;
  /** Parts that were sent. */
  partCount = 0;

  constructor(options: StreamTableOptions) {
    this.#options = options;
  }

  /** Takes over `source` and sends its first part. Throws `ERR_OVERLOADED` and cancels it. */
  open(request: Accepted, source: ReplyStream<unknown>): void {
    const { connection, uid } = request;
    const key = keyOf(uid);
    const own = this.#streams.get(connection);
    const replaced = own?.get(key);
    // No end for the old one: the client would take it for the end of the new one.
    if (replaced) this.#forget(replaced);
    const { streamCountMax, streamCountMaxTotal } = this.#options.limits;
    const isFull = () => (own?.size ?? 0) >= streamCountMax || this.count >= streamCountMaxTotal;
    if (isFull()) this.#endFinished();
    if (isFull()) {
      const ownCount = own?.size ?? 0;
      source.cancel();
      throw new KvdError(
        'ERR_OVERLOADED',
        `the connection has ${ownCount} open streams and the server ${this.count}; ` +
          `the bounds are ${streamCountMax} and ${streamCountMaxTotal}`,
      );
    }
    const stream: OpenStream = { request, source, isPulling: false, isOpen: true };
    // What was there may have been closed, and the map is gone with the last one.
    const streams = this.#streams.get(connection) ?? new Map<string, OpenStream>();
    this.#streams.set(connection, streams.set(key, stream));
    this.count += 1;
    this.#pull(stream);
  }

  /** A message with an empty operation frame. */
  control(connection: Connection, uid: Buffer, word: Uint8Array | undefined): void {
    const stream = this.#streams.get(connection)?.get(keyOf(uid));
    if (!stream || !word) return;
    if (CANCEL.equals(word)) this.#end(stream);
    else if (ACK.equals(word) && !stream.isPulling) this.#pull(stream);
  }

  /** Nobody is left to read them. */
  drop(connection: Connection): void {
    for (const stream of this.#streamsOf(connection)) this.#forget(stream);
  }

  /** Their client is told, if it still reads. */
  end(connection: Connection): void {
    for (const stream of this.#streamsOf(connection)) this.#end(stream);
  }

  /** The server closes. */
  endAll(): void {
    for (const connection of [...this.#streams.keys()]) this.end(connection);
  }

  /** Those of which the engine has no more, and whose client has not asked. */
  #endFinished(): void {
    for (const connection of [...this.#streams.keys()]) {
      for (const stream of this.#streamsOf(connection)) {
        if (stream.source.isEnded && !stream.isPulling) this.#end(stream);
      }
    }
  }

  #streamsOf(connection: Connection): readonly OpenStream[] {
    return [...(this.#streams.get(connection)?.values() ?? [])];
  }

  #pull(stream: OpenStream): void {
    stream.isPulling = true;
    stream.source
      .next()
      .then((part) => {
        stream.isPulling = false;
        if (!stream.isOpen) return;
        if (part === null) this.#end(stream);
        else this.#sendPart(stream, part);
      })
      .catch((error: unknown) => {
        this.#options.onFailed(stream.request, toKvdError(error));
        this.#end(stream);
      });
  }

  #sendPart(stream: OpenStream, part: unknown): void {
    const { connection, uid, op, call } = stream.request;
    const frame = call.operation.encodeReply(part as never);
    this.partCount += 1;
    this.#options.send(connection, frame ? [uid, op, frame] : [uid, op]);
  }

  #end(stream: OpenStream): void {
    if (!stream.isOpen) return;
    this.#forget(stream);
    const { connection, uid, op } = stream.request;
    this.#options.send(connection, [uid, op]);
  }

  #forget(stream: OpenStream): void {
    const { connection, uid } = stream.request;
    const own = this.#streams.get(connection);
    stream.isOpen = false;
    own?.delete(keyOf(uid));
    if (own?.size === 0) this.#streams.delete(connection);
    this.count -= 1;
    stream.source.cancel();
  }
}

function keyOf(uid: Buffer): string {
  return uid.toString('latin1');
}
