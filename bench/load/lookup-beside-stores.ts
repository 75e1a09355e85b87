/**
 * Does a LOOKUP wait when workers store? (8k tokens, nothing cached, p50 and p99.)
 *
 *   [probe] ──LOOKUP──▶ [kvd]  ◀──STOREs── [load]         each in a process of its own
 *      └─────the same──▶ [echo]
 *
 * Four phases per round, rounds one after the other so that drift of the machine cancels: echo and
 * kvd idle, echo and kvd with the load running. The load always goes to kvd; while the echo server
 * is measured it takes the machine's cores in the same way. What the load adds to kvd's net times
 * (kvd less echo) is what kvd is to blame for. The verdict takes the median of the rounds' p99: one
 * burst of foreign work does not decide it. The table has the p99 of all samples, too.
 *
 * For the server of this run the kernel's account of its main thread is shown, too: how long per
 * LOOKUP it worked and how long it was ready but had no core.
 */
import { randomBytes } from 'node:crypto';
import type { BenchWorker } from '../../src/client/load/bench-worker.ts';
import { EchoServer } from './echo-server.ts';
import { LookupProbe } from './lookup-probe.ts';
import { micros, type Report, summarize } from './report.ts';
import { type CoreUse, coreUseOf, openServer } from './server.ts';
import { SmallObjectWorker } from './small-object-worker.ts';
import { type LoadResult, StoreLoad } from './store-load.ts';

const TOKEN_COUNT = 8192;
const PAUSE_MS = 2;
const ADDED_MS_MAX = 2;
const WARM_UP_MS = 2_000;
const FLAGS = {
  '--chunk-size': 256,
  '--l1-size-gb': 4,
  '--eviction-policy': 'LRU',
};

type Condition = 'idle' | BenchWorker['mode'];
type TargetName = 'echo' | 'kvd';

/** What all rounds of one phase have found. */
interface Phase {
  readonly condition: Condition;
  readonly target: TargetName;
  readonly samples: number[];
  /** Of each round, to see how far rounds differ. */
  readonly p99MsOfRounds: number[];
  /** Of the target's main thread, together. */
  core: CoreUse | null;
}

interface Bench {
  readonly probe: LookupProbe;
  readonly targets: Record<TargetName, { readonly url: string; readonly pid: number | null }>;
  readonly modelName: string;
  readonly phases: Phase[];
  readonly loads: { readonly mode: BenchWorker['mode']; readonly result: LoadResult }[];
  readonly phaseMs: number;
}

export async function measureLookupBesideStores(options: {
  readonly url: string | null;
  readonly rounds: number;
  readonly seconds: number;
}): Promise<Report> {
  const echo = await EchoServer.start();
  const server = await openServer(FLAGS, options.url);
  const probe = new LookupProbe();
  const modelName = `beside-stores-${randomBytes(6).toString('hex')}`;
  const targets = { echo, kvd: server };
  const phaseMs = options.seconds * 1000;
  const bench: Bench = { probe, targets, modelName, phases: [], loads: [], phaseMs };
  try {
    // Without a worker of its model a LOOKUP is answered before it is hashed.
    const worker = await SmallObjectWorker.register(server.url, modelName);
    for (const target of ['echo', 'kvd'] as const) await lookUp(bench, target, WARM_UP_MS);
    for (const mode of ['engine_driven', 'lmcache_driven'] as const) {
      const load = await StoreLoad.open({
        url: server.url,
        mode,
        modelName: `${modelName}-${mode}`,
      });
      await measureRounds(bench, { mode, load, rounds: options.rounds });
      await load.stop();
    }
    await worker.unregister();
    return reportOf(bench);
  } finally {
    await probe.stop();
    await echo.stop();
    await server.stop();
  }
}

