/**
 * A strict reader of the Prometheus text format 0.0.4, stricter than a Prometheus: it throws on
 * whatever would be read in two ways, and on what the reference would have written otherwise.
 *
 *   family    `# HELP`, `# TYPE`, samples, in one place and once; counters end in `_total`
 *   series    unique; within a family one set of label names, sorted; values never `NaN`
 *   histogram per series: buckets by rising `le` written as floats, counts that do not fall, `+Inf`
 *             at the end, then `_count` (equal to it), then `_sum`
 */
export interface Sample {
  readonly name: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly value: number;
}

export interface ParsedFamily {
  readonly name: string;
  readonly type: string;
  readonly help: string;
  readonly samples: Sample[];
}

const NAME = /^[a-zA-Z_:][a-zA-Z0-9_:]*$/;
const TYPES = ['counter', 'gauge', 'histogram'];
const NUMBER = /^(?:[+-]Inf|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)$/;
const BOUND = /^(?:\+Inf|-?\d+\.\d+|-?\d+(?:\.\d+)?e[+-]?\d+)$/;
const UNESCAPED: Readonly<Record<string, string>> = { '\\\\': '\\', '\\n': '\n', '\\"': '"' };

function check(isRight: boolean, complaint: string, line: string): void {
  if (!isRight) throw new Error(`${complaint}: ${line}`);
}

function withoutEscapes(text: string, line: string): string {
  return text.replaceAll(/\\.?/g, (pair) => {
    check(pair in UNESCAPED, `escape ${pair}`, line);
    return UNESCAPED[pair] as string;
  });
}

function numberOf(text: string, line: string): number {
  check(NUMBER.test(text), 'not a number', line);
  return Number(text.replace('Inf', 'Infinity'));
}

function parseLabels(text: string, line: string): Map<string, string> {
  const labels = new Map<string, string>();
  let at = 0;
  while (at < text.length) {
    const match = /^([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\.)*)"(,?)/.exec(text.slice(at));
    if (!match) throw new Error(`labels: ${line}`);
    const [whole, name, value, comma] = match as unknown as [string, string, string, string];
    check(!labels.has(name), `label ${name} twice`, line);
    labels.set(name, withoutEscapes(value, line));
    at += whole.length;
    check((comma === ',') === at < text.length, 'commas of labels', line);
  }
  return labels;
}

function parseSample(line: string): Sample {
  const match = /^([^{ ]+)(?:\{(.+)\})? (\S+)$/.exec(line);
  if (!match) throw new Error(`not a sample: ${line}`);
  const [, name, labels = '', value] = match as unknown as [string, string, string?, string?];
  check(NAME.test(name), 'name', line);
  return { name, labels: parseLabels(labels, line), value: numberOf(value as string, line) };
}

function belongs({ name, type }: ParsedFamily, sample: Sample): boolean {
  if (type !== 'histogram') return sample.name === name;
  return [`${name}_bucket`, `${name}_count`, `${name}_sum`].includes(sample.name);
}

const withoutBound = (labels: ReadonlyMap<string, string>): string =>
  JSON.stringify([...labels].filter(([name]) => name !== 'le'));

/** The samples of each series of a histogram stand together. */
function checkHistogram({ name, samples }: ParsedFamily): void {
  const bySeries = Map.groupBy(samples, ({ labels }) => withoutBound(labels));
  let place = 0;
  for (const [series, own] of bySeries) {
    const where = `${name} ${series}`;
    check(samples.indexOf(own[0] as Sample) === place, 'series in pieces', where);
    place += own.length;
    const buckets = own.slice(0, -2);
    const [count, sum] = own.slice(-2) as [Sample, Sample];
    check(
      buckets.every((sample) => sample.name === `${name}_bucket`),
      'order',
      where,
    );
    check(count?.name === `${name}_count` && sum?.name === `${name}_sum`, 'order', where);
    const texts = buckets.map(({ labels }) => labels.get('le') ?? '');
    check(
      texts.every((text) => BOUND.test(text)),
      `bounds ${texts}`,
      where,
    );
    const bounds = texts.map((text) => Number(text.replace('Inf', 'Infinity')));
    const values = buckets.map(({ value }) => value);
    const rises = (a: number, b: number | undefined): boolean => b === undefined || a < b;
    check(
      bounds.every((bound, i) => rises(bound, bounds[i + 1])),
      `bounds ${texts}`,
      where,
    );
    check(bounds.at(-1) === Number.POSITIVE_INFINITY, 'no +Inf', where);
    check(
      values.every((value, i) => value <= (values[i + 1] ?? value)),
      'falling counts',
      where,
    );
    check(values.at(-1) === count.value, '_count is not +Inf', where);
  }
}

function checkFamily(family: ParsedFamily): void {
  const { name, type, samples } = family;
  check(samples.length > 0, 'no samples', name);
  if (type === 'counter') {
    check(name.endsWith('_total'), 'counter without _total', name);
    check(
      samples.every(({ value }) => value >= 0),
      'negative counter',
      name,
    );
  }
  if (type === 'histogram') checkHistogram(family);
  const sets = new Set<string>();
  for (const { labels } of samples) {
    const names = [...labels.keys()];
    check(String(names) === String(names.toSorted()), 'labels not sorted', `${name} ${names}`);
    sets.add(String(names.filter((label) => label !== 'le')));
  }
  check(sets.size === 1, 'different sets of labels', `${name} ${[...sets].join(' | ')}`);
}

/** Families by name, in the order of the text. */
export function parsePrometheusText(text: string): Map<string, ParsedFamily> {
  if (!text.endsWith('\n')) throw new Error('the last line has no end');
  const families = new Map<string, ParsedFamily>();
  const series = new Set<string>();
  let help: readonly [name: string, text: string] | null = null;
  let family: ParsedFamily | null = null;
  for (const line of text.slice(0, -1).split('\n')) {
    const header = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line);
    if (header?.[1] === 'HELP') {
      check(help === null, 'HELP without TYPE', line);
      help = [header[2] as string, withoutEscapes(header[3] as string, line)];
    } else if (header) {
      const [, , name, type] = header as unknown as [string, string, string, string];
      check(help?.[0] === name, 'TYPE without HELP', line);
      check(NAME.test(name) && TYPES.includes(type), 'type', line);
      check(!families.has(name), 'family twice', line);
      family = { name, type, help: help?.[1] as string, samples: [] };
      families.set(name, family);
      help = null;
    } else {
      const sample = parseSample(line);
      if (!family || help || !belongs(family, sample)) throw new Error(`astray: ${line}`);
      const id = JSON.stringify([sample.name, ...sample.labels]);
      check(!series.has(id), 'series twice', line);
      series.add(id);
      family.samples.push(sample);
    }
  }
  if (help) throw new Error('the last family has no TYPE');
  for (const one of families.values()) checkFamily(one);
  return families;
}

/** `name{label="value",…}` → value, labels as they were written. */
export function samplesOf(text: string): Map<string, number> {
  parsePrometheusText(text);
  const lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return new Map(
    lines.map((line) => {
      const at = line.lastIndexOf(' ');
      return [line.slice(0, at), numberOf(line.slice(at + 1), line)];
    }),
  );
}
