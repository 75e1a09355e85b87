/**
 * Types of query, path and body fields, with the error entries of the reference (spec http 2).
 *
 * All faults of a request are collected and answered as one 422 with `detail: [{type, loc, msg,
 * input}]`. Clients compare `loc` and `type`. A schema library would need its own mapping to these
 * entries and to the loose booleans and integers, which is nearly all there is here.
 */
import { HTTPException } from 'hono/http-exception';

export interface Issue {
  readonly type: string;
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly input: unknown;
  readonly ctx?: Readonly<Record<string, unknown>>;
}

export class ValidationError extends HTTPException {
  readonly issues: readonly Issue[];

  constructor(issues: readonly Issue[]) {
    super(422, { message: issues.map(({ loc, msg }) => `${loc.join('.')}: ${msg}`).join('; ') });
    this.issues = issues;
  }
}

type Location = readonly (string | number)[];
type Fields = Readonly<Record<string, unknown>>;

const TRUE_WORDS = new Set(['true', '1', 'on', 'yes', 't', 'y']);
const FALSE_WORDS = new Set(['false', '0', 'off', 'no', 'f', 'n']);

/** Reads fields one by one; `finish` throws when any was wrong. */
export class FieldReader {
  readonly #issues: Issue[] = [];

  /** `raw` undefined = absent. */
  boolean(loc: Location, raw: unknown, fallback: boolean): boolean {
    if (raw === undefined) return fallback;
    if (typeof raw === 'boolean') return raw;
    if (typeof raw === 'string' || typeof raw === 'number') {
      const word = String(raw).toLowerCase();
      if (TRUE_WORDS.has(word)) return true;
      if (FALSE_WORDS.has(word)) return false;
      const msg = 'Input should be a valid boolean, unable to interpret input';
      this.#issues.push({ type: 'bool_parsing', loc, msg, input: raw });
      return fallback;
    }
    const msg = 'Input should be a valid boolean';
    this.#issues.push({ type: 'bool_type', loc, msg, input: raw });
    return fallback;
  }

  /** Text of a query or path; any number of digits. */
  integer(loc: Location, raw: string | undefined, fallback: bigint): bigint {
    if (raw === undefined) return fallback;
    const text = raw.trim();
    if (/^[+-]?\d{1,40}$/.test(text)) {
      return text.startsWith('+') ? BigInt(text.slice(1)) : BigInt(text);
    }
    const msg = 'Input should be a valid integer, unable to parse string as an integer';
    this.#issues.push({ type: 'int_parsing', loc, msg, input: raw });
    return fallback;
  }

  /** The same, between bounds that are named to the client. */
  integerBetween(
    loc: Location,
    raw: string | undefined,
    { fallback, min, max }: { fallback: number; min: number; max: number },
  ): number {
    const value = Number(this.integer(loc, raw, BigInt(fallback)));
    if (value >= min && value <= max) return value;
    const isLow = value < min;
    const bound = isLow ? `greater than or equal to ${min}` : `less than or equal to ${max}`;
    const msg = `Input should be ${bound}`;
    const type = isLow ? 'greater_than_equal' : 'less_than_equal';
    this.#issues.push({ type, loc, msg, input: raw, ctx: isLow ? { ge: min } : { le: max } });
    return fallback;
  }

  /** Objects of a list, each with its place. */
  bodyObjects(loc: Location, raw: unknown): Fields[] {
    if (raw === undefined) this.#missing(loc);
    else if (!Array.isArray(raw)) {
      const msg = 'Input should be a valid list';
      this.#issues.push({ type: 'list_type', loc, msg, input: raw });
    }
    return (Array.isArray(raw) ? raw : []).map((entry: unknown, index) => {
      if (typeof entry === 'object' && entry !== null && !Array.isArray(entry)) {
        return entry as Fields;
      }
      const msg = 'Input should be a dictionary or an object';
      this.#issues.push({ type: 'dataclass_type', loc: [...loc, index], msg, input: entry });
      return {};
    });
  }

