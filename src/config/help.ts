/** The flag table for people: `--help`, docs/operating.md and the report of `--check`. */
import { FEATURES, type FlagSpec, SECTIONS, type SettingValue } from './flag-spec.ts';
import { rangeText } from './flag-values.ts';
import { environmentName, FLAGS } from './flags.ts';
import type { Settings } from './settings.ts';

const VALUE_NAMES: Readonly<Record<FlagSpec['type'], string>> = {
  int: ' N',
  float: ' X',
  octal: ' MODE',
  text: ' TEXT',
  choice: '',
  switch: '',
  pair: '',
  list: ' [TEXT ...]',
  texts: ' URL',
  object: ' JSON',
  objects: ' JSON',
};

const WIDTH = 96;
const INDENT = ' '.repeat(6);

function wrap(text: string, indent: string): string {
  const lines: string[] = [];
  let line = indent;
  for (const word of text.split(' ')) {
    if (line.length + word.length + 1 > WIDTH && line.trim() !== '') {
      lines.push(line);
      line = indent;
    }
    line += line === indent ? word : ` ${word}`;
  }
  lines.push(line);
  return lines.join('\n');
}

function spelling(flag: FlagSpec): string {
  if (flag.type === 'pair') return `${flag.name}, --no-${flag.name.slice(2)}`;
  if (flag.type === 'choice') return `${flag.name} {${(flag.choices ?? []).join(',')}}`;
  return flag.name + VALUE_NAMES[flag.type];
}

function showValue(flag: FlagSpec, value: SettingValue): string {
  if (value === null) return 'not set';
  if (flag.type === 'octal') return (value as number).toString(8);
  if (typeof value === 'string') return value === '' ? '""' : value;
  if (typeof value === 'number' || typeof value === 'boolean') return String(value);
  const isEmpty = Object.keys(value).length === 0;
  return isEmpty ? 'none' : JSON.stringify(maskSecrets(value));
}

/** Why a flag does nothing or little in this build; empty for most. */
function limits(flag: FlagSpec): string {
  if (flag.inert) return `No effect: ${flag.inert}.`;
  if (flag.needs && !FEATURES[flag.needs].isBuilt) {
    return `Not in this build: ${FEATURES[flag.needs].what}.`;
  }
  const missing = Object.entries(flag.choiceNeeds ?? {})
    .filter(([, feature]) => !FEATURES[feature].isBuilt)
    .map(([choice]) => choice);
  return missing.length === 0 ? '' : `Not in this build: ${missing.join(', ')}.`;
}

function defaultText(flag: FlagSpec): string {
  return flag.isRequired ? 'required' : `default ${showValue(flag, flag.default)}`;
}

function flagHelp(flag: FlagSpec): string {
  const range = rangeText(flag);
  const facts = [defaultText(flag), range].filter((fact) => fact !== '').join('; ');
  const text = [flag.help, `[${facts}]`, limits(flag)].filter((part) => part !== '').join(' ');
  return `  ${spelling(flag)}\n${wrap(text, INDENT)}`;
}

const HEAD = `usage: kvd server --l1-size-gb X --eviction-policy LRU [flags]

Serves the KV cache over ZMQ, and HTTP for operators. Every flag can also be given as the variable
KVD_<FLAG> (KVD_L1_SIZE_GB) or in the JSON file of --config; flags win over variables, variables
over the file. Unambiguous prefixes of flags are enough.`;

export function renderHelp(): string {
  const parts = [HEAD];
  for (const section of SECTIONS) {
    const flags = FLAGS.filter((flag) => flag.section === section);
    parts.push(`\n${section}\n${flags.map(flagHelp).join('\n')}`);
  }
  return `${parts.join('\n')}\n`;
}

const escapeCell = (text: string) => text.replaceAll('|', '\\|').replaceAll('<', '&lt;');

function markdownRow(flag: FlagSpec): string {
  const names = [
    `\`${spelling(flag)}\``,
    ...(flag.aliases ?? []).map((alias) => `old name \`${alias}\``),
  ].join('<br>');
  const extra = (flag.environment ?? []).map((name) => `\`${name}\``).join(', ');
  const text = [flag.help, limits(flag), extra === '' ? '' : `Also ${extra}.`]
    .filter((part) => part !== '')
    .join(' ');
  const cells = [names, defaultText(flag), rangeText(flag), escapeCell(text), flag.since];
  return `| ${cells.join(' | ')} |`;
}

/** The flag section of docs/operating.md, one table per section. */
export function renderFlagTables(): string {
  return SECTIONS.map((section) => {
    const rows = FLAGS.filter((flag) => flag.section === section).map(markdownRow);
    const head = '| flag | default | range | meaning | since |\n|---|---|---|---|---|';
    return `### ${section}\n\n${head}\n${rows.join('\n')}`;
  }).join('\n\n');
}

const SECRET_NAME = /key|token|secret|pass|cred|auth|headers/i;

/** A copy in which values that look like secrets are `"***"`. */
export function maskSecrets(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(maskSecrets);
  if (typeof value !== 'object' || value === null) return value;
  const masked: Record<string, unknown> = {};
  for (const [name, entry] of Object.entries(value)) {
    const isSecret = SECRET_NAME.test(name) && typeof entry === 'string' && entry !== '';
    masked[name] = isSecret ? '***' : maskSecrets(entry);
  }
  return masked;
}

/** What `--check` prints: every setting that is in effect, and where it came from. */
export function renderSettings(settings: Settings): string {
  const rows = FLAGS.filter((flag) => !flag.isCommandLineOnly).map((flag) => {
    const { value, source, origin } = settings.get(flag.name);
    const place = origin === '' ? source : `${source} ${origin}`;
    return `${flag.name.padEnd(40)} ${showValue(flag, value).padEnd(24)} ${place}`;
  });
  return `${rows.join('\n')}\n`;
}

/** `{ "--l1-size-gb": { value, source, environment } }` for `GET /config`. */
export function describeSettings(settings: Settings): Record<string, unknown> {
  const rows = FLAGS.filter((flag) => !flag.isCommandLineOnly).map((flag) => {
    const { value, source, origin } = settings.get(flag.name);
    const place = origin === '' ? {} : { origin };
    const variable = environmentName(flag.name);
    return [flag.name, { value: maskSecrets(value), source, ...place, variable }];
  });
  return Object.fromEntries(rows) as Record<string, unknown>;
}
