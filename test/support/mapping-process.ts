/**
 * A process that maps the segments that it is told to, as an engine maps its own.
 *
 * This file is both sides: imported it starts the process, run it is the process. The child ends
 * with its parent, whose death closes the channel between them.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import { Shim } from '../../src/device/shim.ts';
import { deadline } from './waiting.ts';

const SEGMENT_SIZE_BYTES = 4096;
const MAP_DEADLINE_MS = 15_000;

export class MappingProcess {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  readonly #names: string[] = [];

  constructor() {
    this.#child = fork(import.meta.filename);
    this.#ended = once(this.#child, 'exit');
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  /** Makes a segment of one page. Removed when this process is killed. */
  create(name: string): string {
    fs.writeFileSync(`/dev/shm${name}`, new Uint8Array(SEGMENT_SIZE_BYTES), { flag: 'wx' });
    this.#names.push(name);
    return name;
  }

  async map(...names: string[]): Promise<void> {
    const answer = once(this.#child, 'message');
    this.#child.send(names);
    await deadline(answer, MAP_DEADLINE_MS, 'the process did not map');
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#ended;
    for (const name of this.#names) fs.rmSync(`/dev/shm${name}`, { force: true });
  }
}

function serve(): void {
  const shim = Shim.load();
  process.on('disconnect', () => process.exit(0));
  process.on('message', async (names: string[]) => {
    for (const name of names) await shim.openSegment(name, SEGMENT_SIZE_BYTES);
    process.send?.('mapped');
  });
}

if (import.meta.main) serve();
