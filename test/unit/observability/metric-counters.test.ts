import * as assert from 'uvu/assert';
import { EventBus } from '../../../src/observability/event-bus.ts';
import { attachMetrics } from '../../../src/observability/metrics/metric-subscribers.ts';
import { MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import { observeSelf } from '../../../src/observability/metrics/self-metrics.ts';
import { readMetric } from '../../support/metric-readings.ts';
import { suite } from '../../support/suite.ts';
import { VirtualClock } from '../../support/virtual-clock.ts';

const GB = 1e9;

function house({ queueSize = 100 } = {}) {
  const clock = new VirtualClock();
  const bus = new EventBus({ clock, queueSize });
  const registry = new MetricRegistry();
  observeSelf(registry, bus);
  attachMetrics(bus, { registry, clock, sampleRate: 1 });
  const read = (name: string) => {
    bus.drain();
    return readMetric(registry, name);
  };
  return { clock, bus, registry, read, publish: bus.publish.bind(bus) };
}

const transfer = (transferId: number, engineId = '7') => ({
  ...{ sessionId: 's', transferId, device: 'cpu', engineId, modelName: 'm', cacheSalt: 'a' },
  ...{ tokenCount: 256, seconds: 1, error: null },
});
const load = { requestId: 1, adapterIndex: 0, taskId: 1, l2Name: 'fs' };
const store = { adapterIndex: 2, taskId: 1, l2Name: 'fs', countBySalt: new Map() };

suite('metrics of transfers', (test) => {
  test('overlapping transfers of one session have each their own time', () => {
    const { clock, publish, read } = house();
    publish('mp.store.start', transfer(1));
    clock.advance(1000);
    publish('mp.store.start', transfer(2));
    clock.advance(1000);
    publish('mp.store.end', { ...transfer(1), storedCount: 1, totalBytes: 2 * GB });
    clock.advance(1000);
    publish('mp.store.end', { ...transfer(2), storedCount: 1, totalBytes: 4 * GB });
    const { sum, count } = read('lmcache_mp.l0_l1_store_throughput')['cpu,7,m'] as {
      sum: number;
      count: number;
    };
    assert.is(count, 2);
    assert.ok(Math.abs(sum - 3) < 1e-6, `${sum}`);
  });

  test('what a client has read is counted by tenant, tokens and bytes in all', () => {
    const { publish, read } = house();
    publish('mp.retrieve.end', { ...transfer(1), retrievedCount: 2, totalBytes: 64 });
    const failed = { ...transfer(2), error: 'ERR_INTERNAL' };
    publish('mp.retrieve.end', { ...failed, retrievedCount: 0, totalBytes: 0 });
    assert.equal(read('lmcache_mp.l1_client_read'), { a: 2 });
    assert.equal(read('kvd.retrieved_tokens'), { '': 256 });
    assert.equal(read('kvd.retrieved'), { '': 64 });
    assert.equal(read('kvd.stored'), { '': 0 });
  });

  test('the rate of a load is of the part that came', () => {
    const { clock, publish, read } = house();
    publish('l2.load_task.submitted', { ...load, keyCount: 4, totalBytes: 4 * GB });
    clock.advance(2000);
    publish('l2.load_task.completed', { ...load, loadedCount: 1, failedCount: 3 });
    const rate = read('lmcache_mp.l2_load_throughput')['fs'] as { sum: number };
    assert.ok(Math.abs(rate.sum - 0.5) < 1e-6, `${rate.sum}`);
  });

  test('a store that fails has a time and no rate, and its objects are counted', () => {
    const { clock, publish, read } = house();
    publish('l2.store.submitted', { ...store, keyCount: 3, totalBytes: GB });
    clock.advance(2000);
    const outcome = { bytesTransferred: 0, succeededCount: 0, failedCount: 3 };
    publish('l2.store.completed', { ...store, ...outcome });
    assert.equal(read('lmcache_mp.l2_store_throughput'), {});
    assert.equal(read('lmcache_mp.l2_store_failed'), { fs: 3 });
    const { count, sum } = read('kvd.l2_store_seconds')['fs,2'] as { count: number; sum: number };
    assert.is(count, 1);
    assert.ok(Math.abs(sum - 2) < 1e-6);
  });
});

suite('metrics of requests', (test) => {
  const finished = { operation: 'LOOKUP', queueSeconds: 0.25, seconds: 1, error: null };

  test('time in the queue and until the answer, and errors by operation', () => {
    const { publish, read } = house();
    publish('request.finished', finished);
    publish('request.finished', { ...finished, error: 'ERR_OVERLOADED' });
    assert.equal(read('kvd.request_seconds'), { LOOKUP: { count: 2, sum: 2 } });
    assert.equal(read('kvd.request_queue_seconds'), { LOOKUP: { count: 2, sum: 0.5 } });
    assert.equal(read('kvd.reply_errors'), { 'LOOKUP,ERR_OVERLOADED': 1 });
  });

  test('a lookup that nobody fetched is no lookup, but may have been ready', () => {
    const { publish, read } = house();
    const lookup = {
      ...{ sessionId: 's', modelName: 'm', cacheSalt: '', foundCount: 1, requestedTokens: 32 },
      ...{ hitTokens: 16, readySeconds: 0.5, error: null },
    };
    publish('mp.lookup_prefetch.end', lookup);
    const nothing = { requestedTokens: 0, hitTokens: 0 };
    publish('mp.lookup_prefetch.end', { ...lookup, ...nothing, error: 'abandoned' });
    publish('mp.lookup_prefetch.end', { ...lookup, readySeconds: null });
    assert.equal(read('kvd.lookups'), { '': 2 });
    assert.equal(read('kvd.lookup_tokens'), { '': 64 });
    assert.equal(read('lmcache_mp.lookup_hit'), { 'm,': 32 });
    assert.equal(read('kvd.lookup_ready_seconds'), { '': { count: 2, sum: 1 } });
  });

  test('timeouts, expired locks and refused messages by kind', () => {
    const { publish, read } = house();
    publish('timeout.raised', { sessionId: '', exceptionType: 'L2LoadTimeout', message: '' });
    publish('l1.lock.expired', { mode: 'read', keyCount: 3 });
    publish('wire.bad_message', { reason: 'frame count' });
    publish('wire.reply.lost', { reason: 'gone' });
    assert.equal(read('lmcache_mp.timeouts'), { L2LoadTimeout: 1 });
    assert.equal(read('lmcache_mp.l1_ttl_lock_expire'), { read: 3 });
    assert.equal(read('kvd.bad_messages'), { 'frame count': 1 });
    assert.equal(read('kvd.lost_replies'), { gone: 1 });
  });

  test('objects leave L1 for a reason; only eviction is evicted', () => {
    const { publish, read } = house();
    const left = { keyCount: 2, countBySalt: new Map([['a', 2]]), sampledKeys: [], bytes: 8 };
    publish('l1.keys.evicted', { ...left, cause: 'eviction', isEverything: false });
    publish('l1.keys.evicted', { ...left, cause: 'clear', isEverything: true });
    const none = { keyCount: 0, countBySalt: new Map(), sampledKeys: [], bytes: 0 };
    publish('l1.keys.evicted', { ...none, cause: 'delete', isEverything: false });
    assert.equal(read('lmcache_mp.l1_evicted'), { a: 4 });
    assert.equal(read('lmcache_mp.l1_removed'), { eviction: 2, clear: 2 });
    assert.equal(read('kvd.evicted_objects'), { '': 2 });
    assert.equal(read('kvd.evicted'), { '': 8 });
  });
});

suite('metrics in an overload', (test) => {
  test('counters have every event; what is lost is counted by listener', () => {
    const { publish, read } = house({ queueSize: 2 });
    const finished = { operation: 'PING', queueSeconds: 0, seconds: 0, error: 'ERR_INTERNAL' };
    for (let i = 0; i < 50; i += 1) publish('request.finished', finished);
    assert.equal(read('kvd.reply_errors'), { 'PING,ERR_INTERNAL': 50 });
    assert.equal(read('kvd.request_seconds'), { PING: { count: 2, sum: 0 } });
    assert.equal(read('lmcache_mp.event_bus.dropped_events_total'), { '': 48 });
    assert.equal(read('kvd.event_bus_lost_events'), { LatencyMetricsSubscriber: 48 });
  });

  test('who collects gets what waits, and the depth of the queue before', () => {
    const { clock, publish, registry } = house();
    publish('mp.vllm.end_session', { requestId: 'r' });
    publish('mp.vllm.end_session', { requestId: 'r' });
    clock.advance(8);
    assert.equal(readMetric(registry, 'lmcache_mp.event_bus.queue_depth'), { '': 2 });
    assert.equal(readMetric(registry, 'kvd.sessions_ended'), { '': 2 });
    assert.equal(readMetric(registry, 'lmcache_mp.event_bus.queue_depth'), { '': 0 }, 'emptied');
    publish('mp.vllm.end_session', { requestId: 'r' });
    clock.advance(8);
    const lag = readMetric(registry, 'lmcache_mp.event_bus.drain_lag_seconds')[''];
    assert.is(Number(lag).toFixed(3), '0.008');
  });
});

suite('metrics of workers that are gone', (test) => {
  const registration = { instanceId: 7n, modelName: 'm', layerCount: 1 };
  const drop = { instanceId: 7n, reason: 'unregistered' };
  const moved = (publish: EventBus['publish']) => {
    for (const id of ['7', '8']) {
      publish('mp.retrieve.end', { ...transfer(1, id), retrievedCount: 1, totalBytes: 1 });
    }
  };
  const both = { '7,m,a': 1, '8,m,a': 1 };

  test('their series stay for ten minutes', () => {
    const { clock, publish, read } = house();
    publish('instance.registered', registration);
    moved(publish);
    publish('instance.dropped', drop);
    assert.equal(read('lmcache_mp.num_chunks_loaded'), both);
    clock.advance(599_000);
    assert.equal(read('lmcache_mp.num_chunks_loaded'), both);
    clock.advance(1_000);
    assert.equal(read('lmcache_mp.num_chunks_loaded'), { '8,m,a': 1 });
  });

  test('who is back, or was replaced, keeps them', () => {
    const { clock, publish, read } = house();
    publish('instance.registered', registration);
    moved(publish);
    publish('instance.dropped', drop);
    publish('instance.registered', registration);
    publish('instance.registered', registration);
    publish('instance.dropped', { ...drop, reason: 'replaced' });
    assert.equal(read('lmcache_mp.num_chunks_loaded'), both);
    clock.advance(3_600_000);
    assert.equal(read('lmcache_mp.num_chunks_loaded'), both);
    publish('instance.dropped', drop);
    read('lmcache_mp.num_chunks_loaded');
    clock.advance(600_000);
    assert.equal(read('lmcache_mp.num_chunks_loaded'), { '8,m,a': 1 });
  });

  test('nothing is left to run when the bus is closed', async () => {
    const { clock, bus, publish, read } = house();
    publish('instance.registered', registration);
    moved(publish);
    publish('instance.dropped', drop);
    await bus.close();
    clock.advance(3_600_000);
    assert.equal(read('lmcache_mp.num_chunks_loaded'), both);
  });
});
