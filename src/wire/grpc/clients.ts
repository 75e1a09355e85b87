/**
 * Who calls: one `Connection` per client, as at the ZMQ door.
 *
 * A client of the reference makes up an id and sends it with every call. Its calls are in order
 * whatever connections they come over, and two clients behind one proxy stay apart. A client
 * without an id is known by the connection it calls over.
 *
 * Other than with ZMQ it is known when a client has gone: when the last connection over which it
 * has called is closed. What comes back later is a new client, which is what a reconnected ZMQ
 * client is. The table is bounded beyond that: those not heard from for longest are forgotten
 * (`connections.ts`).
 */
import { type Connection, ConnectionTable } from '../connections.ts';
import { dialectNamed } from '../dialect.ts';

/** Ids of the reference have 16 bytes. A longer one is not kept for every client. */
const ID_BYTES_MAX = 64;

export class ClientTable {
  readonly #table: ConnectionTable;
  /** Who has called over each open connection. */
  readonly #callers = new Map<string, Set<Connection>>();
  /** Open connections over which each client has called. */
  readonly #peers = new Map<Connection, Set<string>>();

  constructor(countMax: number) {
    this.#table = new ConnectionTable(countMax, [dialectNamed('C')], (forgotten) =>
      this.#unlink(forgotten),
    );
  }

  get count(): number {
    return this.#table.count;
  }

  opened(peer: string): void {
    this.#callers.set(peer, new Set());
  }

  /** Forgets whom it was the last connection of. */
  closed(peer: string): void {
    for (const connection of this.#callers.get(peer) ?? []) {
      const peers = this.#peers.get(connection);
      peers?.delete(peer);
      if (peers?.size !== 0) continue;
      this.#peers.delete(connection);
      this.#table.forget(connection);
    }
    this.#callers.delete(peer);
  }

  of(peer: string, id: Buffer | null): Connection {
    const hasId = id !== null && id.length > 0 && id.length <= ID_BYTES_MAX;
    // Nobody can take a connection's name for an id: ids begin with another letter here.
    const identity = hasId ? Buffer.concat([Buffer.from('i'), id]) : Buffer.from(peer);
    const connection = this.#table.of(identity);
    const callers = this.#callers.get(peer);
    if (callers && !callers.has(connection)) {
      callers.add(connection);
      const peers = this.#peers.get(connection) ?? new Set();
      this.#peers.set(connection, peers.add(peer));
    }
    return connection;
  }

  #unlink(connection: Connection): void {
    for (const peer of this.#peers.get(connection) ?? []) {
      this.#callers.get(peer)?.delete(connection);
    }
    this.#peers.delete(connection);
  }
}
