/**
 * One raw value (text of a command line or variable, or JSON of a configuration file) → the typed
 * value of its flag, or the reason why not. Says what was expected and what came.
 */
import type { FlagSpec, JsonObject, SettingValue } from './flag-spec.ts';

export type Converted = { readonly value: SettingValue } | { readonly reason: string };

const TRUE_WORDS = new Set(['1', 'true', 'yes', 'on']);
const FALSE_WORDS = new Set(['0', 'false', 'no', 'off']);
const INTEGER = /^[+-]?\d+$/;
const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const NOT_FINITE = /^[+-]?(inf(inity)?|nan)$/i;

/** A value in a message: short, and recognisable. */
function show(raw: unknown): string {
  const text = typeof raw === 'string' ? `'${raw}'` : JSON.stringify(raw);
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}

/** The range for people, as in `--help`; empty when there is none. */
export function rangeText(flag: FlagSpec): string {
  const { min, max } = flag;
  if (min === undefined || max === undefined) return '';
  if (flag.type === 'octal') return `${min.toString(8)} to ${max.toString(8)}`;
  const unit = flag.unit ? ` ${flag.unit}` : '';
  return flag.isMinExclusive ? `above ${min}, at most ${max}${unit}` : `${min} to ${max}${unit}`;
}

function checkRange(flag: FlagSpec, value: number, raw: unknown): Converted {
  const { min, max } = flag;
  const isBelow = min !== undefined && (flag.isMinExclusive ? value <= min : value < min);
  const isAbove = max !== undefined && value > max;
  if (isBelow || isAbove) return { reason: `must be ${rangeText(flag)}, got ${show(raw)}` };
  return { value };
}

function toNumber(flag: FlagSpec, raw: unknown): Converted {
  const text = typeof raw === 'string' ? raw.trim() : '';
  if (typeof raw === 'string' && NOT_FINITE.test(text)) {
    return { reason: `must be a finite number, got ${show(raw)}` };
  }
  const isInteger = flag.type === 'int';
  const pattern = isInteger ? INTEGER : DECIMAL;
  const value = typeof raw === 'number' ? raw : pattern.test(text) ? Number(text) : Number.NaN;
  if (Number.isNaN(value) || (isInteger && !Number.isInteger(value))) {
    return { reason: `expected ${isInteger ? 'a whole number' : 'a number'}, got ${show(raw)}` };
  }
  return checkRange(flag, value, raw);
}

function toOctal(flag: FlagSpec, raw: unknown): Converted {
  const text = String(raw).trim();
  if (!/^(0o)?[0-7]{3,4}$/.test(text)) {
    return { reason: `expected an octal file mode such as 600, got ${show(raw)}` };
  }
  const value = Number.parseInt(text.replace('0o', ''), 8);
  const isOwnerAllowed = (value & 0o600) === 0o600;
  if (!isOwnerAllowed) return { reason: `must let the owner read and write, got ${show(raw)}` };
  return checkRange(flag, value, raw);
}

function toChoice(flag: FlagSpec, raw: unknown): Converted {
  const choices = flag.choices ?? [];
  const text = String(raw);
  const wanted = flag.ignoresCase ? text.toUpperCase() : text;
  const value = choices.find((choice) => choice === wanted);
  if (value !== undefined) return { value };
  return { reason: `must be one of ${choices.join(', ')}, got ${show(raw)}` };
}

function toBoolean(raw: unknown): Converted {
  if (typeof raw === 'boolean') return { value: raw };
  const word = String(raw).trim().toLowerCase();
  if (TRUE_WORDS.has(word)) return { value: true };
  if (FALSE_WORDS.has(word)) return { value: false };
  return { reason: `expected true or false, got ${show(raw)}` };
}

function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'a list' : `a ${typeof value}`;
}

function toObject(raw: unknown, label = ''): Converted {
  let value = raw;
  if (typeof raw === 'string') {
    try {
      value = JSON.parse(raw);
    } catch (error) {
      return { reason: `${label}not valid JSON: ${(error as Error).message}` };
    }
  }
  if (isJsonObject(value)) return { value };
  return { reason: `${label}expected a JSON object, got ${kindOf(value)}` };
}

/** One entry per occurrence; a variable or file may hold one JSON list of all. */
function toObjects(raw: unknown): Converted {
  let entries: readonly unknown[] = Array.isArray(raw) ? raw : [raw];
  if (typeof raw === 'string' && raw.trimStart().startsWith('[')) {
    try {
      entries = JSON.parse(raw) as unknown[];
    } catch (error) {
      return { reason: `not valid JSON: ${(error as Error).message}` };
    }
  }
  const objects: JsonObject[] = [];
  for (const [index, entry] of entries.entries()) {
    const converted = toObject(entry, `#${index + 1}: `);
    if ('reason' in converted) return converted;
    objects.push(converted.value as JsonObject);
  }
  return { value: objects };
}

/** A list of texts; a variable separates them by commas. */
function toTexts(raw: unknown): Converted {
  if (Array.isArray(raw)) {
    const isAllText = raw.every((entry) => typeof entry === 'string');
    if (!isAllText) return { reason: `expected a list of texts, got ${show(raw)}` };
    return { value: raw as string[] };
  }
  if (typeof raw !== 'string') return { reason: `expected a list of texts, got ${kindOf(raw)}` };
  return {
    value: raw
      .split(',')
      .map((part) => part.trim())
      .filter((part) => part !== ''),
  };
}

export function convertValue(flag: FlagSpec, raw: unknown): Converted {
  switch (flag.type) {
    case 'int':
    case 'float':
      return toNumber(flag, raw);
    case 'octal':
      return toOctal(flag, raw);
    case 'choice':
      return toChoice(flag, raw);
    case 'switch':
    case 'pair':
      return toBoolean(raw);
    case 'text':
      if (typeof raw === 'string') return { value: raw };
      return { reason: `expected a text, got ${kindOf(raw)}` };
    case 'list':
    case 'texts':
      return toTexts(raw);
    case 'object':
      return toObject(raw);
    case 'objects':
      return toObjects(raw);
  }
}
