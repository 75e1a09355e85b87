/** What happened at the ZMQ door, by reason, since the start. */
import type { OperationName } from '../engine/api.ts';
import type { ErrorCode } from '../errors.ts';
import type { EventBus } from '../observability/events.ts';
import type { LossReason } from './outbox.ts';

export class WireCounters {
  readonly #bus: EventBus;
  readonly #badMessages = new Map<ErrorCode, number>();
  readonly #refusals = new Map<ErrorCode, number>();
  readonly #withheld = new Map<OperationName, number>();
  readonly #lost: Record<LossReason, number> = { gone: 0, full: 0 };
  /** Messages, good and bad. */
  received = 0;

  constructor(bus: EventBus) {
    this.#bus = bus;
  }

  /** A message that could not be read. */
  countBadMessage(code: ErrorCode): void {
    increment(this.#badMessages, code);
    this.#bus.publish('wire.bad_message', { reason: code });
  }

  /** A request that could be read and was refused. */
  countRefusal(code: ErrorCode): void {
    increment(this.#refusals, code);
  }

  /** A failure that is answered by silence. */
  countWithheld(name: OperationName): void {
    increment(this.#withheld, name);
  }

  countLost(reason: LossReason, count: number): void {
    this.#lost[reason] += count;
    this.#bus.publish('wire.reply.lost', { reason });
  }

  snapshot(): Record<string, unknown> {
    return {
      messages_received: this.received,
      bad_messages: Object.fromEntries(this.#badMessages),
      refusals: Object.fromEntries(this.#refusals),
      replies_withheld: Object.fromEntries(this.#withheld),
      replies_lost: { ...this.#lost },
    };
  }
}

function increment<K>(counts: Map<K, number>, key: K): void {
  counts.set(key, (counts.get(key) ?? 0) + 1);
}
