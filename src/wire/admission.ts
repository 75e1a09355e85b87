/**
 * Which requests the door lets in.
 *
 *   message ──► size ──► decode ──► counts, closing ──► dispatch
 *                 │ refused, not read    │ refused, in the words of the engine
 *
 * The size comes first, because a message that is too large must not be decoded. Everything else
 * comes behind the decoding: some clients take a failed RETRIEVE for a success, and only the engine
 * knows, from the request, which ones (`RequestSink.refuse`).
 *
 * Sizes. What an operation can need is known: names and numbers, a prompt, lists of bounded length.
 * A message above that is no request of a real client. The data of a COMMIT_STORE is bounded by
 * `messageBytesMax` alone; it is never walked through.
 *
 * Counts. A request is in flight from its dispatch until its reply is there. There is a bound for
 * each connection and one for all together, and each connection has a reserve that it may use
 * however many the others have, so nobody can shut others out. All together have at most
 * `inFlightCountMaxTotal + connectionCountMax × inFlightCountReserved`.
 *
 * Never refused for their number are PING (a false makes a healthy worker drop its cache), NOOP and
 * GET_CHUNK_SIZE (which has no failure value, so it also goes through while the door closes). Their
 * handlers answer at once, so they pile up nowhere. Streams have bounds of their own
 * (`streams.ts`).
 */
import type { InstanceId, OperationName } from '../engine/api.ts';
import type { RequestSink } from '../engine/handlers.ts';
import { KvdError } from '../errors.ts';
import { MIB } from '../units.ts';
import type { Connection } from './connections.ts';
import { FIRST_PAYLOAD, sizeOfFrames } from './frames.ts';
import type { Call } from './operation.ts';
import { ELEMENTS_PER_MESSAGE_MAX, LIST_COUNT_MAX, type WireLimits } from './wire-limits.ts';

/**
 *   small      names and numbers
 *   prompt     a key with the tokens of a prompt
 *   blocks     a key and block ids
 *   wrappers   a registration
 *   list       records, keys or matches, with or without a key
 *   data       a key and, in the last frame, data
 */
type SizeClass = 'small' | 'prompt' | 'blocks' | 'wrappers' | 'list' | 'data';

const SIZE_CLASSES: Readonly<Record<OperationName, SizeClass>> = {
  REGISTER_KV_CACHE: 'wrappers',
  UNREGISTER_KV_CACHE: 'small',
  STORE: 'blocks',
  RETRIEVE: 'blocks',
  LOOKUP: 'prompt',
  QUERY_PREFETCH_STATUS: 'small',
  WAIT_PREFETCH_STATUS: 'small',
  QUERY_PREFETCH_LOOKUP_HITS: 'small',
  FREE_LOOKUP_LOCKS: 'prompt',
  END_SESSION: 'small',
  REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: 'small',
  UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: 'small',
  PREPARE_STORE: 'prompt',
  COMMIT_STORE: 'data',
  PREPARE_RETRIEVE: 'prompt',
  COMMIT_RETRIEVE: 'prompt',
  CLEAR: 'small',
  GET_CHUNK_SIZE: 'small',
  PING: 'small',
  REPORT_BLOCK_ALLOCATION: 'list',
  NOOP: 'small',
  CB_REGISTER_KV_CACHE: 'wrappers',
  CB_UNREGISTER_KV_CACHE: 'small',
  CB_STORE_PRE_COMPUTED: 'prompt',
  CB_LOOKUP_PRE_COMPUTED: 'prompt',
  CB_RETRIEVE_PRE_COMPUTED: 'list',
  CB_STORE_FINAL: 'prompt',
  CB_LOOKUP_PRE_COMPUTED_V2: 'prompt',
  CB_RETRIEVE_PRE_COMPUTED_V2: 'list',
  CB_REGISTER_ROPE_V3: 'wrappers',
  CB_UNREGISTER_ROPE_V3: 'small',
  CB_RETRIEVE_PRE_COMPUTED_V3: 'list',
  CB_UNIFIED_LOOKUP: 'prompt',
  P2P_LOOKUP_AND_LOCK: 'list',
  P2P_QUERY_LOOKUP_RESULTS: 'small',
  P2P_UNLOCK_OBJECTS: 'list',
  REGISTER_Q_CACHE: 'wrappers',
  UNREGISTER_Q_CACHE: 'small',
  STORE_Q: 'blocks',
  CB_PROTOCOL_HANDSHAKE: 'small',
  CB_REORDER_PLAN: 'prompt',
  GET_EXPERIMENTAL: 'small',
  SERVER_MODULE_CALL: 'small',
  SUBSCRIBE_KV_EVENTS: 'small',
};

/** Names, numbers, uid, and what newer clients add to a map. */
const SPARE_BYTES = MIB;
/** The widest msgpack integer. */
const INTEGER_BYTES_MAX = 9;
/** A wrapper of a real client has 300 to 900 bytes. */
const WRAPPER_BYTES = 1024;
/** 65,536 keys or matches of up to 500 bytes, or a budget full of integers beside 4096 names. */
const LIST_BYTES = 32 * MIB;

const COUNT_EXEMPT: ReadonlySet<OperationName> = new Set<OperationName>([
  'PING',
  'NOOP',
  'GET_CHUNK_SIZE',
]);

