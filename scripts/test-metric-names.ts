/**
 * `npm run test:metric-names`
 *
 * The metrics of kvd beside those of the reference: the real client of lmcache 0.5.0 makes the
 * traffic that test/vectors/metrics/prom_0.5.0_traffic.prom was taken after, and the names, types
 * and label sets of both must be the same, but for the differences that docs/metrics.md names.
 * Says plainly when the drivers are not there. The last line is `N passed, N failed`.
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { type ParsedFamily, parsePrometheusText } from '../test/support/prometheus-parser.ts';
import { ServerProcess } from '../test/support/server-process.ts';
import { DRIVER_ENVIRONMENT, findDrivers, findPython, ROOT } from './reference.ts';

const VECTOR = path.join(ROOT, 'test/vectors/metrics/prom_0.5.0_traffic.prom');
const TRAFFIC_MS = 120_000;

/** Labels that the reference lacks (docs/metrics.md, "Differences from LMCache 0.5.0"). */
const ADDED_LABELS: Readonly<Record<string, readonly string[]>> = {
  lmcache_mp_l2_usage_bytes: ['adapter_index'],
};

interface Shape {
  readonly type: string;
  readonly labels: readonly string[];
}

function shapesOf(families: ReadonlyMap<string, ParsedFamily>): Map<string, Shape> {
  const shapes = new Map<string, Shape>();
  for (const [name, { type, samples }] of families) {
    if (!name.startsWith('lmcache_')) continue;
    const labels = new Set(samples.flatMap((sample) => [...sample.labels.keys()]));
    labels.delete('le');
    shapes.set(name, { type, labels: [...labels].sort() });
  }
  return shapes;
}

/** The vector has one family twice, which no strict parser takes: the second one is left out. */
function withoutRepeats(text: string): string {
  const seen = new Set<string>();
  let isRepeat = false;
  const kept = text.split('\n').filter((line) => {
    const [, family] = /^# HELP (\S+)/.exec(line) ?? [];
    if (family !== undefined) {
      isRepeat = seen.has(family);
      seen.add(family);
    }
    return !isRepeat;
  });
  return kept.join('\n');
}

async function scrapeAfterTraffic(drivers: string, python: string): Promise<string> {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-metric-names-'));
  const fsAdapter = {
    type: 'fs',
    base_path: folder,
    max_capacity_gb: 0.0003,
    eviction: { eviction_policy: 'LRU', trigger_watermark: 0.8, eviction_ratio: 0.2 },
  };
  const server = await ServerProcess.start({
    '--chunk-size': 16,
    '--l1-size-gb': 0.002,
    '--metrics-sample-rate': 1,
    '--l2-adapter': JSON.stringify(fsAdapter),
  });
  try {
    const script = path.join(import.meta.dirname, 'metrics/traffic.py');
    const run = spawnSync(python, [script, drivers, server.url], {
      env: DRIVER_ENVIRONMENT,
      stdio: ['ignore', 'inherit', 'inherit'],
      timeout: TRAFFIC_MS,
    });
    if (run.status !== 0) throw new Error(`traffic.py: ${run.error ?? `exit code ${run.status}`}`);
    return await (await fetch(`${server.httpUrl}/metrics`)).text();
  } finally {
    await server.stop();
    fs.rmSync(folder, { recursive: true, force: true });
  }
}

async function main(): Promise<number> {
  const drivers = findDrivers();
  if (drivers === null) {
    console.log('metric names: skipped: there is no ../shared/conformance');
    return 0;
  }
  const expected = shapesOf(parsePrometheusText(withoutRepeats(fs.readFileSync(VECTOR, 'utf8'))));
  const text = await scrapeAfterTraffic(drivers, findPython('reference'));
  const seen = shapesOf(parsePrometheusText(text));
  let failedCount = 0;
  for (const [name, { type, labels }] of expected) {
    const wanted = { type, labels: [...labels, ...(ADDED_LABELS[name] ?? [])].sort() };
    const got = seen.get(name);
    const isSame = JSON.stringify(got) === JSON.stringify(wanted);
    if (!isSame) failedCount += 1;
    const rest = isSame ? '' : `: wanted ${JSON.stringify(wanted)}, got ${JSON.stringify(got)}`;
    console.log(`${isSame ? 'PASS ' : 'FAIL '} ${name}${rest}`);
  }
  const added = [...seen.keys()].filter((name) => !expected.has(name));
  console.log(`beside them: ${added.join(' ')}`);
  console.log(`${expected.size - failedCount} passed, ${failedCount} failed`);
  return failedCount === 0 ? 0 : 1;
}

process.exitCode = await main();
