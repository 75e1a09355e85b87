/**
 * `npm run test:kv-events`
 *
 * vLLM's own types against the KV events that kvd publishes:
 *
 *   samples   vLLM's encoder still makes the bytes of test/vectors/kv-events-vllm.json, which
 *             `npm test` compares with ours
 *   stream    a subscriber decodes what a server publishes while it stores, evicts and clears,
 *             loses batches, fills the gaps by replay, and believes what L1 holds in the end
 *
 * The Python environment is KVD_VLLM_VENV, or the one that .ci/setup makes. Half a minute.
 * The last line is `N passed, N failed`.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { KvdClient } from '../src/client/client.ts';
import { FakeWorker, promptOf } from '../test/support/fake-worker.ts';
import { ServerProcess } from '../test/support/server-process.ts';
import { deadline, until } from '../test/support/waiting.ts';
import { findPython, ROOT } from './reference.ts';

const WAIT_MS = 60_000;
const CHUNKS = 4;
/** L1 holds 5242 objects. */
const PROMPTS_THAT_EVICT = 1500;

const VECTOR = path.join(ROOT, 'test/vectors/kv-events-vllm.json');
const at = (name: string): string => path.join(ROOT, 'scripts/kv-events', name);

interface Believed {
  readonly blockCount: number;
  readonly prompts: readonly [salt: string, tokens: readonly number[]][];
  readonly problems: readonly string[];
  readonly counts: Readonly<Record<string, number>>;
}

interface State {
  readonly live: Believed;
  readonly late: Believed;
  readonly dropped: number;
  readonly filled: number;
}

let passedCount = 0;
let failedCount = 0;

function check(title: string, isRight: boolean, seen: unknown = null): void {
  if (isRight) passedCount += 1;
  else failedCount += 1;
  const rest = isRight ? '' : `: ${JSON.stringify(seen).slice(0, 500)}`;
  console.log(`${isRight ? 'PASS ' : 'FAIL '} ${title}${rest}`);
}

function checkSamples(python: string): void {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-kv-events-'));
  try {
    const file = path.join(folder, 'samples.json');
    const run = spawnSync(python, [at('samples.py'), file], { encoding: 'utf8' });
    check('vLLM encodes the samples', run.status === 0, run.stderr);
    const isSame = run.status === 0 && fs.readFileSync(file).equals(fs.readFileSync(VECTOR));
    check('its bytes are those of the vector', isSame);
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

class Subscriber {
  readonly #child: ChildProcess;
  #output = '';

  constructor(python: string, endpoint: string, replayEndpoint: string) {
    const args = ['-u', at('subscriber.py'), endpoint, replayEndpoint];
    this.#child = spawn(python, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdout?.on('data', (part: Buffer) => {
      this.#output += part.toString();
    });
  }

  get isReady(): boolean {
    return /^ready$/m.test(this.#output);
  }

  async finish(batchCount: number): Promise<State> {
    const ended = new Promise<void>((resolve) => this.#child.once('close', () => resolve()));
    this.#child.stdin?.write(`finish ${batchCount}\n`);
    await deadline(ended, WAIT_MS, 'the subscriber does not end');
    const line = /^state: (.*)$/m.exec(this.#output)?.[1];
    if (!line) throw new Error(`the subscriber says nothing:\n${this.#output}`);
    return JSON.parse(line) as State;
  }

  close(): void {
    this.#child.kill();
  }
}

async function statusOf(server: ServerProcess): Promise<Record<string, string | number>> {
  const status = (await server.status()) as unknown as Record<string, unknown>;
  return status['kv_event_publisher'] as Record<string, string | number>;
}

async function checkStream(python: string): Promise<void> {
  const server = await ServerProcess.start({
    '--kv-events-endpoint': 'tcp://127.0.0.1:0',
    '--kv-events-replay-endpoint': 'tcp://127.0.0.1:0',
    '--kv-events-topic': 'kv@pod@{model}',
  });
  const worker = new FakeWorker(server.url);
  const client = KvdClient.connect(server.url);
  const { endpoint, replay_endpoint: replayEndpoint } = await statusOf(server);
  const subscriber = new Subscriber(python, String(endpoint), String(replayEndpoint));
  try {
    await worker.register();
    let number = 0;
    const isListening = async (): Promise<boolean> => {
      number += 1;
      await worker.store(promptOf(number, 1));
      return subscriber.isReady;
    };
    await until(isListening, WAIT_MS, 'the subscriber');
    await client.call('CLEAR', { isForced: true }, WAIT_MS);
    for (let n = 0; n < PROMPTS_THAT_EVICT; n += 1) await worker.store(promptOf(1000 + n, CHUNKS));
    await worker.store(promptOf(1, CHUNKS), { cacheSalt: 'tenant-a' });
    await worker.store(promptOf(1, CHUNKS), { cacheSalt: 'tenant-b' });
    await worker.store(promptOf(1, CHUNKS));
    const { next_seq: batchCount } = await statusOf(server);
    compare(await subscriber.finish(Number(batchCount)), (await server.l1())['total_object_count']);
  } finally {
    subscriber.close();
    client.close();
    worker.close();
    await server.stop();
  }
}

function compare({ live, late, dropped, filled }: State, objectCount: number | undefined): void {
  check('every event is as vLLM has it', live.problems.length === 0, live.problems);
  const kinds = Object.keys(live.counts).sort();
  const all = ['AllBlocksCleared', 'BlockRemoved', 'BlockStored'];
  check('events of all kinds came', String(kinds) === String(all), live.counts);
  check('gaps were filled by replay', dropped > 100 && filled >= dropped, { dropped, filled });
  check('it believes as many blocks as L1 has objects', live.blockCount === objectCount, {
    believed: live.blockCount,
    objectCount,
  });
  const tenants = live.prompts.filter(([salt]) => salt !== '').map(([salt]) => salt);
  check('it tells tenants apart', String(tenants) === 'tenant-a,tenant-b', tenants);
  // Eviction takes the ends of prompts first.
  const strange = live.prompts.find(([, tokens]) => {
    const expected = promptOf(tokens[0] as number, CHUNKS).slice(0, tokens.length);
    return String(tokens) !== String(expected);
  });
  check('the chains of blocks are prompts that were stored', strange === undefined, strange);
  const isSame = JSON.stringify(late.prompts) === JSON.stringify(live.prompts);
  check('who comes late believes the same', isSame && late.problems.length === 0, late.problems);
}

const python = findPython('vllm');
checkSamples(python);
await checkStream(python);
console.log(`${passedCount} passed, ${failedCount} failed`);
process.exitCode = failedCount === 0 ? 0 : 1;
