/** How the operations of api.ts are called: by the door, through the dispatch, in the modules. */
import type { KvdError } from '../errors.ts';
import type { InstanceId, OperationName, ReplyOf, RequestOf } from './api.ts';
import type { RequestContext } from './client-traits.ts';

/**
 * One request on its way. It is abandoned when its client has been told that it failed: whatever
 * it still does must not take effect, because the client has gone on without it.
 */
export interface Attempt {
  /** Monotonic; when the request reached the dispatch, before it waited in a lane. */
  readonly arrivedMs: number;
  readonly isAbandoned: boolean;
  /**
   * The process stood still for so long, since the client sent this, that a client which watches
   * the server may have given it up without being told (stall-watch.ts).
   */
  readonly isOverdue: boolean;
  /**
   * The client may have sent it longer ago than any client waits: it may have lain unread while
   * the process stood still.
   */
  readonly isExpired: boolean;
  /** Runs `listener` at once when the attempt is abandoned while its handler runs. */
  onAbandon(listener: () => void): void;
}

export type Handler<N extends OperationName> = (
  request: RequestOf<N>,
  context: RequestContext,
  attempt: Attempt,
) => ReplyOf<N> | Promise<ReplyOf<N>>;

export type HandlerTable = { readonly [N in OperationName]?: Handler<N> };

/** A part of the engine: some operations, some keys of `/status`, something to close. */
export interface EngineModule {
  readonly name: string;
  readonly handlers: HandlerTable;
  /** Keys that this module adds to the top level of `GET /status`. */
  status(): Record<string, unknown>;
  /** The server begins to shut down: nothing may keep a reply back any more. */
  beginDrain?(): void;
  close(): Promise<void>;
}

/**
 * The door's side of the dispatch: value when the handler is synchronous, else a promise.
 *
 * After a promise `onSettled` runs when the handler needs the request's bytes no more, which can be
 * long after the answer (a deadline). After a value they are not needed any more.
 */
export interface RequestSink {
  dispatch<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    onSettled?: () => void,
  ): ReplyOf<N> | Promise<ReplyOf<N>>;
  /**
   * The door refuses a request (shutdown, overload, it cannot be read). Returns what the client is
   * to be told, later if it is a promise: not every client can bear every failure. `instanceId` is
   * the worker that the request is about; null where there is none, or none that could be read.
   */
  refuse(
    name: OperationName,
    instanceId: InstanceId | null,
    context: RequestContext,
    error: KvdError,
  ): KvdError | Promise<KvdError>;
}
