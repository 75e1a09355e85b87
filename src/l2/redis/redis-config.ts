/** What the adapters `resp` and `valkey` have in common: their keys, and how they are opened. */
import fs from 'node:fs/promises';
import { KvdError } from '../../errors.ts';
import { GIB } from '../../units.ts';
import type { L2Backend, L2BackendContext } from '../backend.ts';
import {
  CONNECTION_TIMEOUT_KEY,
  type ConfigKeys,
  type ConfigValues,
  OWN_CAPACITY_KEY,
} from '../config-keys.ts';
import { openConnection, type RedisAddress, type RedisSettings } from './connection.ts';
import { RedisLink } from './link.ts';
import { RedisBackend } from './redis-backend.ts';

export const REDIS_KEYS = {
  cluster_mode: {
    kind: 'boolean',
    fallback: false,
    about: 'the servers form a cluster: keys are spread over its masters',
  },
  num_workers: {
    kind: 'integer',
    fallback: 8,
    min: 1,
    max: 256,
    about: 'connections (in a cluster: to each master)',
  },
  username: {
    kind: 'text',
    fallback: '',
    env: 'LMCACHE_RESP_USERNAME',
    about: 'user of the access list',
  },
  password: {
    kind: 'text',
    fallback: '',
    env: 'LMCACHE_RESP_PASSWORD',
    isSecret: true,
    about: 'password of the user or of the server',
  },
  tls_enable: { kind: 'boolean', fallback: false, about: 'encrypted connections' },
  tls_ca_file: {
    kind: 'text',
    fallback: '',
    about: 'PEM file of the authority that signed the certificate; empty = those of Node',
  },
  ttl_seconds: {
    kind: 'integer',
    fallback: null,
    min: 1,
    about: 'values expire after it; without it the server must evict by itself or be large enough',
  },
  request_timeout: {
    kind: 'number',
    fallback: 5,
    min: 0.001,
    max: 3600,
    about: 'seconds without any reply after which a connection is given up',
  },
  connection_timeout: CONNECTION_TIMEOUT_KEY,
  max_capacity_gb: OWN_CAPACITY_KEY,
} as const satisfies ConfigKeys;

/** A server that starts does not wait longer for its cache. */
const FIRST_CONNECTION_MS_MAX = 1_000;

export interface OpenOptions {
  readonly typeName: string;
  readonly nodes: readonly RedisAddress[];
  readonly keyPrefix: string;
  readonly databaseId: number;
  /** Keys of the adapter's status. */
  readonly about: Record<string, unknown>;
}

export async function openRedisBackend(
  values: ConfigValues,
  options: OpenOptions,
  { clock, log }: L2BackendContext,
): Promise<L2Backend> {
  const isCluster = values['cluster_mode'] as boolean;
  const library = isCluster ? await import('@redis/client') : null;
  const settings: RedisSettings = {
    nodes: options.nodes,
    username: values['username'] as string,
    password: values['password'] as string,
    databaseId: options.databaseId,
    tls: await readTls(values),
    connectTimeoutMs: 1000 * (values['connection_timeout'] as number),
  };
  const [first] = options.nodes as [RedisAddress];
  const links = Array.from(
    { length: values['num_workers'] as number },
    () =>
      new RedisLink({
        dial: (onDown) => openConnection(library, settings, onDown),
        requestTimeoutMs: 1000 * (values['request_timeout'] as number),
        connectTimeoutMs: settings.connectTimeoutMs,
        clock,
        log,
        where: `${options.typeName} ${first.host}:${first.port}`,
      }),
  );
  const late = Promise.withResolvers<void>();
  const timer = clock.after(FIRST_CONNECTION_MS_MAX, late.resolve);
  const ended = Promise.all(links.map(({ firstDialEnded }) => firstDialEnded));
  await Promise.race([ended, late.promise]);
  timer.cancel();
  return new RedisBackend({
    links,
    keyPrefix: options.keyPrefix,
    ttlSeconds: values['ttl_seconds'] as number | null,
    clock,
    about: options.about,
  });
}

export function redisCapacityBytes(values: ConfigValues): number {
  return Math.floor((values['max_capacity_gb'] as number) * GIB);
}

async function readTls(values: ConfigValues): Promise<RedisSettings['tls']> {
  if (values['tls_enable'] !== true) return null;
  const file = values['tls_ca_file'] as string;
  if (file === '') return { ca: null };
  try {
    return { ca: await fs.readFile(file, 'utf8') };
  } catch (cause) {
    throw new KvdError('ERR_CONFIG', `"tls_ca_file": ${file} cannot be read (${cause})`, { cause });
  }
}
