/** L2: the adapters behind L1. */
import { RATE_BUCKETS, rowsOf } from './rows.ts';

const { counter, gauge } = rowsOf('lmcache.l2');
const rates = rowsOf('lmcache_mp.perf');
const stores = rowsOf('lmcache.l2_store');
const prefetches = rowsOf('lmcache.l2_prefetch');

export const L2 = {
  storeSubmitted: counter(
    'lmcache_mp.l2_store_submitted',
    'requests',
    [],
    'Store calls handed to adapters.',
  ),
  storeSubmittedObjects: counter(
    'lmcache_mp.l2_store_submitted_objects',
    'chunks',
    ['cache_salt?'],
    'Objects of these calls.',
  ),
  storeCompleted: counter(
    'lmcache_mp.l2_store_completed',
    'requests',
    ['l2_name'],
    'Store calls that adapters have ended, failed ones too.',
  ),
  storeCompletedObjects: counter(
    'lmcache_mp.l2_store_completed_objects',
    'chunks',
    ['cache_salt?'],
    'Objects that adapters have after a store call.',
  ),
  storeFailed: counter(
    'lmcache_mp.l2_store_failed',
    'chunks',
    ['l2_name'],
    'Objects that an adapter did not store.',
  ),
  loadCompleted: counter(
    'lmcache_mp.l2_load_completed',
    'requests',
    ['l2_name'],
    'Load calls that adapters have ended, failed ones too.',
  ),
  prefetchLookup: counter(
    'lmcache_mp.l2_prefetch_lookup',
    'requests',
    [],
    'Lookups for which adapters were asked.',
  ),
  prefetchLookupObjects: counter(
    'lmcache_mp.l2_prefetch_lookup_objects',
    'chunks',
    ['cache_salt?'],
    'Objects that adapters were asked for.',
  ),
  prefetchHit: counter(
    'lmcache_mp.l2_prefetch_hit',
    'chunks',
    [],
    'Objects that adapters said they have, up to the first gap.',
  ),
  prefetchLoadSubmitted: counter(
    'lmcache_mp.l2_prefetch_load_submitted',
    'requests',
    [],
    'Load calls handed to adapters.',
  ),
  prefetchLoadSubmittedObjects: counter(
    'lmcache_mp.l2_prefetch_load_submitted_objects',
    'chunks',
    ['cache_salt?'],
    'Objects of these calls.',
  ),
  prefetchLoadCompleted: counter(
    'lmcache_mp.l2_prefetch_load_completed',
    'chunks',
    ['cache_salt?'],
    'Objects that came from an adapter.',
  ),
  evictedObjects: counter(
    'lmcache_mp.l2_evicted_objects',
    'chunks',
    ['cache_salt?'],
    'Objects that adapters were asked to delete to make room.',
  ),
  usageBytes: gauge(
    'lmcache_mp.l2_usage_bytes',
    '',
    ['l2_name', 'adapter_index'],
    'Bytes in the store of an adapter of which this server knows.',
  ),
  storeThroughput: rates.histogram(
    'lmcache_mp.l2_store_throughput',
    'GB/s',
    ['l2_name'],
    RATE_BUCKETS,
    'Bytes written by a store call over the time from handing it over to its end.',
  ),
  loadThroughput: rates.histogram(
    'lmcache_mp.l2_load_throughput',
    'GB/s',
    ['l2_name'],
    RATE_BUCKETS,
    'Bytes read by a load call over the time from handing it over to its end.',
  ),
  inflightStores: stores.gauge(
    'lmcache_mp.num_inflight_l2_stores',
    '',
    ['l2_name', 'adapter_index'],
    'Store calls of an adapter that have not ended.',
  ),
  storeAdapters: stores.gauge(
    'lmcache_mp.l2_store_adapters',
    '',
    ['state'],
    'Adapters that stores go to: `active` or `draining` (the name since 0.5.6).',
  ),
  adapters: stores.gauge(
    'lmcache_mp.l2_adapters',
    '',
    ['state'],
    'Adapters: `active` or `draining` (the name of 0.5.0).',
  ),
  inflightLoads: prefetches.gauge(
    'lmcache_mp.num_inflight_l2_loads',
    '',
    ['l2_name', 'adapter_index'],
    'Lookups that wait for a load of an adapter.',
  ),
  inflightLoadBytes: prefetches.gauge(
    'lmcache_mp.inflight_load_memory_usage_bytes',
    '',
    ['l2_name', 'adapter_index'],
    'L1 memory that is reserved for loads of an adapter.',
  ),
  prefetchAdapters: prefetches.gauge(
    'lmcache_mp.l2_prefetch_adapters',
    '',
    ['state'],
    'Adapters that lookups ask: `active` or `draining` (the name since 0.5.6).',
  ),
};
