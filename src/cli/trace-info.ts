/**
 * `kvd trace info FILE`: what is in a trace. For people in the words of the reference, with a line
 * more where something is missing; for programs as JSON.
 *
 *   exit code  0    the summary is printed
 *              1    there is no such file, or it is no trace
 *              2    the command line
 */
import { writeFileSync } from 'node:fs';
import type { TraceHeader, TraceTrailer } from '../observability/trace-file/frames.ts';
import { TraceReader } from '../observability/trace-file/trace-reader.ts';
import { clientCommand, parseArguments } from './arguments.ts';
import type { ReportOptions } from './report.ts';
import { printable, traceProblem } from './trace-problem.ts';

export interface TraceSummary {
  readonly path: string;
  readonly header: TraceHeader;
  /** Null: the recording was cut off, or is the reference's. */
  readonly trailer: TraceTrailer | null;
  readonly durationSeconds: number;
  readonly recordCount: number;
  readonly skippedCount: number;
  readonly isCut: boolean;
  readonly counts: ReadonlyMap<string, number>;
}

/** Reads all of it. Rejects with `TraceFileError`. */
export async function summarizeTrace(
  path: string,
  warn: (message: string) => void,
): Promise<TraceSummary> {
  const reader = await TraceReader.open({ path, warn });
  try {
    const counts = new Map<string, number>();
    let durationSeconds = 0;
    let recordCount = 0;
    for await (const { monoSeconds, qualname } of reader.records()) {
      recordCount += 1;
      durationSeconds = Math.max(durationSeconds, monoSeconds);
      counts.set(qualname, (counts.get(qualname) ?? 0) + 1);
    }
    const { header, trailer, skippedCount, isCut } = reader;
    return { path, header, trailer, durationSeconds, recordCount, skippedCount, isCut, counts };
  } finally {
    await reader.close();
  }
}

const byName = (counts: ReadonlyMap<string, number>) =>
  [...counts].sort(([a], [b]) => (a < b ? -1 : 1));

export function formatTraceSummary(summary: TraceSummary): string {
  const { header, trailer, skippedCount, counts } = summary;
  const row = (label: string, value: string | number) => `  ${`${label}:`.padEnd(22)}${value}`;
  const lines = [
    `Trace file: ${summary.path}`,
    row('level', printable(header.level)),
    row('format_version', header.formatVersion),
    row('trace_schema_version', header.schemaVersion),
    row('duration', `${summary.durationSeconds.toFixed(3)}s`),
    row('sm_config_digest', printable(header.configDigest) || '(none)'),
    row('total_records', summary.recordCount),
  ];
  if (skippedCount > 0) lines.push(row('skipped_records', skippedCount));
  if (trailer && trailer.droppedCount > 0) lines.push(row('dropped_records', trailer.droppedCount));
  if (counts.size === 0) lines.push('  ops: (none)');
  else
    lines.push(
      '  ops:',
      ...byName(counts).map(([name, count]) => `    ${printable(name)}: ${count}`),
    );
  return `${lines.join('\n')}\n`;
}

export function traceSummaryJson(summary: TraceSummary): string {
  const { header, trailer, counts } = summary;
  const metrics = {
    file: summary.path,
    level: header.level,
    format_version: header.formatVersion,
    trace_schema_version: header.schemaVersion,
    duration_s: summary.durationSeconds,
    wall_start_s: header.wallStartSeconds,
    sm_config_digest: header.configDigest,
    total_records: summary.recordCount,
    skipped_records: summary.skippedCount,
    dropped_records: trailer?.droppedCount ?? null,
    is_complete: trailer !== null && !summary.isCut,
    ops: Object.fromEntries(byName(counts)),
  };
  return `${JSON.stringify({ title: 'Trace Info', metrics }, null, 2)}\n`;
}

export async function run(argv: readonly string[]): Promise<number> {
  const command = clientCommand('trace info', 'Print a summary of a trace.').argument(
    '<file>',
    'a .lct trace file',
  );
  const parsed = parseArguments<ReportOptions>(command, argv);
  if (!parsed) return 0;
  const [file = ''] = parsed.args;
  const warn = (message: string) =>
    void process.stderr.write(`kvd trace info: warning: ${message}\n`);
  const summary = await summarizeTrace(file, warn).catch((error: unknown) => {
    throw traceProblem('kvd trace info', error);
  });
  const { format, output, quiet } = parsed.options;
  const text = format === 'json' ? traceSummaryJson(summary) : formatTraceSummary(summary);
  if (output !== undefined) writeFileSync(output, text);
  else if (!quiet) process.stdout.write(text);
  return 0;
}
