/** One L2 adapter of a release of the reference: a Python process behind reference-adapter.py. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import path from 'node:path';
import readline from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { hexOf } from '../../src/l2/key-text.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { DRIVER_ENVIRONMENT } from '../reference.ts';

const ANSWER_MS = 120_000;
const END_MS = 20_000;

export interface Sample {
  readonly key: ObjectKey;
  readonly sizeBytes: number;
  /** Chooses the bytes. */
  readonly seed: number;
}

/** The bytes of a sample, as reference-adapter.py makes them. */
export function contentOf({ sizeBytes, seed }: Sample): Uint8Array {
  return Uint8Array.from({ length: sizeBytes }, (_, i) => 31 * i + (i >> 8) + seed);
}

export interface Stored {
  readonly stored: boolean;
  /** From the call to its completion. */
  readonly seconds: number;
}

export interface Loaded {
  readonly seconds: number;
  readonly loaded: boolean[];
  readonly equal: boolean[];
}

type Answer = Record<string, unknown> & { readonly error?: string };

export class ReferenceAdapter {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #answers: AsyncIterator<string>;

  private constructor(child: ChildProcessByStdio<Writable, Readable, null>) {
    this.#child = child;
    this.#answers = readline.createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  }

  /** `spec` as in `--l2-adapter`. Any release when `release` is null. */
  static async start(
    python: string,
    release: string | null,
    spec: Readonly<Record<string, unknown>>,
  ): Promise<ReferenceAdapter> {
    const script = path.join(import.meta.dirname, 'reference-adapter.py');
    const child = spawn(python, [script, JSON.stringify(spec)], {
      env: { LMCACHE_LOG_LEVEL: 'ERROR', PYTHONWARNINGS: 'ignore', ...DRIVER_ENVIRONMENT },
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const adapter = new ReferenceAdapter(child);
    const first = await adapter.#answer();
    if (release === null || first['release'] === release) return adapter;
    await adapter.end();
    throw new Error(`the environment of ${release} holds ${String(first['release'])}`);
  }

  async store(samples: readonly Sample[]): Promise<Stored> {
    return (await this.#ask({ do: 'store', objects: samples.map(describe) })) as unknown as Stored;
  }

  async lookup(keys: readonly ObjectKey[]): Promise<boolean[]> {
    return (await this.#ask({ do: 'lookup', keys: keys.map(describeKey) }))['found'] as boolean[];
  }

  async load(samples: readonly Sample[]): Promise<Loaded> {
    return (await this.#ask({ do: 'load', objects: samples.map(describe) })) as unknown as Loaded;
  }

  async delete(keys: readonly ObjectKey[]): Promise<void> {
    await this.#ask({ do: 'delete', keys: keys.map(describeKey) });
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), END_MS);
    this.#child.stdin.end();
    await ended;
    clearTimeout(timer);
  }

  async #ask(request: Readonly<Record<string, unknown>>): Promise<Answer> {
    this.#child.stdin.write(`${JSON.stringify(request)}\n`);
    return this.#answer();
  }

  async #answer(): Promise<Answer> {
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), ANSWER_MS);
    const { value, done } = await this.#answers.next();
    clearTimeout(timer);
    if (done) throw new Error('the adapter of the reference ended or did not answer');
    const answer = JSON.parse(value) as Answer;
    if (answer.error !== undefined)
      throw new Error(`the adapter of the reference: ${answer.error}`);
    return answer;
  }
}

function describeKey(key: ObjectKey): Record<string, unknown> {
  return {
    hash: hexOf(key.chunkHash),
    model: key.modelName,
    rank: key.kvRank,
    group: key.objectGroupId,
    salt: key.cacheSalt,
  };
}

function describe({ key, sizeBytes, seed }: Sample): Record<string, unknown> {
  return { key: describeKey(key), size: sizeBytes, seed };
}
