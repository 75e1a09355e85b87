/**
 * `npm run bench:peer -- [--parts startup,latency] [--kvd 'CMD'] [-- arguments of bench.py]`
 *
 * kvd beside the reference: for each part of the benchmark driver first the one, then the other,
 * within the same minutes on the same machine. Only ratios mean anything; the table shows those of
 * docs/performance.md with their targets. Raw results go to build/bench/peer-<date>.json.
 *
 * Net times: what the driver measures against an echo server (`floor`, run together with the
 * latencies) is taken off, once per round trip and at the size of the request.
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { DRIVER_ENVIRONMENT, findDrivers, findPython, ROOT } from './reference.ts';

type Json = { readonly [key: string]: Json | number | string };
type Side = 'reference' | 'kvd';
type Results = Record<Side, Record<string, Json>>;

/** Parts that are run together; `latency` needs its floor from the same minute. */
const PART_GROUPS = [
  'startup',
  'floor,latency',
  'throughput',
  'memcpy,bandwidth',
  'prepare_commit,pickle',
  'hol',
];
const FLAGS =
  '--host 127.0.0.1 --port {port} --http-host 127.0.0.1 --http-port {http_port} ' +
  '--prometheus-port {metrics_port} --l1-size-gb 4 --no-l1-use-lazy --eviction-policy LRU ' +
  '--shm-name bench{port}';

interface Row {
  readonly name: string;
  readonly unit: string;
  readonly reference: number;
  readonly kvd: number;
  /** How many times better kvd is, or what else `target` is about. */
  readonly value: number;
  readonly target: string;
  readonly isReached: boolean;
}

// ---------------------------------------------------------------- reading results

/** NaN when a part failed or was not run: its rows then say `-`. */
function numberAt(results: Record<string, Json>, ...keys: string[]): number {
  let value: Json | number | string | undefined = results;
  for (const key of keys) value = typeof value === 'object' ? value[key] : undefined;
  return typeof value === 'number' ? value : Number.NaN;
}

type Quantile = 'p50' | 'p99';

/** Microseconds of one echo round trip with a request of `bytes`, between the measured sizes. */
function floorUs(results: Record<string, Json>, bytes: number, quantile: Quantile): number {
  const at = (name: string): number => numberAt(results, 'floor', `${name}_us`, quantile);
  const small = at('empty');
  const middle = at('32_KiB');
  const large = at('512_KiB');
  if (bytes <= 32768) return small + ((middle - small) * bytes) / 32768;
  return middle + ((large - middle) * (bytes - 32768)) / (524288 - 32768);
}

/** Token ids of the driver are 10 to 150,000: three or five bytes each in msgpack. */
const BYTES_PER_TOKEN = 4.12;

function lowerIsBetter(
  name: string,
  unit: string,
  read: (results: Record<string, Json>) => number,
  results: Results,
  factor: number,
): Row {
  const reference = read(results.reference);
  const kvd = read(results.kvd);
  // At or below the floor is as good as it gets.
  const value = reference / Math.max(kvd, 1e-3);
  const target = `≥ ${factor}×`;
  return { name, unit, reference, kvd, value, target, isReached: value >= factor };
}

function higherIsBetter(
  name: string,
  unit: string,
  read: (results: Record<string, Json>) => number,
  results: Results,
  factor: number,
): Row {
  const reference = read(results.reference);
  const kvd = read(results.kvd);
  const value = kvd / reference;
  return { name, unit, reference, kvd, value, target: `≥ ${factor}×`, isReached: value >= factor };
}

// ---------------------------------------------------------------- the table

function lookupRows(results: Results): Row[] {
  const rows: Row[] = [];
  for (const tokens of [1024, 8192, 32768, 131072]) {
    for (const kind of ['miss', 'hit']) {
      for (const quantile of ['p50', 'p99'] as const) {
        const total = (side: Record<string, Json>): number =>
          numberAt(side, 'latency', `lookup_${tokens}_${kind}_us`, 'until_result', quantile);
        const net = (side: Record<string, Json>): number =>
          total(side) -
          floorUs(side, tokens * BYTES_PER_TOKEN, quantile) -
          floorUs(side, 0, quantile);
        const name = `LOOKUP ${tokens / 1024}k ${kind} ${quantile}`;
        rows.push(lowerIsBetter(`${name} net`, 'µs', net, results, 5));
        if (tokens === 131072)
          rows.push(lowerIsBetter(`${name} outright`, 'µs', total, results, 5));
      }
    }
  }
  return rows;
}

