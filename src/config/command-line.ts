/**
 * `argv` → what was given for each flag, with the rules of the reference's parser (spec cli 2).
 *
 * commander does the parsing, built from the flag table. Two things it cannot do come first:
 * unambiguous prefixes (`--chunk 128`) are expanded, names of the reference 0.5.0 winning over
 * later ones, so that a new flag of ours never breaks a script; and of a repeated list only the
 * last one stays. All options take an optional value, so that a missing one becomes a problem in
 * our list and commander never ends the run at the first fault.
 */
import { Command, Option } from 'commander';
import type { FlagSpec } from './flag-spec.ts';

export interface Problem {
  readonly flag: string;
  readonly reason: string;
}

/** Text, list of texts, true/false for switches and pairs; null = the value is missing. */
export type GivenValue = string | readonly string[] | boolean | null;

export interface CommandLine {
  readonly given: ReadonlyMap<string, GivenValue>;
  readonly problems: readonly Problem[];
  readonly wantsHelp: boolean;
}

const SHORT_FLAGS: Readonly<Record<string, string>> = { '-h': '--help', '-q': '--quiet' };

interface Spelling {
  readonly spelling: string;
  /** What stands in the expanded command line: the row's name, or its negation. */
  readonly word: string;
  readonly isOriginal: boolean;
}

function listSpellings(flags: readonly FlagSpec[]): Spelling[] {
  const spellings: Spelling[] = [{ spelling: '--help', word: '--help', isOriginal: true }];
  for (const flag of flags) {
    const isOriginal = flag.since === '0.5.0';
    for (const spelling of [flag.name, ...(flag.aliases ?? [])]) {
      spellings.push({ spelling, word: flag.name, isOriginal });
    }
    if (flag.type === 'pair') {
      const word = `--no-${flag.name.slice(2)}`;
      spellings.push({ spelling: word, word, isOriginal });
    }
  }
  return spellings;
}

/** One word per flag that a prefix may mean; several = ambiguous, none = unknown. */
function resolve(typed: string, spellings: readonly Spelling[]): string[] {
  const exact = spellings.find((s) => s.spelling === typed);
  if (exact) return [exact.word];
  const matches = spellings.filter((s) => s.spelling.startsWith(typed));
  const originals = matches.filter((s) => s.isOriginal);
  const words = (list: readonly Spelling[]) => [...new Set(list.map((s) => s.word))];
  const preferred = words(originals);
  return preferred.length === 1 ? preferred : words(matches);
}

/** Number of single-character edits between two words, for "did you mean". */
function editDistance(a: string, b: string): number {
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const current = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const substitution = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      current.push(Math.min(previous[j]! + 1, current[j - 1]! + 1, substitution));
    }
    previous = current;
  }
  return previous[b.length]!;
}

/** The nearest name within a third of its length, or nothing. */
export function suggestName(typed: string, names: readonly string[]): string {
  let best = '';
  let bestDistance = Math.floor(typed.length / 3) + 1;
  for (const name of names) {
    const distance = editDistance(typed, name);
    if (distance < bestDistance) [best, bestDistance] = [name, distance];
  }
  return best === '' ? '' : `; did you mean ${best}?`;
}

const isFlag = (word: string) => word.startsWith('--') && word.length > 2;
const isValue = (word: string) => !word.startsWith('-') || /^-\.?\d/.test(word) || word === '-';

function expandWords(words: readonly string[], flags: readonly FlagSpec[], problems: Problem[]) {
  const spellings = listSpellings(flags);
  const expanded: string[] = [];
  let isSkippingValues = false;
  for (const word of words) {
    if (!isFlag(word)) {
      if (isSkippingValues && isValue(word)) continue;
      isSkippingValues = false;
      expanded.push(SHORT_FLAGS[word] ?? word);
      continue;
    }
    isSkippingValues = false;
    const equals = word.indexOf('=');
    const typed = equals < 0 ? word : word.slice(0, equals);
    const matches = resolve(typed, spellings);
    if (matches.length === 1) {
      expanded.push(matches[0]! + (equals < 0 ? '' : word.slice(equals)));
      continue;
    }
    isSkippingValues = equals < 0;
    const names = spellings.map((s) => s.spelling);
    const reason =
      matches.length === 0
        ? `unknown flag${suggestName(typed, names)}`
        : `could mean ${matches.join(', ')}`;
    problems.push({ flag: typed, reason });
  }
  return expanded;
}

/** Of a list flag that is given twice only the last list counts. */
function dropEarlierLists(words: readonly string[], flags: readonly FlagSpec[]): string[] {
  const kept: string[] = [];
  const seen = new Set<string>();
  const lists = new Set(flags.filter((f) => f.type === 'list').map((f) => f.name as string));
  let values: string[] = [];
  for (const word of [...words].reverse()) {
    if (isValue(word)) {
      values.push(word);
      continue;
    }
    const name = word.split('=', 1)[0]!;
    const isEarlier = lists.has(name) && seen.has(name);
    seen.add(name);
    if (!isEarlier) kept.push(...values, word);
    values = [];
  }
  kept.push(...values);
  return kept.reverse();
}

function addOptions(command: Command, flag: FlagSpec): string {
  const collect = (value: string, before: unknown) =>
    Array.isArray(before) ? [...before, value] : [value];
  let option: Option;
  if (flag.type === 'switch' || flag.type === 'pair') option = new Option(flag.name);
  else if (flag.type === 'list') option = new Option(`${flag.name} [words...]`);
  else option = new Option(`${flag.name} [value]`);
  if (flag.type === 'texts' || flag.type === 'objects') option.argParser(collect);
  command.addOption(option);
  if (flag.type === 'pair') command.addOption(new Option(`--no-${flag.name.slice(2)}`));
  return option.attributeName();
}

function readGiven(flag: FlagSpec, value: unknown): GivenValue {
  if (flag.type === 'switch' || flag.type === 'pair') return value === true;
  if (value === true) return flag.type === 'list' ? [] : null;
  return value as GivenValue;
}

export function parseCommandLine(argv: readonly string[], flags: readonly FlagSpec[]): CommandLine {
  const problems: Problem[] = [];
  const words = dropEarlierLists(expandWords(argv, flags, problems), flags);
  const command = new Command()
    .exitOverride()
    .configureOutput({ writeErr: () => {}, writeOut: () => {} })
    .helpOption(false)
    .allowUnknownOption()
    .allowExcessArguments()
    .option('--help');
  const attributes = new Map<FlagSpec, string>();
  for (const flag of flags) attributes.set(flag, addOptions(command, flag));
  command.parse(words, { from: 'user' });

  const values = command.opts<Record<string, unknown>>();
  const given = new Map<string, GivenValue>();
  for (const [flag, attribute] of attributes) {
    const value = values[attribute];
    if (value !== undefined) given.set(flag.name, readGiven(flag, value));
  }
  for (const word of command.args) {
    const [name] = word.split('=', 1);
    const isSwitch = [...attributes.keys()].some((flag) => flag.name === name);
    problems.push({ flag: name!, reason: isSwitch ? 'takes no value' : 'unexpected argument' });
  }
  return { given, problems, wantsHelp: values['help'] === true };
}
