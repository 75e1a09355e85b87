/**
 * What the server has moved, as a few INFO lines every so often (`--enable-extra-logging`), for
 * those who have a log and no Prometheus:
 *
 *   cuda:0 store: 12 ops, 6144 tokens, 1.50 GiB, 3.21 GB/s in 10.0 s; 120 ops, …, in all
 *   L1: 3.20 GiB of 20.00 GiB used (16.0 %), 1234 objects
 *
 * A device that has moved nothing since the last lines has none. The rate is bytes per second of
 * the transfers' own time, so several at once do not add up. Transfers that failed are counted
 * apart. Sums come from `counts`, which lose nothing.
 */
import type { Clock, Timer } from '../../clock.ts';
import { formatBytes } from '../../units.ts';
import type { Subscriber } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import type { Logger } from '../log.ts';

type TransferEnd = EventCatalogue['mp.store.end' | 'mp.retrieve.end'];

/** Lines beyond it would be one; servers have 16 devices at most. */
const SUBJECT_COUNT_MAX = 64;
const OTHERS = 'other devices';

export interface L1State {
  readonly usedBytes: number;
  readonly totalBytes: number;
  readonly objectCount: number;
}

export interface SummaryOptions {
  readonly clock: Clock;
  readonly log: Logger;
  readonly intervalMs: number;
  readonly readL1: () => L1State;
}

class Sums {
  opCount = 0;
  failedCount = 0;
  tokenCount = 0;
  bytes = 0;
  seconds = 0;

  add({ error, tokenCount, totalBytes, seconds }: TransferEnd): void {
    if (error !== null) {
      this.failedCount += 1;
      return;
    }
    this.opCount += 1;
    this.tokenCount += tokenCount;
    this.bytes += totalBytes;
    this.seconds += seconds;
  }

  toString(): string {
    const { opCount, failedCount, tokenCount, bytes, seconds } = this;
    const rate = seconds > 0 ? bytes / seconds / 1e9 : 0;
    const failed = failedCount > 0 ? `, ${failedCount} failed` : '';
    const moved = `${tokenCount} tokens, ${formatBytes(bytes)}, ${rate.toFixed(2)} GB/s`;
    return `${opCount} ops${failed}, ${moved}`;
  }
}

/** A device and a direction. */
class Subject {
  readonly total = new Sums();
  /** Since the last lines; null = nothing. */
  window: Sums | null = null;
}

export class SummaryLines implements Subscriber {
  readonly name = 'SummaryLoggingSubscriber';
  readonly counts = {
    'mp.store.end': (end: TransferEnd) => this.#add('store', end),
    'mp.retrieve.end': (end: TransferEnd) => this.#add('retrieve', end),
  };
  readonly #options: SummaryOptions;
  readonly #subjects = new Map<string, Subject>();
  readonly #timer: Timer;
  #windowStartMs: number;

  constructor(options: SummaryOptions) {
    this.#options = options;
    this.#windowStartMs = options.clock.preciseMs();
    this.#timer = options.clock.every(options.intervalMs, () => this.#log());
  }

  shutdown(): void {
    this.#timer.cancel();
  }

  #add(direction: string, end: TransferEnd): void {
    let name = `${end.device} ${direction}`;
    const isRoomy = this.#subjects.has(name) || this.#subjects.size < SUBJECT_COUNT_MAX;
    if (!isRoomy) name = `${OTHERS} ${direction}`;
    let subject = this.#subjects.get(name);
    if (!subject) {
      subject = new Subject();
      this.#subjects.set(name, subject);
    }
    subject.window ??= new Sums();
    subject.window.add(end);
    subject.total.add(end);
  }

  #log(): void {
    const { clock, log, readL1 } = this.#options;
    const nowMs = clock.preciseMs();
    const seconds = ((nowMs - this.#windowStartMs) / 1000).toFixed(1);
    this.#windowStartMs = nowMs;
    for (const [name, subject] of this.#subjects) {
      const { window, total } = subject;
      subject.window = null;
      if (window) log.info(`${name}: ${window} in ${seconds} s; ${total} in all`);
    }
    const { usedBytes, totalBytes, objectCount } = readL1();
    const percent = totalBytes > 0 ? (100 * usedBytes) / totalBytes : 0;
    const used = `${formatBytes(usedBytes)} of ${formatBytes(totalBytes)} used`;
    log.info(`L1: ${used} (${percent.toFixed(1)} %), ${objectCount} objects`);
  }
}
