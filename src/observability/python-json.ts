/**
 * JSON as the reference's tools write it, for files that programs compare or read beside theirs:
 *
 *   {"latency_ms": 0.75, "failed": false}    a space behind `,` and `:`
 *   2.0  1e-05                               a float stays one, whatever its value
 *   caf\u00e9                                nothing but ASCII
 *
 * Keys are sorted where a digest or a comparison wants that.
 */

/** A number that is written as a float also when it is whole. */
export class Float {
  readonly value: number;

  constructor(value: number) {
    this.value = value;
  }
}

export interface JsonStyle {
  readonly sortsKeys?: boolean;
  /** Spaces for each level; absent: all on one line. */
  readonly indent?: number;
}

/** What JSON does not know becomes its text. */
export function writePythonJson(value: unknown, style: JsonStyle = {}): string {
  return write(value, style, 0);
}

/** `0.1`, `2.0`, `1e-05`: the shortest text that is this number again. */
export function writePythonFloat(value: number): string {
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? 'Infinity' : '-Infinity';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) {
    const [digits, exponent] = value.toExponential().split('e') as [string, string];
    return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, '0')}`;
  }
  if (Object.is(value, -0)) return '-0.0';
  return Number.isInteger(value) ? value.toFixed(1) : String(value);
}

function write(value: unknown, style: JsonStyle, depth: number): string {
  if (value instanceof Float) return writePythonFloat(value.value);
  if (value === null || value === undefined) return 'null';
  if (typeof value === 'boolean' || typeof value === 'bigint') return String(value);
  if (typeof value === 'number') {
    return Number.isSafeInteger(value) ? String(value) : writePythonFloat(value);
  }
  if (typeof value !== 'object') return writeText(String(value));
  const gap = gapOf(style, depth);
  if (Array.isArray(value)) {
    return enclose(
      '[]',
      gap,
      value.map((entry) => write(entry, style, depth + 1)),
    );
  }
  const entries = Object.entries(value);
  if (style.sortsKeys) entries.sort(([a], [b]) => (a < b ? -1 : 1));
  const parts = entries.map(([name, of]) => `${writeText(name)}: ${write(of, style, depth + 1)}`);
  return enclose('{}', gap, parts);
}

/** What stands between the entries of a list, and around them. */
interface Gap {
  readonly around: string;
  readonly between: string;
  readonly end: string;
}

function gapOf({ indent }: JsonStyle, depth: number): Gap {
  if (indent === undefined) return { around: '', between: ', ', end: '' };
  const inner = `\n${' '.repeat(indent * (depth + 1))}`;
  return { around: inner, between: `,${inner}`, end: `\n${' '.repeat(indent * depth)}` };
}

function enclose(brackets: '[]' | '{}', gap: Gap, parts: readonly string[]): string {
  if (parts.length === 0) return brackets;
  return brackets[0] + gap.around + parts.join(gap.between) + gap.end + brackets[1];
}

function writeText(text: string): string {
  return JSON.stringify(text).replace(
    /[\u007f-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
