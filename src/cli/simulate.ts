/**
 * `kvd simulate`: which eviction policy, and how much memory? Replays lookup-hash logs, or requests
 * that it makes up, through the policies of core.wasm (simulate-cache.ts).
 *
 *   exit code  0    the hit rates are printed
 *              1    a log cannot be read, or has no lookups
 *              2    the command line
 *              130  broken off by a signal
 *
 * Nothing but the result goes to stdout. Equal input gives equal output, to the last digit.
 */
import { writeFileSync } from 'node:fs';
import { parseSimulateArguments, type SimulateArguments } from './simulate-arguments.ts';
import { SimulatedCache } from './simulate-cache.ts';
import { readLogs } from './simulate-log.ts';
import {
  formatSimulation,
  type SimulatedRun,
  type SimulationResult,
  simulationJson,
  summarize,
} from './simulate-report.ts';
import { makeWorkload, type Workload } from './simulate-workload.ts';

const EXIT_CODE_SIGNAL = 130;
/** Requests between two looks at the signals and the bar: some milliseconds. */
const SLICE_REQUEST_COUNT = 256;
/** Sizes of L1 when none are given, as parts of what is looked up. */
const DEFAULT_PARTS = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1];

interface Progress {
  advance(requestCount: number): void;
  stop(): void;
}

const NO_PROGRESS: Progress = { advance: () => {}, stop: () => {} };

/** A bar on stderr when that is a terminal, and otherwise nothing. */
async function showProgress(total: number, isQuiet: boolean): Promise<Progress> {
  if (isQuiet || process.stderr.isTTY !== true) return NO_PROGRESS;
  const { SingleBar, Presets } = (await import('cli-progress')).default;
  const bar = new SingleBar(
    {
      format: 'kvd simulate |{bar}| {percentage} %, {eta_formatted} to go',
      stream: process.stderr,
      hideCursor: true,
      clearOnComplete: true,
    },
    Presets.shades_classic,
  );
  bar.start(total, 0);
  return { advance: (count) => bar.increment(count), stop: () => bar.stop() };
}

async function replay(cache: SimulatedCache, workload: Workload, progress: Progress) {
  const { requests } = workload;
  for (let first = 0; first < requests.length; first += SLICE_REQUEST_COUNT) {
    const slice = requests.slice(first, first + SLICE_REQUEST_COUNT);
    for (const request of slice) cache.replay(request);
    progress.advance(slice.length);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

async function simulate(options: SimulateArguments): Promise<SimulationResult> {
  const { policies, watermarkRatio, evictionRatio, log, synthetic } = options;
  const logged = log ? await readLogs(log) : null;
  const workload = logged ?? makeWorkload(synthetic!);
  const summary = summarize(workload);
  const parts = DEFAULT_PARTS.map((part) => Math.ceil(part * summary.distinctBytes));
  const sizes = options.sizesBytes ?? parts;
  const runCount = policies.length * sizes.length;
  const isQuiet = options.report.quiet === true;
  const progress = await showProgress(runCount * workload.requests.length, isQuiet);
  const onSignal = () => {
    progress.stop();
    process.exit(EXIT_CODE_SIGNAL);
  };
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(name, onSignal);
  const runs: SimulatedRun[] = [];
  for (const sizeBytes of sizes) {
    for (const policy of policies) {
      const rules = { watermarkRatio, evictionRatio };
      const cache = new SimulatedCache({ workload, policy, sizeBytes, ...rules });
      await replay(cache, workload, progress);
      const { perTenant, evictedChunkCount, refusedChunkCount } = cache;
      runs.push({ policy, sizeBytes, cache: { perTenant, evictedChunkCount, refusedChunkCount } });
    }
  }
  progress.stop();
  return {
    ...{ workload, summary, runs },
    seed: synthetic?.seed ?? null,
    skippedLineCount: logged?.skippedLineCount ?? 0,
  };
}

export async function run(argv: readonly string[]): Promise<number> {
  const options = parseSimulateArguments(argv);
  if (!options) return 0;
  const result = await simulate(options);
  const { format, output, quiet } = options.report;
  const text = format === 'json' ? simulationJson(result) : formatSimulation(result);
  if (output !== undefined) writeFileSync(output, text);
  else if (!quiet) process.stdout.write(text);
  return 0;
}
