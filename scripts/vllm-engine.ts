/**
 * The two processes of the scenario: a vLLM API server on CPU with the real connector, and a kvd
 * that is killed and started again on the same ports.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { DRIVER_ENVIRONMENT, ROOT } from './reference.ts';

/**
 * Also the time in which kvd must answer a heartbeat. 10 s is the default; the scenarios wait for
 * several. Below 5 s a loaded machine makes healthy servers look dead.
 */
export const HEARTBEAT_SECONDS = 5;

const POLL_MS = 100;
const PROBE_MS = 2000;
/** vLLM takes 20 to 40 s on two quiet cores. */
const ENGINE_START_MS = 240_000;
const KVD_START_MS = 20_000;
const STOP_MS = 30_000;

/** Polls until `condition` holds; false when it does not within `limitMs`. */
export async function waitFor(
  condition: () => boolean | Promise<boolean>,
  limitMs: number,
): Promise<boolean> {
  const endMs = performance.now() + limitMs;
  while (!(await condition())) {
    if (performance.now() > endMs) return false;
    await pause(POLL_MS);
  }
  return true;
}

/** A process in a group of its own, with its output in a file. */
class LoggedProcess {
  readonly #child: ChildProcess;
  readonly #name: string;
  readonly #logFile: string;

  constructor(name: string, command: readonly string[], logFile: string) {
    this.#name = name;
    this.#logFile = logFile;
    const log = fs.openSync(logFile, 'a');
    this.#child = spawn(command[0] as string, command.slice(1), {
      cwd: ROOT,
      env: ENGINE_ENVIRONMENT,
      detached: true,
      stdio: ['ignore', log, log],
    });
    fs.closeSync(log);
  }

  get hasEnded(): boolean {
    return this.#child.exitCode !== null || this.#child.signalCode !== null;
  }

  async waitUntil(isReady: () => Promise<boolean>, limitMs: number): Promise<void> {
    if (await waitFor(async () => this.hasEnded || (await isReady()), limitMs)) {
      if (!this.hasEnded) return;
    }
    const reason = this.hasEnded ? 'ended at its start' : `not ready within ${limitMs / 1000} s`;
    throw new Error(`${this.#name} ${reason}; see ${path.relative(ROOT, this.#logFile)}`);
  }

  /** Signals the process itself, then, if that is not enough, its whole group with SIGKILL. */
  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    if (this.hasEnded) return;
    const ended = once(this.#child, 'exit');
    this.#child.kill(signal);
    const late = setTimeout(() => this.killGroup(), STOP_MS);
    await ended;
    clearTimeout(late);
  }

  killGroup(): void {
    try {
      process.kill(-(this.#child.pid as number), 'SIGKILL');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }
}

const ENGINE_ENVIRONMENT: NodeJS.ProcessEnv = {
  ...DRIVER_ENVIRONMENT,
  VLLM_CPU_KVCACHE_SPACE: '1',
  VLLM_CPU_OMP_THREADS_BIND: 'nobind',
  VLLM_NO_USAGE_STATS: '1',
  VLLM_SERVER_DEV_MODE: '1',
  HF_HUB_OFFLINE: '1',
  PYTHONHASHSEED: '0',
};

async function isOk(url: string): Promise<boolean> {
  try {
    // vLLM listens long before it answers.
    return (await fetch(url, { signal: AbortSignal.timeout(PROBE_MS) })).ok;
  } catch {
    // Nobody listens, or nobody answers yet.
    return false;
  }
}

// ---------------------------------------------------------------- kvd

/** The parts of `GET /status` that the scenario reads. */
export interface KvdStatus {
  readonly is_healthy: boolean;
  readonly active_sessions: number;
  readonly storage_manager: { readonly l1_manager: Readonly<Record<string, number>> };
}

export interface KvdPorts {
  readonly port: number;
  readonly httpPort: number;
}

export class Kvd {
  readonly ports: KvdPorts;
  readonly #command: readonly string[];
  readonly #logFile: string;
  #process: LoggedProcess | null = null;

  constructor(command: readonly string[], ports: KvdPorts, logFile: string) {
    this.#command = command;
    this.ports = ports;
    this.#logFile = logFile;
  }

  async start(): Promise<void> {
    this.#process = new LoggedProcess('kvd', this.#command, this.#logFile);
    await this.#process.waitUntil(() => isOk(`${this.#url}/readyz`), KVD_START_MS);
  }

  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    await this.#process?.end(signal);
  }

  killGroup(): void {
    this.#process?.killGroup();
  }

  async status(): Promise<KvdStatus> {
    return (await (await fetch(`${this.#url}/status`)).json()) as KvdStatus;
  }

  /** Registered workers of both modes. Their ids have 63 bits, too many for a JSON number. */
  async workers(): Promise<bigint[]> {
    const text = await (await fetch(`${this.#url}/status`)).text();
    const lists = text.matchAll(/"registered_(?:gpu|non_cuda_instance)_ids":\[([\d,]*)\]/g);
    return [...lists].flatMap(([, list]) => (list ? list.split(',').map(BigInt) : []));
  }

  /** Takes everything out of the index, also what somebody is about to load. */
  async clear(): Promise<void> {
    const response = await fetch(`${this.#url}/clear-cache`, { method: 'POST' });
    if (!response.ok) throw new Error(`POST /clear-cache: ${response.status}`);
  }

  get #url(): string {
    return `http://127.0.0.1:${this.ports.httpPort}`;
  }
}

// ---------------------------------------------------------------- vLLM

export interface EngineOptions {
  readonly python: string;
  readonly model: string;
  readonly port: number;
  readonly kvdPort: number;
  readonly mode: string;
  readonly workerCount: number;
  readonly blockSize: number;
  readonly logFile: string;
}

export interface Answer {
  readonly tokens: readonly number[];
  /** Tokens of the prompt that came from a cache, vLLM's own or kvd. */
  readonly cachedCount: number;
}

interface Completion {
  readonly choices: readonly [{ readonly token_ids: readonly number[] }];
  readonly usage: { readonly prompt_tokens_details?: { readonly cached_tokens?: number } | null };
}

export class VllmEngine {
  readonly #url: string;
  readonly #process: LoggedProcess;

  private constructor(options: EngineOptions) {
    this.#url = `http://127.0.0.1:${options.port}`;
    this.#process = new LoggedProcess('vLLM', engineCommand(options), options.logFile);
  }

  /** Returns when the engine answers; it has registered with kvd by then. */
  static async start(options: EngineOptions): Promise<VllmEngine> {
    const engine = new VllmEngine(options);
    try {
      await engine.#process.waitUntil(() => isOk(`${engine.#url}/health`), ENGINE_START_MS);
    } catch (error) {
      engine.killGroup();
      throw error;
    }
    return engine;
  }

  async ask(prompt: readonly number[], salt?: string): Promise<Answer> {
    const response = await this.#post('/v1/completions', {
      model: 'tiny',
      prompt,
      max_tokens: 8,
      temperature: 0,
      ignore_eos: true,
      return_token_ids: true,
      ...(salt === undefined ? {} : { cache_salt: salt }),
    });
    const { choices, usage } = (await response.json()) as Completion;
    return {
      tokens: choices[0].token_ids,
      cachedCount: usage.prompt_tokens_details?.cached_tokens ?? 0,
    };
  }

  /**
   * Empties vLLM's own prefix cache, so that only kvd can know a prompt. Two short requests before
   * it: a store is finished in a step of the engine, and without requests there are no steps.
   */
  async forgetPrefixes(): Promise<void> {
    await this.ask(new Array(40).fill(5));
    await pause(500);
    await this.ask(new Array(40).fill(6));
    await this.#post('/reset_prefix_cache');
  }

  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    await this.#process.end(signal);
  }

  killGroup(): void {
    this.#process.killGroup();
  }

  async #post(route: string, body?: unknown): Promise<Response> {
    const response = await fetch(`${this.#url}${route}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      signal: AbortSignal.timeout(120_000),
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`POST ${route}: ${response.status} ${await response.text()}`);
    return response;
  }
}

function engineCommand(options: EngineOptions): string[] {
  const connector = {
    kv_connector: 'LMCacheMPConnector',
    kv_role: 'kv_both',
    // vLLM's default answers 500 to a request whose blocks could not be loaded.
    kv_load_failure_policy: 'recompute',
    kv_connector_extra_config: {
      'lmcache.mp.host': 'tcp://127.0.0.1',
      'lmcache.mp.port': options.kvdPort,
      'lmcache.mp.mp_transfer_mode': options.mode,
      'lmcache.mp.mq_timeout': 20,
      'lmcache.mp.heartbeat_interval': HEARTBEAT_SECONDS,
    },
  };
  return [
    options.python,
    ...['-m', 'vllm.entrypoints.openai.api_server', '--host', '127.0.0.1'],
    ...['--port', String(options.port), '--model', options.model, '--served-model-name', 'tiny'],
    ...['--load-format', 'dummy', '--skip-tokenizer-init', '--dtype', 'bfloat16'],
    ...['--max-model-len', '4096', '--max-num-seqs', '8', '--enforce-eager'],
    ...['--block-size', String(options.blockSize)],
    ...['--tensor-parallel-size', String(options.workerCount), '--enable-prompt-tokens-details'],
    ...['--kv-transfer-config', JSON.stringify(connector)],
  ];
}