function bandwidthRows(results: Results): Row[] {
  const rows: Row[] = [];
  for (const verb of ['store', 'retrieve']) {
    const large = (side: Record<string, Json>): number =>
      numberAt(side, 'bandwidth', 'llama3_8b_lmcache_driven', `${verb}_GBps`, 'median');
    const small = (side: Record<string, Json>): number =>
      numberAt(side, 'bandwidth', 'small_lmcache_driven', `${verb}_GBps`, 'median');
    const name = verb.toUpperCase();
    rows.push(
      higherIsBetter(`${name} 32 MiB chunks`, 'GB/s', large, results, verb === 'store' ? 4 : 2),
    );
    const limit = numberAt(results.kvd, 'memcpy', 'transpose_256B_GBps');
    const value = large(results.kvd) / limit;
    rows.push({
      name: `${name} 32 MiB chunks, share of the driver's gather`,
      unit: 'GB/s',
      reference: limit,
      kvd: large(results.kvd),
      value,
      target: '≥ 0.8×',
      isReached: value >= 0.8,
    });
    rows.push(higherIsBetter(`${name} 512 KiB chunks`, 'GB/s', small, results, 3));
  }
  return rows;
}

/** The whole pair is measured, the driver's own part included. */
function engineDrivenRows(results: Results): Row[] {
  const pairs = (chunks: number, verb: string) => (side: Record<string, Json>) =>
    numberAt(side, 'prepare_commit', `${chunks}_chunks`, `${verb}_pairs_per_s`);
  const inline = (verb: string) => (side: Record<string, Json>) =>
    numberAt(side, 'pickle', `${verb}_GBps`);
  return ['store', 'retrieve'].flatMap((verb) => {
    const name = `PREPARE+COMMIT_${verb.toUpperCase()}`;
    return [
      higherIsBetter(`${name}, 1 chunk`, '1/s', pairs(1, verb), results, 3),
      higherIsBetter(`${name}, 16 chunks`, '1/s', pairs(16, verb), results, 4),
      higherIsBetter(`inline ${verb} of 32 MiB`, 'GB/s', inline(verb), results, 2),
    ];
  });
}

function beside(results: Results): Row[] {
  return ['lookup', 'ping'].map((what) => {
    const added = (side: Record<string, Json>): number =>
      (numberAt(side, 'hol', 'under_store', `${what}_us`, 'p99') -
        numberAt(side, 'hol', 'idle', `${what}_us`, 'p99')) /
      1000;
    const kvd = added(results.kvd);
    return {
      name: `${what.toUpperCase()} p99 added by STOREs beside (load in the driver's own process)`,
      unit: 'ms',
      reference: added(results.reference),
      kvd,
      value: kvd,
      target: '≤ 2 ms',
      isReached: kvd <= 2,
    };
  });
}

function allRows(results: Results): Row[] {
  const start = (side: Record<string, Json>): number =>
    numberAt(side, 'startup', 'to_first_ping_s', 'median');
  const idle = (side: Record<string, Json>): number =>
    numberAt(side, 'startup', 'idle', 'rss_mib') -
    numberAt(side, 'startup', 'idle', 'of_which_shmem_mib');
  const ping = (side: Record<string, Json>): number =>
    numberAt(side, 'latency', 'ping_us', 'p50') - floorUs(side, 0, 'p50');
  const rate = (kind: string) => (side: Record<string, Json>) =>
    numberAt(side, 'throughput', `8192_${kind}_32_clients`, 'lookups_per_s');
  return [
    lowerIsBetter('start to first PING', 's', start, results, 20),
    lowerIsBetter('idle resident memory without L1', 'MiB', idle, results, 6),
    lowerIsBetter('PING p50 net', 'µs', ping, results, 3),
    ...lookupRows(results),
    higherIsBetter('LOOKUP 8k hit, 32 clients', '1/s', rate('hit'), results, 4),
    higherIsBetter('LOOKUP 8k miss, 32 clients', '1/s', rate('miss'), results, 4),
    ...bandwidthRows(results),
    ...engineDrivenRows(results),
    ...beside(results),
  ];
}

