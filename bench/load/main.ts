/**
 * `npm run bench:load -- [one-million-objects] [registered-many] [lookup-beside-stores]
 *                          [observability-cost] [scrape-beside-pings]`
 *
 *   --url URL       measure the server at this address in place of one that is started
 *   --objects N     of one-million-objects, whole thousands [1000000]
 *   --rounds N      of all others [5]
 *   --seconds X     of each phase [3]
 *
 * Without names all of them. Starts bin/kvd, or what KVD_E2E_EXECUTABLE names; empty = the sources.
 * Tables go to stdout, everything as JSON to build/bench/load-<date>.json.
 */
import path from 'node:path';
import { parseArgs } from 'node:util';
import { measureLookupBesideStores } from './lookup-beside-stores.ts';
import { measureObservabilityCost } from './observability-cost.ts';
import { measureOneMillionObjects } from './one-million-objects.ts';
import { measureRegisteredMany } from './registered-many.ts';
import { printReport, type Report, writeReports } from './report.ts';
import { measureScrapeBesidePings } from './scrape-beside-pings.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: 'string' },
    objects: { type: 'string', default: '1000000' },
    rounds: { type: 'string', default: '5' },
    seconds: { type: 'string', default: '3' },
  },
});
const url = values.url ?? null;
const objectCount = Number(values.objects);
const rounds = Number(values.rounds);
const seconds = Number(values.seconds);

const MEASUREMENTS: Readonly<Record<string, () => Promise<Report>>> = {
  'one-million-objects': () => measureOneMillionObjects({ url, objectCount, seconds }),
  'registered-many': () => measureRegisteredMany({ url, rounds, seconds }),
  'lookup-beside-stores': () => measureLookupBesideStores({ url, rounds, seconds }),
  'observability-cost': () => measureObservabilityCost({ rounds }),
  'scrape-beside-pings': () => measureScrapeBesidePings({ seconds }),
};

process.env['KVD_E2E_EXECUTABLE'] ??= path.resolve(import.meta.dirname, '../../bin/kvd');
const names = positionals.length > 0 ? positionals : Object.keys(MEASUREMENTS);
const reports: Report[] = [];
for (const name of names) {
  const measure = MEASUREMENTS[name];
  if (!measure) throw new Error(`expected ${Object.keys(MEASUREMENTS).join(', ')}, got ${name}`);
  console.error(`==== ${name}`);
  const report = await measure();
  printReport(report);
  reports.push(report);
}
console.log(`\nraw results: ${writeReports(reports)}`);
// Clients that wait for nothing keep the process alive.
process.exit(0);
