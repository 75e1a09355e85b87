/**
 * `npm run test:vllm -- [--part offline,serve,restart,tensor-parallel] [--mode MODE,...]
 *                       [--newest]`
 *
 * vLLM on CPU with the real connector and a tiny random model against kvd, in both transfer modes:
 *
 *   offline          two engines, one cache: the second takes the first one's prompt from kvd
 *   serve            an API server; kvd is killed, is away for a while, and comes back
 *   restart          kvd dies and is back before anybody notices (scripts/vllm-restart.ts)
 *   tensor-parallel  the same with two workers
 *
 * With the client of 0.5.0, or with --newest with that of 0.5.6 in the newest vLLM that works with
 * it (which knows larger blocks only, so the part `serve`, whose blocks are fixed, is left out).
 *
 * The first two are the drivers in ../shared/conformance/vllm (or KVD_CONFORMANCE_DIR). The Python
 * environment is KVD_VLLM_VENV, or the one that .ci/setup makes. About 25 minutes on two cores.
 * The last line is `N passed, N failed`; logs are in build/vllm/.
 */
import { spawn, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { DRIVER_ENVIRONMENT, findDrivers, findPython, ROOT } from './reference.ts';
import { HEARTBEAT_SECONDS, Kvd, type KvdPorts, waitFor } from './vllm-engine.ts';
import { runRestart } from './vllm-restart.ts';

const PARTS = ['offline', 'serve', 'restart', 'tensor-parallel'];
const MODES = ['engine_driven', 'lmcache_driven'];
/** Tokens per block; vLLM from 0.29 on has no smaller ones on CPUs. */
const BLOCK_SIZE = { usual: 16, newest: 32 };
const DRIVER_MS = 10 * 60_000;
const DRIVER_END_MS = 30_000;
const WORKER_END_MS = 5000;

interface Setting {
  readonly drivers: string;
  readonly python: string;
  readonly mode: string;
  readonly isNewest: boolean;
  readonly workFolder: string;
}

type Counts = [passed: number, failed: number];

// ---------------------------------------------------------------- kvd

/** Ports may be the placeholders of the drivers. */
function kvdCommand(port: number | string, httpPort: number | string): string[] {
  return [
    ...[process.execPath, path.join(ROOT, 'dist/kvd.mjs'), 'server'],
    ...['--host', '127.0.0.1', '--port', String(port)],
    ...['--http-host', '127.0.0.1', '--http-port', String(httpPort)],
    ...['--l1-size-gb', '1', '--eviction-policy', 'LRU'],
  ];
}

const driverCommand = (): string => kvdCommand('{port}', '{http_port}').join(' ');

/** The first of `count` free ports in a row. */
async function findPorts(count: number): Promise<number> {
  for (;;) {
    const first = await listenBriefly(0);
    let isFree = first !== null && first + count < 65_536;
    for (let index = 1; first !== null && isFree && index < count; index++) {
      isFree = (await listenBriefly(first + index)) !== null;
    }
    if (first !== null && isFree) return first;
  }
}

function listenBriefly(port: number): Promise<number | null> {
  return new Promise((resolve) => {
    const server = net.createServer();
    server.once('error', () => resolve(null));
    server.listen(port, '127.0.0.1', () => {
      const { port: bound } = server.address() as net.AddressInfo;
      server.close(() => resolve(bound));
    });
  });
}

// ---------------------------------------------------------------- drivers

/**
 * Runs a driver in a process group of its own, and shows and counts what it prints. SIGINT is what
 * the drivers clean up after; SIGKILL to the group is for what does not listen.
 */
async function runDriver(
  setting: Setting,
  command: readonly string[],
  env: NodeJS.ProcessEnv,
): Promise<Counts> {
  const child = spawn(command[0] as string, command.slice(1), {
    cwd: setting.workFolder,
    env: { ...DRIVER_ENVIRONMENT, ...env },
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const signalGroup = (signal: NodeJS.Signals): void => {
    if (child.exitCode === null) process.kill(-(child.pid as number), signal);
  };
  const interrupt = (): void => signalGroup('SIGINT');
  const timers = [
    setTimeout(interrupt, DRIVER_MS),
    setTimeout(() => signalGroup('SIGKILL'), DRIVER_MS + DRIVER_END_MS),
  ];
  process.once('exit', interrupt);
  let output = '';
  const append = (part: Buffer): void => {
    process.stdout.write(part);
    output += part.toString();
  };
  child.stdout.on('data', append);
  child.stderr.on('data', append);
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  for (const timer of timers) clearTimeout(timer);
  process.off('exit', interrupt);
  return countChecks(output, code);
}

/** A driver that ends badly without a failed check has failed, too. */
function countChecks(output: string, code: number | null): Counts {
  const counts: Counts = [0, 0];
  for (const [, passed, failed] of output.matchAll(/^(\d+) passed, (\d+) failed$/gm)) {
    counts[0] += Number(passed);
    counts[1] += Number(failed);
  }
  if (counts[1] === 0 && (code !== 0 || counts[0] === 0)) counts[1] = 1;
  return counts;
}

async function runPart(part: string, setting: Setting): Promise<Counts> {
  const { drivers, python, mode, isNewest, workFolder } = setting;
  const model = path.join(workFolder, 'tiny');
  if (part === 'offline' && !isNewest) {
    const PORT = String(await findPorts(3));
    const env = {
      VLLM_PY: python,
      SERVER_CMD: driverCommand(),
      MODES: mode,
      WORK: workFolder,
      PORT,
    };
    return await runDriver(setting, ['bash', path.join(drivers, 'run_e2e.sh')], env);
  }
  makeModel(setting, model);
  if (part === 'offline') return await runOffline(setting, model);
  if (part === 'serve') {
    const command = [python, path.join(drivers, 'e2e_serve.py'), '--model', model];
    command.push('--mode', mode, '--work', workFolder, '--server-cmd', driverCommand());
    command.push('--heartbeat', String(HEARTBEAT_SECONDS));
    return await runDriver(setting, command, {});
  }
  return await runRestart({
    python,
    model,
    mode,
    workFolder,
    workerCount: part === 'tensor-parallel' ? 2 : 1,
    blockSize: isNewest ? BLOCK_SIZE.newest : BLOCK_SIZE.usual,
    kvdCommand: ({ port, httpPort }: KvdPorts) => [
      ...kvdCommand(port, httpPort),
      ...['--worker-reap-timeout-seconds', '30'],
    ],
  });
}

/** The driver's engines with blocks of another size than its script has, and a kvd of our own. */
async function runOffline(setting: Setting, model: string): Promise<Counts> {
  const { drivers, python, mode, workFolder } = setting;
  const port = await findPorts(2);
  const ports = { port, httpPort: port + 1 };
  const kvd = new Kvd(kvdCommand(port, port + 1), ports, path.join(workFolder, 'kvd.log'));
  await kvd.start();
  try {
    const command = [python, path.join(drivers, 'e2e_offline.py'), '--model', model];
    command.push('--mode', mode, '--port', String(port), '--log-dir', workFolder);
    command.push('--block-size', String(BLOCK_SIZE.newest));
    return await runDriver(setting, command, {});
  } finally {
    await kvd.end('SIGTERM');
  }
}

function makeModel({ drivers, python }: Setting, folder: string): void {
  const made = spawnSync(python, [path.join(drivers, 'make_tiny_model.py'), folder], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  if (made.status !== 0) throw new Error(`make_tiny_model.py: exit code ${made.status}`);
}

/**
 * vLLM kills its workers when it ends, and a killed worker leaves its KV cache in /dev/shm: 1 GB
 * for each. Removes those that appeared since `startMs`, once their process is gone.
 */
async function removeLeftSegments(startMs: number): Promise<void> {
  const isEnding = (): boolean => {
    const segments = findSegments(startMs);
    for (const { file } of segments.filter(({ isOwned }) => !isOwned)) {
      fs.rmSync(file, { force: true });
    }
    return segments.some(({ isOwned }) => isOwned);
  };
  await waitFor(() => !isEnding(), WORKER_END_MS);
}

function findSegments(startMs: number): { file: string; isOwned: boolean }[] {
  return fs.readdirSync('/dev/shm').flatMap((name) => {
    const pid = /^lmcache_kv_(\d+)_\d+$/.exec(name)?.[1];
    const file = path.join('/dev/shm', name);
    const stat = pid === undefined ? null : fs.statSync(file, { throwIfNoEntry: false });
    if (!stat || stat.ctimeMs < startMs) return [];
    return [{ file, isOwned: fs.existsSync(`/proc/${pid}`) }];
  });
}

// ---------------------------------------------------------------- command line

/** The values of `--name A,B`; all without it. */
function readChoice(args: readonly string[], name: string, all: readonly string[]): string[] {
  const index = args.indexOf(name);
  if (index < 0) return [...all];
  const chosen = (args[index + 1] ?? '').split(',');
  const unknown = chosen.find((value) => !all.includes(value));
  if (unknown !== undefined) {
    throw new Error(`${name}: expected some of ${all.join(',')}, got '${unknown}'`);
  }
  return chosen;
}

async function main(args: readonly string[]): Promise<number> {
  const isNewest = args.includes('--newest');
  const all = isNewest ? PARTS.filter((part) => part !== 'serve') : PARTS;
  const parts = readChoice(args, '--part', all);
  const modes = readChoice(args, '--mode', MODES);
  const root = findDrivers();
  const drivers = root && path.join(root, 'vllm');
  if (!drivers || !fs.existsSync(path.join(drivers, 'run_e2e.sh'))) {
    console.log(
      'test:vllm: skipped: there is no ../shared/conformance/vllm and no KVD_CONFORMANCE_DIR',
    );
    return 0;
  }
  const python = findPython(isNewest ? 'vllm-newest' : 'vllm');
  const sum: Counts = [0, 0];
  const startMs = Date.now();
  for (const part of parts) {
    for (const mode of modes) {
      console.log(`==== ${part}, ${mode}`);
      const workFolder = path.join(ROOT, 'build/vllm', `${part}-${mode}`);
      fs.rmSync(workFolder, { recursive: true, force: true });
      fs.mkdirSync(workFolder, { recursive: true });
      const [passed, failed] = await runPart(part, { drivers, python, mode, isNewest, workFolder });
      await removeLeftSegments(startMs);
      if (failed > 0) console.log(`     logs: ${path.relative(ROOT, workFolder)}`);
      sum[0] += passed;
      sum[1] += failed;
    }
  }
  console.log(`${sum[0]} passed, ${sum[1]} failed`);
  return sum[1] === 0 ? 0 : 1;
}

// What runs is ended by the `exit` listeners.
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(130));
process.exitCode = await main(process.argv.slice(2));
