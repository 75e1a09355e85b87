/** One serving engine of a client release: a Python process behind engine.py's lines. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import path from 'node:path';
import readline from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { DRIVER_ENVIRONMENT } from '../reference.ts';

const ANSWER_MS = 60_000;
const END_MS = 10_000;

export interface Stored {
  readonly ok: boolean;
  readonly digest: string;
}

export interface Loaded extends Stored {
  /** Chunks that the look-up found. */
  readonly hit: number;
}

export interface EngineStart {
  readonly python: string;
  readonly drivers: string;
  readonly url: string;
  readonly release: string;
}

type Answer = Record<string, unknown> & { readonly error?: string };
type Child = ChildProcessByStdio<Writable, Readable, null>;

export class GenerationEngine {
  readonly release: string;
  readonly #child: Child;
  readonly #answers: AsyncIterator<string>;

  private constructor(release: string, child: Child) {
    this.release = release;
    this.#child = child;
    this.#answers = readline.createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  }

  static async start({ python, drivers, url, release }: EngineStart): Promise<GenerationEngine> {
    const script = path.join(import.meta.dirname, 'engine.py');
    const child = spawn(python, [script, drivers, url], {
      env: DRIVER_ENVIRONMENT,
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const engine = new GenerationEngine(release, child);
    const answer = await engine.#ask({ do: 'release' });
    if (answer['release'] === release) return engine;
    await engine.end();
    throw new Error(`the environment of ${release} holds ${String(answer['release'])}`);
  }

  async open(
    name: string,
    cache: { readonly model: string; readonly format: string; readonly mode: string },
  ): Promise<void> {
    await this.#ask({ do: 'open', name, ...cache });
  }

  async store(name: string, seed: number, chunks: number): Promise<Stored> {
    return (await this.#ask({ do: 'store', name, seed, chunks })) as unknown as Stored;
  }

  async load(name: string, seed: number, chunks: number): Promise<Loaded> {
    return (await this.#ask({ do: 'load', name, seed, chunks })) as unknown as Loaded;
  }

  async close(name: string): Promise<void> {
    await this.#ask({ do: 'close', name });
  }

  /** Ends the process, by force if it does not end itself. */
  async end(): Promise<void> {
    if (this.#child.exitCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    this.#child.stdin.end();
    const timer = setTimeout(() => this.#child.kill('SIGKILL'), END_MS);
    await ended;
    clearTimeout(timer);
  }

  async #ask(request: Readonly<Record<string, unknown>>): Promise<Answer> {
    this.#child.stdin.write(`${JSON.stringify(request)}\n`);
    const late = new Promise<never>((_, reject) => {
      const timer = setTimeout(() => {
        reject(new Error(`${this.release}: no answer to ${JSON.stringify(request)}`));
      }, ANSWER_MS);
      timer.unref();
    });
    const line = await Promise.race([this.#answers.next(), late]);
    if (line.done) throw new Error(`${this.release}: ended at ${JSON.stringify(request)}`);
    const answer = JSON.parse(line.value) as Answer;
    if (answer.error === undefined) return answer;
    throw new Error(`${this.release}: ${JSON.stringify(request)}: ${answer.error}`);
  }
}
