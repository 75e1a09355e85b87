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
 * Each rollover tells who was forgotten (streams end with their connection), at the cost of a walk
 * over half the table once in as many new connections.
 *
 * A connection that is forgotten and speaks again gets a new id. Ids are never used twice, not by
 * another door either: the engine ties locks and sessions to them.
 */
import type { RequestContext } from '../engine/client-traits.ts';
import type { Dialect, DialectName } from './dialect.ts';

/** Of all tables of the process. */
let lastId = 0;

export class Connection {
  readonly id: number;
  readonly identity: Buffer;
  /** The dialect of the last message. */
  dialect: Dialect;
  context: RequestContext;
  /** Requests whose reply is not there yet; `Admission` counts them. */
  inFlightCount = 0;
  #candidates: readonly Dialect[];

  constructor(id: number, identity: Buffer, candidates: readonly Dialect[]) {
    this.id = id;
    this.identity = identity;
    this.#candidates = candidates;
    this.dialect = candidates[0] as Dialect;
    this.context = { connectionId: id, client: this.dialect.client };
  }

  /** Dialects that this client may still speak, from the oldest to the newest. */
  get candidates(): readonly Dialect[] {
    return this.#candidates;
  }

  /** The others have been ruled out. */
  narrow(candidates: readonly Dialect[]): void {
    this.#candidates = candidates;
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
  readonly #onForgotten: (connection: Connection) => void;
  #recent = new Map<string, Connection>();
  #older = new Map<string, Connection>();

  constructor(
    countMax: number,
    dialects: readonly Dialect[],
    onForgotten: (connection: Connection) => void = () => {},
  ) {
    this.#generationMax = Math.max(1, Math.floor(countMax / 2));
    this.#dialects = dialects;
    this.#onForgotten = onForgotten;
  }

  /** Connections that are remembered. */
  get count(): number {
    return this.#recent.size + this.#older.size;
  }

  /** By the dialect that they are treated as; those of which nothing is ruled out yet, apart. */
  countByDialect(): Record<DialectName | 'undetermined', number> {
    const counts = { A: 0, B: 0, C: 0, undetermined: 0 };
    for (const table of [this.#recent, this.#older]) {
      for (const { candidates, dialect } of table.values()) {
        const isOpen = candidates.length > 1 && candidates.length === this.#dialects.length;
        counts[isOpen ? 'undetermined' : dialect.name] += 1;
      }
    }
    return counts;
  }

  of(identity: Buffer): Connection {
    const key = identity.toString('latin1');
    const known = this.#recent.get(key);
    if (known) return known;
    const connection = this.#older.get(key) ?? this.#create(identity);
    this.#older.delete(key);
    if (this.#recent.size >= this.#generationMax) {
      const forgotten = this.#older;
      this.#older = this.#recent;
      this.#recent = new Map();
      for (const gone of forgotten.values()) this.#onForgotten(gone);
    }
    this.#recent.set(key, connection);
    return connection;
  }

  /** Its client has gone for certain. Nobody is told. */
  forget({ identity }: Connection): void {
    const key = identity.toString('latin1');
    this.#recent.delete(key);
    this.#older.delete(key);
  }

  #create(identity: Buffer): Connection {
    lastId += 1;
    return new Connection(lastId, identity, this.#dialects);
  }
}
