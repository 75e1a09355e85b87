/**
 * A worker in a process of its own that does what it is told, so that it can be killed or stopped
 * between any two steps, or in the middle of one.
 *
 * This file is both sides: imported it starts the process, run it is the process. An order is the
 * name of a method of the worker with its arguments; the orders of a stopped process wait in the
 * channel until it goes on. The child ends with its parent, whose death closes the channel.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import { Shim } from '../../src/device/shim.ts';
import { FakeWorker, removeSegments, type WorkerOptions } from './fake-worker.ts';
import { SlotWorker, type SlotWorkerOptions } from './slot-worker.ts';
import { deadline, until } from './waiting.ts';

const ORDER_DEADLINE_MS = 15_000;
const SIGNAL_DEADLINE_MS = 5000;

/** Kinds of workers: whose blocks the server copies, and who copies by itself. */
export interface Puppets {
  paged: { worker: FakeWorker; options: WorkerOptions };
  slots: { worker: SlotWorker; options: SlotWorkerOptions };
}

type Kind = keyof Puppets;
type Method<W> = {
  [M in keyof W]: W[M] extends (...args: never[]) => unknown ? M : never;
}[keyof W] &
  string;
type ArgumentsOf<F> = F extends (...args: infer A) => unknown ? A : never;
type OutcomeOf<F> = F extends (...args: never[]) => infer R ? Awaited<R> : never;

interface Order {
  readonly id: number;
  readonly method: string;
  readonly args: readonly unknown[];
}
/** `id` 0 reports that the worker exists. */
interface Report {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
}

export class WorkerPuppet<K extends Kind> {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  readonly #waiting = new Map<number, (report: Report) => void>();
  #lastId = 0;

  private constructor(child: ChildProcess) {
    this.#child = child;
    this.#ended = once(child, 'exit');
    child.on('message', (report: Report) => {
      this.#waiting.get(report.id)?.(report);
      this.#waiting.delete(report.id);
    });
  }

  /** Returns when the worker exists; it has registered nothing yet. */
  static async start<K extends Kind>(
    kind: K,
    url: string,
    options: Puppets[K]['options'],
  ): Promise<WorkerPuppet<K>> {
    const child = fork(import.meta.filename, [kind, url], { serialization: 'advanced' });
    const puppet = new WorkerPuppet<K>(child);
    const isReady = puppet.#report(0);
    child.send(options);
    await deadline(isReady, ORDER_DEADLINE_MS, 'the worker process did not start');
    return puppet;
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  async register(): Promise<void> {
    await this.#perform('register', []);
  }

  /** Gives an order and waits for its outcome. */
  async do<M extends Method<Puppets[K]['worker']>>(
    method: M,
    ...args: ArgumentsOf<Puppets[K]['worker'][M]>
  ): Promise<OutcomeOf<Puppets[K]['worker'][M]>> {
    return (await this.#perform(method, args)) as OutcomeOf<Puppets[K]['worker'][M]>;
  }

  /** Gives an order and waits for nothing. */
  post<M extends Method<Puppets[K]['worker']>>(
    method: M,
    ...args: ArgumentsOf<Puppets[K]['worker'][M]>
  ): void {
    this.#send(method, args);
  }

  /** SIGSTOP. Returns when the process stands still. */
  async stop(): Promise<void> {
    this.#child.kill('SIGSTOP');
    await until(() => stateOf(this.pid) === 'T', SIGNAL_DEADLINE_MS, 'the process stops');
  }

  /** SIGCONT. */
  resume(): void {
    this.#child.kill('SIGCONT');
  }

  /** SIGKILL. It does nothing more from now on, but to free what it has may take a while. */
  strike(): void {
    this.#child.kill('SIGKILL');
  }

  /** SIGKILL. Returns when the process has gone. Safe to call twice. */
  async kill(): Promise<void> {
    this.strike();
    await this.#ended;
  }

  /** Kills it, and removes the tensors that a killed process leaves behind. */
  async close(): Promise<void> {
    await this.kill();
    removeSegments(this.pid);
  }

  async #perform(method: string, args: readonly unknown[]): Promise<unknown> {
    const report = this.#report(this.#send(method, args));
    const { value, error } = await deadline(report, ORDER_DEADLINE_MS, `no outcome of ${method}`);
    if (error !== undefined) throw new Error(`${method}: ${error}`);
    return value;
  }

  #send(method: string, args: readonly unknown[]): number {
    this.#lastId += 1;
    this.#child.send({ id: this.#lastId, method, args } satisfies Order);
    return this.#lastId;
  }

  #report(id: number): Promise<Report> {
    return new Promise((resolve) => this.#waiting.set(id, resolve));
  }
}

/** R, S, T (stopped), …: the letter behind the name, which stands in parentheses. */
function stateOf(pid: number): string | undefined {
  return /\) (\w) /.exec(fs.readFileSync(`/proc/${pid}/stat`, 'latin1'))?.[1];
}

async function create(kind: Kind, url: string, options: object) {
  if (kind === 'slots') return new SlotWorker(url, options as SlotWorkerOptions);
  const worker = new FakeWorker(url, options);
  // As an engine does: the server can see in /proc whose the segments are.
  const shim = Shim.load();
  for (const { shmName, sizeBytes } of worker.wrappers) await shim.openSegment(shmName, sizeBytes);
  return worker;
}

async function work([kind, url]: readonly string[]): Promise<void> {
  process.on('disconnect', () => process.exit(0));
  const [options] = (await once(process, 'message')) as [object];
  const worker = await create(kind as Kind, url as string, options);
  process.on('exit', () => worker.close());
  const methods = worker as unknown as Record<string, (...args: unknown[]) => unknown>;
  process.on('message', async ({ id, method, args }: Order) => {
    try {
      process.send?.({ id, value: await methods[method]?.(...args) });
    } catch (error) {
      process.send?.({ id, error: String(error) });
    }
  });
  process.send?.({ id: 0 });
}

if (import.meta.main) await work(process.argv.slice(2));
