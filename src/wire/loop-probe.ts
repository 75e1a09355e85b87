/**
 * Proves that the message loop is alive by passing a message through it.
 *
 * A counter that says "the loop ran lately" is silent about a loop that waits for nothing or hangs
 * in a handler. So the server asks itself what any client would ask: a DEALER inside the process
 * sends NOOP through the ROUTER, the dispatch and the send path, and waits for the reply. The
 * socket is made at the first probe and kept.
 */
import { Dealer } from 'zeromq';
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';
import { callNamed, type Dialect } from './dialect.ts';
import { integerFrame, operationFrame } from './frames.ts';
import { MsgpackReader } from './msgpack.ts';

export class LoopProbe {
  readonly #endpoint: string;
  readonly #clock: Clock;
  readonly #op: Uint8Array;
  readonly #waiting = new Map<number, () => void>();
  #socket: Dealer | null = null;
  #lastUid = 0;

  /** `dialect` is one that the server offers, and in which it knows a NOOP for what it is. */
  constructor(endpoint: string, dialect: Dialect, clock: Clock) {
    this.#endpoint = endpoint;
    this.#clock = clock;
    this.#op = operationFrame(callNamed(dialect, 'NOOP'));
  }

  /** Milliseconds from sending NOOP to its reply. Rejects with `ERR_TIMEOUT`. */
  ping(timeoutMs: number): Promise<number> {
    const socket = this.#open();
    this.#lastUid += 1;
    const uid = this.#lastUid;
    const startMs = this.#clock.preciseMs();
    return new Promise((resolve, reject) => {
      const settle = (finish: () => void) => {
        timer.cancel();
        this.#waiting.delete(uid);
        finish();
      };
      const timer = this.#clock.after(timeoutMs, () =>
        settle(() =>
          reject(new KvdError('ERR_TIMEOUT', `the message loop gave no answer in ${timeoutMs} ms`)),
        ),
      );
      this.#waiting.set(uid, () => settle(() => resolve(this.#clock.preciseMs() - startMs)));
      socket.send([integerFrame(uid), this.#op]).catch((error) => settle(() => reject(error)));
    });
  }

  close(): void {
    this.#socket?.close();
    this.#socket = null;
  }

  #open(): Dealer {
    if (this.#socket) return this.#socket;
    // A probe that the loop does not take must fail, not pile up.
    const socket = new Dealer({ linger: 0, sendTimeout: 0, sendHighWaterMark: 16 });
    socket.connect(this.#endpoint);
    this.#socket = socket;
    void this.#receive(socket);
    return socket;
  }

  async #receive(socket: Dealer): Promise<void> {
    while (!socket.closed) {
      try {
        const [uid] = await socket.receive();
        if (uid) this.#waiting.get(decodeUid(uid))?.();
      } catch {
        // The socket was closed while it waited; the loop condition ends this.
      }
    }
  }
}

function decodeUid(frame: Uint8Array): number {
  const reader = new MsgpackReader();
  reader.reset(frame);
  return Number(reader.readInteger());
}
