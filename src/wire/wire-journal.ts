/**
 * What goes wrong at the ZMQ door: counted by reason since the start, and told to the operator in
 * at most one line per connection, reason and operation (the limit is the logger's).
 */
import type { OperationName } from '../engine/api.ts';
import type { ErrorCode, KvdError } from '../errors.ts';
import type { EventBus } from '../observability/events.ts';
import type { Logger } from '../observability/log.ts';
import type { Connection } from './connections.ts';
import type { LossReason } from './outbox.ts';

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

  /** A message that could not be read. `subject` is its operation, if that is known. */
  badMessage(connection: Connection, error: KvdError, subject: string): void {
    increment(this.#badMessages, error.code);
    this.#bus.publish('wire.bad_message', { reason: error.code });
    this.#report(connection, error, subject);
  }

  /** A request that could be read and was refused. */
  refusal(connection: Connection, error: KvdError, name: OperationName): void {
    increment(this.#refusals, error.code);
    this.#report(connection, error, name);
  }

  /** A failure that is answered by silence. */
  withheld(name: OperationName): void {
    increment(this.#withheld, name);
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

  #report(connection: Connection, error: KvdError, subject: string): void {
    const { level, next } = error.row;
    const { cause } = error;
    const stack = error.code === 'ERR_INTERNAL' && cause instanceof Error ? `\n${cause.stack}` : '';
    this.#log.limited(
      level === 'debug' ? 'info' : level,
      `${error.code} ${subject} ${connection.id}`,
      `${subject} of client ${connection.id} refused: ${error.code}: ${error.message} ` +
        `(next: ${next})${stack}`,
    );
  }
}

function increment<K>(counts: Map<K, number>, key: K): void {
  counts.set(key, (counts.get(key) ?? 0) + 1);
}
