/**
 * Finds out which generation of clients a connection is, and so what its messages mean (spec wire
 * 10).
 *
 * State: the set of dialects that the connection may still speak. Each message is compared with
 * their tables:
 *
 *   text as operation                          → dialect C
 *   (number, signature) in no table            → malformed, if the number means one operation to
 *                                                all that are left; else unknown
 *   … in some tables, all name one operation   → that one; the others are ruled out for good
 *   … and they differ                          → evidence of the message, else a guess
 *
 *   evidence   a field or a descriptor that only C has                       → C
 *              the worker registered earlier, when more was known            → as it did then
 *   guess      number 21 without payload: GET_CHUNK_SIZE, which is the first message of every
 *              engine, and not NOOP, which no engine sends; else A if possible, else C
 *
 * A guess answers its message and rules nothing out, so a later message corrects it. Ruled out are
 * only dialects in which the message would have no meaning, hence the set never grows again.
 *
 * Of several dialects that agree on a message the oldest is assumed: it has the clients that can
 * bear least. All dialects except C differ only in numbers and payloads, and where C does differ
 * from them (a failed RETRIEVE, a look-up) the key of the message is evidence.
 *
 * Cost: none once one dialect is left, which is at the latest the first LOOKUP, STORE, PREPARE or
 * PING for A and the first key for C. Clients of B look like C without evidence and may stay
 * undecided; a message then costs a signature and some bytes compared, below a microsecond.
 */
import type { InstanceId, OperationName } from '../engine/api.ts';
import { KvdError } from '../errors.ts';
import type { Connection } from './connections.ts';
import { PICKLE_PROTO } from './device-wrapper.ts';
import type { Dialect } from './dialect.ts';
import { FIRST_PAYLOAD, type OperationFrame } from './frames.ts';
import { MsgpackReader } from './msgpack.ts';
import type { Call } from './operation.ts';
import { signatureOf } from './signature.ts';

/** What a message turned out to be. */
export interface Resolution {
  readonly dialect: Dialect;
  readonly call: Call;
}

/** A worker reconnects with another identity; this is remembered about so many of them. */
const INSTANCE_COUNT_MAX = 65_536;
/** Their second payload is the worker's id; where it is another number, that says nothing. */
const BY_WORKER: ReadonlySet<OperationName> = new Set<OperationName>([
  'STORE',
  'STORE_Q',
  'RETRIEVE',
  'PREPARE_STORE',
  'COMMIT_STORE',
  'PREPARE_RETRIEVE',
  'COMMIT_RETRIEVE',
]);
/** GET_CHUNK_SIZE for B and C, NOOP for A, both without payload. */
const CHUNK_SIZE_OR_NOOP = 21;

export class DialectDetection {
  readonly #dialectCount: number;
  readonly #textDialect: Dialect | undefined;
  /** Dialects that a worker may speak, as far as its registration told; in order of age. */
  readonly #instances = new Map<InstanceId, readonly Dialect[]>();

  /** `offered`: from the oldest to the newest. */
  constructor(offered: readonly Dialect[]) {
    this.#dialectCount = offered.length;
    this.#textDialect = offered.find((dialect) => dialect.callsByText.size > 0);
  }

  /** Null when the message is no operation of any dialect that is left. */
  resolve(
    connection: Connection,
    op: OperationFrame,
    frames: readonly Uint8Array[],
  ): Resolution | null {
    if (typeof op === 'number') {
      const { candidates } = connection;
      if (candidates.length > 1) return this.#resolveAmbiguous(connection, op, frames);
      const dialect = candidates[0] as Dialect;
      const call = dialect.callsById.get(op);
      return call ? { dialect, call } : null;
    }
    const dialect = this.#textDialect;
    const call = typeof op === 'string' ? undefined : dialect?.callsByText.get(op.text);
    if (!dialect || !call) return null;
    if (connection.candidates.includes(dialect)) connection.narrow([dialect]);
    return { dialect, call };
  }

