/**
 * What is sent back: replies, parts of streams, refusals in the form that the client's generation
 * understands. Each request leaves through one of these methods, once.
 */
import type { ReplyStream } from '../engine/api.ts';
import { KvdError, toKvdError } from '../errors.ts';
import type { Connection } from './connections.ts';
import type { DialectDetection } from './detection.ts';
import type { OperationFrame } from './frames.ts';
import type { Outbox } from './outbox.ts';
import { type Accepted, type Named, type Pending, refusalReply } from './received.ts';
import { bareReply, exceptionReply } from './reply.ts';
import type { StreamTable } from './streams.ts';
import type { WireJournal } from './wire-journal.ts';

export interface AnswersOptions {
  readonly outbox: Outbox;
  readonly journal: WireJournal;
  readonly streams: StreamTable;
  readonly detection: DialectDetection;
  /** Names of the dialects that are offered, for messages. */
  readonly dialectNames: string;
}

export class Answers {
  readonly #options: AnswersOptions;

  constructor(options: AnswersOptions) {
    this.#options = options;
  }

  answer(accepted: Accepted, reply: unknown): void {
    const { connection, uid, op, call, request } = accepted;
    const { operation } = call;
    const { outbox, streams, detection } = this.#options;
    let frame: Uint8Array | null;
    try {
      if (operation.isStream) {
        streams.open(accepted, reply as ReplyStream<unknown>);
        return;
      }
      frame = operation.encodeReply(reply as never);
    } catch (error) {
      this.refuse(accepted, error);
      return;
    }
    if (operation.neutral.kind === 'none' && 'instanceId' in request) {
      detection.remember(request.instanceId as bigint, connection);
    }
    const { identity } = connection;
    outbox.send(connection, frame ? [identity, uid, op, frame] : [identity, uid, op]);
  }

  /** A request that failed, or could not be read. */
  refuse(named: Named, cause: unknown): void {
    const { connection, call, request } = named;
    const { journal } = this.#options;
    const error = toKvdError(cause);
    const reply = refusalReply(named, error);
    const refused = { operation: call.operation, request, isAnswered: reply !== null };
    // A message that is too large was not looked at, so nobody knows whether it was a bad one.
    if (request || error.code === 'ERR_OVERLOADED') journal.refusal(connection, error, refused);
    else journal.badMessage(connection, error, refused);
    if (reply) this.#send(connection, reply);
  }

  /** No operation of any dialect that the client may speak. */
  refuseUnknown({ connection, uid, op }: Pending, id: OperationFrame): void {
    const { dialectNames } = this.#options;
    const isText = typeof id === 'object';
    const shown =
      typeof id === 'number'
        ? `operation ${id}`
        : `an operation frame (${isText ? JSON.stringify(id.text) : id})`;
    const error = this.bad(
      connection,
      'ERR_WIRE_OPERATION',
      `${shown} is not known in dialect ${dialectNames}`,
    );
    this.#send(connection, isText ? exceptionReply(uid, error) : bareReply(uid, op));
  }

  bad(
    connection: Connection,
    code: 'ERR_WIRE_FRAME_COUNT' | 'ERR_WIRE_OPERATION',
    problem: string,
  ): KvdError {
    const error = new KvdError(code, problem);
    this.#options.journal.badMessage(connection, error, null);
    return error;
  }

  #send(connection: Connection, reply: Uint8Array[]): void {
    this.#options.outbox.send(connection, [connection.identity, ...reply]);
  }
}
