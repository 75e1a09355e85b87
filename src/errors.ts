/**
 * Every error that kvd can answer, in one table.
 *
 * A row says how the error leaves by each door (`wireCode` in the error frame of a ZMQ reply,
 * `httpStatus`), how loud it is, and what the operator does next. `docs/errors.md` is generated
 * from this table (`npm run docs`), and `test/tidy.test.ts` checks that it is current.
 */

export type WireErrorCode =
  | 'BAD_REQUEST'
  | 'UNKNOWN_INSTANCE'
  | 'NOT_ENABLED'
  | 'UNSUPPORTED'
  | 'INTERNAL'
  | 'OVERLOADED'
  | 'SHUTTING_DOWN';

export type LogLevel = 'debug' | 'info' | 'warn' | 'error';

export interface ErrorRow {
  readonly summary: string;
  readonly wireCode: WireErrorCode;
  readonly httpStatus: number;
  readonly level: LogLevel;
  readonly next: string;
}

const row = (
  wireCode: WireErrorCode,
  httpStatus: number,
  level: LogLevel,
  summary: string,
  next: string,
): ErrorRow => ({ summary, wireCode, httpStatus, level, next });

export const ERRORS = {
  // wire
  ERR_WIRE_FRAME_COUNT: row(
    'BAD_REQUEST',
    400,
    'warn',
    'A message has too few or too many frames for its operation.',
    'Check that the client speaks a supported protocol generation (docs/operating.md).',
  ),
  ERR_WIRE_PAYLOAD: row(
    'BAD_REQUEST',
    400,
    'warn',
    'A payload is not valid msgpack or does not have the shape of its operation.',
    'Compare the client version with the supported ones; the message names frame and field.',
  ),
  ERR_WIRE_OPERATION: row(
    'UNSUPPORTED',
    400,
    'warn',
    'The operation id is not known in any supported protocol generation.',
    'Check the client version.',
  ),
  ERR_WIRE_WRAPPER: row(
    'BAD_REQUEST',
    400,
    'warn',
    'A device wrapper holds something else than a wrapper.',
    'If the client is genuine, report its version; if not, find out who reaches the port.',
  ),
  // engine
  ERR_BAD_REQUEST: row(
    'BAD_REQUEST',
    400,
    'warn',
    'A request asks for something that cannot be right (range, rank, block ids).',
    'The message names the field; compare chunk size and block size of client and server.',
  ),
  ERR_UNKNOWN_INSTANCE: row(
    'UNKNOWN_INSTANCE',
    404,
    'warn',
    'The worker instance is not registered.',
    'Nothing: vLLM workers register again after two heartbeats. Others need a restart.',
  ),
  ERR_NOT_ENABLED: row(
    'NOT_ENABLED',
    501,
    'warn',
    'No module of this server handles the operation.',
    'Start the server with the option that the message names.',
  ),
  ERR_UNSUPPORTED: row(
    'UNSUPPORTED',
    501,
    'error',
    'The request is understood but this server cannot do it.',
    'The message names the reason and the remedy.',
  ),
  ERR_LAYOUT: row(
    'BAD_REQUEST',
    400,
    'error',
    'The registered KV cache tensors have no supported layout.',
    'Compare engine, chunk size and block size with docs/operating.md.',
  ),
  ERR_DEVICE_MEMORY: row(
    'BAD_REQUEST',
    400,
    'error',
    'The memory behind a device wrapper cannot be mapped or is too small.',
    'Server and engine must share /dev/shm (--ipc host); check the names in the message.',
  ),
  ERR_DEVICE_COPY: row(
    'INTERNAL',
    500,
    'error',
    'A copy between engine memory and L1 failed; nothing of it was published.',
    'The worker probably died or shrank its memory; the next registration mends it.',
  ),
  ERR_DATA_MISSING: row(
    'BAD_REQUEST',
    404,
    'info',
    'A RETRIEVE names chunks that are not in L1 (any more).',
    'Expected after a clear or a restart; if frequent, L1 is too small.',
  ),
  // storage
  ERR_L1_NO_SPACE: row(
    'OVERLOADED',
    507,
    'warn',
    'L1 has no room and nothing can be evicted.',
    'Raise --l1-size-gb or look for sessions that never end in /status.',
  ),
  // L2
  ERR_L2_TIMEOUT: row(
    'INTERNAL',
    504,
    'warn',
    'An L2 store has not answered before the deadline of its task.',
    'Look at the store; raise task_timeout_s of the adapter if it is only slow.',
  ),
  ERR_L2_UNAVAILABLE: row(
    'INTERNAL',
    503,
    'warn',
    'An L2 adapter takes no work: its store fails all the time, or it is being removed.',
    'GET /status names the last failure of the store. It is tried again by itself.',
  ),
  ERR_L2_FULL: row(
    'OVERLOADED',
    507,
    'warn',
    'An object does not fit into the capacity of an L2 adapter.',
    'Raise the capacity of the adapter, or give it an eviction policy.',
  ),
  ERR_L2_LOCKED: row(
    'INTERNAL',
    409,
    'debug',
    'An object in L2 is not deleted, because somebody is about to load it.',
    'Nothing: it can be deleted a moment later.',
  ),
  ERR_L2_REFUSED: row(
    'BAD_REQUEST',
    400,
    'warn',
    'An L2 adapter cannot keep or read an object because of its name, size, layout or key.',
    'The message names what does not fit; other objects are not concerned.',
  ),
  ERR_L2_STORE: row(
    'INTERNAL',
    502,
    'warn',
    'An L2 store has failed or has answered nonsense.',
    'The message holds what the store said.',
  ),
  ERR_L2_CORRUPT: row(
    'INTERNAL',
    502,
    'error',
    'A value in L2 is not what was stored under its key.',
    'Check the medium. It counts as a miss and is stored anew.',
  ),
  // l2
  ERR_L2_IO: row(
    'INTERNAL',
    500,
    'warn',
    'An L2 store could not read, write or delete an object.',
    'The message names the place and the cause: room, permissions, mount, network.',
  ),
  ERR_QUOTA_FILE: row(
    'INTERNAL',
    503,
    'error',
    'The quota file cannot be written; the quotas are as they were.',
    'The message names the cause: room, permissions, mount. Then set the quota again.',
  ),
  // server
  ERR_OVERLOADED: row(
    'OVERLOADED',
    503,
    'warn',
    'A queue or table is at its bound; the request was refused.',
    'The message names the bound.',
  ),
  ERR_TIMEOUT: row(
    'INTERNAL',
    504,
    'error',
    'An operation did not end before its deadline; a late result is dropped.',
    'Look at /status for the instance that is stuck.',
  ),
  ERR_SHUTTING_DOWN: row(
    'SHUTTING_DOWN',
    503,
    'info',
    'The server is shutting down.',
    'Nothing: clients reconnect to the next server on this address.',
  ),
  ERR_INTERNAL: row(
    'INTERNAL',
    500,
    'error',
    'kvd broke one of its own rules.',
    'Please report it with the log lines around it.',
  ),
  ERR_CONFIG: row(
    'INTERNAL',
    500,
    'error',
    'The configuration cannot work.',
    'The message names the flag and the mend.',
  ),
  ERR_ADDRESS: row(
    'INTERNAL',
    500,
    'error',
    'A socket cannot be bound to its address.',
    'Stop the process that holds the port, or choose another port or address.',
  ),
  ERR_NATIVE: row(
    'INTERNAL',
    500,
    'error',
    'A native library of kvd cannot be placed or loaded.',
    'Set KVD_NATIVE_DIR to a private folder on a file system that allows execution.',
  ),
} as const satisfies Record<string, ErrorRow>;

