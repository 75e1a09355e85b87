/**
 * Families → the Prometheus text format 0.0.4, as the reference writes it (spec observability 4.3).
 *
 *   # HELP lmcache_mp_real_reuse_gap_seconds …
 *   # TYPE lmcache_mp_real_reuse_gap_seconds histogram
 *   lmcache_mp_real_reuse_gap_seconds_bucket{cache_salt="a",le="5.0"} 2
 *   lmcache_mp_real_reuse_gap_seconds_bucket{cache_salt="a",le="+Inf"} 3
 *   lmcache_mp_real_reuse_gap_seconds_count{cache_salt="a"} 3
 *   lmcache_mp_real_reuse_gap_seconds_sum{cache_salt="a"} 17.5
 *
 * The serializer of @opentelemetry/exporter-prometheus cannot write this, whatever it is given: it
 * has no union of labels within a family, puts `le` last and writes it as `5`, and writes the parts
 * of a histogram in another order; queries and recording rules select by these texts.
 *
 * A family appears once, even when two instruments map to its name: they share the labels, and of
 * two equal series the first one stands. The text is made in slices, between which the event loop
 * goes on. A point is never cut, so the numbers of one histogram belong together.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { HistogramValue, InstrumentSpec, Point } from './instrument.ts';
import { prometheusName } from './prometheus-name.ts';
import type { Family } from './registry.ts';

/** Labels that every series gets: name → value. */
export type ConstantLabels = Readonly<Record<string, string>>;

/** Lines between two turns of the event loop: well below a millisecond. */
const LINES_PER_SLICE = 100;

/** Rule 1 of spec 4.3. */
const labelNameOf = (key: string): string =>
  key
    .replace(/\?$/, '')
    .replace(/^\d/, '_')
    .replaceAll(/[^a-zA-Z0-9:]+/g, '_');

