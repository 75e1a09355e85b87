/**
 * A Redis-like server for tests of what real ones do only when they break. It keeps values and
 * answers GET, SET, STRLEN, DEL and AUTH; a fault takes over single commands.
 */
import { once } from 'node:events';
import net from 'node:net';

/** Called for each command before the usual answer; true = it has been dealt with. */
export type Fault = (command: readonly string[], socket: net.Socket) => boolean;

export class FakeResp {
  readonly values = new Map<string, Buffer>();
  /** All that came, values left out. */
  readonly commands: string[] = [];
  fault: Fault = () => false;
  readonly #server: net.Server;
  readonly #sockets = new Set<net.Socket>();

  private constructor(server: net.Server) {
    this.#server = server;
  }

  static async listen(port = 0): Promise<FakeResp> {
    const server = net.createServer();
    const fake = new FakeResp(server);
    server.on('connection', (socket) => fake.#serve(socket));
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return fake;
  }

  get port(): number {
    return (this.#server.address() as net.AddressInfo).port;
  }

  get connectionCount(): number {
    return this.#sockets.size;
  }

  count(name: string): number {
    return this.commands.filter((command) => command.startsWith(`${name} `)).length;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #serve(socket: net.Socket): void {
    this.#sockets.add(socket);
    // Clients break off in many of these tests; that is the point of them.
    socket.on('error', () => {});
    socket.on('close', () => this.#sockets.delete(socket));
    let pending = Buffer.alloc(0);
    socket.on('data', (chunk) => {
      pending = Buffer.concat([pending, chunk]);
      for (;;) {
        const taken = takeCommand(pending);
        if (taken === null) return;
        pending = pending.subarray(taken.endOffset);
        this.#answer(taken.parts, socket);
      }
    });
  }

  #answer(parts: readonly Buffer[], socket: net.Socket): void {
    const [name = '', key = '', ...rest] = parts.map((part) => part.toString('latin1'));
    const isSet = name === 'SET';
    const command = isSet ? [name, key, ...rest.slice(1)] : [name, key, ...rest];
    this.commands.push(command.join(' '));
    if (this.fault(command, socket)) return;
    const value = this.values.get(key);
    if (isSet) {
      this.values.set(key, Buffer.from(parts[2] ?? ''));
      socket.write('+OK\r\n');
    } else if (name === 'GET') {
      socket.write(value ? bulk(value) : '$-1\r\n');
    } else if (name === 'STRLEN') socket.write(`:${value?.length ?? 0}\r\n`);
    else if (name === 'DEL') socket.write(`:${Number(this.values.delete(key))}\r\n`);
    else if (name === 'AUTH') socket.write('+OK\r\n');
    else socket.write(`-ERR unknown command '${name}'\r\n`);
  }
}

export function bulk(value: Uint8Array): Buffer {
  return Buffer.concat([Buffer.from(`$${value.length}\r\n`), value, Buffer.from('\r\n')]);
}

/** `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`; null = not all of it is there yet. */
function takeCommand(bytes: Buffer): { parts: Buffer[]; endOffset: number } | null {
  let offset = 0;
  const number = (): number | null => {
    const end = bytes.indexOf('\r\n', offset);
    if (end < 0) return null;
    const value = Number(bytes.toString('latin1', offset + 1, end));
    offset = end + 2;
    return value;
  };
  const count = number();
  if (count === null) return null;
  const parts: Buffer[] = [];
  for (let i = 0; i < count; i += 1) {
    const length = number();
    if (length === null || bytes.length < offset + length + 2) return null;
    parts.push(bytes.subarray(offset, offset + length));
    offset += length + 2;
  }
  return { parts, endOffset: offset };
}
