/**
 * A man in the middle of the wire: clients connect to it, it connects to a server, once for each
 * client, and calls a hook with the name of the operation before it passes a reply on. What the
 * hook does has happened before the client can go on.
 */
import { Dealer, Router } from 'zeromq';
import type { OperationName } from '../../src/engine/api.ts';
import { idA } from './calls.ts';

export type ReplyHook = (name: OperationName) => void | Promise<void>;

export class WireProxy {
  readonly url: string;
  readonly #front: Router;
  readonly #serverUrl: string;
  readonly #backs = new Map<string, Dealer>();
  readonly #watched: ReadonlyMap<number, OperationName>;
  readonly #hook: ReplyHook;

  private constructor(
    front: Router,
    options: { serverUrl: string; watched: readonly OperationName[]; hook: ReplyHook },
  ) {
    this.#front = front;
    this.url = front.lastEndpoint as string;
    this.#serverUrl = options.serverUrl;
    this.#hook = options.hook;
    this.#watched = new Map(options.watched.map((name) => [idA(name), name]));
    void this.#forwardRequests();
  }

  static async start(
    serverUrl: string,
    watched: readonly OperationName[],
    hook: ReplyHook,
  ): Promise<WireProxy> {
    const front = new Router({ linger: 0 });
    await front.bind('tcp://127.0.0.1:0');
    return new WireProxy(front, { serverUrl, watched, hook });
  }

  close(): void {
    this.#front.close();
    for (const back of this.#backs.values()) back.close();
  }

  async #forwardRequests(): Promise<void> {
    try {
      for await (const [identity, ...frames] of this.#front) {
        await this.#backOf(identity as Buffer).send(frames);
      }
    } catch (error) {
      if (!this.#front.closed) throw error;
    }
  }

  #backOf(identity: Buffer): Dealer {
    const name = identity.toString('hex');
    let back = this.#backs.get(name);
    if (!back) {
      back = new Dealer({ linger: 0 });
      back.connect(this.#serverUrl);
      this.#backs.set(name, back);
      void this.#forwardReplies(identity, back);
    }
    return back;
  }

  async #forwardReplies(identity: Buffer, back: Dealer): Promise<void> {
    try {
      for await (const frames of back) {
        // All ids of the first dialect are one byte of msgpack.
        const name = this.#watched.get(frames[1]?.[0] ?? -1);
        if (name !== undefined) await this.#hook(name);
        await this.#front.send([identity, ...frames]);
      }
    } catch (error) {
      if (!back.closed && !this.#front.closed) throw error;
    }
  }
}
