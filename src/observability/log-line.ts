/**
 * One log line for people, in the shape that scripts around the reference look for (spec cli 7):
 *
 *   [2026-11-29 20:01:19,016] KVD INFO: message key=value (kvd.wire)
 *
 * Local time. Colours only when asked for: the writer decides by terminal and NO_COLOR.
 */

export type Level = 'debug' | 'info' | 'warn' | 'error';
export type Fields = Readonly<Record<string, unknown>>;

export const LEVEL_NAMES: Readonly<Record<Level, string>> = {
  debug: 'DEBUG',
  info: 'INFO',
  warn: 'WARNING',
  error: 'ERROR',
};

const COLOURS: Readonly<Record<Level, string>> = {
  debug: '\x1b[36m',
  info: '\x1b[32m',
  warn: '\x1b[33m',
  error: '\x1b[31m',
};
const ITALIC = '\x1b[3m';
const RESET = '\x1b[0m';

function pad(value: number, digits: number): string {
  return String(value).padStart(digits, '0');
}

/** Lines come in bursts, and taking a time apart costs as much as the rest of a line. */
let latestSecond = Number.NaN;
let latestSecondText = '';

/** `2026-11-29 20:01:19,016` in local time. */
export function formatTime(wallMs: number): string {
  const second = Math.floor(wallMs / 1000);
  if (second !== latestSecond) {
    latestSecond = second;
    latestSecondText = formatSecond(second);
  }
  return `${latestSecondText},${pad(Math.floor(wallMs - second * 1000), 3)}`;
}

function formatSecond(second: number): string {
  const t = new Date(second * 1000);
  const date = `${t.getFullYear()}-${pad(t.getMonth() + 1, 2)}-${pad(t.getDate(), 2)}`;
  return `${date} ${pad(t.getHours(), 2)}:${pad(t.getMinutes(), 2)}:${pad(t.getSeconds(), 2)}`;
}

function formatField(value: unknown): string {
  if (value instanceof Error) return JSON.stringify(value.message);
  if (typeof value === 'string') return /^[\w.:/@+-]+$/.test(value) ? value : JSON.stringify(value);
  if (typeof value === 'object' && value !== null) {
    return JSON.stringify(value, (_, entry) => (typeof entry === 'bigint' ? `${entry}` : entry));
  }
  return String(value);
}

/** Control characters of client text must not forge lines or move the cursor. */
function clean(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are the point
  return text.replace(/[\x00-\x08\x0a-\x1f\x7f-\x9f]/g, (character) => {
    if (character === '\n') return '\\n';
    return `\\x${character.charCodeAt(0).toString(16).padStart(2, '0')}`;
  });
}

export interface Line {
  readonly wallMs: number;
  readonly level: Level;
  readonly room: string;
  readonly message: string;
  readonly fields?: Fields | undefined;
}

export function formatLine(line: Line, hasColours: boolean): string {
  const { level, room, fields } = line;
  let text = line.message;
  for (const [name, value] of Object.entries(fields ?? {}))
    text += ` ${name}=${formatField(value)}`;
  text = clean(text);
  const head = `[${formatTime(line.wallMs)}] KVD ${LEVEL_NAMES[level]}:`;
  const tail = room === '' ? '(kvd)' : `(kvd.${room})`;
  if (!hasColours) return `${head} ${text} ${tail}\n`;
  return `${COLOURS[level]}${head}${RESET} ${text} ${ITALIC}${tail}${RESET}\n`;
}
