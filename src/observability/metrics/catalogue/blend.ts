/** CacheBlend. The counters have no labels. */
import type { InstrumentSpec } from '../instrument.ts';
import { rowsOf } from './rows.ts';

const rows = rowsOf('lmcache.blend');
const counter = (name: string, help: string, unit = ''): InstrumentSpec =>
  rows.counter(`lmcache_blend.${name}`, unit, [], help);

export const BLEND = {
  lookupRequests: counter('lookup_requests', 'Blend lookups.'),
  lookupRequestedTokens: counter('lookup_requested_tokens', 'Tokens they asked for.', 'tokens'),
  lookupHitTokens: counter('lookup_hit_tokens', 'Tokens they found.', 'tokens'),
  lookupPrefixHitTokens: counter(
    'lookup_prefix_hit_tokens',
    'Tokens found as the start of a prompt.',
    'tokens',
  ),
  lookupNonPrefixHitTokens: counter(
    'lookup_non_prefix_hit_tokens',
    'Tokens found elsewhere in a prompt.',
    'tokens',
  ),
  lookupSegmentedPrefixHitTokens: counter(
    'lookup_segmented_prefix_hit_tokens',
    'Tokens found at their own place, with gaps before them.',
    'tokens',
  ),
  lookupFingerprintHits: counter('lookup_fingerprint_hits', 'Chunks with a known fingerprint.'),
  lookupStorageHits: counter('lookup_storage_hits', 'Chunks of these that were still stored.'),
  lookupStaleChunks: counter('lookup_stale_chunks', 'Chunks of these that were gone.'),
  lookupNoGpuContextErrors: counter(
    'lookup_no_gpu_context_errors',
    'Blend lookups of a model that no worker serves.',
  ),
  retrieveRequests: counter('retrieve_requests', 'Blend retrieves.'),
  retrieveChunks: counter('retrieve_chunks', 'Chunks they asked for.'),
  retrieveFailures: counter('retrieve_failures', 'Blend retrieves that failed.'),
  storePreComputedRequests: counter(
    'store_pre_computed_requests',
    'Stores of documents before anybody asks for them.',
  ),
  storePreComputedChunks: counter('store_pre_computed_chunks', 'Chunks that these have stored.'),
  storePreComputedFailures: counter('store_pre_computed_failures', 'Such stores that failed.'),
  storeFinalRequests: counter('store_final_requests', 'Stores of blended prompts.'),
  storeFinalChunks: counter('store_final_chunks', 'Chunks that these have stored.'),
  storeFinalFailures: counter('store_final_failures', 'Such stores that failed.'),
  fingerprintsRegistered: counter(
    'fingerprints_registered',
    'Chunks entered in the fingerprint table.',
  ),
  chunksEvicted: counter('chunks_evicted', 'Chunks that have left the fingerprint table.'),
};
