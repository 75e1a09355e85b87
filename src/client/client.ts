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
import type { OperationName, ReplyOf, RequestOf } from '../engine/api.ts';
import { KvdError } from '../errors.ts';
import { DIALECTS, type Dialect, operationIdOf } from '../wire/dialect.ts';
import { MsgpackWriter } from '../wire/msgpack.ts';
import { type ErrorMap, errorMap } from '../wire/reply.ts';
import { OPERATIONS, type Operation } from '../wire/requests.ts';
import { decode, PayloadReader } from '../wire/schema.ts';

export interface CallReply<N extends OperationName> {
  /** Null when the response frame was absent. */
  readonly value: ReplyOf<N> | null;
  /** The error map of a server that failed the request. */
  readonly error: ErrorMap | null;
}

/** Frames of a reply without the identity: uid, op, response… */
type ReplyFrames = readonly Uint8Array[];

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
  #onStray: (reply: ReplyFrames) => void = () => {};
  #lastUid = 0;

  private constructor(socket: Dealer, clock: Clock, dialect: Dialect) {
    this.#socket = socket;
    this.#clock = clock;
    this.#dialect = dialect;
    void this.#receiveAll();
  }

  /** `url`: `tcp://HOST:PORT` or `ipc://PATH`. Connecting happens in the background. */
  static connect(url: string, clock: Clock = systemClock): KvdClient {
    // Without a bound a send never waits, and zeromq.js allows only one that does.
    const socket = new Dealer({
      linger: 0,
      sendTimeout: 0,
      sendHighWaterMark: 0,
      receiveHighWaterMark: 0,
    });
    if (url.includes('[')) socket.ipv6 = true;
    socket.connect(url);
    return new KvdClient(socket, clock, DIALECTS[0] as Dialect);
  }

  /** Sends a request and decodes its reply. Rejects with `ERR_TIMEOUT`. */
  async call<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    timeoutMs: number,
  ): Promise<CallReply<N>> {
    const operation: Operation<N> = OPERATIONS[name];
    const uid = this.nextUid();
    const op = encodeInteger(operationIdOf(this.#dialect, name));
    const payloads = operation.encodeRequest(request);
    const [, , response, error] = await this.exchange([uid, op, ...payloads], timeoutMs);
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
    const uid = encodeInteger(this.#lastUid);
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
        const waiting = this.#waiting.get(uidKey(reply[0] as Uint8Array));
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

function encodeInteger(value: number): Uint8Array {
  const writer = new MsgpackWriter();
  writer.writeInteger(value);
  return writer.take();
}

function uidKey(uid: Uint8Array): string {
  return Buffer.from(uid).toString('latin1');
}
