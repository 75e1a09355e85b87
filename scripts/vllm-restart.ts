/**
 * One vLLM, one kvd that dies and comes back between two requests.
 *
 * What the drivers do not look at: a restart so fast that no heartbeat fails, the same prompt
 * before and after it, tenants (salts), loads that fail after their lookup has found everything,
 * requests side by side, and what is left in kvd afterwards. Outputs are compared with those of a
 * salt that nobody else uses, which no cache can serve.
 *
 *   ask P          computed, stored            ask P again     1024 tokens from kvd
 *   kvd killed and started at once             ask P           computed, same tokens
 *   two heartbeats                             ask P, ask P    stored again, served again
 *   ask P; workers held up before the load     computed, same tokens
 *   ask P; cleared before the load             computed, same tokens: the strict mode
 *   requests side by side with P's beginning   same tokens as without a cache
 *   vLLM ends                                  kvd holds no session, no lock, no worker
 */
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { freePorts } from '../test/support/free-ports.ts';
import { ROOT } from './reference.ts';
import {
  type Answer,
  HEARTBEAT_SECONDS,
  Kvd,
  type KvdPorts,
  VllmEngine,
  waitFor,
} from './vllm-engine.ts';
import { Gate } from './vllm-gate.ts';

/** Four chunks of 256 and a rest. */
const PROMPT_TOKENS = 1100;
const CACHED_TOKENS = 1024;
const SIDE_BY_SIDE = 4;
/** Two heartbeats by the specification, one more for a busy machine. */
const REREGISTRATION_MS = 3 * HEARTBEAT_SECONDS * 1000;
const CLEAN_UP_MS = 5000;
const LOOKUP_MS = 20_000;
/** A heartbeat begins within one interval and is given up after another. */
const GIVE_UP_MS = (2 * HEARTBEAT_SECONDS + 1) * 1000;
/**
 * Nobody says goodbye: vLLM kills its workers. kvd sees it by itself where the names of the mapped
 * segments tell the process; else a worker is dropped when its heartbeats stay away.
 */
const GONE_MS: Readonly<Record<string, number>> = { lmcache_driven: 10_000, engine_driven: 40_000 };

export interface RestartOptions {
  readonly python: string;
  readonly model: string;
  readonly mode: string;
  /** Tensor-parallel workers of the engine. */
  readonly workerCount: number;
  /** Tokens per block of the engine. */
  readonly blockSize: number;
  readonly workFolder: string;
  readonly kvdCommand: (ports: KvdPorts) => string[];
}

/** Prints PASS and FAIL lines; true = passed. */
type Check = (name: string, isPassed: boolean, detail?: string) => void;

interface World {
  readonly engine: VllmEngine;
  readonly kvd: Kvd;
  /** The engine reaches kvd through it. */
  readonly gate: Gate;
  readonly workerCount: number;
  readonly check: Check;
}

/** Returns the counts of passed and failed checks. */
export async function runRestart(options: RestartOptions): Promise<[number, number]> {
  const counts: [number, number] = [0, 0];
  const check: Check = (name, isPassed, detail = '') => {
    counts[isPassed ? 0 : 1]++;
    console.log(`${isPassed ? 'PASS' : 'FAIL'} ${name}${isPassed || !detail ? '' : `: ${detail}`}`);
  };
  const [port, httpPort, enginePort, gatePort] = (await freePorts(4)) as PortList;
  const log = (name: string): string => path.join(options.workFolder, name);
  const kvd = new Kvd(options.kvdCommand({ port, httpPort }), { port, httpPort }, log('kvd.log'));
  const gate = await Gate.open(gatePort, port);
  let engine: VllmEngine | null = null;
  const killAll = (): void => {
    kvd.killGroup();
    engine?.killGroup();
  };
  process.once('exit', killAll);
  try {
    await kvd.start();
    const logFile = log('vllm.log');
    engine = await VllmEngine.start({ ...options, port: enginePort, kvdPort: gatePort, logFile });
    await checkCache({ engine, kvd, gate, check, workerCount: options.workerCount });
    await engine.end('SIGTERM');
    await checkCleanUp(kvd, GONE_MS[options.mode] ?? CLEAN_UP_MS, check);
  } catch (error) {
    const { message } = error as Error;
    check('the scenario comes to its end', false, `${message}; logs in ${relative(options)}`);
  } finally {
    await engine?.end('SIGTERM');
    gate.close();
    await kvd.end('SIGTERM');
    process.off('exit', killAll);
  }
  return counts;
}

type PortList = [number, number, number, number];

const relative = (options: RestartOptions): string => path.relative(ROOT, options.workFolder);

function randomTokens(count: number): number[] {
  return Array.from({ length: count }, () => 3 + Math.floor(Math.random() * 3990));
}

const isSame = (a: Answer, b: Answer): boolean => String(a.tokens) === String(b.tokens);

