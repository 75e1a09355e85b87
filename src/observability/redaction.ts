/**
 * What no log line shows: passwords, tokens and keys, and the salts of tenants.
 *
 *   field with the name of a secret     password="***"
 *   field with the name of a salt       cacheSalt=tenant:5e884898da28
 *   URL with somebody's credentials     redis://***@host:6379/0
 *   text with name=value of a secret    …?token=***        Bearer ***
 *
 * Rooms do not log secrets; this is for those that come along unseen, in the message of a library's
 * error or in an object that a room shows as a whole. It stands in front of both sinks. A salt is
 * named by its digest, so that lines about one tenant can be found, also in the lookup-hash log.
 */
import { createHash } from 'node:crypto';
import type { Fields } from './log-line.ts';

const MASK = '***';
const TENANT_DIGITS = 12;
/** Deeper than anything that is logged; also the end of an object that contains itself. */
const DEPTH_MAX = 6;

const SECRET_WORDS =
  '(?:pass(?:word|wd|phrase)?|secret|token|credentials?|authorization|cookie|signature|' +
  '(?:access|api|private|master|secret|encryption)[_-]?key)';
/** As the last word of a name, so that `tokens`, `tokenCount` and `passed` are none. */
const SECRET_NAME = new RegExp(`${SECRET_WORDS}$`, 'i');
const SALT_NAME = /salt$/i;

/**
 * Between `//` and the last `@` of a word, well encoded or not; digits behind the colon are a port.
 * Lengths are bounded, because clients can make a text of nothing but beginnings of URLs.
 */
const SCHEME = '\\b([a-z][a-z\\d+.-]{0,30}://)';
const CREDENTIALS = `[^\\s/?#"']{1,512}`;
const ODD_CREDENTIALS = `[^\\s/?#@:"']{0,256}:(?!\\d{1,5}[/?#])[^\\s"']{1,512}`;
const URL_CREDENTIALS = new RegExp(`${SCHEME}(?:${CREDENTIALS}|${ODD_CREDENTIALS})@`, 'gi');
/** `password=…`, `"password": "…"`. */
const NAMED_SECRET = new RegExp(`(${SECRET_WORDS}(?:=|["'] ?: ?["']))[^\\s&,;"']+`, 'gi');
const BEARER = /\b(bearer +)[\w.~+/-]{8,}=*/gi;

/** Of a cache salt, which is nobody's business. */
export function tenantDigest(cacheSalt: string): string {
  return createHash('sha256').update(cacheSalt).digest('hex').slice(0, TENANT_DIGITS);
}

/** Most texts have nothing that could be a secret, and the three searches cost more than a line. */
const SUSPICIOUS = /[=@"']|bearer/i;

export function redactText(text: string): string {
  if (!SUSPICIOUS.test(text)) return text;
  return text
    .replace(URL_CREDENTIALS, `$1${MASK}@`)
    .replace(NAMED_SECRET, `$1${MASK}`)
    .replace(BEARER, `$1${MASK}`);
}

export function redactFields(fields: Fields): Fields {
  return redactEntries(fields, 0);
}

function redactEntries(entries: Fields, depth: number): Fields {
  const shown: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(entries)) shown[name] = redact(name, value, depth);
  return shown;
}

function redact(name: string, value: unknown, depth: number): unknown {
  if (typeof value === 'string') {
    if (value === '') return value;
    if (SALT_NAME.test(name)) return `tenant:${tenantDigest(value)}`;
    return SECRET_NAME.test(name) ? MASK : redactText(value);
  }
  if (typeof value !== 'object' || value === null) return value;
  if (SECRET_NAME.test(name) || depth >= DEPTH_MAX) return MASK;
  if (value instanceof Error) return redactError(value);
  if (value instanceof URL) return redactText(value.href);
  if (Array.isArray(value)) return value.map((entry) => redact(name, entry, depth + 1));
  // A date or bytes: they show themselves their own way.
  return 'toJSON' in value ? value : redactEntries(value as Fields, depth + 1);
}

/** A copy that the sinks still know as an error. */
function redactError(error: Error): Error {
  const shown = new Error(redactText(error.message));
  shown.name = error.name;
  shown.stack = redactText(error.stack ?? '');
  return shown;
}
