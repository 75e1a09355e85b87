import * as assert from 'uvu/assert';
import type { Subscriber } from '../../../src/observability/event-bus.ts';
import type {
  ChunkRange,
  EventCatalogue,
  EventName,
  SampledKey,
} from '../../../src/observability/events.ts';
import {
  hashThresholdOf,
  hashWordAt,
  isSampled,
  isTossed,
  systemRandom,
} from '../../../src/observability/metrics/key-sampling.ts';
import { l0Lifecycle } from '../../../src/observability/metrics/l0-lifecycle.ts';
import { l1Lifecycle } from '../../../src/observability/metrics/l1-lifecycle.ts';
import { OTHER_LABEL } from '../../../src/observability/metrics/label-bounds.ts';
import { PendingMap } from '../../../src/observability/metrics/pending-map.ts';
import { MetricRegistry } from '../../../src/observability/metrics/registry.ts';
import { ReuseTable } from '../../../src/observability/metrics/reuse-table.ts';
import { smLifecycle } from '../../../src/observability/metrics/sm-lifecycle.ts';
import { readMetric } from '../../support/metric-readings.ts';
import { deliver } from '../../support/scenario-events.ts';
import { seededRandom } from '../../support/seeded-random.ts';
import { suite } from '../../support/suite.ts';

/** `at(seconds, name, event)` for one subscriber. */
const feed =
  (subscriber: Subscriber) =>
  <N extends EventName>(atSeconds: number, name: N, event: EventCatalogue[N]) =>
    deliver(subscriber, { name, event, atSeconds });

const expiredOf = (registry: MetricRegistry) => readMetric(registry, 'kvd.expired_pending');

suite('key sampling', (test) => {
  test('the first four bytes of a hash are a big-endian number', () => {
    const bytes = Uint8Array.of(9, 0xff, 0x01, 0x02, 0x03, 9);
    assert.is(hashWordAt(bytes, 1), 0xff010203);
    assert.is(hashWordAt(bytes, 1), new DataView(bytes.buffer).getUint32(1));
  });

  test('rate 1 takes every word, and a part its share', () => {
    assert.ok(isSampled(0xffff_ffff, hashThresholdOf(1)));
    assert.ok(isSampled(0x3fff_ffff, hashThresholdOf(0.25)));
    assert.not.ok(isSampled(0x4000_0000, hashThresholdOf(0.25)));
  });

  test('a coin falls the same way each time, and on its side as often as asked', () => {
    const threshold = hashThresholdOf(0.1);
    for (const seed of [0, 1, 0xffff_ffff]) {
      const tossed = Array.from({ length: 10_000 }, (_, id) => isTossed(seed, id, threshold));
      const count = tossed.filter(Boolean).length;
      assert.ok(count > 850 && count < 1150, `${count} of 10000 for seed ${seed}`);
      assert.equal(
        tossed,
        tossed.map((_, id) => isTossed(seed, id, threshold)),
      );
      assert.ok(tossed.every((_, id) => isTossed(seed, id, hashThresholdOf(1))));
    }
    const draw = systemRandom();
    assert.ok(draw >= 0 && draw < 1);
  });
});

suite('pending map', (test) => {
  const house = (countMax = 100) => {
    const registry = new MetricRegistry();
    const gone: string[] = [];
    const onExpired = (key: string) => void gone.push(key);
    const map = new PendingMap<string, number>({ kind: 'k', registry, countMax, onExpired });
    return { registry, gone, map };
  };

  test('what is taken is gone, and comes with its time', () => {
    const { map } = house();
    map.put('a', 1, 5);
    assert.is(map.get('a'), 1);
    assert.equal(map.take('a'), { value: 1, atSeconds: 5 });
    assert.is(map.take('a'), undefined);
    assert.is(map.size, 0);
  });

  test('what is older than ten minutes expires when something comes, oldest first', () => {
    const { map, gone, registry } = house();
    map.put('a', 1, 0);
    map.put('b', 2, 1);
    map.put('a', 3, 2); // it begins again
    map.put('c', 4, 600.5);
    assert.equal(gone, []);
    map.put('d', 5, 601);
    assert.equal(gone, ['b']);
    map.put('e', 6, 2000);
    assert.equal(gone, ['b', 'a', 'c', 'd']);
    assert.equal(expiredOf(registry), { k: 4 });
  });

  test('in a full one the oldest makes room', () => {
    const { map, gone, registry } = house(2);
    for (const key of ['a', 'b', 'b', 'c']) map.put(key, 0, 0);
    assert.equal(gone, ['a']);
    assert.is(map.size, 2);
    assert.equal(expiredOf(registry), { k: 1 });
  });
});