async function checkCache(world: World): Promise<void> {
  const { engine, kvd, workerCount, check } = world;
  const prompt = randomTokens(PROMPT_TOKENS);
  const expect = (name: string, answer: Answer, cachedCount: number): void => {
    const { cachedCount: got } = answer;
    check(`${name}: ${cachedCount} tokens from kvd`, got === cachedCount, `got ${got}`);
    check(`${name}: same tokens as without a cache`, isSame(answer, plain), String(answer.tokens));
  };
  const areRegistered = async (): Promise<boolean> => (await kvd.workers()).length === workerCount;

  check('every worker is registered', await waitFor(areRegistered, CLEAN_UP_MS));
  const plain = await engine.ask(prompt, 'nobody else');
  expect('first request', await engine.ask(prompt), 0);
  await engine.forgetPrefixes();
  expect('second request', await engine.ask(prompt), CACHED_TOKENS);
  await engine.forgetPrefixes();
  expect('another tenant', await engine.ask(prompt, 'someone'), 0);

  await engine.forgetPrefixes();
  await kvd.end('SIGKILL');
  await kvd.start();
  expect('right after a restart of kvd', await engine.ask(prompt), 0);
  check('every worker registers again', await waitFor(areRegistered, REREGISTRATION_MS));
  await engine.forgetPrefixes();
  await engine.ask(prompt);
  await engine.forgetPrefixes();
  expect('served again after the restart', await engine.ask(prompt), CACHED_TOKENS);

  await engine.forgetPrefixes();
  expect('held up before the load', await askAndHoldUp(world, prompt), 0);
  await pause(REREGISTRATION_MS);
  await engine.forgetPrefixes();
  expect('served again after the hold-up', await engine.ask(prompt), CACHED_TOKENS);

  await engine.forgetPrefixes();
  expect('lost before the load', await askAndLose(world, prompt), 0);
  await pause(REREGISTRATION_MS);
  await engine.forgetPrefixes();
  await engine.ask(prompt);
  await engine.forgetPrefixes();
  expect('served again after the loss', await engine.ask(prompt), CACHED_TOKENS);
  await checkSideBySide(engine, prompt.slice(0, CACHED_TOKENS), check);
}

/** Asks, and clears kvd after the lookup has found everything and before a worker can load. */
async function askAndLose(world: World, prompt: readonly number[]): Promise<Answer> {
  return await askAndHold(world, prompt, () => world.kvd.clear());
}

/**
 * Asks, and lets no worker reach kvd for so long that it gives up: the chunks are still there when
 * vLLM looks the request up again.
 */
async function askAndHoldUp(world: World, prompt: readonly number[]): Promise<Answer> {
  return await askAndHold(world, prompt, () => pause(GIVE_UP_MS));
}

async function askAndHold(
  { engine, kvd, gate, check }: World,
  prompt: readonly number[],
  meanwhile: () => Promise<void>,
): Promise<Answer> {
  const releases = (await kvd.workers()).map((worker) => gate.hold(worker));
  const answer = engine.ask(prompt);
  const isFound = async (): Promise<boolean> =>
    ((await kvd.status()).storage_manager.l1_manager['read_locked_count'] ?? 0) > 0;
  check('the lookup has found it', await waitFor(isFound, LOOKUP_MS));
  await meanwhile();
  for (const release of releases) release();
  return await answer;
}

async function checkSideBySide(
  engine: VllmEngine,
  prefix: readonly number[],
  check: Check,
): Promise<void> {
  const prompts = Array.from({ length: SIDE_BY_SIDE }, () => [...prefix, ...randomTokens(60)]);
  const plain: Answer[] = [];
  for (const [index, prompt] of prompts.entries()) {
    plain.push(await engine.ask(prompt, `alone ${index}`));
  }
  await engine.forgetPrefixes();
  const answers = await Promise.all(prompts.map((prompt) => engine.ask(prompt)));
  for (const [index, answer] of answers.entries()) {
    const expected = plain[index] as Answer;
    check(`side by side ${index}: same tokens`, isSame(answer, expected), String(answer.tokens));
    const { cachedCount } = answer;
    check(`side by side ${index}: cached`, cachedCount >= CACHED_TOKENS, `got ${cachedCount}`);
  }
}

async function checkCleanUp(kvd: Kvd, goneMs: number, check: Check): Promise<void> {
  const expectZero = async (
    name: string,
    read: () => Promise<number>,
    limitMs = CLEAN_UP_MS,
  ): Promise<void> => {
    const isZero = await waitFor(async () => (await read()) === 0, limitMs);
    check(`after the engine: ${name}`, isZero, `${await read()} left`);
  };
  const l1 = async () => (await kvd.status()).storage_manager.l1_manager;
  const workerCount = async () => (await kvd.workers()).length;
  await expectZero('no worker', workerCount, goneMs);
  await expectZero('no session', async () => (await kvd.status()).active_sessions);
  await expectZero('no read lock', async () => (await l1())['read_locked_count'] ?? -1);
  await expectZero('no write lock', async () => (await l1())['write_locked_count'] ?? -1);
  const { is_healthy } = await kvd.status();
  check('kvd is healthy', is_healthy);
}
