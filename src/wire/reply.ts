/**
 * The forms of a reply to a request that failed (spec wire 7.3).
 *
 *   neutral     [uid, op, neutral value, error map]   the operation is known
 *   bare        [uid, op]                             it is not; every client reads "no result"
 *   exception   [uid, "error: CODE: message"]         for clients that raise on a foreign op
 *   silence                                           where every reply would mean success
 *
 * Real clients decode the first frame behind `op` as the reply type and kill their receiving thread
 * when that fails, so an error has to look like a reply: the neutral value is the failure value of
 * the type. The error map behind it is for our own tools; real clients ignore further frames.
 */
import type { ClientTraits } from '../engine/client-traits.ts';
import { type KvdError, RefusedTransferError } from '../errors.ts';
import type { Call } from './operation.ts';
import { bool, bytes, encode, pair, text } from './schema.ts';
import { field, struct } from './struct.ts';

const TEXT_BYTES_MAX = 0xffff_ffff;
/** Long enough for every message of ours; a hostile value quoted in one cannot fill the network. */
const MESSAGE_CHARS_MAX = 1000;

export interface ErrorMap {
  readonly error: string;
  readonly message: string;
  readonly op: string;
}

export const errorMap = struct<ErrorMap>({
  error: field('error', text(TEXT_BYTES_MAX)),
  message: field('message', text(TEXT_BYTES_MAX)),
  op: field('op', text(TEXT_BYTES_MAX)),
});

/** What the peer answers on hosts without a GPU; clients there accept any bytes. */
export const STUB_EVENT: Uint8Array = Buffer.from('stub_ipc_handle');
/** "Nothing was started": for clients that do not open it. */
const NO_EVENT = new Uint8Array(0);

const refusedTransfer = pair(bytes, bool);
const exceptionText = text(TEXT_BYTES_MAX);

/** A request that failed: how it was called, and by whom. */
export interface FailedCall {
  readonly uid: Uint8Array;
  readonly op: Uint8Array;
  readonly call: Call;
  readonly client: ClientTraits;
}

/** `[uid, op, neutral, error]`, or null when the operation has no failure value. */
export function neutralReply(failed: FailedCall, error: KvdError): Uint8Array[] | null {
  const { uid, op, call } = failed;
  const message = error.message.slice(0, MESSAGE_CHARS_MAX);
  const neutral = neutralFrame(failed, error, message);
  if (neutral === null) return null;
  const details = { error: error.row.wireCode, message, op: call.label };
  return [uid, op, neutral, encode(errorMap, details)];
}

function neutralFrame(
  { call, client }: FailedCall,
  error: KvdError,
  message: string,
): Uint8Array | null {
  const { neutral } = call.operation;
  switch (neutral.kind) {
    case 'frame':
      return neutral.frame;
    case 'explained':
      return neutral.frame(message);
    case 'refused transfer': {
      const stub = client.acceptsEmptyEvent ? NO_EVENT : STUB_EVENT;
      const event = error instanceof RefusedTransferError ? error.event : stub;
      return encode(refusedTransfer, [event, false]);
    }
    case 'none':
      return null;
  }
}

export function bareReply(uid: Uint8Array, op: Uint8Array): Uint8Array[] {
  return [uid, op];
}

/** A client that gets a text in place of `op` fails the request at once with that text. */
export function exceptionReply(uid: Uint8Array, error: KvdError): Uint8Array[] {
  const message = error.message.slice(0, MESSAGE_CHARS_MAX);
  return [uid, encode(exceptionText, `error: ${error.row.wireCode}: ${message}`)];
}
