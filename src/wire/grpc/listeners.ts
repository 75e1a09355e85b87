/**
 * The listening sockets of the gRPC door, and the connections that came in through them.
 *
 * grpc-js could listen by itself, but it tells neither when a connection closes nor which call came
 * over which one, and both are needed (`clients.ts`). So the door listens, and hands connections
 * over. Each carries its number as its remote address, which is what a call names as its peer; two
 * connections of one client can have the same real address, and those over a path have none.
 */
import { createServer, type Server, type Socket } from 'node:net';
import type { Logger } from '../../observability/log.ts';
import { badEndpoint, isLocal } from '../endpoints.ts';
import { ACCEPT_BACKLOG } from '../wire-limits.ts';
import { type GrpcAddress, grpcEndpoint, resolveGrpcEndpoint } from './grpc-endpoints.ts';

export interface ListenersOptions {
  readonly endpoints: readonly string[];
  /** Above: closed at once. */
  readonly socketCountMax: number;
  readonly log: Logger;
}

/** Who takes the connections. `peer` is what `getPeer` of their calls will say. */
export interface SocketTaker {
  opened(socket: Socket, peer: string): void;
  closed(peer: string): void;
}

const REASONS: Readonly<Record<string, string>> = {
  EADDRINUSE: 'another process listens there; choose another port or stop it',
  EADDRNOTAVAIL: 'this host has no such address',
  EACCES: 'permission denied',
  ENOENT: 'its folder does not exist',
};

export class Listeners {
  /** With real ports. */
  readonly endpoints: string[] = [];
  readonly #servers: Server[] = [];
  readonly #sockets = new Map<string, Socket>();
  readonly #socketCountMax: number;
  #taker: SocketTaker | null = null;
  #lastNumber = 0;

  private constructor(socketCountMax: number) {
    this.#socketCountMax = socketCountMax;
  }

  /** Throws `ERR_ADDRESS` and leaves nothing open when one endpoint cannot be bound. */
  static async open({ endpoints, socketCountMax, log }: ListenersOptions): Promise<Listeners> {
    const listeners = new Listeners(socketCountMax);
    try {
      for (const endpoint of endpoints) {
        await listeners.#listen(await resolveGrpcEndpoint(endpoint));
      }
    } catch (error) {
      listeners.close();
      throw error;
    }
    for (const endpoint of listeners.endpoints) {
      if (isLocal(endpoint)) continue;
      log.warn(`${endpoint} can be reached from other hosts: it has no authentication`);
    }
    return listeners;
  }

  get socketCount(): number {
    return this.#sockets.size;
  }

  /** Hands over the connections: those that have waited, and all that come. */
  start(taker: SocketTaker): void {
    this.#taker = taker;
    for (const [peer, socket] of this.#sockets) taker.opened(socket, peer);
  }

  /** No more connections: the addresses are free. Those that are open stay. */
  stop(): void {
    for (const server of this.#servers.splice(0)) server.close();
  }

  /** Closes everything. The file of a path goes with its socket. */
  close(): void {
    this.stop();
    for (const socket of this.#sockets.values()) socket.destroy();
  }

  async #listen(address: GrpcAddress): Promise<void> {
    const server = createServer((socket) => this.#accept(socket));
    server.maxConnections = this.#socketCountMax;
    const place = 'path' in address ? { path: address.path } : address;
    await new Promise<void>((resolve, reject) => {
      server.once('error', (error: NodeJS.ErrnoException) => {
        const code = error.code ?? error.message;
        reject(badEndpoint(address.given, `cannot be bound: ${REASONS[code] ?? code}`, error));
      });
      server.listen({ ...place, backlog: ACCEPT_BACKLOG }, resolve);
    });
    // Accepting can fail (no file handles left) and goes on with the next connection.
    server.removeAllListeners('error').on('error', () => {});
    this.#servers.push(server);
    const bound = server.address();
    const isTcp = bound !== null && typeof bound === 'object';
    this.endpoints.push(isTcp ? grpcEndpoint(bound.address, bound.port) : address.given);
  }

  #accept(socket: Socket): void {
    this.#lastNumber += 1;
    const peer = `connection ${this.#lastNumber}`;
    Object.defineProperties(socket, {
      remoteAddress: { value: peer },
      remotePort: { value: undefined },
    });
    socket.setNoDelay(true);
    // What breaks a connection closes it, too, and that is noticed.
    socket.on('error', () => {});
    socket.once('close', () => {
      this.#sockets.delete(peer);
      this.#taker?.closed(peer);
    });
    this.#sockets.set(peer, socket);
    this.#taker?.opened(socket, peer);
  }
}
