/** What clients ask for: lookups, transfers, and how long L1 keeps them from computing again. */
import { LIFE_BUCKETS, OBJECT_GAP_BUCKETS, RATE_BUCKETS, rowsOf } from './rows.ts';

const lookup = rowsOf('lmcache.lookup');
const engine = rowsOf('lmcache_mp.engine');
const rates = rowsOf('lmcache_mp.perf');
const reuse = rowsOf('lmcache.sm');
const server = rowsOf('lmcache.mp_server');
const kvEvents = rowsOf('lmcache.kv_events');

const TENANT_LABELS = ['model_name', 'cache_salt'];
const TRANSFER_LABELS = ['device', 'engine_id', 'model_name'];

export const ENGINE = {
  lookupRequested: lookup.counter(
    'lmcache_mp.lookup_requested',
    'tokens',
    TENANT_LABELS,
    'Tokens of whole chunks that clients asked for.',
  ),
  lookupHit: lookup.counter(
    'lmcache_mp.lookup_hit',
    'tokens',
    TENANT_LABELS,
    'Tokens of these that were found, in L1 or L2. The quotient is the hit rate.',
  ),
  chunksLoaded: engine.counter(
    'lmcache_mp.num_chunks_loaded',
    '',
    ['worker_id', 'model_name', 'cache_salt'],
    'Objects that a worker has retrieved.',
  ),
  storeThroughput: rates.histogram(
    'lmcache_mp.l0_l1_store_throughput',
    'GB/s',
    TRANSFER_LABELS,
    RATE_BUCKETS,
    'Bytes stored by a worker over the time that its transfer took.',
  ),
  loadThroughput: rates.histogram(
    'lmcache_mp.l0_l1_load_throughput',
    'GB/s',
    TRANSFER_LABELS,
    RATE_BUCKETS,
    'Bytes retrieved by a worker over the time that its transfer took.',
  ),
  realReuseGap: reuse.histogram(
    'lmcache_mp.real_reuse_gap',
    's',
    ['cache_salt'],
    LIFE_BUCKETS,
    'From the last store or retrieve of a chunk until it is retrieved, wherever it was in ' +
      'between; sampled chunks.',
  ),
  realReuseGapObjects: reuse.histogram(
    'lmcache_mp.real_reuse_gap_objects',
    '{chunks}',
    ['cache_salt'],
    OBJECT_GAP_BUCKETS,
    'The same, in chunks of the tenant that were used in between: the cache that keeps this many ' +
      'chunks has the hit.',
  ),
  activePrefetchJobs: server.gauge(
    'lmcache_mp.active_prefetch_jobs',
    '',
    [],
    'Lookups whose result nobody has fetched.',
  ),
  activeP2pLookupJobs: server.gauge(
    'lmcache_mp.active_p2p_lookup_jobs',
    '',
    [],
    'Lookups that wait for other servers.',
  ),
  kvEventLogDepth: kvEvents.gauge(
    'lmcache_mp.kv_events.log_depth',
    '',
    [],
    'KV events kept for subscribers that come later or come back.',
  ),
};
