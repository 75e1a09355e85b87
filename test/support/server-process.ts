/**
 * `kvd server` as its users start it: a process with ports, a log and an exit code.
 *
 * The command is the one of the sources, or an executable named by KVD_E2E_EXECUTABLE, so that the
 * same scenarios run against dist/kvd.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import path from 'node:path';
import * as assert from 'uvu/assert';
import { freePorts } from './free-ports.ts';
import { deadline, until } from './waiting.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/cli/main.ts');
const START_DEADLINE_MS = 15_000;
const STOP_DEADLINE_MS = 10_000;
const SERVING = /LMCache cache server is running\.\.\./;

/** Flag → value; `true` = a flag without a value. Later objects win over the defaults. */
export type Flags = Readonly<Record<string, string | number | true>>;

/** Chunks of 16 tokens and a pool of 5242 small or 20 big objects (spec field-lessons 0). */
const DEFAULT_FLAGS: Flags = {
  '--host': '127.0.0.1',
  '--l1-size-gb': 0.02,
  '--eviction-policy': 'LRU',
  '--chunk-size': 16,
};

export interface Ports {
  readonly port: number;
  readonly httpPort: number;
}

export interface StartOptions {
  /** Those of an earlier server, for a restart. */
  readonly ports?: Ports;
  readonly env?: Readonly<Record<string, string>>;
  /** Command that runs the server's command line behind its own words. */
  readonly wrapper?: readonly string[];
}

/** The parts of `GET /status` that scenarios read. */
export interface ServerStatus {
  readonly is_healthy: boolean;
  readonly active_sessions: number;
  readonly active_prefetch_jobs: number;
  readonly storage_manager: {
    readonly l1_manager: Readonly<Record<string, number>> & {
      readonly memory_shm_name: string | null;
    };
  };
  readonly cache_context_meta: Readonly<Record<string, unknown>>;
  readonly lmcache_driven_transfer: Readonly<Record<string, number>>;
  readonly engine_driven_transfer: Readonly<Record<string, number>>;
  readonly requests: { readonly in_flight: number };
  readonly wire: Readonly<Record<string, number>> & {
    readonly bad_messages: Readonly<Record<string, number>>;
    readonly refusals: Readonly<Record<string, number>>;
    readonly replies_withheld: Readonly<Record<string, number>>;
    readonly replies_lost: { readonly gone: number; readonly full: number };
  };
  readonly device: Readonly<Record<string, number>>;
}

export class ServerProcess {
  readonly ports: Ports;
  readonly #child: ChildProcess;
  readonly #shmName: string;
  readonly #ended: Promise<number | null>;
  #output = '';

  private constructor(child: ChildProcess, ports: Ports, shmName: string) {
    this.ports = ports;
    this.#child = child;
    this.#shmName = shmName;
    const append = (part: Buffer) => {
      this.#output += part.toString();
    };
    child.stdout?.on('data', append);
    child.stderr?.on('data', append);
    this.#ended = once(child, 'close').then(([code]) => code as number | null);
  }

  /** Returns when the server answers at both doors. */
  static async start(flags: Flags = {}, options: StartOptions = {}): Promise<ServerProcess> {
    const server = await ServerProcess.spawn(flags, options);
    try {
      await until(() => server.hasEnded || SERVING.test(server.output), START_DEADLINE_MS);
      assert.is(server.hasEnded, false, `the server ended at once:\n${server.output}`);
      assert.is((await fetch(`${server.httpUrl}/readyz`)).status, 200);
      return server;
    } catch (error) {
      await server.kill();
      throw error;
    }
  }

