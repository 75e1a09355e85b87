/**
 * A part of a measurement in a process of its own, so that it competes for the machine as a real
 * client would and not for the event loop of whoever measures.
 *
 * One request, one answer, in turn. A child ends when its parent closes the channel or dies.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';

interface Answer {
  readonly value?: unknown;
  readonly error?: string;
}

export class Child<Request> {
  readonly #process: ChildProcess;

  /** `file` is a program that calls `serve`. */
  constructor(file: string) {
    this.#process = fork(file, { serialization: 'advanced' });
  }

  get pid(): number {
    return this.#process.pid as number;
  }

  /** Rejects when the child refuses or is gone. */
  async ask<T>(request: Request): Promise<T> {
    const settled = new AbortController();
    const { signal } = settled;
    const ended = once(this.#process, 'exit', { signal }).then(([code]) => {
      throw new Error(`a child of the benchmark ended with code ${code}`);
    });
    const answered = once(this.#process, 'message', { signal });
    this.#process.send(request as object);
    const [answer] = (await Promise.race([answered, ended])) as [Answer];
    settled.abort();
    if (answer.error !== undefined) throw new Error(answer.error);
    return answer.value as T;
  }

  async stop(): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const ended = once(this.#process, 'exit');
    this.#process.disconnect();
    await ended;
  }
}

/** The child's side. */
export function serve<Request>(handle: (request: Request) => Promise<unknown>): void {
  process.on('disconnect', () => process.exit(0));
  process.on('message', (request: Request) => {
    handle(request).then(
      (value) => process.send?.({ value } satisfies Answer),
      (error: Error) => process.send?.({ error: error.stack ?? error.message } satisfies Answer),
    );
  });
}