  /** A field of a JSON body: an integer, or a text that is one. Undefined = absent. */
  bodyInteger(loc: Location, raw: unknown, fallback: bigint | null): bigint {
    if (raw === undefined) {
      if (fallback === null) this.#missing(loc);
      return fallback ?? 0n;
    }
    if (typeof raw === 'string') return this.integer(loc, raw, 0n);
    if (typeof raw === 'number' && Number.isSafeInteger(raw)) return BigInt(raw);
    const isFraction = typeof raw === 'number' && !Number.isInteger(raw);
    const msg = isFraction
      ? 'Input should be a valid integer, got a number with a fractional part'
      : 'Input should be a valid integer';
    this.#issues.push({ type: isFraction ? 'int_from_float' : 'int_type', loc, msg, input: raw });
    return 0n;
  }

  /** A list of integers. Absent: empty, or an issue when it is required. */
  bodyIntegers(loc: Location, raw: unknown, options: { isRequired: boolean }): number[] {
    if (raw === undefined) {
      if (options.isRequired) this.#missing(loc);
      return [];
    }
    if (!Array.isArray(raw)) {
      this.#issues.push({
        type: 'list_type',
        loc,
        msg: 'Input should be a valid list',
        input: raw,
      });
      return [];
    }
    return raw.map((entry, index) => {
      const isPlain = typeof entry === 'number' && Number.isSafeInteger(entry);
      return isPlain ? entry : Number(this.bodyInteger([...loc, index], entry, null));
    });
  }

  bodyText(loc: Location, raw: unknown, fallback: string | null): string {
    if (raw === undefined) {
      if (fallback === null) this.#missing(loc);
      return fallback ?? '';
    }
    if (typeof raw === 'string') return raw;
    const msg = 'Input should be a valid string';
    this.#issues.push({ type: 'string_type', loc, msg, input: raw });
    return '';
  }

  choice<T extends string>(loc: Location, raw: unknown, choices: readonly T[], fallback: T): T {
    if (raw === undefined) return fallback;
    const choice = choices.find((entry) => entry === raw);
    if (choice !== undefined) return choice;
    const quoted = choices.map((entry) => `'${entry}'`);
    const expected =
      quoted.length === 1 ? quoted[0] : `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`;
    const msg = `Input should be ${expected}`;
    this.#issues.push({ type: 'enum', loc, msg, input: raw, ctx: { expected } });
    return fallback;
  }

  /** What a caller has found out by itself. */
  report(issue: Issue): void {
    this.#issues.push(issue);
  }

  finish(): void {
    if (this.#issues.length > 0) throw new ValidationError(this.#issues);
  }

  #missing(loc: Location): void {
    this.#issues.push({ type: 'missing', loc, msg: 'Field required', input: null });
  }
}

/** As `readBodyFields`, where a request without a body is a mistake. */
export async function requireBodyFields(
  request: Request,
  typeIssue?: string,
): Promise<Record<string, unknown>> {
  if (request.body === null) bodyIssue('missing', 'Field required', null);
  return await readBodyFields(request, typeIssue);
}

function bodyIssue(type: string, msg: string, input: unknown, loc: Location = ['body']): never {
  throw new ValidationError([{ type, loc, msg, input }]);
}

/**
 * Fields of an optional JSON body; {} without a body. Unknown fields are the caller's business.
 * `typeIssue`: what the reference calls a body of another type on this route.
 */
export async function readBodyFields(
  request: Request,
  typeIssue = 'dataclass_type',
): Promise<Record<string, unknown>> {
  const text = await request.text();
  if (text === '') return {};
  const type = request.headers.get('content-type') ?? '';
  const expected = 'Input should be a dictionary or an object';
  if (!/^application\/(json|[\w.+-]+\+json)\s*(;|$)/i.test(type)) {
    return bodyIssue(typeIssue, expected, text);
  }
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch (error) {
    const { message } = error as Error;
    const offset = Number(/position (\d+)/.exec(message)?.[1] ?? text.length);
    return bodyIssue('json_invalid', `JSON decode error: ${message}`, {}, ['body', offset]);
  }
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    return bodyIssue(typeIssue, expected, body);
  }
  return body as Record<string, unknown>;
}
