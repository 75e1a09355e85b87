/** The tasks of one adapter: their deadlines, what failed of them, and when all have let go. */
import type { Clock } from '../clock.ts';
import type { KvdError } from '../errors.ts';
import { type AdapterCounters, failureReason, type L2Operation } from './adapter-counters.ts';
import { type L2Task, runTask, type TaskWork } from './task.ts';

export interface TaskRunnerOptions {
  /** Names the adapter in messages. */
  readonly name: string;
  readonly taskTimeoutMs: number;
  readonly counters: AdapterCounters;
  readonly clock: Clock;
}

export class TaskRunner {
  readonly #options: TaskRunnerOptions;
  readonly #closing = new AbortController();
  readonly #running = new Set<Promise<void>>();

  constructor(options: TaskRunnerOptions) {
    this.#options = options;
  }

  /** Tasks that have not let go of their buffers. */
  get runningCount(): number {
    return this.#running.size;
  }

  /** Over when the adapter closes. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  run<T>(
    operation: L2Operation | 'list',
    count: number,
    work: TaskWork<T>,
    timeoutMs = Number.POSITIVE_INFINITY,
  ): L2Task<(T | Error)[]> {
    const { name, taskTimeoutMs, counters, clock } = this.#options;
    const task = runTask<T>(
      {
        clock,
        timeoutMs: Math.min(timeoutMs, taskTimeoutMs),
        what: `${operation} by ${name}`,
        count,
        closing: this.#closing.signal,
      },
      work,
    );
    this.#running.add(task.released);
    void task.released.then(() => this.#running.delete(task.released));
    if (operation === 'list') return task;
    const outcome = task.outcome.then((results) => {
      for (const result of results) {
        if (result instanceof Error) counters.addFailure(operation, failureReason(result));
      }
      return results;
    });
    return { outcome, released: task.released };
  }

  /** Ends all tasks for their callers. */
  close(reason: KvdError): void {
    this.#closing.abort(reason);
  }

  /** Fulfils when nothing is running, or after that long. */
  async settled(timeoutMs: number): Promise<void> {
    const all = (async () => {
      while (this.#running.size > 0) await Promise.all(this.#running);
    })();
    await Promise.race([all, timeUp(this.#options.clock, timeoutMs)]);
  }
}

export function timeUp(clock: Clock, delayMs: number): Promise<void> {
  return new Promise((resolve) => void clock.after(delayMs, resolve));
}
