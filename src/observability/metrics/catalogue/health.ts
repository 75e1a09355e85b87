/** What went wrong, and whether the metrics themselves are whole. */
import { rowsOf } from './rows.ts';

const { counter } = rowsOf('lmcache_mp.health');
const bus = rowsOf('lmcache.event_bus');

export const HEALTH = {
  l1AllocationFailure: counter(
    'lmcache_mp.l1_allocation_failure',
    'chunks',
    ['during', 'model_name'],
    'Objects for which L1 had no room: `l1_store` or `l2_prefetch`.',
  ),
  l1ReadFailure: counter(
    'lmcache_mp.l1_read_failure',
    'chunks',
    ['during', 'reason', 'model_name'],
    'Objects that a reader expected in L1 and did not get: `l1_retrieve` or `l2_store`; ' +
      '`not_found` or `write_locked`.',
  ),
  l2PrefetchFailure: counter(
    'lmcache_mp.l2_prefetch_failure',
    'chunks',
    ['reason', 'model_name'],
    'Objects that were to be loaded from L2 and were not: `l1_oom`, `not_found`, ' +
      '`serde_failure`, `lookup_timeout`, `load_timeout`, `overload`.',
  ),
  timeouts: counter(
    'lmcache_mp.timeouts',
    '',
    ['exception_type'],
    'What took longer than it may, by kind.',
  ),
};

export const BUS = {
  queueDepth: bus.gauge(
    'lmcache_mp.event_bus.queue_depth',
    '',
    [],
    'Events that wait for their listeners.',
  ),
  drainLagSeconds: bus.fraction(
    'lmcache_mp.event_bus.drain_lag_seconds',
    '',
    [],
    'Age of the oldest of them; 0 when there is none.',
  ),
  droppedEvents: bus.counter(
    'lmcache_mp.event_bus.dropped_events_total',
    '',
    [],
    'Events for which the queue had no room. Counters have them; histograms, spans and lines ' +
      'do not.',
  ),
  subscriberExceptions: bus.counter(
    'lmcache_mp.event_bus.subscriber_exceptions',
    '',
    ['subscriber_name'],
    'Events that a listener failed on.',
  ),
};
