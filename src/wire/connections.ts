/**
 * Who is at the other end: one `Connection` per ZMQ identity.
 *
 * ZMQ tells neither when a client connects nor when it leaves, so connections are made at their
 * first message and forgotten when nothing was heard from them for long. The table keeps two
 * generations: `#recent` and `#older`. A connection heard from is in `#recent`; when that is full
 * it becomes `#older`, and what was in `#older` is forgotten. So the table holds at most
 * `countMax` connections, those forgotten are among the least recently heard, and a message costs
 * one map look-up.
 *
 * A connection that is forgotten and speaks again gets a new id. Ids are never used twice: the
 * engine ties locks and sessions to them.
 */
import type { RequestContext } from '../engine/api.ts';
import type { Dialect } from './dialect.ts';

export class Connection {
  readonly id: number;
  readonly identity: Buffer;
  /** Dialects that this client may still speak. */
  readonly candidates: readonly Dialect[];
  /** The dialect of the last message. */
  dialect: Dialect;
  context: RequestContext;
  /** Requests whose reply is not there yet; `Admission` counts them. */
  inFlightCount = 0;

  constructor(id: number, identity: Buffer, candidates: readonly Dialect[]) {
    this.id = id;
    this.identity = identity;
    this.candidates = candidates;
    this.dialect = candidates[0] as Dialect;
    this.context = { connectionId: id, client: this.dialect.client };
  }

  adopt(dialect: Dialect): void {
    if (dialect === this.dialect) return;
    this.dialect = dialect;
    this.context = { connectionId: this.id, client: dialect.client };
  }
}

export class ConnectionTable {
  readonly #generationMax: number;
  readonly #dialects: readonly Dialect[];
  #recent = new Map<string, Connection>();
  #older = new Map<string, Connection>();
  #lastId = 0;

  constructor(countMax: number, dialects: readonly Dialect[]) {
    this.#generationMax = Math.max(1, Math.floor(countMax / 2));
    this.#dialects = dialects;
  }

  /** Connections that are remembered. */
  get count(): number {
    return this.#recent.size + this.#older.size;
  }

  of(identity: Buffer): Connection {
    const key = identity.toString('latin1');
    const known = this.#recent.get(key);
    if (known) return known;
    const connection = this.#older.get(key) ?? this.#create(identity);
    this.#older.delete(key);
    if (this.#recent.size >= this.#generationMax) {
      this.#older = this.#recent;
      this.#recent = new Map();
    }
    this.#recent.set(key, connection);
    return connection;
  }

  #create(identity: Buffer): Connection {
    this.#lastId += 1;
    return new Connection(this.#lastId, identity, this.#dialects);
  }
}
