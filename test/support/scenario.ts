/**
 * One scenario of spec/field-lessons.md: a server of its own, clients and workers that are put
 * away afterwards whatever happens, and the conditions that hold at the end of each scenario.
 */
import * as assert from 'uvu/assert';
import { KvdClient } from '../../src/client/client.ts';
import { FakeWorker, objectSizeOf, SMALL, type WorkerOptions } from './fake-worker.ts';
import { type Flags, ServerProcess, type StartOptions } from './server-process.ts';
import { SlotWorker, type SlotWorkerOptions } from './slot-worker.ts';
import { timed } from './waiting.ts';
import { WorkerProcess, type WorkerProcessOptions } from './worker-process.ts';
import { type Puppets, WorkerPuppet } from './worker-puppet.ts';

const CALM_PING_MS = 50;
const ALIGN_BYTES = 4096;

/** Full sizes of the scenarios that are shortened for everyday runs. */
export const isFullRun = process.env['KVD_E2E_FULL'] === '1';

/**
 * Which percentile a latency bound holds for: the tail is the server's own only on a machine that
 * does nothing else, and everyday runs share two cores with the rest of the tests.
 */
export const TAIL_SHARE = isFullRun ? 0.99 : 0.9;

export class Scenario {
  readonly #servers: ServerProcess[] = [];
  readonly #clients: KvdClient[] = [];
  readonly #workers: FakeWorker[] = [];
  readonly #processes: WorkerProcess[] = [];
  readonly #others: { close(): void | Promise<void> }[] = [];

  async serve(flags: Flags = {}, options: StartOptions = {}): Promise<ServerProcess> {
    const server = await ServerProcess.start(flags, options);
    this.#servers.push(server);
    return server;
  }

  /** A server that is expected to end by itself, or whose start is timed. */
  async spawn(flags: Flags = {}, options: StartOptions = {}): Promise<ServerProcess> {
    const server = await ServerProcess.spawn(flags, options);
    this.#servers.push(server);
    return server;
  }

  connect(server: ServerProcess): KvdClient {
    const client = KvdClient.connect(server.url);
    this.#clients.push(client);
    return client;
  }

  /** A worker that has not registered yet. */
  newWorker(server: ServerProcess, options: WorkerOptions = {}): FakeWorker {
    const worker = new FakeWorker(server.url, options);
    this.#workers.push(worker);
    return worker;
  }

  async worker(server: ServerProcess, options: WorkerOptions = {}): Promise<FakeWorker> {
    const worker = this.newWorker(server, options);
    await worker.register();
    return worker;
  }

  /** A registered worker that can be killed. */
  async workerProcess(options: WorkerProcessOptions): Promise<WorkerProcess> {
    const worker = new WorkerProcess(options);
    this.#processes.push(worker);
    await worker.registered();
    return worker;
  }

  /** A registered worker that copies its bytes itself. */
  async slotWorker(server: ServerProcess, options: SlotWorkerOptions): Promise<SlotWorker> {
    const worker = this.own(new SlotWorker(server.url, options));
    await worker.register();
    return worker;
  }

  /** A registered worker in a process of its own. */
  async puppet<K extends keyof Puppets>(
    kind: K,
    server: ServerProcess,
    options: Puppets[K]['options'],
  ): Promise<WorkerPuppet<K>> {
    const puppet = this.own(await WorkerPuppet.start(kind, server.url, options));
    await puppet.register();
    return puppet;
  }

  /** Whatever else has to be put away at the end. */
  own<T extends { close(): void | Promise<void> }>(thing: T): T {
    this.#others.push(thing);
    return thing;
  }

  /** Stops what runs; the servers must end well when `hasPassed`. */
  async close(hasPassed: boolean): Promise<void> {
    for (const client of this.#clients) client.close();
    for (const worker of this.#workers) worker.close();
    for (const worker of this.#processes) await worker.kill();
    for (const thing of this.#others) await thing.close();
    for (const server of this.#servers) {
      if (hasPassed) await server.stop();
      else if (!server.hasEnded) await server.kill();
    }
    for (const server of this.#servers) server.removeSegments();
  }
}

/** A test body; on failure the log of the servers is what one wants to see. */
export function scenario(body: (scenario: Scenario) => Promise<void>): () => Promise<void> {
  return async () => {
    const current = new Scenario();
    let hasPassed = false;
    try {
      await body(current);
      hasPassed = true;
    } finally {
      await current.close(hasPassed);
    }
  };
}

/**
 * The conditions at the end of every scenario: an uninvolved client is answered at once, used
 * bytes are the sum of the live objects, nothing is in flight, nothing is locked.
 */
export async function expectCalm(
  server: ServerProcess,
  options: { readonly objectSizeBytes?: number | null } = {},
): Promise<void> {
  const { objectSizeBytes = objectSizeOf(SMALL) } = options;
  await expectAnswers(server);
  const status = await server.status();
  const l1 = status.storage_manager.l1_manager;
  assert.equal(
    {
      healthy: status.is_healthy,
      inFlight: status.requests.in_flight,
      wireInFlight: status.wire['in_flight'],
      copies: status.device['job_count_in_flight'],
      prefetches: status.active_prefetch_jobs,
      writeLocked: l1['write_locked_count'],
      readLocked: l1['read_locked_count'],
      temporary: l1['temporary_count'],
      staging: l1['staging_object_count'],
      deferredBytes: l1['memory_deferred_bytes'],
    },
    {
      healthy: true,
      inFlight: 0,
      wireInFlight: 0,
      copies: 0,
      prefetches: 0,
      writeLocked: 0,
      readLocked: 0,
      temporary: 0,
      staging: 0,
      deferredBytes: 0,
    },
  );
  assert.is(await server.metric('kvd_requests_in_flight'), 0);
  if (objectSizeBytes === null) return;
  const alignedBytes = Math.ceil(objectSizeBytes / ALIGN_BYTES) * ALIGN_BYTES;
  const usedBytes = (l1['total_object_count'] as number) * alignedBytes;
  assert.is(l1['memory_used_bytes'], usedBytes, 'used bytes = sum of live objects');
}

/** One of three, because the machine of the tests does other work, too. */
export async function expectAnswers(server: ServerProcess): Promise<void> {
  const client = KvdClient.connect(server.url);
  try {
    await client.call('PING', { instanceId: null }, 5000);
    const times: number[] = [];
    for (let i = 0; i < 3; i += 1) {
      times.push((await timed(() => client.call('PING', { instanceId: null }, 5000))).ms);
    }
    assert.ok(Math.min(...times) < CALM_PING_MS, `PING took ${times.map(Math.round)} ms`);
  } finally {
    client.close();
  }
}
