/**
 * What a replay took: figures by call, and the files that the reference's tools read. Times are of
 * calls that did not fail.
 *
 *   trace_replay_ops.csv        qualname,count,errors,mean_ms,p50_ms,p90_ms,p99_ms,min_ms,max_ms
 *   trace_replay_summary.json   the same, and the duration
 *   --jsonl-out                 one line for each record
 */
import { Float, writePythonJson } from '../observability/python-json.ts';
import { STORAGE_PREFIX } from '../observability/trace-file/storage-calls.ts';
import type { Report, ReportRow } from './report.ts';

export type Outcome = 'done' | 'failed' | 'skipped';

export interface ReplayedRecord {
  readonly qualname: string;
  readonly latencyMs: number;
  readonly outcome: Outcome;
}

export interface OperationFigures {
  readonly qualname: string;
  /** Calls that did not fail. */
  readonly count: number;
  readonly errors: number;
  readonly meanMs: number;
  readonly p50Ms: number;
  readonly p90Ms: number;
  readonly p99Ms: number;
  readonly minMs: number;
  readonly maxMs: number;
}

export interface ReplaySummary {
  readonly level: string;
  readonly replayedCount: number;
  readonly skippedCount: number;
  readonly failedCount: number;
  readonly durationSeconds: number;
  /** Null: the trace does not say of what configuration it is. */
  readonly digests: { readonly recorded: string; readonly run: string } | null;
  /** Sorted by name. */
  readonly operations: readonly OperationFigures[];
}

const REPORT_WIDTH = 64;
const DIGEST_CHARS = 8;
const CSV_COLUMNS = 'qualname,count,errors,mean_ms,p50_ms,p90_ms,p99_ms,min_ms,max_ms';

export class ReplayStatistics {
  readonly #latencies = new Map<string, number[]>();
  readonly #errors = new Map<string, number>();
  replayedCount = 0;
  skippedCount = 0;
  failedCount = 0;

  add({ qualname, latencyMs, outcome }: ReplayedRecord): void {
    if (outcome === 'skipped') {
      this.skippedCount += 1;
      return;
    }
    const latencies = this.#latencies.get(qualname) ?? [];
    this.#latencies.set(qualname, latencies);
    if (outcome === 'failed') {
      this.failedCount += 1;
      this.#errors.set(qualname, (this.#errors.get(qualname) ?? 0) + 1);
      return;
    }
    this.replayedCount += 1;
    latencies.push(latencyMs);
  }

  operations(): OperationFigures[] {
    const names = [...this.#latencies.keys()].sort((a, b) => (a < b ? -1 : 1));
    return names.map((qualname) => {
      const sorted = Float64Array.from(this.#latencies.get(qualname)!).sort();
      const count = sorted.length;
      const percentile = (p: number) =>
        sorted[Math.min(count - 1, Math.floor((p / 100) * count))] ?? 0;
      const sum = sorted.reduce((total, latency) => total + latency, 0);
      return {
        ...{ qualname, count, errors: this.#errors.get(qualname) ?? 0 },
        meanMs: count === 0 ? 0 : sum / count,
        ...{ p50Ms: percentile(50), p90Ms: percentile(90), p99Ms: percentile(99) },
        ...{ minMs: sorted[0] ?? 0, maxMs: sorted[count - 1] ?? 0 },
      };
    });
  }
}

export function formatReplayCsv(operations: readonly OperationFigures[]): string {
  const rows = operations.map((of) => {
    const figures = [of.meanMs, of.p50Ms, of.p90Ms, of.p99Ms, of.minMs, of.maxMs];
    return [of.qualname, of.count, of.errors, ...figures.map((ms) => ms.toFixed(6))].join(',');
  });
  return [CSV_COLUMNS, ...rows].map((row) => `${row}\r\n`).join('');
}

export function formatReplayJson({ durationSeconds, operations }: ReplaySummary): string {
  const ops = operations.map((of) => [
    of.qualname,
    {
      ...{ count: of.count, errors: of.errors },
      ...{ mean_ms: new Float(of.meanMs), p50_ms: new Float(of.p50Ms) },
      ...{ p90_ms: new Float(of.p90Ms), p99_ms: new Float(of.p99Ms) },
      ...{ min_ms: new Float(of.minMs), max_ms: new Float(of.maxMs) },
    },
  ]);
  const document = { duration_s: new Float(durationSeconds), ops: Object.fromEntries(ops) };
  return `${writePythonJson(document, { sortsKeys: true, indent: 2 })}\n`;
}

export function formatReplayLine({ qualname, latencyMs, outcome }: ReplayedRecord): string {
  const failed = outcome !== 'done';
  return `${writePythonJson({ qualname, latency_ms: new Float(latencyMs), failed })}\n`;
}

/** `finish_write`, `read_prefetched_results.enter`. */
function shortName(qualname: string): string {
  return qualname.replace(STORAGE_PREFIX, '').replace(/__(\w+)__$/, '$1');
}

export function replayReport(summary: ReplaySummary): Report {
  const row = (key: string, label: string, value: string | number): ReportRow => ({
    ...{ key, label, value },
  });
  const overall = [
    row('trace_level', 'Trace level', summary.level),
    row('records_replayed', 'Records replayed', summary.replayedCount),
    row('records_skipped', 'Records skipped', summary.skippedCount),
    row('records_failed', 'Records failed', summary.failedCount),
    row('duration_s', 'Replay duration (s)', summary.durationSeconds),
  ];
  if (summary.digests) {
    overall.push(row('config_digest', 'Config digest', digestText(summary.digests)));
  }
  const operations = summary.operations.flatMap((of) => {
    const name = shortName(of.qualname);
    return [
      row(`${name}_count`, `${name} count`, of.count),
      row(`${name}_mean_ms`, `${name} mean`, of.meanMs),
      row(`${name}_p50_ms`, `${name} p50`, of.p50Ms),
      row(`${name}_p99_ms`, `${name} p99`, of.p99Ms),
    ];
  });
  const sections = [{ key: 'overall', title: 'Overall', entries: [overall], isSingle: true }];
  if (operations.length > 0) {
    const [key, title] = ['ops', 'Per-Op Latency (ms)'];
    sections.push({ key, title, entries: [operations], isSingle: true });
  }
  return { title: 'Trace Replay Result', width: REPORT_WIDTH, rows: [], sections };
}

function digestText({ recorded, run }: { recorded: string; run: string }): string {
  const [old, now] = [recorded.slice(0, DIGEST_CHARS), run.slice(0, DIGEST_CHARS)];
  return recorded === run ? `match (${now})` : `MISMATCH (rec=${old}, run=${now})`;
}