suite('reuse table', (test) => {
  test('whatever is dropped, names and uses stay together', () => {
    const draw = seededRandom(7);
    const countMax = 50;
    const table = new ReuseTable(countMax, () => draw(1_000_000) / 1_000_000);
    for (let i = 0; i < 5000; i += 1) {
      const number = draw(200);
      const use = table.find(`${number}`);
      // The access count says whose use it is.
      if (use) assert.is(use.accessCount, number);
      else table.admit(`${number}`, { atSeconds: i, accessCount: number });
      assert.ok(table.find(`${number}`));
      assert.ok(table.size <= countMax);
    }
    const found = Array.from({ length: 200 }, (_, n) => table.find(`${n}`)).filter(Boolean);
    assert.is(found.length, countMax);
  });
});

const keyOf = (n: number, cacheSalt = ''): SampledKey => ({
  chunkHash: String.fromCharCode(n).repeat(32),
  ...{ modelName: 'm', kvRank: 0, objectGroupId: 0, cacheSalt },
});

const reportOf = (...sampledKeys: SampledKey[]) => ({
  keyCount: sampledKeys.length,
  countBySalt: new Map([['', sampledKeys.length]]),
  sampledKeys,
});

const removalOf = (isEverything: boolean, ...sampledKeys: SampledKey[]) => ({
  ...{ ...reportOf(...sampledKeys), cause: 'clear' as const, bytes: 0, isEverything },
});

suite('L1 lifecycle', (test) => {
  const house = (trackedCountMax = 100) => {
    const registry = new MetricRegistry();
    const at = feed(l1Lifecycle({ registry, trackedCountMax }));
    const read = (name: string) => readMetric(registry, `lmcache_mp.l1_chunk_${name}`);
    return { registry, at, read };
  };

  test('when everything goes, the life of every tracked object ends', () => {
    const { at, read } = house();
    at(10, 'l1.write.finished', reportOf(keyOf(1), keyOf(2)));
    at(14, 'l1.read.finished', reportOf(keyOf(2)));
    at(20, 'l1.keys.evicted', removalOf(true));
    assert.equal(read('lifetime'), { '': { count: 2, sum: 20 } });
    assert.equal(read('idle_before_evict'), { '': { count: 2, sum: 16 } });
    // Both are gone, so both come back.
    at(25, 'l1.write.finished', reportOf(keyOf(1), keyOf(2)));
    assert.equal(read('evict_reuse_gap'), { '': { count: 2, sum: 10 } });
  });

  test('keys that differ in tenant only are two objects', () => {
    const { at, read } = house();
    at(1, 'l1.write.finished', reportOf(keyOf(1, 'a'), keyOf(1, 'b')));
    assert.equal(read('reuse_gap'), {});
    at(2, 'l1.read.finished', reportOf(keyOf(1, 'b')));
    assert.equal(read('reuse_gap'), { '': { count: 1, sum: 1 } });
  });

  test('what never comes back counts as 300 s once', () => {
    const { at, read } = house();
    at(0, 'l1.write.finished', reportOf(keyOf(1)));
    at(1, 'l1.keys.evicted', removalOf(false, keyOf(1)));
    at(300, 'l1.write.finished', reportOf(keyOf(2)));
    assert.equal(read('evict_reuse_gap'), {});
    at(301, 'l1.write.finished', reportOf(keyOf(3)));
    at(900, 'l1.write.finished', reportOf(keyOf(1)));
    assert.equal(read('evict_reuse_gap'), { '': { count: 1, sum: 300 } });
  });

  test('a clock that is set back makes no negative sample', () => {
    const { at, read } = house();
    at(100, 'l1.write.finished', reportOf(keyOf(1)));
    at(40, 'l1.keys.evicted', removalOf(false, keyOf(1)));
    assert.equal(read('lifetime'), { '': { count: 1, sum: 0 } });
  });

  test('of too many tracked objects the first makes room, counted', () => {
    const { at, read, registry } = house(2);
    at(1, 'l1.write.finished', reportOf(keyOf(1), keyOf(2), keyOf(3)));
    at(2, 'l1.read.finished', reportOf(keyOf(1)));
    assert.equal(read('reuse_gap'), {});
    assert.equal(expiredOf(registry), { l1_tracked: 1 });
  });
});

