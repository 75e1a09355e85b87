/**
 * One connection to a Redis-like server, or one client of a cluster. What is above sends commands
 * and hears once when the connection is of no use any more; `link.ts` dials again.
 *
 * A single server is spoken to directly (resp-connection.ts). In a cluster `@redis/client` finds
 * the nodes, follows MOVED and ASK, and dials a node when it is needed; its own queue for times
 * without a connection is off: a cache that waits is worse than one that misses.
 *
 * Nothing in the library ends a command that is written and never answered. `destroy` does, in both
 * forms: the sockets are closed before it returns, so nothing reads the buffers of a SET any more,
 * and nothing is written to those of a GET.
 */
import type { RedisArgument, RedisClientOptions } from '@redis/client';
import { RespConnection } from './resp-connection.ts';

export type RedisLibrary = typeof import('@redis/client');

export interface RedisAddress {
  readonly host: string;
  readonly port: number;
}

export interface RedisSettings {
  /** Not empty. A single server is the first of them; a cluster is discovered from any. */
  readonly nodes: readonly RedisAddress[];
  readonly username: string;
  readonly password: string;
  readonly databaseId: number;
  /** `ca`: PEM text of the authorities to trust; null = those of Node. */
  readonly tls: { readonly ca: string | null } | null;
  readonly connectTimeoutMs: number;
}

export interface RedisConnection {
  /** Settles when commands can be sent. */
  readonly opened: Promise<void>;
  /** Bulk strings come as Buffers. `key` decides on the node. */
  send(key: string, args: RedisArgument[]): Promise<unknown>;
  /** Size of the value; null = absent. The target is filled if it has that size. */
  load(name: string, target: Uint8Array): Promise<number | null>;
  /** Servers that hold keys, in a lasting order. */
  nodeNames(): readonly string[];
  sendToNode(name: string, args: RedisArgument[]): Promise<unknown>;
  destroy(): void;
}

/**
 * `library` null: a single server. `onDown` may be called more than once, and never while this
 * function runs.
 */
export function openConnection(
  library: RedisLibrary | null,
  settings: RedisSettings,
  onDown: (error: Error) => void,
): RedisConnection {
  return library === null
    ? new RespConnection(settings, onDown)
    : openCluster(library, settings, onDown);
}

function clientOptions({ username, password, tls, connectTimeoutMs }: RedisSettings) {
  const socket = {
    connectTimeout: connectTimeoutMs,
    reconnectStrategy: false as const,
    ...(tls ? { tls: true as const, ...(tls.ca === null ? {} : { ca: tls.ca }) } : {}),
  };
  return {
    ...(username === '' ? {} : { username }),
    ...(password === '' ? {} : { password }),
    disableOfflineQueue: true,
    disableClientInfo: true,
    maintNotifications: 'disabled' as const,
    socket,
  } satisfies RedisClientOptions;
}

function openCluster(
  library: RedisLibrary,
  settings: RedisSettings,
  onDown: (error: Error) => void,
): RedisConnection {
  const { socket, ...options } = clientOptions(settings);
  const cluster = library.createCluster({
    RESP: 2,
    rootNodes: settings.nodes.map(({ host, port }) => ({ socket: { host, port } })),
    defaults: { ...options, socket },
    // A node that is away must not keep the others from being used.
    minimizeConnections: true,
    topologyRefreshOnReconnectionAttemptStrategy: false,
  });
  // A node that cannot be reached fails its own commands only. One that was there and broke off
  // stays unusable in the library, so the whole client is given up.
  const readyNodes = new Set<string>();
  const nameOf = ({ host, port }: RedisAddress): string => `${host}:${port}`;
  cluster.on('node-ready', (node: RedisAddress) => readyNodes.add(nameOf(node)));
  cluster.on('node-error', (error: Error, node: RedisAddress) => {
    if (readyNodes.has(nameOf(node))) onDown(error);
  });
  // Discovery: also ends `opened` or the command that asked for it.
  cluster.on('error', () => {});
  const buffers = { typeMapping: { [library.RESP_TYPES.BLOB_STRING]: Buffer } };
  return {
    opened: cluster.connect().then(() => undefined),
    send: (key, args) => cluster.sendCommand(key, false, args, buffers),
    async load(name, target) {
      const value: unknown = await cluster.sendCommand(name, false, ['GET', name], buffers);
      if (value === null) return null;
      if (!(value instanceof Uint8Array)) throw new Error('GET was answered with no value');
      if (value.length === target.length) target.set(value);
      return value.length;
    },
    nodeNames: () => cluster.masters.map(({ address }) => address).sort(),
    async sendToNode(name, args) {
      const node = cluster.masters.find(({ address }) => address === name);
      if (!node) throw new Error(`${name} is no longer a master of the cluster`);
      const client = await cluster.nodeClient(node);
      return client.sendCommand(args, buffers);
    },
    destroy: () => cluster.destroy(),
  };
}