export type ErrorCode = keyof typeof ERRORS;

export class KvdError extends Error {
  override readonly name: string = 'KvdError';
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = code;
  }

  get row(): ErrorRow {
    return ERRORS[this.code];
  }
}

/**
 * A failure that is answered by silence, because the client would take any reply for success: a
 * RETRIEVE in strict mode (spec engine 9.3). Registrations are the door's concern (wire 7.3).
 */
export class WithheldReplyError extends KvdError {
  override readonly name = 'WithheldReplyError';
}

/** A failure whose answer has to wait until `due` says what the answer is (spec engine 9.3). */
export class HeldReplyError extends KvdError {
  override readonly name = 'HeldReplyError';
  readonly due: Promise<KvdError>;

  constructor(cause: KvdError, due: Promise<KvdError>) {
    super(cause.code, cause.message, { cause });
    this.due = due;
  }
}

/** A refused transfer together with the completion event that the client must be able to open. */
export class RefusedTransferError extends KvdError {
  override readonly name = 'RefusedTransferError';
  readonly event: Uint8Array;

  constructor(code: ErrorCode, message: string, event: Uint8Array, options?: { cause?: unknown }) {
    super(code, message, options);
    this.event = event;
  }
}

/** The error as a `KvdError`; anything else becomes `ERR_INTERNAL` with its cause. */
export function toKvdError(error: unknown): KvdError {
  if (error instanceof KvdError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new KvdError('ERR_INTERNAL', message, { cause: error });
}
