/**
 * Copies off the event loop: the JavaScript side of `shim/pool.c`.
 *
 * A job goes in by one call and its promise settles when the shim reports it. The shim keeps
 * finished jobs in a ring that has room for all of them and writes one byte to a pipe when that
 * ring stops being empty; the byte wakes the event loop, which then takes everything there is. The
 * pipe carries no data, so it can neither overflow nor lose a job.
 *
 * While jobs are in flight the pipe keeps the process alive; an idle pool does not.
 */
import net from 'node:net';
import { assert, fatal } from '../assert.ts';
import { KvdError } from '../errors.ts';
import { describeCode, type Handle, type JobDescriptor, SHIM_CODE, type Shim } from './shim.ts';

export interface CopyPoolOptions {
  readonly workerCount: number;
  /** Added to the priority of the workers: above 0 the event loop wins when cores are short. */
  readonly nice: number;
  /** Jobs queued or running at once, over all lanes. */
  readonly jobCountMax: number;
  /** Bytes of block ids and offsets that those jobs may hold. */
  readonly descriptorBytesMax: number;
}

interface Waiter {
  resolve(): void;
  reject(error: KvdError): void;
}

/** Completions taken per call; more are taken by another call at once. */
const COLLECT_COUNT_MAX = 256;

export class CopyPool {
  readonly #shim: Shim;
  readonly #pool: Handle;
  readonly #wake: net.Socket;
  readonly #waiters = new Map<number, Waiter>();
  readonly #ids = new Float64Array(COLLECT_COUNT_MAX);
  readonly #codes = new Int32Array(COLLECT_COUNT_MAX);
  #nextId = 1;
  #closed: Promise<void> | null = null;

  constructor(shim: Shim, options: CopyPoolOptions) {
    this.#shim = shim;
    const { pool, wakeFd } = shim.openPool(options);
    this.#pool = pool;
    this.#wake = new net.Socket({
      fd: wakeFd,
      readable: true,
      writable: false,
      onread: { buffer: new Uint8Array(64), callback: () => this.#collect() },
    });
    this.#wake.resume();
    this.#wake.unref();
  }

  get jobCountInFlight(): number {
    return this.#waiters.size;
  }

  openLane(): Handle {
    return this.#shim.openLane(this.#pool);
  }

  /** `lane` must have no jobs. */
  closeLane(lane: Handle): void {
    this.#shim.closeLane(lane);
  }

  /** Resolves when the bytes have arrived. The plan and its memory must live until then. */
  run(lane: Handle, plan: Handle, job: Omit<JobDescriptor, 'id'>): Promise<void> {
    if (this.#closed) return Promise.reject(new KvdError('ERR_SHUTTING_DOWN', 'copies ended'));
    const id = this.#nextId;
    this.#nextId += 1;
    const code = this.#shim.submitJob(lane, plan, { ...job, id });
    if (code !== 0) return Promise.reject(copyError(code));
    return new Promise((resolve, reject) => {
      if (this.#waiters.size === 0) this.#wake.ref();
      this.#waiters.set(id, { resolve, reject });
    });
  }

  /** Ends the threads. Every lane must be idle. */
  close(): Promise<void> {
    this.#closed ??= this.#end();
    return this.#closed;
  }

  async #end(): Promise<void> {
    assert(this.#waiters.size === 0, `copy pool closed with ${this.#waiters.size} jobs in flight`);
    this.#wake.destroy();
    await this.#shim.closePool(this.#pool);
  }

  #collect(): boolean {
    let count: number;
    do {
      count = this.#shim.collect(this.#pool, this.#ids, this.#codes);
      for (let i = 0; i < count; i += 1) {
        this.#settle(this.#ids[i] as number, this.#codes[i] as number);
      }
    } while (count === COLLECT_COUNT_MAX);
    if (this.#waiters.size === 0) this.#wake.unref();
    return true;
  }

  #settle(id: number, code: number): void {
    const waiter = this.#waiters.get(id);
    // Memory may have been copied that nobody owns: nothing can be trusted any more.
    if (!waiter) fatal('a copy ended that nobody waits for', { id, code });
    this.#waiters.delete(id);
    if (code === 0) waiter.resolve();
    else waiter.reject(copyError(code));
  }
}

function copyError(code: number): KvdError {
  if (code === SHIM_CODE.queueFull) return new KvdError('ERR_OVERLOADED', describeCode(code));
  return new KvdError('ERR_DEVICE_COPY', `copy failed: ${describeCode(code)}`);
}
