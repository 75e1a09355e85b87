/**
 * A fake worker in a process of its own, to be killed.
 *
 * This file is both sides: imported it starts the process, run it is the process. The child ends
 * with its parent, whose death closes the channel between them.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Shim } from '../../src/device/shim.ts';
import { FakeWorker, promptOf, removeSegments } from './fake-worker.ts';
import { deadline } from './waiting.ts';

const REGISTER_DEADLINE_MS = 15_000;

export interface WorkerProcessOptions {
  readonly url: string;
  readonly instanceId: bigint;
  /** Sends one PING after the registration, as a worker does that got through its warm-up. */
  readonly pings: boolean;
  /** Maps its segments, so that the server can see in /proc whose they are. */
  readonly mapsSegments?: boolean;
  /** Stores of four chunks that it then sends without waiting for their replies. */
  readonly storeCount?: number;
}

export class WorkerProcess {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  readonly #registered: Promise<unknown>;

  constructor(options: WorkerProcessOptions) {
    const { url, instanceId, pings, mapsSegments = false, storeCount = 0 } = options;
    const words = [url, instanceId, pings, mapsSegments, storeCount].map(String);
    this.#child = fork(import.meta.filename, words);
    this.#registered = once(this.#child, 'message');
    this.#ended = once(this.#child, 'exit');
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  async registered(): Promise<void> {
    await deadline(this.#registered, REGISTER_DEADLINE_MS, 'the worker process did not register');
  }

  /** SIGKILL. Its segments stay in /dev/shm, as after a real crash. */
  async crash(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#ended;
  }

  /** SIGKILL, and removes what it leaves. */
  async kill(): Promise<void> {
    await this.crash();
    removeSegments(this.pid);
  }
}

async function work(words: readonly string[]): Promise<void> {
  const [url = '', instanceId = '', pings = '', mapsSegments = '', storeCount = ''] = words;
  process.on('disconnect', () => process.exit(0));
  const worker = new FakeWorker(url, { instanceId: BigInt(instanceId) });
  process.on('exit', () => worker.close());
  if (mapsSegments === 'true') {
    const shim = Shim.load();
    for (const { shmName, sizeBytes } of worker.wrappers)
      await shim.openSegment(shmName, sizeBytes);
  }
  await worker.register();
  if (pings === 'true') await worker.ping();
  for (let i = 0; i < Number(storeCount); i += 1) void worker.store(promptOf(i, 4));
  process.send?.('registered');
}

if (import.meta.main) await work(process.argv.slice(2));
