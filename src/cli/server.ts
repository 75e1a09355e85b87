/**
 * `kvd server`: configuration, logger, signals, exit code. The server itself is built in
 * `../server.ts`, which is loaded only after the configuration has been found good.
 *
 *   exit code  0   --help, --check, or stopped by SIGTERM or SIGINT
 *              1   cannot start (port taken, no memory, …), or the shutdown got stuck
 *              2   configuration: every problem as one line `kvd server: error: <flag>: <reason>`
 *              70  broken invariant (../assert.ts)
 *              130 second signal: at once, whatever is in flight
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { fatal } from '../assert.ts';
import { systemClock } from '../clock.ts';
import type { LogLevelName, ServerConfig } from '../config/config.ts';
import { checkL2Adapters } from '../config/l2-adapters.ts';
import { loadServerConfig } from '../config/load.ts';
import { readEnvironment } from '../config/sources.ts';
import { sizeThreadPool } from '../config/thread-pool.ts';
import { VERSION } from '../config/version.ts';
import { LineWriter } from '../observability/line-writer.ts';
import { createLogger, type Logger } from '../observability/log.ts';
import { LogLevels, parseLogLevels } from '../observability/log-levels.ts';
import type { Level } from '../observability/log-line.ts';
import { formatBytes } from '../units.ts';
import { EXIT_CODE_USAGE } from './arguments.ts';

const EXIT_CODE_SECOND_SIGNAL = 130;

/** Beyond the shutdown timeout: closing sockets and unlinking memory should take far less. */
const STUCK_SHUTDOWN_MS = 5_000;

/** An idle server allocates nothing, so V8 would keep what the start has left for ever (30 MB). */
function collectGarbage(): void {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
}

/**
 * V8 compiles a function (Maglev) after 400 calls, which is right for a page that is left again;
 * this process stays, and its first hundred requests must not be its slowest. Not given on the
 * command line: Node refuses its own compiled code, and ours, when V8 starts with other flags.
 */
const V8_FLAGS = ['--invocation-count-for-maglev=30', '--minimum-invocations-after-ic-update=30'];

const LEVELS: Readonly<Record<LogLevelName, Level>> = {
  DEBUG: 'debug',
  INFO: 'info',
  WARNING: 'warn',
  ERROR: 'error',
  CRITICAL: 'error',
};

function printError(text: string): void {
  process.stderr.write(`kvd server: error: ${text}\n`);
}

function levelsOf(config: ServerConfig): LogLevels {
  const parsed = parseLogLevels(config.roomLogLevels);
  const rooms = 'rooms' in parsed ? parsed.rooms : new Map<string, Level>();
  return new LogLevels({ root: LEVELS[config.logLevel], rooms });
}

async function openLog(
  config: ServerConfig,
  levels: LogLevels,
  lines: LineWriter,
): Promise<Logger> {
  const noColour = readEnvironment()['NO_COLOR'] ?? '';
  return createLogger({
    format: config.logFormat,
    level: levels,
    clock: systemClock,
    hasColours: process.stderr.isTTY === true && noColour === '',
    write: (line) => lines.write(line),
  });
}

/** Resolves at the first SIGTERM or SIGINT; the second one ends the process. */
function watchSignals(log: Logger): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  let isStopping = false;
  const onSignal = (signal: string) => {
    if (isStopping) process.exit(EXIT_CODE_SECOND_SIGNAL);
    isStopping = true;
    log.info(`${signal}: shutting down; a second signal ends at once`);
    resolve(signal);
  };
  process.on('SIGTERM', onSignal);
  process.on('SIGINT', onSignal);
  // Log files are reopened by whoever reads stderr; dying of it would surprise.
  process.on('SIGHUP', () => log.info('SIGHUP: nothing to reopen, the log goes to stderr'));
  return promise;
}

function watchBrokenInvariants(): void {
  const die = (error: unknown) => {
    const stack = error instanceof Error ? error.stack : String(error);
    fatal('unexpected error outside of any request', { stack });
  };
  process.on('uncaughtException', die);
  process.on('unhandledRejection', die);
}

async function serve(
  config: ServerConfig,
  { log, levels, lines }: { log: Logger; levels: LogLevels; lines: LineWriter },
): Promise<number> {
  const stopSignal = watchSignals(log);
  watchBrokenInvariants();
  const { startServer } = await import('../server.ts');
  let server: Awaited<ReturnType<typeof startServer>>;
  try {
    const lostLineCount = () => lines.lostCount;
    server = await startServer({ config, log, levels, lostLineCount, collectGarbage });
  } catch (error) {
    printError(error instanceof Error ? error.message : String(error));
    log.debug('start failed', { stack: error instanceof Error ? error.stack : '' });
    return 1;
  }
  for (const flag of V8_FLAGS) setFlagsFromString(flag);
  await stopSignal;
  const startMs = systemClock.preciseMs();
  systemClock.after(config.shutdownTimeoutMs + STUCK_SHUTDOWN_MS, () => {
    log.error('the shutdown is stuck, giving up');
    process.exit(1);
  });
  await server.close();
  log.info(`stopped after ${((systemClock.preciseMs() - startMs) / 1000).toFixed(2)} s`);
  return 0;
}

export async function run(argv: readonly string[]): Promise<number> {
  const { config, problems, warnings, wantsHelp } = loadServerConfig(argv);
  if (wantsHelp) {
    const { renderHelp } = await import('../config/help.ts');
    process.stdout.write(renderHelp());
    return 0;
  }
  for (const { flag, reason } of problems) printError(`${flag}: ${reason}`);
  if (!config) return EXIT_CODE_USAGE;
  const adapters = await checkL2Adapters(config.l2.adapters);
  for (const problem of adapters.problems) printError(problem);
  if (adapters.problems.length > 0) return EXIT_CODE_USAGE;
  if (config.settings.isOn('--check')) {
    const { renderSettings } = await import('../config/help.ts');
    for (const warning of [...warnings, ...adapters.warnings])
      process.stderr.write(`kvd server: warning: ${warning}\n`);
    process.stdout.write(renderSettings(config.settings));
    return 0;
  }
  sizeThreadPool(config.settings.objects('--l2-adapter'));
  const lines = new LineWriter(process.stderr);
  process.once('exit', () => lines.flush());
  const levels = levelsOf(config);
  const log = await openLog(config, levels, lines);
  for (const warning of warnings) log.warn(warning);
  const l1 = formatBytes(config.l1SizeBytes);
  log.info(`kvd ${VERSION} starting: L1 ${l1}, chunks of ${config.chunkSizeTokens} tokens`, {
    eviction: config.evictionPolicy,
    hash: config.hashAlgorithm,
    pid: process.pid,
  });
  return serve(config, { log, levels, lines });
}