function printTable(rows: readonly Row[]): void {
  const show = (value: number): string =>
    Number.isNaN(value) ? '-' : value.toFixed(Math.abs(value) >= 100 ? 0 : 2);
  console.log('| what | reference | kvd | ratio | target | |\n|---|---|---|---|---|---|');
  for (const { name, unit, reference, kvd, value, target, isReached } of rows) {
    if (Number.isNaN(reference) && Number.isNaN(kvd)) continue;
    console.log(
      `| ${name} (${unit}) | ${show(reference)} | ${show(kvd)} | ${show(value)} | ${target} | ` +
        `${isReached ? 'reached' : 'MISSED'} |`,
    );
  }
}

// ---------------------------------------------------------------- running

interface Options {
  readonly groups: readonly string[];
  readonly kvd: string;
  readonly rest: readonly string[];
}

function parseArguments(given: readonly string[]): Options {
  let groups = PART_GROUPS;
  let kvd = `${path.join(ROOT, 'dist/kvd')} server`;
  const rest: string[] = [];
  for (let index = 0; index < given.length; index += 1) {
    const argument = given[index] ?? '';
    if (argument === '--parts') {
      index += 1;
      const names = (given[index] ?? '').split(',');
      groups = PART_GROUPS.filter((group) => group.split(',').some((part) => names.includes(part)));
    } else if (argument === '--kvd') {
      index += 1;
      kvd = given[index] ?? '';
    } else if (argument !== '--') rest.push(argument);
  }
  return { groups, kvd, rest };
}

function main(): number {
  const drivers = findDrivers();
  if (drivers === null) {
    console.log('bench:peer: needs ../shared/conformance or KVD_CONFORMANCE_DIR');
    return 1;
  }
  const options = parseArguments(process.argv.slice(2));
  const bin = path.dirname(findPython('reference'));
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'kvd-bench-'));
  const commands: Record<Side, string> = {
    reference: `${path.join(bin, 'lmcache')} server ${FLAGS}`,
    kvd: `${options.kvd} ${FLAGS}`,
  };
  const results: Results = { reference: {}, kvd: {} };
  for (const group of options.groups) {
    for (const side of ['reference', 'kvd'] as const) {
      console.error(`==== ${group}: ${side}`);
      const out = path.join(folder, `${side}.json`);
      fs.rmSync(out, { force: true });
      const file = path.join(drivers, 'bench.py');
      const args = ['--server-cmd', commands[side], '--parts', group, '--out', out];
      spawnSync(path.join(bin, 'python'), [file, ...args, ...options.rest], {
        cwd: ROOT,
        env: DRIVER_ENVIRONMENT,
        stdio: ['ignore', 'ignore', 'inherit'],
      });
      if (fs.existsSync(out)) {
        Object.assign(results[side], JSON.parse(fs.readFileSync(out, 'utf8')));
      } else console.error(`==== ${group}: ${side} gave no results`);
    }
  }
  fs.rmSync(folder, { recursive: true });
  const rows = allRows(results);
  const date = new Date().toISOString().slice(0, 16).replace('T', '-').replace(':', '');
  const file = path.join(ROOT, `build/bench/peer-${date}.json`);
  fs.mkdirSync(path.dirname(file), { recursive: true });
  const machine = { cpu: os.cpus()[0]?.model, cores: os.cpus().length, kernel: os.release() };
  fs.writeFileSync(file, `${JSON.stringify({ machine, commands, rows, results }, null, 1)}\n`);
  printTable(rows);
  console.log(`\nraw results: ${path.relative(ROOT, file)}`);
  return 0;
}

process.exitCode = main();
