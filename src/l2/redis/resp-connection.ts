/**
 * A connection to one server without the library: the bytes of large values come here, and the
 * library copies them twice (resp-reader.ts has the figures). Clusters, which need its knowledge of
 * nodes and redirections, do without that.
 *
 * Commands are written at once, those of one turn in one write; replies come in their order. One
 * buffer per connection takes what the socket has, and each value goes from there to its place in
 * L1. A SET is written straight out of L1.
 */
import net from 'node:net';
import tls from 'node:tls';
import type { RedisConnection, RedisSettings } from './connection.ts';
import { type Reply, RespReader, type Target, ValueSize } from './resp-reader.ts';

/** Half of the cache of a core: what was read is still there when it is copied to its place. */
const READ_BYTES = 256 * 1024;
const KEEP_ALIVE_MS = 30_000;

type Part = string | Buffer;

interface Waiting {
  readonly target: Target;
  readonly resolve: (reply: Reply) => void;
  readonly reject: (error: Error) => void;
}

export class RespConnection implements RedisConnection {
  readonly opened: Promise<void>;
  readonly #socket: net.Socket;
  readonly #onDown: (error: Error) => void;
  readonly #reader: RespReader;
  /** In the order of their commands; those before `#answered` have their reply. */
  #waiting: Waiting[] = [];
  #answered = 0;
  #isCorked = false;
  #isDestroyed = false;

  constructor(settings: RedisSettings, onDown: (error: Error) => void) {
    this.#onDown = onDown;
    this.#reader = new RespReader(
      () => this.#waiting[this.#answered]?.target ?? null,
      (reply) => this.#take(reply),
    );
    this.#socket = this.#connect(settings);
    this.opened = this.#open(settings);
  }

  send(_key: string, args: readonly Part[]): Promise<Reply> {
    return this.#send(args, null);
  }

  async load(name: string, target: Uint8Array): Promise<number | null> {
    const reply = await this.#send(['GET', name], target);
    if (reply === null) return null;
    if (!(reply instanceof ValueSize)) throw new Error('GET was answered with no value');
    return reply.bytes;
  }

  nodeNames(): readonly string[] {
    return ['server'];
  }

  sendToNode(_name: string, args: readonly Part[]): Promise<Reply> {
    return this.#send(args, null);
  }

  destroy(): void {
    this.#isDestroyed = true;
    this.#socket.destroy();
    for (const { reject } of this.#waiting.slice(this.#answered)) reject(new Error('broken off'));
    this.#waiting = [];
    this.#answered = 0;
  }

  #connect({ nodes, tls: encryption }: RedisSettings): net.Socket {
    const [{ host, port }] = nodes as [RedisSettings['nodes'][number]];
    const onread = {
      buffer: Buffer.allocUnsafeSlow(READ_BYTES),
      callback: (byteCount: number, bytes: Uint8Array): boolean => {
        this.#feed(Buffer.from(bytes.buffer, bytes.byteOffset, byteCount));
        return true;
      },
    };
    const socket =
      encryption === null
        ? net.connect({ host, port, onread })
        : tls.connect({
            host,
            port,
            // The types have forgotten it; the documentation of tls.connect has it.
            ...({ onread } as object),
            ...(net.isIP(host) === 0 ? { servername: host } : {}),
            ...(encryption.ca === null ? {} : { ca: encryption.ca }),
          });
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    socket.on('error', (error) => this.#fail(error));
    socket.on('close', () => this.#fail(new Error('the server closed the connection')));
    return socket;
  }

  async #open({ tls: encryption, username, password, databaseId }: RedisSettings): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#socket.once(encryption === null ? 'connect' : 'secureConnect', resolve);
    await promise;
    if (password !== '') {
      await this.#send(['AUTH', ...(username === '' ? [] : [username]), password], null);
    }
    if (databaseId !== 0) await this.#send(['SELECT', String(databaseId)], null);
  }

  #send(args: readonly Part[], target: Target): Promise<Reply> {
    if (this.#isDestroyed) return Promise.reject(new Error('the connection is closed'));
    return new Promise((resolve, reject) => {
      this.#waiting.push({ target, resolve, reject });
      this.#cork();
      let text = `*${args.length}\r\n`;
      for (const arg of args) {
        if (typeof arg === 'string') text += `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`;
        else {
          this.#socket.write(`${text}$${arg.length}\r\n`);
          this.#socket.write(arg);
          text = '\r\n';
        }
      }
      this.#socket.write(text);
    });
  }

  /** Small commands of one turn leave together. */
  #cork(): void {
    if (this.#isCorked) return;
    this.#isCorked = true;
    this.#socket.cork();
    process.nextTick(() => {
      this.#isCorked = false;
      this.#socket.uncork();
    });
  }

  #feed(bytes: Buffer): void {
    if (this.#isDestroyed) return;
    try {
      this.#reader.feed(bytes);
    } catch (error) {
      this.#fail(error as Error);
    }
  }

  #take(reply: Reply): void {
    const waiting = this.#waiting[this.#answered];
    if (!waiting) throw new Error('a reply that nobody asked for');
    this.#answered += 1;
    if (this.#answered === this.#waiting.length) {
      this.#waiting = [];
      this.#answered = 0;
    }
    if (reply instanceof Error) waiting.reject(reply);
    else waiting.resolve(reply);
  }

  #fail(error: Error): void {
    if (!this.#isDestroyed) this.#onDown(error);
  }
}
