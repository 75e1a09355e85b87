/**
 * argv, environment and file → `ServerConfig`, or every problem at once.
 *
 * Never throws for bad input and prints nothing: `cli/server.ts` decides how to show problems.
 */
import { readFileSync } from 'node:fs';
import { checkSettings } from './checks.ts';
import { type Problem, parseCommandLine } from './command-line.ts';
import { buildServerConfig, type ServerConfig } from './config.ts';
import { FLAGS } from './flags.ts';
import { Settings } from './settings.ts';
import { type Environment, readEnvironment, readSettings } from './sources.ts';

export interface Loaded {
  /** null when there are problems. */
  readonly config: ServerConfig | null;
  readonly problems: readonly Problem[];
  readonly warnings: readonly string[];
  readonly wantsHelp: boolean;
}

const TOKEN_LENGTH_MIN = 16;

/** The bearer token: the first line of the file, or the variable; null = none asked for. */
function readHttpToken(settings: Settings, environment: Environment, problems: Problem[]) {
  const path = settings.textOrNull('--http-token-file');
  const fromVariable = environment['KVD_HTTP_TOKEN'] ?? '';
  if (path === null) {
    if (fromVariable === '') return null;
    return checkToken(fromVariable.trim(), 'KVD_HTTP_TOKEN', problems);
  }
  try {
    const firstLine = readFileSync(path, 'utf8').split('\n', 1)[0]!;
    return checkToken(firstLine.trim(), path, problems);
  } catch (error) {
    problems.push({ flag: '--http-token-file', reason: (error as Error).message });
    return null;
  }
}

function checkToken(token: string, origin: string, problems: Problem[]): string {
  // A header cannot carry anything else, and an empty file must not switch protection off.
  if (!/^[\x21-\x7e]*$/.test(token) || token.length < TOKEN_LENGTH_MIN) {
    const reason = `expected at least ${TOKEN_LENGTH_MIN} visible ASCII characters in ${origin}`;
    problems.push({ flag: '--http-token-file', reason });
  }
  return token;
}

/** The SDK of OpenTelemetry reads them (observability/resource.ts). */
const RESOURCE_VARIABLES = ['OTEL_RESOURCE_ATTRIBUTES', 'OTEL_SERVICE_NAME'];

export function loadServerConfig(
  argv: readonly string[],
  environment: Environment = readEnvironment(),
): Loaded {
  const commandLine = parseCommandLine(argv, FLAGS);
  const read = readSettings(FLAGS, commandLine, environment);
  const settings = new Settings(read.settings);
  const findings = checkSettings(FLAGS, settings);
  const problems = [...commandLine.problems, ...read.problems];
  const faulty = new Set(problems.map((problem) => problem.flag));
  // A required flag with a bad value is one problem, not two.
  problems.push(...findings.problems.filter((problem) => !faulty.has(problem.flag)));
  const httpToken = readHttpToken(settings, environment, problems);
  const found = {
    httpToken,
    hashSeed: environment['PYTHONHASHSEED'] || null,
    hasResourceVariables: RESOURCE_VARIABLES.some((name) => environment[name]),
  };
  return {
    config: problems.length > 0 ? null : buildServerConfig(settings, found),
    problems,
    warnings: [...read.warnings, ...findings.warnings],
    wantsHelp: commandLine.wantsHelp,
  };
}