async function measureRounds(
  bench: Bench,
  of: { readonly mode: BenchWorker['mode']; readonly load: StoreLoad; readonly rounds: number },
): Promise<void> {
  // Not counted: the first stores touch pages of L1 and code that nobody has used yet.
  await of.load.begin();
  await lookUp(bench, 'kvd', WARM_UP_MS);
  await of.load.end();
  for (let round = 0; round < of.rounds; round += 1) {
    for (const target of ['echo', 'kvd'] as const) await measurePhase(bench, 'idle', target);
    await of.load.begin();
    for (const target of ['echo', 'kvd'] as const) await measurePhase(bench, of.mode, target);
    bench.loads.push({ mode: of.mode, result: await of.load.end() });
  }
}

async function measurePhase(bench: Bench, condition: Condition, target: TargetName): Promise<void> {
  const { pid } = bench.targets[target];
  const before = pid === null ? null : coreUseOf(pid);
  const samples = await lookUp(bench, target, bench.phaseMs);
  const after = pid === null ? null : coreUseOf(pid);
  let phase = bench.phases.find((p) => p.condition === condition && p.target === target);
  if (!phase) {
    phase = { condition, target, samples: [], p99MsOfRounds: [], core: null };
    bench.phases.push(phase);
  }
  for (const ms of samples) phase.samples.push(ms);
  phase.p99MsOfRounds.push(summarize(samples).p99Ms);
  if (!before || !after) return;
  phase.core = {
    runMs: (phase.core?.runMs ?? 0) + after.runMs - before.runMs,
    waitMs: (phase.core?.waitMs ?? 0) + after.waitMs - before.waitMs,
  };
}

function lookUp(bench: Bench, target: TargetName, durationMs: number): Promise<Float64Array> {
  const { url } = bench.targets[target];
  const plan = {
    url,
    modelName: bench.modelName,
    tokenCount: TOKEN_COUNT,
    sequences: [1],
    expectedChunkCount: target === 'kvd' ? 0 : null,
    pauseMs: PAUSE_MS,
  };
  return bench.probe.measure(plan, durationMs);
}

function reportOf({ phases, loads }: Bench): Report {
  const p99MsOf = (condition: Condition, target: TargetName): number => {
    const phase = phases.find((p) => p.condition === condition && p.target === target);
    return summarize(phase?.p99MsOfRounds ?? []).p50Ms;
  };
  const netMs = (condition: Condition) => p99MsOf(condition, 'kvd') - p99MsOf(condition, 'echo');
  const rows = phases.map(({ condition, target, samples, p99MsOfRounds, core }) => {
    const { count, p50Ms, p99Ms, maxMs } = summarize(samples);
    const perLookup = (ms: number) => (core ? micros(ms / count) : null);
    return [
      condition === 'idle' ? 'idle' : `${condition} STOREs`,
      target,
      micros(p50Ms),
      micros(summarize(p99MsOfRounds).p50Ms),
      micros(p99Ms),
      micros(maxMs),
      count,
      core ? perLookup(core.runMs) : null,
      core ? perLookup(core.waitMs) : null,
    ];
  });
  const modes = ['engine_driven', 'lmcache_driven'] as const;
  return {
    name: 'lookup-beside-stores',
    header: [
      'load',
      'target',
      'p50 µs',
      'p99 of a round µs',
      'p99 of all µs',
      'max µs',
      'n',
      'main thread ran µs',
      'waited for core µs',
    ],
    rows,
    verdicts: modes.map((mode) => ({
      what: `LOOKUP p99 added by ${mode} STOREs (${rateOf(loads, mode)} GB/s), net of echo`,
      value: netMs(mode) - netMs('idle'),
      unit: ' ms',
      target: ADDED_MS_MAX,
    })),
    details: {
      loads,
      phases: phases.map(({ samples, ...rest }) => ({ ...rest, ...summarize(samples) })),
    },
  };
}

function rateOf(loads: Bench['loads'], mode: BenchWorker['mode']): string {
  const results = loads.filter((load) => load.mode === mode).map(({ result }) => result);
  const sum = (read: (result: LoadResult) => number) =>
    results.reduce((total, result) => total + read(result), 0);
  return (sum(({ bytes }) => bytes) / sum(({ seconds }) => seconds) / 1e9).toFixed(1);
}
