/** Redis and whatever speaks its protocol, with the keys of the peer's `resp` adapter. */
import type { L2BackendType } from '../backend.ts';
import { openRedisBackend, REDIS_KEYS, redisCapacityBytes } from '../redis/redis-config.ts';

export const backendType: L2BackendType = {
  typeName: 'resp',
  about: 'Redis, a Redis cluster, or another server that speaks RESP',
  keys: {
    host: { kind: 'text', env: 'LMCACHE_RESP_HOST', about: 'name or address of the server' },
    port: {
      kind: 'integer',
      env: 'LMCACHE_RESP_PORT',
      min: 1,
      max: 65_535,
      about: 'port of the server',
    },
    ...REDIS_KEYS,
  },
  open(values, context) {
    const { host, port, num_workers, cluster_mode } = values;
    return openRedisBackend(
      values,
      {
        typeName: 'resp',
        nodes: [{ host: host as string, port: port as number }],
        keyPrefix: '',
        databaseId: 0,
        about: { type: 'LMCacheRedisClient', host, port, num_workers, cluster_mode },
      },
      context,
    );
  },
  capacityBytes: redisCapacityBytes,
};
