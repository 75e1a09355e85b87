/**
 * Real servers for tests of L2 backends, each on free ports of the loopback interface with an empty
 * folder of its own. `.ci/setup l2` installs them; without it the tests that need them fail.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { freePorts } from './free-ports.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const START_DEADLINE_MS = 25_000;
const POLL_MS = 50;

export interface L2Server {
  /** The one that clients use. */
  readonly port: number;
  /** No shutdown: the process is gone, and so is its folder. */
  stop(): Promise<void>;
}

let binaries: string | null = null;

function findBinaries(): string {
  if (binaries === null) {
    const setup = spawnSync('bash', [path.join(ROOT, '.ci/setup'), 'l2'], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    if (setup.status !== 0) throw new Error(`.ci/setup l2: exit code ${setup.status}`);
    binaries = path.join(setup.stdout.trim(), 'bin');
  }
  return binaries;
}

class Servers implements L2Server {
  readonly port: number;
  readonly #folder: string;
  readonly #children: ChildProcess[] = [];
  #output = '';

  constructor(port: number, folder: string) {
    this.port = port;
    this.#folder = folder;
  }

  async start(command: string, args: readonly string[]): Promise<void> {
    const child = spawn(command, args, { cwd: this.#folder, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (part: Buffer) => {
        this.#output = (this.#output + part.toString()).slice(-4000);
      });
    }
    await once(child, 'spawn');
    this.#children.push(child);
  }

  /** Asks until `isReady` says so or does not throw. */
  async ready(isReady: () => Promise<boolean>): Promise<this> {
    const endMs = performance.now() + START_DEADLINE_MS;
    while (!(await isReady().catch(() => false))) {
      const isOver = performance.now() > endMs;
      if (isOver || this.#children.some(({ exitCode }) => exitCode !== null)) {
        await this.stop();
        throw new Error(`the server did not start:\n${this.#output}`);
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
    return this;
  }

  async stop(): Promise<void> {
    for (const child of this.#children) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    await fs.rm(this.#folder, { recursive: true, force: true });
  }
}

const makeFolder = (): Promise<string> => fs.mkdtemp(path.join(os.tmpdir(), 'kvd-l2-server-'));

async function accepts(port: number): Promise<boolean> {
  const socket = net.connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    return true;
  } finally {
    socket.destroy();
  }
}

const redisArguments = (port: number): string[] => [
  ...['--port', String(port), '--bind', '127.0.0.1'],
  ...['--save', '', '--appendonly', 'no'],
];

export interface RedisOptions {
  /** That of an earlier server, for a restart. */
  readonly port?: number;
  /** As on the command line of redis-server: `--requirepass`, … */
  readonly options?: readonly string[];
}

export async function startRedis(start: RedisOptions = {}): Promise<L2Server> {
  findBinaries();
  const port = start.port ?? ((await freePorts(1))[0] as number);
  const servers = new Servers(port, await makeFolder());
  await servers.start('redis-server', [...redisArguments(port), ...(start.options ?? [])]);
  return servers.ready(() => accepts(port));
}

export async function startValkey(): Promise<L2Server> {
  const [port] = (await freePorts(1)) as [number];
  const servers = new Servers(port, await makeFolder());
  await servers.start(path.join(findBinaries(), 'valkey-server'), redisArguments(port));
  return servers.ready(() => accepts(port));
}

/** Three masters. */
export async function startRedisCluster(): Promise<L2Server> {
  findBinaries();
  const ports = await freePorts(6);
  const masters = ports.slice(0, 3);
  const servers = new Servers(masters[0] as number, await makeFolder());
  for (const [i, port] of masters.entries()) {
    const cluster = ['--cluster-enabled', 'yes', '--cluster-config-file', `node-${port}.conf`];
    const bus = ['--cluster-port', String(ports[3 + i])];
    await servers.start('redis-server', [...redisArguments(port), ...cluster, ...bus]);
  }
  const allAccept = async () => (await Promise.all(masters.map(accepts))).every(Boolean);
  await servers.ready(allAccept);
  const addresses = masters.map((port) => `127.0.0.1:${port}`);
  redisCli(['--cluster', 'create', ...addresses, '--cluster-replicas', '0', '--cluster-yes']);
  const knows = (port: number): boolean =>
    redisCli(['-p', String(port), 'cluster', 'info']).includes('cluster_state:ok');
  return servers.ready(async () => masters.every(knows));
}

function redisCli(args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync('redis-cli', args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`redis-cli ${args.join(' ')}: ${stdout}${stderr}`);
  return stdout;
}

/** The only identity that the S3 server knows. */
export const S3_CREDENTIALS = { accessKeyId: 'AK', secretAccessKey: 'SK' } as const;
/** `<bucket>.<this>` names a bucket; it need not resolve. */
export const S3_DOMAIN = 's3.localhost';

/** SeaweedFS. Buckets are made by a PUT. `domain`: what stands behind the bucket in a host name. */
export async function startS3(domain = S3_DOMAIN): Promise<L2Server> {
  const weed = path.join(findBinaries(), 'weed');
  const ports = await freePorts(8);
  const folder = await makeFolder();
  const identities = path.join(folder, 's3.json');
  const { accessKeyId: accessKey, secretAccessKey: secretKey } = S3_CREDENTIALS;
  const actions = ['Admin', 'Read', 'Write', 'List', 'Tagging'];
  const identity = { name: 'test', credentials: [{ accessKey, secretKey }], actions };
  await fs.writeFile(identities, JSON.stringify({ identities: [identity] }));
  const names = ['master', 'volume', 'filer', 's3'];
  const portArguments = names.flatMap((name, i) => [
    `-${name}.port=${ports[2 * i]}`,
    `-${name}.port.grpc=${ports[2 * i + 1]}`,
  ]);
  const port = ports[6] as number;
  const servers = new Servers(port, folder);
  await servers.start(weed, [
    ...['server', `-dir=${folder}`, '-ip=127.0.0.1', '-ip.bind=127.0.0.1', ...portArguments],
    ...['-s3', '-s3.port.iceberg=0', '-s3.port.lance=0', `-s3.config=${identities}`],
    ...[`-s3.domainName=${domain}`, '-master.volumeSizeLimitMB=64', '-volume.max=20'],
  ]);
  const url = `http://127.0.0.1:${port}/healthz`;
  return servers.ready(async () => (await fetch(url)).status === 200);
}