/** Chunks of one prompt, each named by the first byte of its hash. */
function rangeOf(names: readonly number[], part: Partial<ChunkRange> = {}): ChunkRange {
  const hashSizeBytes = 8;
  const bytes = new Uint8Array(names.length * hashSizeBytes);
  for (const [i, name] of names.entries()) bytes.fill(name, i * hashSizeBytes, (i + 1) * 8);
  const hashes = { bytes, count: names.length, hashSizeBytes };
  return {
    ...{ modelName: 'm', cacheSalt: '', hashes, firstChunk: 0, chunkCount: names.length },
    ...part,
  };
}

suite('real reuse', (test) => {
  const house = (sampleRate: number, trackedCountMax = 100) => {
    const registry = new MetricRegistry();
    const random = () => 0;
    const at = feed(smLifecycle({ registry, sampleRate, random, trackedCountMax }));
    const use =
      (name: 'sm.read.prefetched_finished' | 'sm.write.finished') =>
      (atSeconds: number, ...succeeded: ChunkRange[]) =>
        at(atSeconds, name, { succeeded, failedCount: 0 });
    return {
      registry,
      read: use('sm.read.prefetched_finished'),
      write: use('sm.write.finished'),
      seconds: () => readMetric(registry, 'lmcache_mp.real_reuse_gap'),
      objects: () => readMetric(registry, 'lmcache_mp.real_reuse_gap_objects'),
    };
  };

  test('chunks that are not sampled advance the count of their tenant', () => {
    // Half of all hashes: those whose first byte is below 128.
    const { read, write, seconds, objects } = house(0.5);
    write(0, rangeOf([1]));
    read(1, rangeOf([200, 201, 202]));
    read(2, rangeOf([200], { cacheSalt: 'other' }));
    read(5, rangeOf([1, 200]));
    assert.equal(seconds(), { '': { count: 1, sum: 5 } });
    assert.equal(objects(), { '': { count: 1, sum: 4 } });
  });

  test('a range is a part of its prompt', () => {
    const { read, write, objects } = house(1);
    write(0, rangeOf([1, 2, 3, 4]));
    // Chunks 2 and 3, two accesses after the four of the write: 4 apart each.
    read(1, rangeOf([1, 2, 3, 4], { firstChunk: 1, chunkCount: 2 }));
    assert.equal(objects(), { '': { count: 2, sum: 6 } });
  });

  test('in a full table a random entry makes room', () => {
    const { read, write, seconds } = house(1, 2);
    write(0, rangeOf([1, 2, 3])); // the draw is 0: 1 makes room for 3
    read(1, rangeOf([3, 2]));
    assert.equal(seconds(), { '': { count: 2, sum: 2 } });
    read(2, rangeOf([1]));
    assert.equal(seconds(), { '': { count: 2, sum: 2 } });
  });

  test('tenants beyond the first 200 share a series and a count, not their chunks', () => {
    const { read, write, seconds, objects } = house(1, 1000);
    for (let i = 0; i < 200; i += 1) write(0, rangeOf([1], { cacheSalt: `t${i}` }));
    write(0, rangeOf([1], { cacheSalt: 'late' }));
    read(1, rangeOf([1], { cacheSalt: 'later' }));
    assert.equal(seconds(), {});
    read(3, rangeOf([1], { cacheSalt: 'late' }));
    assert.equal(seconds(), { [OTHER_LABEL]: { count: 1, sum: 3 } });
    assert.equal(objects(), { [OTHER_LABEL]: { count: 1, sum: 2 } });
  });
});

