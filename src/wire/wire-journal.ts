/**
 * What goes wrong at the ZMQ door: counted by reason since the start, and told to the operator in
 * at most one line per connection, reason and operation (the limit is the logger's). This is the
 * one place that says that a request was refused, whoever refused it.
 */
import type { OperationName, RequestOf } from '../engine/api.ts';
import type { ErrorCode, KvdError, LogLevel } from '../errors.ts';
import type { EventBus } from '../observability/event-bus.ts';
import type { Logger } from '../observability/log.ts';
import type { Connection } from './connections.ts';
import type { Operation } from './operation.ts';
import type { LossReason } from './outbox.ts';

/** Ids of real requests have 40 to 60 characters, paths of models some more. */
const NAME_CHARS_MAX = 120;

/** A request whose operation is known. */
export interface RefusedRequest {
  readonly operation: Operation;
  /** Null when it could not be read. */
  readonly request: RequestOf<OperationName> | null;
  /** False: the failure is answered by silence. */
  readonly isAnswered: boolean;
}

export class WireJournal {
  readonly #log: Logger;
  readonly #bus: EventBus;
  readonly #badMessages = new Map<ErrorCode, number>();
  readonly #refusals = new Map<ErrorCode, number>();
  readonly #withheld = new Map<OperationName, number>();
  readonly #lost: Record<LossReason, number> = { gone: 0, full: 0 };
  /** Messages, good and bad. */
  receivedCount = 0;

  constructor(log: Logger, bus: EventBus) {
    this.#log = log;
    this.#bus = bus;
  }

  /** A message that could not be read; `refused` is null when its operation is not known either. */
  badMessage(connection: Connection, error: KvdError, refused: RefusedRequest | null): void {
    increment(this.#badMessages, error.code);
    this.#bus.publish('wire.bad_message', { reason: error.code });
    this.#report(connection, error, refused);
  }

  /** A request that could be read and was refused. */
  refusal(connection: Connection, error: KvdError, refused: RefusedRequest): void {
    increment(this.#refusals, error.code);
    this.#report(connection, error, refused);
  }

  lost(connection: Connection, reason: LossReason, count: number): void {
    this.#lost[reason] += count;
    this.#bus.publish('wire.reply.lost', { reason });
    const why = reason === 'gone' ? 'it has gone' : 'it does not read and its queue is full';
    this.#log.limited(
      'warn',
      `lost ${reason} ${connection.id}`,
      `replies to client ${connection.id} are lost: ${why}`,
    );
  }

  receiveFailed(error: KvdError): void {
    this.#log.limited('error', 'receive', `receiving failed: ${error.message}`);
  }

  snapshot(): Record<string, unknown> {
    return {
      messages_received: this.receivedCount,
      bad_messages: Object.fromEntries(this.#badMessages),
      refusals: Object.fromEntries(this.#refusals),
      replies_withheld: Object.fromEntries(this.#withheld),
      replies_lost: { ...this.#lost },
    };
  }

  #report(connection: Connection, error: KvdError, refused: RefusedRequest | null): void {
    const isSilent = refused !== null && !refused.isAnswered;
    if (isSilent) increment(this.#withheld, refused.operation.name);
    const { next } = error.row;
    const { cause } = error;
    const stack = error.code === 'ERR_INTERNAL' && cause instanceof Error ? `\n${cause.stack}` : '';
    const subject = refused?.operation.name ?? 'message';
    this.#log.limited(
      levelOf(error, refused),
      `${error.code} ${subject} ${connection.id}`,
      `${subject} of client ${connection.id}${describe(refused?.request ?? null)} ` +
        `refused${isSilent ? ' without an answer' : ''}: ${error.code}: ${error.message} ` +
        `(next: ${next})${stack}`,
    );
  }
}

function levelOf(error: KvdError, refused: RefusedRequest | null): Exclude<LogLevel, 'debug'> {
  // An engine without its cache registered stops, or runs on without a cache.
  if (refused?.operation.neutral.kind === 'none') return 'error';
  const { level } = error.row;
  if (level !== 'debug' && level !== 'info') return level;
  // Silence makes a client wait, so it is never a detail.
  return refused && !refused.isAnswered ? 'warn' : 'info';
}

/** Whose request it is, without its tokens and salt: ` (instance 7, request cmpl-1)`. */
function describe(request: RequestOf<OperationName> | null): string {
  if (request === null) return '';
  const parts: string[] = [];
  if ('instanceId' in request) parts.push(`instance ${request.instanceId}`);
  if ('modelName' in request) parts.push(`model ${shown(request.modelName)}`);
  if ('requestId' in request) parts.push(`request ${shown(request.requestId)}`);
  if ('key' in request) parts.push(`request ${shown(request.key.requestId)}`);
  return parts.length === 0 ? '' : ` (${parts.join(', ')})`;
}

/** Names may have thousands of characters. */
function shown(name: string): string {
  return name.length <= NAME_CHARS_MAX ? name : `${name.slice(0, NAME_CHARS_MAX)}…`;
}

function increment<K>(counts: Map<K, number>, key: K): void {
  counts.set(key, (counts.get(key) ?? 0) + 1);
}
