/**
 * A message that has been received, as far as it could be read, and the reply when it is refused.
 *
 *   Pending     somebody to answer            [identity, uid, op, …]
 *   Named       `op` is an operation of the client's generation
 *   Accepted    its payloads could be read
 *
 * Of a Named request that could not be read one thing still counts: which worker it is about. Only
 * the engine knows whether that worker would take the failure for a success, and it needs the id to
 * do something about it (spec engine 9.3). Payloads are frames of their own, so the id can be read
 * whatever is wrong with the others.
 */
import type { InstanceId, OperationName, RequestOf } from '../engine/api.ts';
import { type KvdError, WithheldReplyError } from '../errors.ts';
import type { Connection } from './connections.ts';
import type { Dialect } from './dialect.ts';
import { FIRST_PAYLOAD } from './frames.ts';
import type { Call } from './operation.ts';
import { bareReply } from './reply.ts';
import { decode, looseInstanceId, type PayloadReader } from './schema.ts';

/** What is needed to answer a request, also much later. */
export interface Pending {
  readonly connection: Connection;
  readonly uid: Buffer;
  readonly op: Buffer;
}

export interface Named extends Pending {
  /** The generation for which `op` means `call`. */
  readonly dialect: Dialect;
  readonly call: Call;
  /** Null when it could not be read. */
  readonly request: RequestOf<OperationName> | null;
}

export interface Accepted extends Named {
  readonly request: RequestOf<OperationName>;
}

/** Index of the payload with the id, the same in all dialects: behind the key. */
const INSTANCE_ID_PAYLOADS: Partial<Record<OperationName, number>> = {
  RETRIEVE: 1,
  PREPARE_RETRIEVE: 1,
};

/** Null where no failure can be misread, or where the id cannot be read either. */
export function readInstanceId(
  name: OperationName,
  frames: readonly Uint8Array[],
  reader: PayloadReader,
): InstanceId | null {
  const index = INSTANCE_ID_PAYLOADS[name];
  const frame = index === undefined ? undefined : frames[FIRST_PAYLOAD + index];
  if (!frame) return null;
  try {
    return decode(looseInstanceId, frame, reader);
  } catch {
    // The message is refused for its first fault, and says so; this one adds nothing.
    return null;
  }
}

/** Null where the client is answered by silence. */
export function refusalReply(
  { uid, op, dialect, call, request }: Named,
  error: KvdError,
): Uint8Array[] | null {
  if (error instanceof WithheldReplyError) return null;
  // Behind the delimiter of a REQ socket `op` is the uid, and a reply of the operation's type would
  // be nonsense. A bare one is safe for everybody.
  if (!request && uid.length === 0) return bareReply(uid, op);
  return dialect.refuse({ uid, op, call, client: dialect.client }, error);
}
