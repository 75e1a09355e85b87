/**
 * Where settings come from, and the one place that reads `process.env` for them (`native.ts`
 * reads its own few variables, because addons load before there is a configuration).
 *
 * Precedence: flag, then `KVD_<FLAG>`, then the variable of the reference, then the file of
 * `--config`, then the default. An empty variable counts as not set: charts often pass them.
 */
import { readFileSync } from 'node:fs';
import type { CommandLine, Problem } from './command-line.ts';
import { suggestName } from './command-line.ts';
import type { FlagSpec } from './flag-spec.ts';
import { convertValue } from './flag-values.ts';
import { environmentName } from './flags.ts';
import type { Setting, Source } from './settings.ts';

export type Environment = Readonly<Record<string, string | undefined>>;

export function readEnvironment(): Environment {
  return process.env;
}

interface RawValue {
  readonly raw: unknown;
  readonly source: Source;
  readonly origin: string;
}

export interface ReadSettings {
  readonly settings: Map<string, Setting>;
  readonly problems: Problem[];
  readonly warnings: string[];
}

/** Settings of the file of `--config`, keyed by flag name. */
function readConfigFile(path: string, flags: readonly FlagSpec[], problems: Problem[]) {
  const entries = new Map<string, unknown>();
  let document: unknown;
  try {
    document = JSON.parse(readFileSync(path, 'utf8'));
  } catch (error) {
    problems.push({ flag: '--config', reason: `${path}: ${(error as Error).message}` });
    return entries;
  }
  if (typeof document !== 'object' || document === null || Array.isArray(document)) {
    problems.push({ flag: '--config', reason: `${path}: expected one JSON object` });
    return entries;
  }
  const names = new Map<string, FlagSpec>();
  for (const flag of flags) {
    if (flag.isCommandLineOnly) continue;
    for (const name of [flag.name, ...(flag.aliases ?? [])]) names.set(name.slice(2), flag);
  }
  for (const [key, value] of Object.entries(document)) {
    const flag = names.get(key.replace(/^--/, '').replaceAll('_', '-'));
    if (flag) {
      entries.set(flag.name, value);
      continue;
    }
    const reason = `${path}: unknown setting '${key}'${suggestName(key, [...names.keys()])}`;
    problems.push({ flag: '--config', reason });
  }
  return entries;
}

function readVariable(flag: FlagSpec, environment: Environment): RawValue | undefined {
  if (flag.isCommandLineOnly) return undefined;
  for (const origin of [environmentName(flag.name), ...(flag.environment ?? [])]) {
    const raw = environment[origin];
    if (raw !== undefined && raw !== '') return { raw, source: 'environment', origin };
  }
  return undefined;
}

const defaultOf = (flag: FlagSpec): Setting => ({
  value: flag.default,
  source: 'default',
  origin: '',
});

export function readSettings(
  flags: readonly FlagSpec[],
  commandLine: CommandLine,
  environment: Environment,
): ReadSettings {
  const settings = new Map<string, Setting>();
  const problems: Problem[] = [];
  const warnings: string[] = [];
  const path = commandLine.given.get('--config');
  const file =
    typeof path === 'string' ? readConfigFile(path, flags, problems) : new Map<string, unknown>();

  const find = (flag: FlagSpec): RawValue | undefined => {
    const given = commandLine.given.get(flag.name);
    if (given !== undefined) return { raw: given, source: 'flag', origin: '' };
    const variable = readVariable(flag, environment);
    if (variable) return variable;
    const raw = file.get(flag.name);
    return raw === undefined ? undefined : { raw, source: 'file', origin: String(path) };
  };

  for (const flag of flags) {
    settings.set(flag.name, defaultOf(flag));
    const found = find(flag);
    if (!found) continue;
    const { raw, source, origin } = found;
    if (raw === null) {
      problems.push({ flag: flag.name, reason: 'expected a value' });
      continue;
    }
    const converted = convertValue(flag, raw);
    if ('value' in converted) {
      settings.set(flag.name, { value: converted.value, source, origin });
      continue;
    }
    const reason = origin === '' ? converted.reason : `${converted.reason} (from ${origin})`;
    if (flag.isEnvironmentLenient && flag.environment?.includes(origin)) {
      warnings.push(`${flag.name}: ${reason}; using ${String(flag.default)}`);
    } else problems.push({ flag: flag.name, reason });
  }
  return { settings, problems, warnings };
}
