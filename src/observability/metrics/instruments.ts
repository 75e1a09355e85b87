/**
 * Every instrument: name, kind, unit, help, and where its number comes from.
 *
 * Names `lmcache_mp.*` are the reference's, so that existing dashboards work (spec observability
 * 4.4, 4.5); ours start with `kvd.`. A row gives the OpenTelemetry name and unit; the Prometheus
 * name follows from both (`prometheus-name.ts`).
 */
import type { EventCounters } from './event-counters.ts';
import type { Counts, MetricsSnapshot } from './source.ts';

export interface Instrument {
  readonly name: string;
  readonly kind: 'gauge' | 'counter';
  readonly unit: string;
  readonly help: string;
  /** Name of the label when `read` gives one number per label value. */
  readonly label?: string;
  readonly read: (snapshot: MetricsSnapshot, counters: EventCounters) => number | Counts;
}

type Read = Instrument['read'];

const ofKind =
  (kind: Instrument['kind']) =>
  (name: string, unit: string, help: string, read: Read, label?: string): Instrument => ({
    name,
    kind,
    unit,
    help,
    read,
    ...(label ? { label } : {}),
  });

const gauge = ofKind('gauge');
const counter = ofKind('counter');

const REFERENCE: readonly Instrument[] = [
  gauge('lmcache_mp.l1_memory_usage_bytes', '', 'Allocated bytes of L1', (s) => s.l1UsedBytes),
  gauge('lmcache_mp.l1_usage_ratio', '', 'Allocated part of L1, 0 to 1', (s) =>
    s.l1TotalBytes === 0 ? 0 : s.l1UsedBytes / s.l1TotalBytes,
  ),
  gauge(
    'lmcache_mp.active_prefetch_jobs',
    '',
    'Lookups whose result nobody has fetched',
    (s) => s.prefetchJobCount,
  ),
  gauge(
    'lmcache_mp.kv_events.log_depth',
    '',
    'KV events kept for subscribers that come later or come back',
    (s) => s.kvEventLogDepth,
  ),
  counter(
    'lmcache_mp.l1_eviction_loop_ticks',
    '',
    'Turns of the eviction loop',
    (_, c) => c.evictionTickCount,
  ),
  counter(
    'lmcache_mp.l1_eviction_loop_triggered',
    '',
    'Turns of the eviction loop that found L1 above the watermark',
    (_, c) => c.evictionTriggeredCount,
  ),
];

const STATE: readonly Instrument[] = [
  gauge('kvd.l1_memory_size_bytes', '', 'Size of L1', (s) => s.l1TotalBytes),
  gauge('kvd.objects', '', 'Objects in L1, unfinished ones included', (s) => s.objectCount),
  gauge(
    'kvd.staging_objects',
    '',
    'Objects being written, not readable yet',
    (s) => s.stagingObjectCount,
  ),
  gauge('kvd.sessions', '', 'Request sessions', (s) => s.sessionCount),
  gauge('kvd.instances', '', 'Registered workers', (s) => s.instanceCount),
  gauge(
    'kvd.engine_driven_shm',
    '',
    '1 when engine-driven workers are offered shared memory, 0 when their bytes go inline',
    (s) => Number(s.isEngineDrivenShm),
  ),
  gauge(
    'kvd.quarantined',
    'By',
    'L1 memory out of use because a worker that was given up may still use it',
    (s) => s.quarantinedBytes,
  ),
  gauge(
    'kvd.requests_in_flight',
    '',
    'Requests without a reply so far',
    (s) => s.inFlightRequestCount,
  ),
  gauge(
    'kvd.clients',
    '',
    'Connections heard from lately, by the client generation that they are treated as',
    (s) => s.clientCounts,
    'dialect',
  ),
];

const REQUESTS: readonly Instrument[] = [
  counter('kvd.requests', '', 'Requests by operation', (s) => s.requestCounts, 'operation'),
  counter(
    'kvd.requests_by_dialect',
    '',
    'Requests by the client generation that they were understood as',
    (s) => s.requestCountsByDialect,
    'dialect',
  ),
  counter(
    'kvd.requests_failed',
    '',
    'Requests that ended with an error, by error code',
    (s) => s.failedRequestCounts,
    'code',
  ),
  counter(
    'kvd.bad_messages',
    '',
    'Messages that could not be decoded, by reason',
    (_, c) => c.badMessages.counts,
    'reason',
  ),
  counter(
    'kvd.lost_replies',
    '',
    'Replies that could not be delivered: client gone, or its queue full',
    (_, c) => c.lostReplies.counts,
    'reason',
  ),
  counter('kvd.lookups', '', 'Finished lookups', (_, c) => c.lookupCount),
  counter('kvd.lookup_tokens', '', 'Tokens looked up', (_, c) => c.lookupTokenCount),
  counter('kvd.lookup_hit_tokens', '', 'Tokens found', (_, c) => c.lookupHitTokenCount),
  counter('kvd.stored_tokens', '', 'Tokens stored', (_, c) => c.storedTokenCount),
  counter('kvd.stored', 'By', 'Bytes stored', (_, c) => c.storedBytes),
  counter('kvd.retrieved_tokens', '', 'Tokens retrieved', (_, c) => c.retrievedTokenCount),
  counter('kvd.retrieved', 'By', 'Bytes retrieved', (_, c) => c.retrievedBytes),
];

const LIFE: readonly Instrument[] = [
  counter('kvd.evicted_objects', '', 'Objects evicted', (_, c) => c.evictedObjectCount),
  counter('kvd.evicted', 'By', 'Bytes evicted', (_, c) => c.evictedBytes),
  counter(
    'kvd.allocation_failures',
    '',
    'Objects for which L1 had no room, by cause',
    (_, c) => c.allocationFailures.counts,
    'during',
  ),
  counter('kvd.sessions_ended', '', 'Sessions that ended', (_, c) => c.endedSessionCount),
  counter(
    'kvd.instances_registered',
    '',
    'Registrations of workers',
    (_, c) => c.registeredInstanceCount,
  ),
  counter(
    'kvd.instances_dropped',
    '',
    'Workers dropped, by reason',
    (_, c) => c.droppedInstances.counts,
    'reason',
  ),
  counter(
    'kvd.block_allocation_records',
    '',
    'Block allocations that engines reported',
    (_, c) => c.blockAllocationRecordCount,
  ),
];

export const INSTRUMENTS: readonly Instrument[] = [...REFERENCE, ...STATE, ...REQUESTS, ...LIFE];
