/**
 * OpenTelemetry name and unit → the name that the reference's exporter gives (spec observability
 * 4.3, rules 1 to 3). A histogram's samples have `_bucket`, `_count` or `_sum` behind it.
 */
import type { InstrumentKind } from './instrument.ts';

const UNITS: Readonly<Record<string, string>> = {
  s: 'seconds',
  ms: 'milliseconds',
  us: 'microseconds',
  ns: 'nanoseconds',
  min: 'minutes',
  h: 'hours',
  d: 'days',
  By: 'bytes',
  KiBy: 'kibibytes',
  MiBy: 'mebibytes',
  GiBy: 'gibibytes',
  TiBy: 'tebibytes',
  KBy: 'kilobytes',
  MBy: 'megabytes',
  GBy: 'gigabytes',
  TBy: 'terabytes',
  m: 'meters',
  V: 'volts',
  A: 'amperes',
  J: 'joules',
  W: 'watts',
  g: 'grams',
  Cel: 'celsius',
  Hz: 'hertz',
  '1': '',
  '%': 'percent',
};

/** What stands behind the first slash. */
const PER_UNITS: Readonly<Record<string, string>> = {
  s: 'second',
  m: 'minute',
  h: 'hour',
  d: 'day',
  w: 'week',
  mo: 'month',
  y: 'year',
};

const sanitize = (text: string): string => text.replaceAll(/[^a-zA-Z0-9:]+/g, '_');
const strip = (text: string): string => sanitize(text).replaceAll(/^_+|_+$/g, '');

function unitSuffix(unit: string): string {
  const bare = unit.replaceAll(/\{[^}]*\}/g, '');
  const known = UNITS[bare];
  if (known !== undefined) return known;
  const slash = bare.indexOf('/');
  if (slash < 0) return strip(bare);
  const [top, bottom] = [bare.slice(0, slash), bare.slice(slash + 1)];
  return strip(`${UNITS[top] ?? top}_per_${PER_UNITS[bottom] ?? bottom}`);
}

export function prometheusName(name: string, kind: InstrumentKind, unit: string): string {
  let result = sanitize(name.replace(/^\d/, '_'));
  if (kind === 'counter') result = result.replace(/_total$/, '');
  const suffix = unitSuffix(unit);
  if (suffix !== '' && !result.endsWith(`_${suffix}`)) result += `_${suffix}`;
  return kind === 'counter' ? `${result}_total` : result;
}