  /** Starts the process and waits for nothing: for starts that fail or are timed. */
  static async spawn(flags: Flags = {}, options: StartOptions = {}): Promise<ServerProcess> {
    const [port, httpPort] = (await freePorts(2)) as [number, number];
    const ports = options.ports ?? { port, httpPort };
    const all: Flags = {
      ...DEFAULT_FLAGS,
      '--port': ports.port,
      '--http-port': ports.httpPort,
      ...flags,
    };
    const words = Object.entries(all).flatMap(([flag, value]) =>
      value === true ? [flag] : [flag, String(value)],
    );
    const executable = process.env['KVD_E2E_EXECUTABLE'];
    const command = executable ? [executable] : [process.execPath, MAIN];
    const [file, ...rest] = [...(options.wrapper ?? []), ...command, 'server', ...words];
    const child = spawn(file as string, rest, {
      env: { ...process.env, ...options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    return new ServerProcess(child, ports, String(flags['--shm-name'] ?? ''));
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  get url(): string {
    return `tcp://127.0.0.1:${this.ports.port}`;
  }

  get httpUrl(): string {
    return `http://127.0.0.1:${this.ports.httpPort}`;
  }

  /** All that it has printed. */
  get output(): string {
    return this.#output;
  }

  get hasEnded(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  linesWith(pattern: RegExp): string[] {
    return this.#output.split('\n').filter((line) => pattern.test(line));
  }

  async status(): Promise<ServerStatus> {
    const response = await fetch(`${this.httpUrl}/status`);
    assert.is(response.status, 200);
    return (await response.json()) as ServerStatus;
  }

  async l1(): Promise<ServerStatus['storage_manager']['l1_manager']> {
    return (await this.status()).storage_manager.l1_manager;
  }

  /** Value of a sample of `GET /metrics`, as its name and labels stand there; 0 = no such one. */
  async metric(sample: string): Promise<number> {
    const text = await (await fetch(`${this.httpUrl}/metrics`)).text();
    const line = text.split('\n').find((candidate) => candidate.startsWith(`${sample} `));
    return Number(line?.slice(sample.length + 1) ?? 0);
  }

  /** `POST /cache/clear` without force: what is locked stays. */
  async clearIdle(): Promise<void> {
    const response = await fetch(`${this.httpUrl}/cache/clear`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{}',
    });
    assert.is(response.status, 200);
  }

  rssBytes(): number {
    const pages = fs.readFileSync(`/proc/${this.pid}/statm`, 'utf8').split(' ')[1];
    return Number(pages) * 4096;
  }

  /** Shared memory segments that the process has mapped and whose name begins so. */
  mappedSegments(prefix: string): string[] {
    const maps = fs.readFileSync(`/proc/${this.pid}/maps`, 'utf8');
    const names = maps.split('\n').map((line) => line.split('/dev/shm/')[1] ?? '');
    return [...new Set(names.filter((name) => name.startsWith(prefix)))];
  }

  /** Exit code of a server that ends by itself. */
  exitCode(): Promise<number | null> {
    return deadline(this.#ended, STOP_DEADLINE_MS, 'the server did not end');
  }

  /** SIGTERM: it must end with 0 and leave nothing in /dev/shm. */
  async stop(): Promise<void> {
    if (this.hasEnded) return;
    const shmName = (await this.l1()).memory_shm_name;
    this.#child.kill('SIGTERM');
    const code = await this.exitCode();
    assert.is(code, 0, `exit code ${code}:\n${this.#output}`);
    const own = new RegExp(`^lmcache_l1_pool_${this.pid}(_\\d+)?$`);
    const left = fs.readdirSync('/dev/shm').filter((name) => name === shmName || own.test(name));
    assert.equal(left, [], 'left in /dev/shm');
  }

  /** SIGKILL, as the OOM killer does it. */
  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.exitCode();
  }

  /** What a killed server leaves: a failed test must not fill the machine. */
  removeSegments(): void {
    const named = `lmcache_l1_pool_${this.#shmName}`;
    for (const name of fs.readdirSync('/dev/shm')) {
      const isOwn = name === named || name === `lmcache_l1_pool_${this.pid}`;
      if (isOwn) fs.rmSync(`/dev/shm/${name}`, { force: true });
    }
  }
}
