/**
 * A client of the ZMQ door for `kvd ping`, the benchmarks and the tests.
 *
 * It speaks a dialect as a real client does (a DEALER without identity, one uid per request) and
 * sees more: the error map behind a neutral reply, frames that are sent raw, and the frames of
 * every reply that nobody waits for.
 */
import { Dealer } from 'zeromq';
import { type Clock, systemClock } from '../clock.ts';
import type { TokenSpan } from '../core/chunk-hasher.ts';
import type { CacheKey, OperationName, ReplyOf, ReplyStream, RequestOf } from '../engine/api.ts';
import { KvdError } from '../errors.ts';
import { callNamed, type Dialect, type DialectName, dialectNamed } from '../wire/dialect.ts';
import { integerFrame, operationFrame } from '../wire/frames.ts';
import { MsgpackReader, MsgpackWriter } from '../wire/msgpack.ts';
import type { Call, ReplyPart } from '../wire/operation.ts';
import { type ErrorMap, errorMap } from '../wire/reply.ts';
import { decode, PayloadReader } from '../wire/schema.ts';

export interface CallReply<N extends OperationName> {
  /** Null when the response frame was absent. */
  readonly value: ReplyPart<N> | null;
  /** The error map of a server that failed the request. */
  readonly error: ErrorMap | null;
}

/** Frames of a reply without the identity: uid, op, response… */
type ReplyFrames = readonly Uint8Array[];

type StreamName = {
  [N in OperationName]: ReplyOf<N> extends ReplyStream<unknown> ? N : never;
}[OperationName];

/** A reply of many parts. The server sends one, and the next when the last one has been acked. */
export interface ClientStream<N extends StreamName> {
  /** The next part, or null at the end; rejects with `ERR_TIMEOUT`. */
  next(timeoutMs: number): Promise<CallReply<N>['value']>;
  ack(): Promise<void>;
  cancel(): Promise<void>;
  /** What the server said when it refused the stream. */
  readonly error: ErrorMap | null;
}

export interface ClientOptions {
  readonly clock?: Clock;
  /** The generation of clients to be taken for. Default: the oldest. */
  readonly dialect?: DialectName;
}

/** Replies carry no tokens. */
const noTokens = {
  chunkSizeTokens: 1,
  tokenCountMax: 0,
  readTokens(): never {
    throw new KvdError('ERR_WIRE_PAYLOAD', 'a reply holds no token ids');
  },
};

export class KvdClient {
  readonly #socket: Dealer;
  readonly #clock: Clock;
  readonly #dialect: Dialect;
  readonly #reader = new PayloadReader(noTokens);
  readonly #waiting = new Map<string, (reply: ReplyFrames) => void>();
  readonly #streams = new Map<string, (reply: ReplyFrames) => void>();
  #onStray: (reply: ReplyFrames) => void = () => {};
  #lastUid = 0;

  private constructor(socket: Dealer, clock: Clock, dialect: Dialect) {
    this.#socket = socket;
    this.#clock = clock;
    this.#dialect = dialect;
    void this.#receiveAll();
  }

  /** `url`: `tcp://HOST:PORT` or `ipc://PATH`. Connecting happens in the background. */
  static connect(url: string, options: ClientOptions = {}): KvdClient {
    const { clock = systemClock, dialect = 'A' } = options;
    // Without a bound a send never waits, and zeromq.js allows only one that does.
    const socket = new Dealer({
      linger: 0,
      sendTimeout: 0,
      sendHighWaterMark: 0,
      receiveHighWaterMark: 0,
    });
    if (url.includes('[')) socket.ipv6 = true;
    socket.connect(url);
    return new KvdClient(socket, clock, dialectNamed(dialect));
  }

