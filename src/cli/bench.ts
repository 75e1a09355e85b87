/**
 * `kvd bench` = `lmcache bench server`: is this server fit to be used, and how fast is it?
 *
 *   exit code  0    every request was stored, found, and loaded without a wrong byte
 *              1    one was not, or there is no server, or (with --url) it is unhealthy
 *              2    the command line, or a shape that does not fit the chunks of the server
 *              130  broken off by a signal; what was measured until then is printed
 *
 * Nothing but the report goes to stdout.
 */
import type { BenchResult } from '../client/load/bench-run.ts';
import { systemClock } from '../clock.ts';
import { CommandError, EXIT_CODE_USAGE } from './arguments.ts';
import { type BenchArguments, parseBenchArguments } from './bench-arguments.ts';
import { type BenchProgress, showProgress } from './bench-progress.ts';
import { benchReport } from './bench-report.ts';
import { writeReport } from './report.ts';
import { fetchStatus } from './status-document.ts';

const EXIT_CODE_SIGNAL = 130;
/** A step of a request takes milliseconds; more means that the server does not answer. */
const ABORT_DEADLINE_MS = 2_000;

/** Aborts at the first signal, and ends the process at the second or when that does not help. */
function abortOnSignal(progress: BenchProgress): AbortSignal {
  const controller = new AbortController();
  const endNow = () => {
    progress.stop();
    process.exit(EXIT_CODE_SIGNAL);
  };
  const onSignal = () => {
    if (controller.signal.aborted) endNow();
    controller.abort();
    systemClock.after(ABORT_DEADLINE_MS, endNow);
  };
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, onSignal);
  return controller.signal;
}

async function measure({
  bench,
  report,
}: BenchArguments): Promise<{ readonly result: BenchResult; readonly isAborted: boolean }> {
  const { runBench } = await import('../client/load/bench-run.ts');
  const progress = await showProgress(bench, report.quiet === true);
  const signal = abortOnSignal(progress);
  try {
    const onProgress = progress.update;
    const result = await runBench({ ...bench, clock: systemClock, signal, onProgress });
    return { result, isAborted: signal.aborted };
  } catch (error) {
    throw explain(error, bench.url);
  } finally {
    progress.stop();
  }
}

/** An error that is the user's to solve as one line; any other as it is, with its stack. */
function explain(error: unknown, url: string): unknown {
  const { code, message, name } = error as Error & { readonly code?: unknown };
  if (code === 'ERR_TIMEOUT') return new CommandError(`No answer from ${url}: ${message}`);
  const isExpected = typeof code === 'string' || name === 'RefusedStepError';
  if (!isExpected) return error;
  const exitCode = code === 'ERR_BAD_REQUEST' ? EXIT_CODE_USAGE : 1;
  return new CommandError(`kvd bench: error: ${message}`, exitCode);
}

export async function run(argv: readonly string[]): Promise<number> {
  const parsed = parseBenchArguments(argv);
  if (!parsed) return 0;
  const { bench, httpUrl, report } = parsed;
  const { result, isAborted } = await measure(parsed);
  const status = httpUrl === null ? null : await fetchStatus(httpUrl, bench.timeoutMs);
  writeReport(benchReport(result, bench, status), report);
  if (isAborted) return EXIT_CODE_SIGNAL;
  const badCount = result.failureCount + result.mismatchCount;
  if (badCount > 0) {
    const first = result.failures[0];
    throw new CommandError(
      `${badCount} of ${result.requestCount} requests failed, ` +
        `first request ${first?.sequence}: ${first?.message}`,
    );
  }
  if (status !== null && status['is_healthy'] !== true) {
    throw new CommandError(`Server unhealthy: see ${httpUrl}/status`);
  }
  return result.requestCount > 0 ? 0 : 1;
}
