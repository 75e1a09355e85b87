/**
 * `kvd trace replay FILE`: makes the calls of a trace again, of a fresh storage room, each when it
 * was made or `--speed` times faster.
 *
 *   exit code  0    every call that could be made was
 *              1    one has failed, or the file is no trace, or the room cannot be opened
 *              2    the command line
 *              130  broken off by a signal; what was measured until then is printed
 *
 * stdout has the result, and with --verbose a line for each record; all else goes to stderr.
 */
import fs from 'node:fs';
import path from 'node:path';
import { MessageChannel } from 'node:worker_threads';
import { systemClock } from '../clock.ts';
import { describeStorage } from '../config/describe-config.ts';
import { KvdError } from '../errors.ts';
import { createLogger, type Logger } from '../observability/log.ts';
import { describeStorageConfig } from '../observability/trace-file/storage-config.ts';
import { TraceReader } from '../observability/trace-file/trace-reader.ts';
import { CommandError } from './arguments.ts';
import { writeReport } from './report.ts';
import { summarizeTrace, type TraceSummary } from './trace-info.ts';
import { printable, traceProblem } from './trace-problem.ts';
import { parseReplayArguments, type ReplayArguments } from './trace-replay-arguments.ts';
import { replayTrace } from './trace-replay-driver.ts';
import { openReplayStorage } from './trace-replay-house.ts';
import { LineFile, type Progress, showProgress } from './trace-replay-output.ts';
import {
  formatReplayCsv,
  formatReplayJson,
  formatReplayLine,
  type ReplayedRecord,
  ReplayStatistics,
  type ReplaySummary,
  replayReport,
} from './trace-replay-report.ts';

const EXIT_CODE_SIGNAL = 130;
const COMMAND = 'kvd trace replay';
/** More lines about records that cannot be replayed help nobody. */
const WARNING_COUNT_MAX = 20;

/** Writes warnings, the first of them. */
function warner(): (message: string) => void {
  let count = 0;
  return (message) => {
    count += 1;
    if (count > WARNING_COUNT_MAX) return;
    const rest = count === WARNING_COUNT_MAX ? '; further warnings are not shown' : '';
    process.stderr.write(`${COMMAND}: warning: ${printable(message)}${rest}\n`);
  };
}

/** Warnings of the room, and what --log-level asks for. */
function openLog({ config }: ReplayArguments): Promise<Logger> {
  const levels = { DEBUG: 'debug', INFO: 'info', WARNING: 'warn', ERROR: 'error' } as const;
  const asked = config.settings.isGiven('--log-level') ? config.logLevel : 'WARNING';
  return createLogger({
    format: config.logFormat,
    level: asked === 'CRITICAL' ? 'error' : levels[asked],
    clock: systemClock,
    hasColours: false,
    write: (line) => void process.stderr.write(line),
  });
}

/** Stops the replay at the first signal, and the process at the second. */
function stopOnSignal(): AbortSignal {
  const controller = new AbortController();
  const onSignal = () => {
    if (controller.signal.aborted) process.exit(EXIT_CODE_SIGNAL);
    controller.abort();
  };
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, onSignal);
  return controller.signal;
}

/** An error that is the user's to solve as one line; any other as it is, with its stack. */
function explain(error: unknown): unknown {
  const { code, message } = error as NodeJS.ErrnoException;
  const isExpected = error instanceof KvdError || typeof code === 'string';
  return isExpected
    ? new CommandError(`${COMMAND}: error: ${message}`)
    : traceProblem(COMMAND, error);
}

async function replay(
  options: ReplayArguments,
  trace: TraceSummary,
  signal: AbortSignal,
): Promise<ReplaySummary> {
  const { file, config, speed, isVerbose, recordsPath, report } = options;
  const warn = warner();
  const lines = LineFile.open(recordsPath);
  const storage = await openReplayStorage(config, { log: await openLog(options), warn });
  const statistics = new ReplayStatistics();
  // Timers of the clock keep no process alive, and nothing else may be going on for minutes.
  const wakefulness = new MessageChannel();
  wakefulness.port1.ref();
  const isQuiet = report.quiet === true || isVerbose;
  const progress: Progress = await showProgress(trace.recordCount, isQuiet);
  let index = 0;
  const onRecord = (record: ReplayedRecord) => {
    index += 1;
    statistics.add(record);
    lines?.write(formatReplayLine(record));
    progress.advance();
    if (isVerbose) printRecord(record, index, trace.recordCount);
  };
  const reader = await TraceReader.open({ path: file, warn: () => {} });
  let durationSeconds: number;
  try {
    const records = reader.records();
    const clock = systemClock;
    durationSeconds = await replayTrace({ records, storage, clock, speed, signal, onRecord, warn });
  } finally {
    progress.stop();
    await reader.close();
    await storage.close();
    lines?.close();
    wakefulness.port1.close();
  }
  const { header } = trace;
  const { digest } = describeStorageConfig(describeStorage(options.config));
  return {
    level: header.level,
    ...{ durationSeconds, operations: statistics.operations() },
    replayedCount: statistics.replayedCount,
    skippedCount: statistics.skippedCount,
    failedCount: statistics.failedCount,
    digests: header.configDigest === '' ? null : { recorded: header.configDigest, run: digest },
  };
}

function printRecord(
  { qualname, latencyMs, outcome }: ReplayedRecord,
  index: number,
  count: number,
): void {
  const word = (outcome === 'done' ? 'OK' : 'FAIL').padEnd(4);
  const time = `${latencyMs.toFixed(3).padStart(8)}ms`;
  process.stdout.write(`  [${index}/${count}]  ${word} ${time}  ${printable(qualname)}\n`);
}

function writeFigures(options: ReplayArguments, summary: ReplaySummary): void {
  const { outputFolder, hasCsv, hasJson, report } = options;
  const files = [
    ...(hasCsv ? [['trace_replay_ops.csv', formatReplayCsv(summary.operations)] as const] : []),
    ...(hasJson ? [['trace_replay_summary.json', formatReplayJson(summary)] as const] : []),
  ];
  for (const [name, text] of files) {
    const file = path.join(outputFolder, name);
    fs.writeFileSync(file, text);
    if (!report.quiet) process.stderr.write(`${COMMAND}: ${file} written\n`);
  }
  writeReport(replayReport(summary), report);
}

export async function run(argv: readonly string[]): Promise<number> {
  const options = await parseReplayArguments(argv);
  if (!options) return 0;
  const warn = warner();
  for (const warning of options.warnings) warn(warning);
  try {
    const trace = await summarizeTrace(options.file, warn);
    if (trace.header.level !== 'storage') {
      const level = printable(trace.header.level);
      throw new CommandError(`${COMMAND}: error: expected a trace of level storage, got ${level}`);
    }
    // Before the work, so that its result has a place.
    fs.mkdirSync(options.outputFolder, { recursive: true });
    const signal = stopOnSignal();
    const summary = await replay(options, trace, signal);
    writeFigures(options, summary);
    if (signal.aborted) return EXIT_CODE_SIGNAL;
    return summary.failedCount > 0 ? 1 : 0;
  } catch (error) {
    throw explain(error);
  }
}
