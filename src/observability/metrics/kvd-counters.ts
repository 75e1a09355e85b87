/** Our own counters: what clients did, what it moved, and what was refused. */
import type { Subscriber, Subscriptions } from '../event-bus.ts';
import { KVD } from './catalogue/kvd.ts';
import type { Counter, InstrumentSpec } from './instrument.ts';
import type { MetricRegistry } from './registry.ts';

export function kvdCounters(registry: MetricRegistry): Subscriber {
  return {
    name: 'KvdMetricsSubscriber',
    counts: {
      ...requests(registry),
      ...transfers(registry),
      ...l1(registry),
      ...workers(registry),
    },
  };
}

/** A counter without labels that is there, with 0, before anything has moved it. */
function fromStart(registry: MetricRegistry, spec: InstrumentSpec): Counter {
  const counter = registry.counter(spec);
  counter.add(0);
  return counter;
}

function requests(registry: MetricRegistry): Subscriptions {
  const replyErrors = registry.counter(KVD.replyErrors);
  const badMessages = registry.counter(KVD.badMessages);
  const lostReplies = registry.counter(KVD.lostReplies);
  return {
    'request.finished': ({ operation, error }) => {
      if (error !== null) replyErrors.add(1, operation, error);
    },
    'wire.bad_message': ({ reason }) => badMessages.add(1, reason),
    'wire.reply.lost': ({ reason }) => lostReplies.add(1, reason),
  };
}

function transfers(registry: MetricRegistry): Subscriptions {
  const lookups = fromStart(registry, KVD.lookups);
  const lookupTokens = fromStart(registry, KVD.lookupTokens);
  const lookupHitTokens = fromStart(registry, KVD.lookupHitTokens);
  const storedTokens = fromStart(registry, KVD.storedTokens);
  const stored = fromStart(registry, KVD.stored);
  const retrievedTokens = fromStart(registry, KVD.retrievedTokens);
  const retrieved = fromStart(registry, KVD.retrieved);
  return {
    'mp.lookup_prefetch.end': ({ requestedTokens, hitTokens, error }) => {
      if (error !== null) return;
      lookups.add(1);
      lookupTokens.add(requestedTokens);
      lookupHitTokens.add(hitTokens);
    },
    'mp.store.end': ({ tokenCount, totalBytes, error }) => {
      if (error !== null) return;
      storedTokens.add(tokenCount);
      stored.add(totalBytes);
    },
    'mp.retrieve.end': ({ tokenCount, totalBytes, error }) => {
      if (error !== null) return;
      retrievedTokens.add(tokenCount);
      retrieved.add(totalBytes);
    },
  };
}

function l1(registry: MetricRegistry): Subscriptions {
  const evictedObjects = fromStart(registry, KVD.evictedObjects);
  const evicted = fromStart(registry, KVD.evicted);
  const allocationFailures = registry.counter(KVD.allocationFailures);
  return {
    'l1.keys.evicted': ({ keyCount, bytes, cause }) => {
      if (cause !== 'eviction') return;
      evictedObjects.add(keyCount);
      evicted.add(bytes);
    },
    'l1.allocation.failed': ({ during, countByModel }) => {
      for (const count of countByModel.values()) allocationFailures.add(count, during);
    },
  };
}

function workers(registry: MetricRegistry): Subscriptions {
  const sessionsEnded = fromStart(registry, KVD.sessionsEnded);
  const registered = fromStart(registry, KVD.instancesRegistered);
  const dropped = registry.counter(KVD.instancesDropped);
  const allocationRecords = fromStart(registry, KVD.blockAllocationRecords);
  return {
    'mp.vllm.end_session': () => sessionsEnded.add(1),
    'instance.registered': () => registered.add(1),
    'instance.dropped': ({ reason }) => dropped.add(1, reason),
    'mp.vllm.block_allocation': ({ records }) => allocationRecords.add(records.length),
  };
}
