/**
 * OpenTelemetry name and unit → the name that the reference's exporter gives (spec observability
 * 4.3, rules 1 to 3). The exporter of our library leaves the unit out, so names are mapped first.
 */

const UNITS: Readonly<Record<string, string>> = {
  s: 'seconds',
  ms: 'milliseconds',
  us: 'microseconds',
  ns: 'nanoseconds',
  By: 'bytes',
  KiBy: 'kibibytes',
  MiBy: 'mebibytes',
  GiBy: 'gibibytes',
  '1': '',
  '%': 'percent',
};

function unitSuffix(unit: string): string {
  const bare = unit.replaceAll(/\{[^}]*\}/g, '');
  const known = UNITS[bare];
  if (known !== undefined) return known;
  return bare.replaceAll(/[^a-zA-Z0-9:]+/g, '_').replaceAll(/^_+|_+$/g, '');
}

export function prometheusName(name: string, kind: 'gauge' | 'counter', unit: string): string {
  let result = name.replace(/^\d/, '_').replaceAll(/[^a-zA-Z0-9:]+/g, '_');
  if (kind === 'counter') result = result.replace(/_total$/, '');
  const suffix = unitSuffix(unit);
  if (suffix !== '' && !result.endsWith(`_${suffix}`)) result += `_${suffix}`;
  return kind === 'counter' ? `${result}_total` : result;
}
