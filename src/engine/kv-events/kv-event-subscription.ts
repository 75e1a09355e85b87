/**
 * One subscriber's way through the log: a stream of pages, the first of which comes at once.
 *
 *   next ─▶ page there? ── yes ─▶ given, cursor moves on
 *              │ no
 *              ▼
 *           waiting ──(the log has grown: poke)──▶ page there? …
 *              └──(close, cancel)──▶ null
 */
import { assert } from '../../assert.ts';
import type { KvEventBatch, ReplyStream } from '../api.ts';
import type { KvEventFilter, KvEventLog } from './kv-event-log.ts';

export interface SubscriptionOptions {
  readonly log: KvEventLog;
  readonly incarnation: bigint;
  readonly filter: KvEventFilter;
  readonly cursor: number;
  readonly eventCountMax: number;
  onClose(): void;
}

export class KvEventSubscription implements ReplyStream<KvEventBatch> {
  readonly #options: SubscriptionOptions;
  #cursor: number;
  #isFirst = true;
  #isClosed = false;
  #waiter: ((batch: KvEventBatch | null) => void) | null = null;
  lastSeenMs = 0;

  constructor(options: SubscriptionOptions) {
    this.#options = options;
    this.#cursor = options.cursor;
  }

  next(): Promise<KvEventBatch | null> {
    assert(this.#waiter === null, 'a stream is asked for one part at a time');
    if (this.#isClosed) return Promise.resolve(null);
    const batch = this.#read();
    if (batch) return Promise.resolve(batch);
    return new Promise((resolve) => {
      this.#waiter = resolve;
    });
  }

  get isEnded(): boolean {
    return this.#isClosed;
  }

  /** There may be something new. */
  poke(): void {
    if (!this.#waiter) return;
    const batch = this.#read();
    if (batch) this.#settle(batch);
  }

  cancel(): void {
    this.close();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#settle(null);
    this.#options.onClose();
  }

  #settle(batch: KvEventBatch | null): void {
    const waiter = this.#waiter;
    this.#waiter = null;
    waiter?.(batch);
  }

  /** Null: nothing to tell. What the filter leaves out is passed over all the same. */
  #read(): KvEventBatch | null {
    const { log, incarnation, filter, eventCountMax } = this.#options;
    const isFirst = this.#isFirst;
    this.#isFirst = false;
    if (!log.isEnabled) {
      // One batch that says so, then the end.
      this.close();
      return { isEnabled: false, incarnation, nextCursor: 0, isLost: false, events: [] };
    }
    const page = log.read(filter, this.#cursor, eventCountMax);
    this.#cursor = page.nextCursor;
    if (!isFirst && page.events.length === 0 && !page.isLost) return null;
    return { isEnabled: true, incarnation, ...page };
  }
}