const ESCAPES: Readonly<Record<string, string>> = { '\\': '\\\\', '\n': '\\n', '"': '\\"' };
const escapeHelp = (text: string): string => text.replaceAll(/[\\\n]/g, (c) => ESCAPES[c] ?? c);
const escapeLabel = (text: string): string => text.replaceAll(/[\\\n"]/g, (c) => ESCAPES[c] ?? c);

function numberText(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return '+Inf';
  return value === Number.NEGATIVE_INFINITY ? '-Inf' : String(value);
}

/** Bounds keep the form of a float: `le="5"` would be another series for a Prometheus 2. */
function boundText(bound: number): string {
  const text = numberText(bound);
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

/** Families of one Prometheus name and kind. */
interface Group {
  readonly name: string;
  readonly spec: InstrumentSpec;
  readonly families: Family[];
}

function groupByName(families: readonly Family[]): Group[] {
  const groups = new Map<string, Group>();
  for (const family of families) {
    const { spec } = family;
    const name = prometheusName(spec.name, spec.kind, spec.unit);
    const group = groups.get(name);
    if (!group) groups.set(name, { name, spec, families: [family] });
    else if (group.spec.kind === spec.kind) group.families.push(family);
  }
  return [...groups.values()];
}

const pointsOf = (family: Family): readonly Point<unknown>[] =>
  'points' in family ? family.points : family.histograms;

/** The names that a label set of this group has, sorted: those of all points together. */
function labelNamesOf({ families }: Group, constantLabels: ConstantLabels): string[] {
  const names = new Set<string>(Object.keys(constantLabels).map(labelNameOf));
  for (const family of families) {
    for (const [i, label] of family.spec.labels.entries()) {
      const isPresent =
        !label.endsWith('?') || pointsOf(family).some(({ labelValues }) => labelValues[i] !== '');
      if (isPresent) names.add(labelNameOf(label));
    }
  }
  return [...names].sort();
}

/** Writes label values of one family's points in the order of `names`. */
class LabelWriter {
  /** `name="` → where its value comes from: an index into the label values, or a text. */
  readonly #parts: readonly (readonly [prefix: string, source: number | string])[];

  constructor(names: readonly string[], spec: InstrumentSpec, constantLabels: ConstantLabels) {
    const indexes = new Map(spec.labels.map((label, i) => [labelNameOf(label), i]));
    const constants = new Map(
      Object.entries(constantLabels).map(([key, value]) => [labelNameOf(key), value]),
    );
    this.#parts = names.map((name) => [
      `${name}="`,
      constants.get(name) ?? indexes.get(name) ?? '',
    ]);
  }

  text(labelValues: readonly string[]): string {
    let text = '';
    for (const [prefix, source] of this.#parts) {
      const value = typeof source === 'string' ? source : (labelValues[source] as string);
      text += `${text === '' ? '' : ','}${prefix}${escapeLabel(value)}"`;
    }
    return text;
  }
}

const inBraces = (labels: string): string => (labels === '' ? '' : `{${labels}}`);
const joined = (...parts: readonly string[]): string => parts.filter((part) => part !== '').join();

function histogramText(
  { name, spec }: Group,
  { before, after }: { readonly before: string; readonly after: string },
  value: HistogramValue,
): string {
  const bounds = [...(spec.buckets ?? []), Number.POSITIVE_INFINITY];
  let text = '';
  let count = 0;
  for (const [i, bound] of bounds.entries()) {
    count += value.bucketCounts[i] as number;
    const labels = joined(before, `le="${boundText(bound)}"`, after);
    text += `${name}_bucket{${labels}} ${count}\n`;
  }
  const labels = inBraces(joined(before, after));
  return `${text}${name}_count${labels} ${count}\n${name}_sum${labels} ${numberText(value.sum)}\n`;
}

/** The points of a group, each as its lines. */
function* pointTexts(group: Group, constantLabels: ConstantLabels): Generator<string> {
  const names = labelNamesOf(group, constantLabels);
  const seen = new Set<string>();
  for (const family of group.families) {
    const writer = (some: readonly string[]) => new LabelWriter(some, family.spec, constantLabels);
    const before = writer(names.filter((name) => name < 'le'));
    const after = writer(names.filter((name) => name > 'le'));
    const isNew = (head: string, tail: string): boolean => {
      const size = seen.size;
      return seen.add(joined(head, tail)).size > size;
    };
    for (const { labelValues, value } of pointsOf(family)) {
      const labels = { before: before.text(labelValues), after: after.text(labelValues) };
      if (!isNew(labels.before, labels.after)) continue;
      if (typeof value === 'number') {
        const text = inBraces(joined(labels.before, labels.after));
        yield `${group.name}${text} ${numberText(value)}\n`;
      } else yield histogramText(group, labels, value as HistogramValue);
    }
  }
}

/** The text in pieces of about `LINES_PER_SLICE` lines. */
export function* prometheusPieces(
  families: readonly Family[],
  constantLabels: ConstantLabels = {},
): Generator<string> {
  let piece = '';
  let lineCount = 0;
  for (const group of groupByName(families)) {
    const { name, spec } = group;
    piece += `# HELP ${name} ${escapeHelp(spec.help)}\n# TYPE ${name} ${spec.kind}\n`;
    for (const text of pointTexts(group, constantLabels)) {
      piece += text;
      lineCount += spec.kind === 'histogram' ? (spec.buckets ?? []).length + 3 : 1;
      if (lineCount < LINES_PER_SLICE) continue;
      yield piece;
      piece = '';
      lineCount = 0;
    }
  }
  if (piece !== '') yield piece;
}

/** The whole text; the event loop turns between its pieces. */
export async function prometheusText(
  families: readonly Family[],
  constantLabels: ConstantLabels = {},
): Promise<string> {
  let text = '';
  for (const piece of prometheusPieces(families, constantLabels)) {
    if (text !== '') await nextTurn();
    text += piece;
  }
  return text;
}