  /** A worker has registered over this connection. Ids come again: in containers they are pids. */
  remember(instanceId: InstanceId, { candidates }: Connection): void {
    this.#instances.delete(instanceId);
    if (candidates.length === this.#dialectCount) return;
    this.#instances.set(instanceId, candidates);
    if (this.#instances.size <= INSTANCE_COUNT_MAX) return;
    const [eldest] = this.#instances.keys();
    this.#instances.delete(eldest as InstanceId);
  }

  #resolveAmbiguous(
    connection: Connection,
    id: number,
    frames: readonly Uint8Array[],
  ): Resolution | null {
    const { candidates } = connection;
    const signature = signatureOf(frames, FIRST_PAYLOAD);
    const fitting = candidates.filter((dialect) =>
      dialect.callsById.get(id)?.hasSignature(signature),
    );
    if (fitting.length === 0) return onlyMeaning(candidates, id);
    const likely = this.#weighEvidence(fitting, id, signature, frames);
    if (meansOne(likely, id)) {
      connection.narrow(likely);
      return resolution(likely[0] as Dialect, id);
    }
    return resolution(guess(likely, id), id);
  }

  #weighEvidence(
    fitting: readonly Dialect[],
    id: number,
    signature: string,
    frames: readonly Uint8Array[],
  ): readonly Dialect[] {
    const newest = fitting.at(-1) as Dialect;
    if (newest === this.#textDialect && hasNewForm(signature, frames)) return [newest];
    const isByWorker = fitting.every((dialect) => BY_WORKER.has(nameIn(dialect, id)));
    if (!isByWorker || signature[1] !== 'i') return fitting;
    const known = this.#instances.get(readInstanceId(frames[FIRST_PAYLOAD + 1] as Uint8Array));
    const agreeing = known ? fitting.filter((dialect) => known.includes(dialect)) : [];
    return agreeing.length > 0 ? agreeing : fitting;
  }
}

function resolution(dialect: Dialect, id: number): Resolution {
  return { dialect, call: dialect.callsById.get(id) as Call };
}

/** Of an id that the dialect has. */
function nameIn(dialect: Dialect, id: number): OperationName {
  return (dialect.callsById.get(id) as Call).operation.name;
}

function meansOne(dialects: readonly Dialect[], id: number): boolean {
  const name = dialects[0]?.callsById.get(id)?.operation.name;
  return dialects.every((dialect) => dialect.callsById.get(id)?.operation.name === name);
}

/** A message of no known form: of which operation it is a malformed request, if that is certain. */
function onlyMeaning(candidates: readonly Dialect[], id: number): Resolution | null {
  const knowing = candidates.filter((dialect) => dialect.callsById.has(id));
  const [first] = knowing;
  return first && meansOne(knowing, id) ? resolution(first, id) : null;
}

function guess(likely: readonly Dialect[], id: number): Dialect {
  if (id === CHUNK_SIZE_OR_NOOP) return (likely.find(({ name }) => name !== 'A') ?? likely[0])!;
  return (likely.find(({ name }) => name === 'A') ?? likely.at(-1))!;
}

/** Last fields of their maps, each written by every client since 0.5.5 and by none before. */
const NEW_NAMES: readonly string[] = ['num_kv_readers', 'recurrent_state', 'num_physical_slots'];
const NEW_FIELDS: readonly Buffer[] = NEW_NAMES.map((name) => Buffer.from(name, 'latin1'));
/** A name and the widest integer behind it. */
const TAIL_BYTES = 32;

/** True when a payload has something that only clients since 0.5.5 send. */
function hasNewForm(signature: string, frames: readonly Uint8Array[]): boolean {
  for (let index = 0; index < signature.length; index += 1) {
    const letter = signature[index];
    if (letter !== 'm' && letter !== 'a') continue;
    const frame = frames[FIRST_PAYLOAD + index] as Uint8Array;
    const isLikely = endsWithNewField(frame);
    if (letter === 'm' ? isLikely && hasNewKey(frame) : isLikely || hasDescribedWrapper(frame)) {
      return true;
    }
  }
  return false;
}

/** These fields are the last of their maps, so long prompts are not searched. */
function endsWithNewField(frame: Uint8Array): boolean {
  const tail = Buffer.from(
    frame.buffer,
    frame.byteOffset + Math.max(0, frame.length - TAIL_BYTES),
    Math.min(frame.length, TAIL_BYTES),
  );
  return NEW_FIELDS.some((name) => tail.includes(name));
}

const reader = new MsgpackReader();

/** For certain: the last field of older keys is the salt, which users choose. */
function hasNewKey(frame: Uint8Array): boolean {
  try {
    reader.reset(frame);
    for (let left = reader.readMapHeader(); left > 0; left -= 1) {
      if (NEW_NAMES.includes(reader.readText())) return true;
      reader.skip();
    }
    return false;
  } catch (error) {
    // Malformed: whoever decodes the payload will say so.
    if (error instanceof KvdError) return false;
    throw error;
  }
}

/** Looks at the first wrapper of a registration: since 0.5.6 it is no pickle. */
function hasDescribedWrapper(frame: Uint8Array): boolean {
  try {
    reader.reset(frame);
    if (reader.readArrayHeader() === 0 || reader.peek() !== 'ext') return false;
    const { data } = reader.readExtension();
    return data.length > 0 && data[0] !== PICKLE_PROTO;
  } catch (error) {
    // Truncated: whoever decodes the payload will say so.
    if (error instanceof KvdError) return false;
    throw error;
  }
}

function readInstanceId(frame: Uint8Array): InstanceId {
  try {
    reader.reset(frame);
    return BigInt(reader.readInteger());
  } catch (error) {
    if (error instanceof KvdError) return -1n;
    throw error;
  }
}
