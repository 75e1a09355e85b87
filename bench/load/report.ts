/** What a measurement found: a table, figures beside their targets, and everything as JSON. */
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { LatencySummary } from '../../src/client/load/latency-series.ts';
import { LatencySeries } from '../../src/client/load/latency-series.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

export interface Verdict {
  readonly what: string;
  /** Null = could not be measured here. */
  readonly value: number | null;
  readonly unit: string;
  readonly target: number;
}

export interface Report {
  readonly name: string;
  readonly header: readonly string[];
  readonly rows: readonly (readonly (string | number | null)[])[];
  /** Reached when the value is at most the target. */
  readonly verdicts: readonly Verdict[];
  readonly details: unknown;
}

export function summarize(samples: Iterable<number>): LatencySummary {
  const series = new LatencySeries();
  for (const ms of samples) series.add(ms);
  const summary = series.summary();
  if (!summary) throw new Error('nothing was measured');
  return summary;
}

export function micros(ms: number): number {
  return Math.round(ms * 1000);
}

export function printReport({ name, header, rows, verdicts }: Report): void {
  console.log(`\n## ${name}\n`);
  const show = (cell: string | number | null) =>
    typeof cell === 'number' ? String(Number(cell.toPrecision(4))) : (cell ?? '-');
  const line = (cells: readonly (string | number | null)[]) =>
    console.log(`| ${cells.map(show).join(' | ')} |`);
  line(header);
  line(header.map(() => '---'));
  for (const row of rows) line(row);
  console.log('');
  for (const { what, value, unit, target } of verdicts) {
    const verdict = value === null ? 'not measured' : value <= target ? 'reached' : 'MISSED';
    const figure = `${show(value)}${unit} (target: at most ${show(target)}${unit})`;
    console.log(`${what}: ${figure}: ${verdict}`);
  }
}

export function writeReports(reports: readonly Report[]): string {
  const date = new Date().toISOString().slice(0, 16).replace('T', '-').replace(':', '');
  const file = path.join(ROOT, `build/bench/load-${date}.json`);
  fs.mkdirSync(path.dirname(file), { recursive: true });
  const machine = { cpu: os.cpus()[0]?.model, cores: os.cpus().length, kernel: os.release() };
  fs.writeFileSync(
    file,
    `${JSON.stringify({ machine, node: process.version, reports }, null, 1)}\n`,
  );
  return path.relative(process.cwd(), file);
}