/**
 * GET_CHUNK_SIZE cannot fail; a subscriber that is refused asks again at once or gives up for good,
 * and every stream ends with the door in any case.
 */
const CLOSING_EXEMPT: ReadonlySet<OperationName> = new Set<OperationName>([
  'GET_CHUNK_SIZE',
  'SUBSCRIBE_KV_EVENTS',
]);

interface TurnedAway {
  readonly name: OperationName;
  /** Null where no failure can be misread, or where the id cannot be read. */
  readonly instanceId: InstanceId | null;
  readonly cause: KvdError;
}

export class Admission {
  readonly #limits: WireLimits;
  /** Requests of all connections whose reply is not there yet. */
  inFlightCount = 0;
  isClosing = false;

  constructor(limits: WireLimits) {
    this.#limits = limits;
  }

  /** Throws `ERR_OVERLOADED`. Looks at no more frames than the operation has. */
  checkSize(call: Call, frames: readonly Uint8Array[], tokenCountMax: number): void {
    const end = FIRST_PAYLOAD + call.payloadCountMax;
    this.checkBytes(call, sizeOfFrames(frames, end), tokenCountMax, () =>
      sizeOfFrames(frames, end - 1),
    );
  }

  /** The same of a message in one piece. `headBytesOf`: its size without the data that it has. */
  checkBytes(
    { operation: { name } }: Call,
    sizeBytes: number,
    tokenCountMax: number,
    headBytesOf: () => number,
  ): void {
    const { messageBytesMax } = this.#limits;
    // Nearly all messages end here.
    if (sizeBytes <= Math.min(SPARE_BYTES, messageBytesMax)) return;
    const sizeClass = SIZE_CLASSES[name];
    const bound = Math.min(boundOf(sizeClass, tokenCountMax), messageBytesMax);
    if (sizeClass !== 'data') {
      if (sizeBytes > bound) throw tooLarge(name, `has ${sizeBytes} bytes`, bound);
      return;
    }
    if (sizeBytes > messageBytesMax) {
      throw tooLarge(name, `has ${sizeBytes} bytes`, messageBytesMax);
    }
    const headBytes = headBytesOf();
    if (headBytes > bound) throw tooLarge(name, `has ${headBytes} bytes besides its data`, bound);
  }

  /** Why a request that has been decoded is not let in, or null. */
  refusalOf({ operation }: Call, connection: Connection): KvdError | null {
    const { name } = operation;
    if (this.isClosing && !CLOSING_EXEMPT.has(name)) {
      return new KvdError('ERR_SHUTTING_DOWN', 'the server is shutting down');
    }
    if (COUNT_EXEMPT.has(name)) return null;
    const { inFlightCountMax, inFlightCountMaxTotal, inFlightCountReserved } = this.#limits;
    const own = connection.inFlightCount;
    if (own >= inFlightCountMax) {
      return new KvdError(
        'ERR_OVERLOADED',
        `the connection has ${own} requests in flight already, which is the bound`,
      );
    }
    if (this.inFlightCount >= inFlightCountMaxTotal && own >= inFlightCountReserved) {
      return new KvdError(
        'ERR_OVERLOADED',
        `the server has ${this.inFlightCount} requests in flight, ${own} of this connection; ` +
          `the bounds are ${inFlightCountMaxTotal} and ${inFlightCountReserved}`,
      );
    }
    return null;
  }

  enter(connection: Connection): void {
    connection.inFlightCount += 1;
    this.inFlightCount += 1;
  }

  leave(connection: Connection): void {
    connection.inFlightCount -= 1;
    this.inFlightCount -= 1;
  }

  /** Counts a request as in flight until its result is there, and hands that on. */
  settleLater(
    connection: Connection,
    result: Promise<unknown>,
    onValue: (value: unknown) => void,
    onError: (error: unknown) => void,
  ): void {
    this.enter(connection);
    const settled = (next: (outcome: unknown) => void) => (outcome: unknown) => {
      this.leave(connection);
      next(outcome);
    };
    result.then(settled(onValue), settled(onError));
  }

  /** Not let in: what the client is told is the engine's choice, and may have to wait. */
  turnAway(
    connection: Connection,
    { name, instanceId, cause }: TurnedAway,
    sink: RequestSink,
    refuse: (error: unknown) => void,
  ): void {
    let error: unknown;
    try {
      error = sink.refuse(name, instanceId, connection.context, cause);
    } catch (failure) {
      error = failure;
    }
    if (error instanceof Promise) this.settleLater(connection, error, refuse, refuse);
    else refuse(error);
  }
}

/** Bytes of all frames, without data. */
function boundOf(sizeClass: SizeClass, tokenCountMax: number): number {
  const promptBytes = SPARE_BYTES + INTEGER_BYTES_MAX * tokenCountMax;
  switch (sizeClass) {
    case 'small':
      return SPARE_BYTES;
    case 'prompt':
    case 'data':
      return promptBytes;
    case 'blocks':
      return promptBytes + INTEGER_BYTES_MAX * ELEMENTS_PER_MESSAGE_MAX;
    case 'wrappers':
      return SPARE_BYTES + WRAPPER_BYTES * LIST_COUNT_MAX;
    case 'list':
      return LIST_BYTES;
  }
}

function tooLarge(name: OperationName, what: string, bound: number): KvdError {
  return new KvdError('ERR_OVERLOADED', `the message ${what}, the bound of ${name} is ${bound}`);
}
