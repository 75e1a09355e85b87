import * as assert from 'uvu/assert';
import { benchReport } from '../../../src/cli/bench-report.ts';
import { formatJson, formatTerminal } from '../../../src/cli/report.ts';
import type { BenchResult } from '../../../src/client/load/bench-run.ts';
import { fitCacheShape } from '../../../src/client/load/cache-shape.ts';
import { LatencyBook } from '../../../src/client/load/latency-series.ts';
import { suite } from '../../support/suite.ts';

const OPTIONS = { url: 'tcp://localhost:5555', clientCount: 2, intervalMs: 500 };

/** Requests of 1 MiB; four stores of 1, 2, 3 and 4 ms. */
function resultOf(part: Partial<BenchResult> = {}): BenchResult {
  const latencies = new LatencyBook();
  for (const ms of [1, 2, 3, 4]) latencies.add('cold_store', ms);
  const group = { headCount: 2, headSize: 64, dtype: 'float16', itemSizeBytes: 2, layerCount: 4 };
  const shape = fitCacheShape(
    { blockCount: null, slotsPerBlock: 16, groups: [{ ...group, kvSize: 2, dtype: 'float16' }] },
    { chunkSizeTokens: 256, tokenCountMax: 513 },
  );
  return {
    shape,
    mode: 'lmcache_driven',
    transport: 'shared memory',
    requestCount: 4,
    mismatchCount: 0,
    failureCount: 0,
    failures: [],
    elapsedMs: 1234.5,
    latencies,
    lookupsPerSecond: 1000,
    ...part,
  };
}

type Metrics = Record<string, Record<string, unknown>>;

function metricsOf(...args: Parameters<typeof benchReport>): Metrics {
  const { title, metrics } = JSON.parse(formatJson(benchReport(...args)));
  assert.is(title, 'Server Bench Result');
  return metrics as Metrics;
}

suite('report of kvd bench', (test) => {
  test('has the keys of the reference, and only the steps that were taken', () => {
    const metrics = metricsOf(resultOf(), OPTIONS, null);
    assert.equal(Object.keys(metrics), ['config', 'results', 'throughput', 'cold_store']);
    const { config, results } = metrics;
    assert.is(config?.['rpc_url'], 'tcp://localhost:5555');
    assert.is(config?.['transfer_mode'], 'lmcache_driven');
    assert.is(config?.['kvcache_shape_spec'], '(2,64,16,2,64):float16:4');
    assert.is(config?.['num_tokens'], 512);
    assert.is(config?.['request_bytes'], 1 << 20);
    assert.is(config?.['interval'], 0.5);
    assert.equal(results, {
      total_requests: 4,
      checksum_ok: 4,
      checksum_fail: 0,
      failed_requests: 0,
      pass_rate: 100,
      duration_s: 1.235,
    });
    assert.equal(metrics['cold_store'], {
      cold_store_count: 4,
      cold_store_mean: 2.5,
      cold_store_min: 1,
      cold_store_max: 4,
      cold_store_p50: 3,
      cold_store_p99: 4,
    });
  });

  test('speeds are decimal gigabytes over the median', () => {
    const { throughput } = metricsOf(resultOf(), OPTIONS, null);
    assert.equal(throughput, { store_gbps: 0.35, retrieve_gbps: null, lookups_per_s: 1000 });
  });

  test('mismatches and failures count against the pass rate and are listed', () => {
    const failures = [{ sequence: 3, message: 'loaded block differs' }];
    const result = resultOf({ mismatchCount: 1, failureCount: 2, failures });
    const metrics = metricsOf(result, OPTIONS, null);
    assert.is(metrics['results']?.['checksum_ok'], 1);
    assert.is(metrics['results']?.['pass_rate'], 25);
    assert.equal(metrics['errors'], [{ request: 3, error: 'loaded block differs' }]);
  });

  test('a run that was broken off before its first request has a rate', () => {
    const metrics = metricsOf(resultOf({ requestCount: 0 }), OPTIONS, null);
    assert.is(metrics['results']?.['pass_rate'], 0);
  });

  test('the state of the server stands beside it when asked for', () => {
    const l1 = { memory_total_bytes: 2 ** 31, memory_used_bytes: 2 ** 29, total_object_count: 7 };
    const status = { is_healthy: true, storage_manager: { l1_manager: l1 } };
    assert.equal(metricsOf(resultOf(), OPTIONS, status)['server'], {
      health: 'OK',
      l1_capacity_gb: 2,
      l1_used_gb: 0.5,
      cached_objects: 7,
    });
    assert.equal(metricsOf(resultOf(), OPTIONS, {})['server'], {
      health: 'UNHEALTHY',
      l1_capacity_gb: null,
      l1_used_gb: null,
      cached_objects: 0,
    });
  });

  test('for people: 64 columns, titles centred, values at the right', () => {
    const lines = formatTerminal(benchReport(resultOf(), OPTIONS, null))
      .trimEnd()
      .split('\n');
    assert.is(lines[0], '===================== Server Bench Result ======================');
    assert.is(lines[1], '------------------------ Configuration -------------------------');
    assert.ok(lines.every((line) => line.length === 64));
    assert.ok(lines.includes(`${'Retrieve, median (GB/s):'.padEnd(61)}N/A`));
    assert.ok(lines.includes('----------------------- Cold Store (ms) ------------------------'));
  });
});