  /** Sends a request and decodes its reply. Rejects with `ERR_TIMEOUT`. */
  async call<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    timeoutMs: number,
  ): Promise<CallReply<N>> {
    const { call, frames } = this.#encode(name, request);
    return this.#decode(call, frames, await this.exchange(frames, timeoutMs));
  }

  /** Opens a reply of many parts. */
  stream<N extends StreamName>(name: N, request: RequestOf<N>): ClientStream<N> {
    const { call, frames } = this.#encode(name, request);
    const uid = frames[0] as Uint8Array;
    const key = uidKey(uid);
    const arrived: ReplyFrames[] = [];
    let wake = () => {};
    let error: ErrorMap | null = null;
    this.#streams.set(key, (reply) => {
      arrived.push(reply);
      wake();
    });
    const started = this.send(frames);
    const control = (word: string) => this.send([uid, new Uint8Array(0), Buffer.from(word)]);
    const arrival = (timeoutMs: number) =>
      new Promise<void>((resolve, reject) => {
        const timer = this.#clock.after(timeoutMs, () =>
          reject(new KvdError('ERR_TIMEOUT', `no part within ${timeoutMs} ms`)),
        );
        wake = () => {
          timer.cancel();
          resolve();
        };
      });
    return {
      get error() {
        return error;
      },
      next: async (timeoutMs) => {
        await started;
        if (arrived.length === 0) await arrival(timeoutMs);
        const part = this.#decode(call, frames, arrived.shift() as ReplyFrames);
        error ??= part.error;
        if (part.value === null) this.#streams.delete(key);
        return part.value;
      },
      ack: () => control('ack'),
      cancel: () => control('cancel'),
    };
  }

  #encode<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
  ): { readonly call: Call<N>; readonly frames: readonly Uint8Array[] } {
    const call = callNamed(this.#dialect, name);
    const op = operationFrame(call);
    const own = 'key' in request ? { ...request, key: this.#withReaders(request.key) } : request;
    return { call, frames: [this.nextUid(), op, ...call.encodeRequest(own)] };
  }

  /** Newer clients say how many workers read an object, older ones have no word for it. */
  #withReaders(key: CacheKey): CacheKey {
    const isStated = this.#dialect.name === 'C';
    return { ...key, readerCount: isStated ? (key.readerCount ?? 1) : null };
  }

  #decode<N extends OperationName>(
    { operation, label }: Call<N>,
    [, op]: readonly Uint8Array[],
    [, replyOp, response, error]: ReplyFrames,
  ): CallReply<N> {
    if (Buffer.compare(replyOp as Uint8Array, op as Uint8Array) !== 0) {
      return { value: null, error: readException(replyOp as Uint8Array, label) };
    }
    return {
      value: response ? operation.decodeReply(response, this.#reader) : null,
      error: error ? decode(errorMap, error, this.#reader) : null,
    };
  }

  /** Sends any frames and waits for the reply with the same first frame (uid). */
  exchange(frames: readonly Uint8Array[], timeoutMs: number): Promise<ReplyFrames> {
    const key = uidKey(frames[0] ?? new Uint8Array(0));
    return new Promise((resolve, reject) => {
      const timer = this.#clock.after(timeoutMs, () => {
        this.#waiting.delete(key);
        reject(new KvdError('ERR_TIMEOUT', `no reply within ${timeoutMs} ms`));
      });
      this.#waiting.set(key, (reply) => {
        timer.cancel();
        this.#waiting.delete(key);
        resolve(reply);
      });
      this.send(frames).catch(reject);
    });
  }

  /** Sends any frames and waits for nothing. */
  send(frames: readonly Uint8Array[]): Promise<void> {
    return this.#socket.send([...frames]);
  }

  /** Called with every reply that no call waits for. */
  onStrayReply(listener: (reply: ReplyFrames) => void): void {
    this.#onStray = listener;
  }

  nextUid(): Uint8Array {
    const uid = integerFrame(this.#lastUid);
    this.#lastUid += 1;
    return uid;
  }

  close(): void {
    this.#socket.close();
  }

  async #receiveAll(): Promise<void> {
    while (!this.#socket.closed) {
      try {
        const reply = await this.#socket.receive();
        const key = uidKey(reply[0] as Uint8Array);
        const waiting = this.#waiting.get(key) ?? this.#streams.get(key);
        if (waiting) waiting(reply);
        else this.#onStray(reply);
      } catch {
        // The socket was closed while it waited; the loop condition ends this.
      }
    }
  }
}

/** The token ids of a key, as they stand in a frame. */
export function tokenSpan(tokenIds: readonly number[]): TokenSpan {
  const writer = new MsgpackWriter();
  writer.writeArrayHeader(tokenIds.length);
  for (const id of tokenIds) writer.writeInteger(id);
  return { bytes: writer.take(), count: tokenIds.length };
}

/** `error: CODE: message`, which stands in place of the operation. */
function readException(frame: Uint8Array, op: string): ErrorMap {
  const reader = new MsgpackReader();
  reader.reset(frame);
  const text = reader.readText();
  const [, error = 'INTERNAL', message = text] = /^error: ([A-Z_]+): (.*)$/s.exec(text) ?? [];
  return { error, message, op };
}

function uidKey(uid: Uint8Array): string {
  return Buffer.from(uid).toString('latin1');
}
