/**
 * Results of the client commands, in the two forms of the reference's tools (spec cli 10):
 * a centred title and right-aligned values for people, `{"title","metrics":{…}}` for programs.
 */
import { writeFileSync } from 'node:fs';

export type ReportValue = string | number | boolean | null;

export interface ReportRow {
  readonly key: string;
  readonly label: string;
  readonly value: ReportValue;
}

export interface ReportSection {
  readonly key: string;
  readonly title: string;
  readonly entries: readonly (readonly ReportRow[])[];
  /** There is always one entry: JSON has it as an object in place of a list. */
  readonly isSingle?: boolean;
}

export interface Report {
  readonly title: string;
  readonly width: number;
  readonly rows: readonly ReportRow[];
  readonly sections: readonly ReportSection[];
}

export interface ReportOptions {
  readonly format: 'terminal' | 'json';
  /** File instead of stdout. */
  readonly output?: string;
  readonly quiet?: boolean;
}

function centre(text: string, width: number, fill: string): string {
  const inner = text === '' ? '' : ` ${text} `;
  const left = Math.max(0, Math.floor((width - inner.length) / 2));
  return (fill.repeat(left) + inner).padEnd(width, fill);
}

function show(value: ReportValue): string {
  if (value === null) return 'N/A';
  if (typeof value === 'number' && !Number.isInteger(value)) return value.toFixed(2);
  return String(value);
}

function formatRow({ label, value }: ReportRow, width: number): string {
  const text = show(value);
  const gap = Math.max(1, width - label.length - 1 - text.length);
  return `${label}:${' '.repeat(gap)}${text}`;
}

export function formatTerminal(report: Report): string {
  const { width } = report;
  const lines = [centre(report.title, width, '=')];
  for (const row of report.rows) lines.push(formatRow(row, width));
  for (const section of report.sections) {
    for (const entry of section.entries) {
      lines.push(centre(section.title, width, '-'));
      for (const row of entry) lines.push(formatRow(row, width));
    }
  }
  lines.push('='.repeat(width));
  return `${lines.join('\n')}\n`;
}

const toObject = (rows: readonly ReportRow[]) =>
  Object.fromEntries(rows.map(({ key, value }) => [key, value]));

export function formatJson(report: Report): string {
  const sections = report.sections.map(({ key, entries, isSingle }) => [
    key,
    isSingle ? toObject(entries[0] ?? []) : entries.map(toObject),
  ]);
  const metrics = { ...toObject(report.rows), ...Object.fromEntries(sections) };
  return `${JSON.stringify({ title: report.title, metrics }, null, 2)}\n`;
}

export function writeReport(report: Report, options: ReportOptions): void {
  const text = options.format === 'json' ? formatJson(report) : formatTerminal(report);
  if (options.output !== undefined) writeFileSync(options.output, text);
  if (!options.quiet && options.output === undefined) process.stdout.write(text);
}
