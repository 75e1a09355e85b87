/** L1: objects in the memory of this server. */
import { EVICT_REUSE_BUCKETS, LIFE_BUCKETS, rowsOf } from './rows.ts';

const { counter, histogram } = rowsOf('lmcache.l1');
const manager = rowsOf('lmcache.l1_manager');

export const L1 = {
  read: counter(
    'lmcache_mp.l1_read',
    'chunks',
    ['cache_salt?'],
    'Objects that a reader has let go: transfers, and also lookups that nobody fetched and ' +
      'stores to L2. For what clients read see `lmcache_mp.l1_client_read`.',
  ),
  clientRead: counter(
    'lmcache_mp.l1_client_read',
    'chunks',
    ['cache_salt?'],
    'Objects that clients have retrieved.',
  ),
  write: counter(
    'lmcache_mp.l1_write',
    'chunks',
    ['cache_salt?'],
    'Objects that became readable: stored by clients or loaded from L2.',
  ),
  evicted: counter(
    'lmcache_mp.l1_evicted',
    'chunks',
    ['cache_salt?'],
    'Objects that have left L1, for whatever reason; `lmcache_mp.l1_removed` has the reasons.',
  ),
  removed: counter(
    'lmcache_mp.l1_removed',
    'chunks',
    ['cause'],
    'Objects that have left L1: `eviction`, `clear`, `delete`, `temporary` (read once and not ' +
      'kept), `failed_prefetch`, `other_layout` (in the way of the same chunk in another shape), ' +
      '`skip_l1`.',
  ),
  ttlLockExpire: counter(
    'lmcache_mp.l1_ttl_lock_expire',
    'chunks',
    ['mode'],
    'Reservations of objects that nobody ended in time: `read` or `write`.',
  ),
  evictionLoopTicks: counter(
    'lmcache_mp.l1_eviction_loop_ticks',
    '',
    [],
    'Turns of the eviction loop, one a second.',
  ),
  evictionLoopTriggered: counter(
    'lmcache_mp.l1_eviction_loop_triggered',
    '',
    [],
    'Turns of the eviction loop that found L1 above the watermark.',
  ),
  chunkLifetime: histogram(
    'lmcache_mp.l1_chunk_lifetime',
    's',
    [],
    LIFE_BUCKETS,
    'From the last write of an object until it left L1; sampled objects.',
  ),
  chunkIdleBeforeEvict: histogram(
    'lmcache_mp.l1_chunk_idle_before_evict',
    's',
    [],
    LIFE_BUCKETS,
    'From the last use of an object until it left L1; sampled objects.',
  ),
  chunkReuseGap: histogram(
    'lmcache_mp.l1_chunk_reuse_gap',
    's',
    [],
    LIFE_BUCKETS,
    'Between two uses of an object in L1; sampled objects.',
  ),
  chunkEvictReuseGap: histogram(
    'lmcache_mp.l1_chunk_evict_reuse_gap',
    's',
    [],
    EVICT_REUSE_BUCKETS,
    'From the time an object left L1 until it was written again; 300 if it took longer or it ' +
      'never was. Many short gaps: L1 is too small. Sampled objects.',
  ),
  memoryUsageBytes: manager.gauge(
    'lmcache_mp.l1_memory_usage_bytes',
    '',
    [],
    'Allocated bytes of L1.',
  ),
  usageRatio: manager.fraction(
    'lmcache_mp.l1_usage_ratio',
    '',
    [],
    'Allocated part of L1, 0 to 1.',
  ),
};
