/** Valkey or Redis, with the keys of the peer's `valkey` adapter. */
import { KvdError } from '../../errors.ts';
import type { L2BackendType } from '../backend.ts';
import type { RedisAddress } from '../redis/connection.ts';
import { openRedisBackend, REDIS_KEYS, redisCapacityBytes } from '../redis/redis-config.ts';

export const backendType: L2BackendType = {
  typeName: 'valkey',
  about: 'Valkey or Redis: a single server or a cluster, with a prefix of the keys',
  keys: {
    startup_nodes: {
      kind: 'text',
      about: '"host:port", or several with commas: the first alone, or those that know the cluster',
    },
    ...REDIS_KEYS,
    key_prefix: {
      kind: 'text',
      fallback: '',
      about: 'stands before every key, with "@" between; empty = the keys of resp',
    },
    database_id: {
      kind: 'integer',
      fallback: null,
      min: 0,
      about: 'number of the database; not in a cluster',
    },
  },
  async open(values, context) {
    const nodes = readNodes(values['startup_nodes'] as string);
    const keyPrefix = values['key_prefix'] as string;
    if (keyPrefix.includes('@')) {
      throw new KvdError('ERR_CONFIG', `"key_prefix" must not contain "@", got "${keyPrefix}"`);
    }
    const { num_workers, cluster_mode, tls_enable } = values;
    if (cluster_mode === true && values['database_id'] !== null) {
      throw new KvdError(
        'ERR_CONFIG',
        '"database_id" does not go with "cluster_mode": leave it out',
      );
    }
    const about = {
      type: 'valkey',
      cluster_mode,
      num_workers,
      startup_nodes: nodes,
      key_prefix: keyPrefix,
      tls_enable,
      has_buffer_get: true,
    };
    const databaseId = (values['database_id'] as number | null) ?? 0;
    return openRedisBackend(
      values,
      { typeName: 'valkey', nodes, keyPrefix, databaseId, about },
      context,
    );
  },
  capacityBytes: redisCapacityBytes,
};

/** `host:port[,host:port…]`; an IPv6 address stands in brackets. */
function readNodes(text: string): RedisAddress[] {
  return text.split(',').map((part) => {
    const [, host = '', port = ''] = /^\s*(?:\[(?=.*\]))?([^[\]]+?)\]?:(\d+)\s*$/.exec(part) ?? [];
    if (host === '' || Number(port) < 1 || Number(port) > 65_535) {
      throw new KvdError(
        'ERR_CONFIG',
        `"startup_nodes" must be "host:port" or several with commas, got "${text}"`,
      );
    }
    return { host, port: Number(port) };
  });
}
