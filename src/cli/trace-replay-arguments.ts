/**
 * Command line of `kvd trace replay`: its own flags by exact name, and those of `kvd server`, which
 * may be shortened, in any order. `--trace-*` is left out: a replay is not recorded.
 */
import type { ServerConfig } from '../config/config.ts';
import type { FlagSpec } from '../config/flag-spec.ts';
import { FLAGS } from '../config/flags.ts';
import { checkL2Adapters } from '../config/l2-adapters.ts';
import { loadServerConfig } from '../config/load.ts';
import { CommandError, clientCommand, EXIT_CODE_USAGE, parseArguments } from './arguments.ts';
import { NumberReader } from './number-reader.ts';
import type { ReportOptions } from './report.ts';

export interface ReplayArguments {
  readonly file: string;
  readonly config: ServerConfig;
  readonly warnings: readonly string[];
  /** How many times faster than recorded; infinite = without any wait. */
  readonly speed: number;
  readonly isVerbose: boolean;
  /** Null: records are written nowhere. */
  readonly recordsPath: string | null;
  readonly outputFolder: string;
  readonly hasCsv: boolean;
  readonly hasJson: boolean;
  readonly report: ReportOptions;
}

interface RawOptions extends ReportOptions {
  readonly verbose?: boolean;
  readonly jsonlOut?: string;
  readonly outputDir: string;
  readonly csv: boolean;
  readonly json?: boolean;
  readonly speed: string;
}

const SPEED_MIN = 0.001;
const SPEED_MAX = 1_000_000;

/** Own flags, and whether a value follows. */
const OWN_FLAGS: Readonly<Record<string, boolean>> = {
  '--verbose': false,
  '--no-csv': false,
  '--json': false,
  '-q': false,
  '--quiet': false,
  '-h': false,
  '--help': false,
  '--jsonl-out': true,
  '--output-dir': true,
  '--speed': true,
  '--format': true,
  '--output': true,
};

function replayCommand() {
  return clientCommand('trace replay', 'Make the calls of a trace again, of a fresh storage room.')
    .argument('<file>', 'a .lct trace file')
    .option('--verbose', 'print a line for each record')
    .option('--jsonl-out <path>', 'write a JSON object for each record')
    .option('--output-dir <folder>', 'where figures by call go', '.')
    .option('--no-csv', 'write no trace_replay_ops.csv there')
    .option('--json', 'write trace_replay_summary.json there')
    .option('--speed <factor>', 'times faster than recorded; max = without any wait', '1')
    .addHelpText(
      'after',
      '\nThe storage room is that of the storage flags: --l1-size-gb X --eviction-policy LRU\n' +
        'and any other of `kvd server --help` under L1 memory, Eviction and L2 storage.',
    );
}

/** The words that are ours, file included, and those for the storage room. */
export function splitWords(argv: readonly string[]): { own: string[]; server: string[] } {
  const own: string[] = [];
  const server: string[] = [];
  for (let i = 0; i < argv.length; ) {
    const [name = ''] = (argv[i] as string).split('=', 1);
    const isOwn = Object.hasOwn(OWN_FLAGS, name) || !name.startsWith('-');
    const hasValue = isOwn ? OWN_FLAGS[name] === true : kindOf(name) === 'value';
    let end = i + 1;
    if (hasValue && !argv[i]?.includes('=')) end += 1;
    while (!isOwn && kindOf(name) === 'list' && end < argv.length && !argv[end]?.startsWith('-')) {
      end += 1;
    }
    const isIgnored = name.startsWith('--trace-');
    if (isOwn) own.push(...argv.slice(i, end));
    else if (!isIgnored) server.push(...argv.slice(i, end));
    i = end;
  }
  return { own, server };
}

/** What follows a flag of the server, which may be shortened. */
function kindOf(name: string): 'nothing' | 'value' | 'list' {
  const spellings = ({ name: full, aliases = [] }: FlagSpec) => [full, ...aliases];
  const flag = FLAGS.find((row) => spellings(row).some((full: string) => full === name));
  const meant = flag ?? FLAGS.find((row) => spellings(row).some((full) => full.startsWith(name)));
  if (!meant || meant.type === 'switch' || meant.type === 'pair') return 'nothing';
  return meant.type === 'list' ? 'list' : 'value';
}

const problemsOf = (lines: readonly string[]) =>
  new CommandError(
    lines.map((line) => `kvd trace replay: error: ${line}`).join('\n'),
    EXIT_CODE_USAGE,
  );

/** Null: help was asked for and printed. */
export async function parseReplayArguments(
  argv: readonly string[],
): Promise<ReplayArguments | null> {
  const words = splitWords(argv);
  const parsed = parseArguments<RawOptions>(replayCommand(), words.own);
  if (!parsed) return null;
  const { options, args } = parsed;
  const reader = new NumberReader();
  const speed =
    options.speed === 'max'
      ? Number.POSITIVE_INFINITY
      : reader.number('--speed', options.speed, SPEED_MIN, SPEED_MAX);
  const { config, problems, warnings } = loadServerConfig(words.server);
  const lines = [...reader.problems, ...problems.map(({ flag, reason }) => `${flag}: ${reason}`)];
  if (!config || lines.length > 0) throw problemsOf(lines);
  const adapters = await checkL2Adapters(config.l2.adapters);
  if (adapters.problems.length > 0) throw problemsOf(adapters.problems);
  return {
    file: args[0] as string,
    config,
    warnings: [...warnings, ...adapters.warnings],
    speed,
    isVerbose: options.verbose === true,
    recordsPath: options.jsonlOut ?? null,
    outputFolder: options.outputDir,
    hasCsv: options.csv,
    hasJson: options.json === true,
    report: options,
  };
}
