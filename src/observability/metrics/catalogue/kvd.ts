/** Our own instruments; the reference has nothing like them. */
import { LATENCY_BUCKETS, rowsOf } from './rows.ts';

const { counter, gauge, histogram } = rowsOf('kvd');

const STATE = {
  l1MemorySizeBytes: gauge('kvd.l1_memory_size_bytes', '', [], 'Size of L1.'),
  objects: gauge('kvd.objects', '', [], 'Objects in L1, unfinished ones included.'),
  stagingObjects: gauge('kvd.staging_objects', '', [], 'Objects being written, not readable yet.'),
  sessions: gauge('kvd.sessions', '', [], 'Request sessions.'),
  instances: gauge('kvd.instances', '', [], 'Registered workers.'),
  engineDrivenShm: gauge(
    'kvd.engine_driven_shm',
    '',
    [],
    '1 when engine-driven workers are offered shared memory, 0 when their bytes go inline.',
  ),
  quarantined: gauge(
    'kvd.quarantined',
    'By',
    [],
    'L1 memory out of use because a worker that was given up may still use it.',
  ),
  requestsInFlight: gauge('kvd.requests_in_flight', '', [], 'Requests without a reply so far.'),
  clients: gauge(
    'kvd.clients',
    '',
    ['dialect'],
    'Connections heard from lately, by the client generation that they are treated as.',
  ),
};

const REQUESTS = {
  requests: counter('kvd.requests', '', ['operation'], 'Requests by operation.'),
  requestsByDialect: counter(
    'kvd.requests_by_dialect',
    '',
    ['dialect'],
    'Requests by the client generation that they were understood as.',
  ),
  requestsFailed: counter(
    'kvd.requests_failed',
    '',
    ['code'],
    'Requests that ended with an error, by error code (errors.md).',
  ),
  replyErrors: counter(
    'kvd.reply_errors',
    '',
    ['operation', 'code'],
    'The same by operation and error code.',
  ),
  requestSeconds: histogram(
    'kvd.request_seconds',
    's',
    ['operation'],
    LATENCY_BUCKETS,
    'From the arrival of a request to its answer.',
  ),
  requestQueueSeconds: histogram(
    'kvd.request_queue_seconds',
    's',
    ['operation'],
    LATENCY_BUCKETS,
    'The part of it before a handler took the request.',
  ),
  badMessages: counter(
    'kvd.bad_messages',
    '',
    ['reason'],
    'Messages that could not be decoded, by reason.',
  ),
  lostReplies: counter(
    'kvd.lost_replies',
    '',
    ['reason'],
    'Replies that could not be delivered: client gone, or its queue full.',
  ),
  lookups: counter('kvd.lookups', '', [], 'Finished lookups.'),
  lookupTokens: counter('kvd.lookup_tokens', '', [], 'Tokens looked up.'),
  lookupHitTokens: counter('kvd.lookup_hit_tokens', '', [], 'Tokens found.'),
  lookupReadySeconds: histogram(
    'kvd.lookup_ready_seconds',
    's',
    [],
    LATENCY_BUCKETS,
    'From a LOOKUP until its result was there, loads from L2 included.',
  ),
  storedTokens: counter('kvd.stored_tokens', '', [], 'Tokens of stores that succeeded.'),
  stored: counter('kvd.stored', 'By', [], 'Bytes stored.'),
  retrievedTokens: counter('kvd.retrieved_tokens', '', [], 'Tokens of retrieves that succeeded.'),
  retrieved: counter('kvd.retrieved', 'By', [], 'Bytes retrieved.'),
};

const ADAPTER_LABELS = ['l2_name', 'adapter_index'];

const STORAGE = {
  evictedObjects: counter('kvd.evicted_objects', '', [], 'Objects that L1 evicted to make room.'),
  evicted: counter('kvd.evicted', 'By', [], 'Their bytes.'),
  allocationFailures: counter(
    'kvd.allocation_failures',
    '',
    ['during'],
    'Objects for which L1 had no room, by cause.',
  ),
  l2StoreSeconds: histogram(
    'kvd.l2_store_seconds',
    's',
    ADAPTER_LABELS,
    LATENCY_BUCKETS,
    'From handing a store call to an adapter to its end, failed ones too.',
  ),
  l2LoadSeconds: histogram(
    'kvd.l2_load_seconds',
    's',
    ADAPTER_LABELS,
    LATENCY_BUCKETS,
    'From handing a load call to an adapter to its end, failed ones too.',
  ),
};

const LIFE = {
  sessionsEnded: counter('kvd.sessions_ended', '', [], 'Sessions that ended.'),
  instancesRegistered: counter('kvd.instances_registered', '', [], 'Registrations of workers.'),
  instancesDropped: counter('kvd.instances_dropped', '', ['reason'], 'Workers dropped, by reason.'),
  blockAllocationRecords: counter(
    'kvd.block_allocation_records',
    '',
    [],
    'Block allocations that engines reported.',
  ),
};

const SELF = {
  foldedLabelValues: counter(
    'kvd.metrics_folded_label_values',
    '',
    ['label'],
    'Times that a label value was one too many and was counted as `__other__`.',
  ),
  lostEvents: counter(
    'kvd.event_bus_lost_events',
    '',
    ['subscriber_name'],
    'Events that a listener did not get because the queue was full.',
  ),
  otlpExportFailures: counter(
    'kvd.otlp_export_failures',
    '',
    ['signal'],
    'Exports to the OTLP collector that failed: `metrics` or `traces`.',
  ),
  expiredPending: counter(
    'kvd.expired_pending',
    '',
    ['kind'],
    'What a listener waited for and gave up: its end did not come in ten minutes, or too many ' +
      'were open.',
  ),
};

export const KVD = { ...STATE, ...REQUESTS, ...STORAGE, ...LIFE, ...SELF };
