/** Counts what CacheBlend does (spec observability 4.4). */
import type { Subscriber, Subscriptions } from '../event-bus.ts';
import type { EventCatalogue } from '../events.ts';
import { BLEND } from './catalogue/blend.ts';
import type { InstrumentSpec } from './instrument.ts';
import type { MetricRegistry } from './registry.ts';

export function blendCounters(registry: MetricRegistry): Subscriber {
  const fingerprints = registry.counter(BLEND.fingerprintsRegistered);
  const evicted = registry.counter(BLEND.chunksEvicted);
  return {
    name: 'BlendMetricsSubscriber',
    counts: {
      ...lookups(registry),
      ...retrieves(registry),
      ...stores(registry),
      'cb.fingerprints.registered': ({ numChunks }) => fingerprints.add(numChunks),
      'cb.chunks.evicted': ({ numChunks }) => evicted.add(numChunks),
    },
  };
}

function lookups(registry: MetricRegistry): Subscriptions {
  const requests = registry.counter(BLEND.lookupRequests);
  const requestedTokens = registry.counter(BLEND.lookupRequestedTokens);
  const hitTokens = registry.counter(BLEND.lookupHitTokens);
  const prefixHitTokens = registry.counter(BLEND.lookupPrefixHitTokens);
  const nonPrefixHitTokens = registry.counter(BLEND.lookupNonPrefixHitTokens);
  const segmentedPrefixHitTokens = registry.counter(BLEND.lookupSegmentedPrefixHitTokens);
  const fingerprintHits = registry.counter(BLEND.lookupFingerprintHits);
  const storageHits = registry.counter(BLEND.lookupStorageHits);
  const staleChunks = registry.counter(BLEND.lookupStaleChunks);
  const noGpuContextErrors = registry.counter(BLEND.lookupNoGpuContextErrors);
  return {
    'cb.lookup.start': () => requests.add(1),
    'cb.lookup.end': (lookup) => {
      requestedTokens.add(lookup.requestedTokens);
      hitTokens.add(lookup.hitTokens);
      prefixHitTokens.add(lookup.prefixHitTokens ?? 0);
      nonPrefixHitTokens.add(lookup.nonPrefixHitTokens ?? 0);
      segmentedPrefixHitTokens.add(lookup.segmentedPrefixHitTokens ?? 0);
      fingerprintHits.add(lookup.fingerprintHits);
      storageHits.add(lookup.storageHits);
      staleChunks.add(lookup.staleChunks);
      if (lookup.noGpuContext) noGpuContextErrors.add(1);
    },
  };
}

function retrieves(registry: MetricRegistry): Subscriptions {
  const requests = registry.counter(BLEND.retrieveRequests);
  const chunks = registry.counter(BLEND.retrieveChunks);
  const failures = registry.counter(BLEND.retrieveFailures);
  return {
    'cb.retrieve.start': ({ numChunks }) => {
      requests.add(1);
      chunks.add(numChunks);
    },
    'cb.retrieve.end': ({ success }) => {
      if (!success) failures.add(1);
    },
  };
}

function stores(registry: MetricRegistry): Subscriptions {
  const counting = (rows: {
    readonly requests: InstrumentSpec;
    readonly chunks: InstrumentSpec;
    readonly failures: InstrumentSpec;
  }) => {
    const requests = registry.counter(rows.requests);
    const chunks = registry.counter(rows.chunks);
    const failures = registry.counter(rows.failures);
    return {
      start: () => requests.add(1),
      end: ({ storedChunks, success }: EventCatalogue['cb.store_final.end']) => {
        chunks.add(storedChunks);
        if (!success) failures.add(1);
      },
    };
  };
  const preComputed = counting({
    requests: BLEND.storePreComputedRequests,
    chunks: BLEND.storePreComputedChunks,
    failures: BLEND.storePreComputedFailures,
  });
  const final = counting({
    requests: BLEND.storeFinalRequests,
    chunks: BLEND.storeFinalChunks,
    failures: BLEND.storeFinalFailures,
  });
  return {
    'cb.store_pre_computed.start': preComputed.start,
    'cb.store_pre_computed.end': preComputed.end,
    'cb.store_final.start': final.start,
    'cb.store_final.end': final.end,
  };
}