suite('L0 lifecycle', (test) => {
  const house = (options: { sampleRate?: number; blockCountMax?: number } = {}) => {
    const registry = new MetricRegistry();
    const at = feed(l0Lifecycle({ registry, sampleRate: 1, random: () => 0.5, ...options }));
    const give = (atSeconds: number, requestId: string, blocks: Record<number, number>) => {
      const [newBlockIds, newTokenIds] = [Object.keys(blocks).map(Number), Object.values(blocks)];
      const records = [{ requestId, newBlockIds, newTokenIds }];
      at(atSeconds, 'mp.vllm.block_allocation', { instanceId: '7', modelName: 'm', records });
    };
    const read = (name: string) => readMetric(registry, `lmcache_mp.l0_block_${name}`);
    return { registry, at, give, read };
  };
  const end = { requestId: 'r' };

  test('a block is reused when nobody held it, and shared when somebody does', () => {
    const { at, give, read } = house();
    give(0, 'r', { 1: 100 });
    give(10, 's', { 1: 100 }); // shared
    at(11, 'mp.vllm.end_session', end);
    give(20, 'r', { 1: 100 }); // `s` still holds it
    at(21, 'mp.vllm.end_session', end);
    at(22, 'mp.vllm.end_session', { requestId: 's' });
    give(30, 'r', { 1: 100 }); // reuse
    at(31, 'mp.vllm.end_session', end);
    give(50, 'r', { 1: 100 }); // reuse
    give(60, 's', { 1: 200 }); // evicted
    assert.equal(read('reuse_gap'), { '7,m': { count: 1, sum: 20 } });
    assert.equal(read('idle_before_evict'), { '7,m': { count: 1, sum: 10 } });
    assert.equal(read('lifetime'), { '7,m': { count: 1, sum: 60 } });
  });

  test('a part of the blocks is followed, always the same ones', () => {
    const { give, read } = house({ sampleRate: 0.25 });
    const blocks = (token: number) =>
      Object.fromEntries(Array.from({ length: 1000 }, (_, id) => [id, token]));
    for (let round = 0; round <= 3; round += 1) give(round, `r${round}`, blocks(round));
    const { count } = read('lifetime')['7,m'] as { count: number };
    assert.is(count % 3, 0);
    assert.ok(count / 3 > 190 && count / 3 < 310, `${count / 3} of 1000`);
  });

  test('records without blocks or tokens say nothing', () => {
    const { give, read, at } = house();
    give(0, 'r', {});
    const record = { requestId: 'r', newBlockIds: [1, 2, 3], newTokenIds: [5] };
    const allocation = { instanceId: '7', modelName: 'm', records: [record] };
    at(1, 'mp.vllm.block_allocation', allocation);
    give(2, 'r', { 2: 9, 3: 9 }); // their first content: nothing is evicted
    assert.equal(read('lifetime'), {});
    give(3, 'r', { 1: 9 });
    assert.equal(read('lifetime'), { '7,m': { count: 1, sum: 2 } });
  });

  test('a request that is silent for ten minutes has ended', () => {
    const { give, read, registry } = house();
    give(0, 'r', { 1: 100 });
    give(601, 's', { 2: 100 });
    give(610, 't', { 1: 100 }); // nobody held it: reuse
    give(620, 't', { 1: 200 });
    assert.equal(expiredOf(registry), { l0_request: 1 });
    assert.equal(read('idle_before_evict'), { '7,m': { count: 1, sum: 10 } });
  });

  test('the blocks of a worker that is gone are forgotten', () => {
    const { at, give, read } = house();
    give(0, 'r', { 1: 100 });
    at(1, 'instance.dropped', { instanceId: 7n, reason: 'unregistered' });
    give(5, 'r', { 1: 200 });
    assert.equal(read('lifetime'), {});
  });

  test('of too many blocks the first makes room, counted', () => {
    const { give, read, registry } = house({ blockCountMax: 2 });
    give(0, 'r', { 1: 1, 2: 2, 3: 3 });
    give(10, 'r', { 2: 9, 3: 9 });
    assert.equal(expiredOf(registry), { l0_block: 1 });
    assert.equal(read('lifetime'), { '7,m': { count: 2, sum: 20 } });
    give(20, 'r', { 1: 9 });
    assert.equal(read('lifetime'), { '7,m': { count: 2, sum: 20 } });
  });
});
