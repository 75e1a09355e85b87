/** What `kvd bench` prints: the keys of `lmcache bench server`, and ours beside them. */
import type { BenchOptions, BenchResult } from '../client/load/bench-run.ts';
import type { LatencySummary } from '../client/load/latency-series.ts';
import { GIB } from '../units.ts';
import { formatShapeSpec } from './bench-shape.ts';
import type { Report, ReportRow, ReportSection, ReportValue } from './report.ts';
import { type Document, section } from './status-document.ts';

const REPORT_WIDTH = 64;

/** In the order of a request; those of a path that was not taken are left out. */
const STEPS: readonly (readonly [step: string, title: string])[] = [
  ['cold_lookup', 'Cold Lookup'],
  ['cold_store', 'Cold Store'],
  ['prepare_store', 'Prepare Store'],
  ['commit_store', 'Commit Store'],
  ['warm_lookup', 'Warm Lookup'],
  ['warm_retrieve', 'Warm Retrieve'],
  ['prepare_retrieve', 'Prepare Retrieve'],
  ['commit_retrieve', 'Commit Retrieve'],
  ['lookup', 'Lookup Loop'],
];

export function benchReport(
  result: BenchResult,
  options: Pick<BenchOptions, 'url' | 'clientCount' | 'intervalMs'>,
  status: Document | null,
): Report {
  const sections = [
    group('config', 'Configuration', configRows(result, options)),
    group('results', 'Results', resultRows(result)),
    group('throughput', 'Throughput', throughputRows(result)),
  ];
  for (const [step, title] of STEPS) {
    const summary = result.latencies.summary(step);
    if (summary) sections.push(group(step, `${title} (ms)`, latencyRows(step, summary)));
  }
  if (status !== null) sections.push(group('server', 'Server', serverRows(status)));
  if (result.failures.length > 0) {
    const entries = result.failures.map(({ sequence, message }) => [
      row('request', 'Request', sequence),
      row('error', 'Error', message),
    ]);
    sections.push({ key: 'errors', title: 'Error', entries });
  }
  return { title: 'Server Bench Result', width: REPORT_WIDTH, rows: [], sections };
}

const row = (key: string, label: string, value: ReportValue): ReportRow => ({ key, label, value });

function group(key: string, title: string, rows: readonly ReportRow[]): ReportSection {
  return { key, title, entries: [rows], isSingle: true };
}

function configRows(
  { shape, mode, transport }: BenchResult,
  { url, clientCount, intervalMs }: Pick<BenchOptions, 'url' | 'clientCount' | 'intervalMs'>,
): ReportRow[] {
  return [
    row('rpc_url', 'RPC URL', url),
    row('mode', 'Mode', 'cpu'),
    row('transfer_mode', 'Transfer mode', mode),
    row('transport', 'Transport', transport),
    row('kvcache_shape_spec', 'KV', formatShapeSpec(shape.geometry, shape.cacheBlockCount)),
    row('num_tokens', 'Tokens / request', shape.tokenCount),
    row('num_chunks', 'Chunks / request', shape.chunkCount),
    row('request_bytes', 'Bytes / request', shape.requestBytes),
    row('clients', 'Clients', clientCount),
    row('interval', 'Interval (s)', intervalMs / 1000),
  ];
}

/** Requests with every byte right, and in percent of all. */
function passed({ requestCount, failureCount, mismatchCount }: BenchResult) {
  const count = Math.max(0, requestCount - failureCount - mismatchCount);
  return { count, rate: requestCount === 0 ? 0 : (100 * count) / requestCount };
}

function resultRows(result: BenchResult): ReportRow[] {
  const { count, rate } = passed(result);
  return [
    row('total_requests', 'Total requests', result.requestCount),
    row('checksum_ok', 'Checksum OK', count),
    row('checksum_fail', 'Checksum FAIL', result.mismatchCount),
    row('failed_requests', 'Failed requests', result.failureCount),
    row('pass_rate', 'Pass rate (%)', round(rate)),
    row('duration_s', 'Duration (s)', round(result.elapsedMs / 1000)),
  ];
}

function throughputRows({ latencies, shape, lookupsPerSecond }: BenchResult): ReportRow[] {
  const speed = (step: string): number | null => {
    const summary = latencies.summary(step);
    return summary === null ? null : round(shape.requestBytes / summary.p50Ms / 1e6);
  };
  return [
    row('store_gbps', 'Store, median (GB/s)', speed('cold_store')),
    row('retrieve_gbps', 'Retrieve, median (GB/s)', speed('warm_retrieve')),
    row('lookups_per_s', 'Lookups / s', lookupsPerSecond === null ? null : round(lookupsPerSecond)),
  ];
}

function latencyRows(step: string, summary: LatencySummary): ReportRow[] {
  const { count, meanMs, minMs, maxMs, p50Ms, p99Ms } = summary;
  const values = { count, mean: meanMs, min: minMs, max: maxMs, p50: p50Ms, p99: p99Ms };
  return Object.entries(values).map(([name, value]) => row(`${step}_${name}`, name, round(value)));
}

function serverRows(status: Document): ReportRow[] {
  const l1 = section(status, 'storage_manager', 'l1_manager');
  const gigabytes = (key: string): ReportValue => {
    const bytes = Number(l1[key] ?? Number.NaN);
    return Number.isFinite(bytes) ? round(bytes / GIB) : null;
  };
  return [
    row('health', 'Health', status['is_healthy'] === true ? 'OK' : 'UNHEALTHY'),
    row('l1_capacity_gb', 'L1 capacity (GB)', gigabytes('memory_total_bytes')),
    row('l1_used_gb', 'L1 used (GB)', gigabytes('memory_used_bytes')),
    row('cached_objects', 'Cached objects', Number(l1['total_object_count'] ?? 0)),
  ];
}

const round = (value: number): number => Math.round(value * 1000) / 1000;
