/**
 * All instruments of a server: counted and recorded by the subscribers, or read when somebody
 * collects. One registry feeds every way out (Prometheus text, OTLP).
 */
import {
  Counter,
  Histogram,
  type HistogramValue,
  type InstrumentSpec,
  type Point,
} from './instrument.ts';
import { LabelBounds } from './label-bounds.ts';

export type Family =
  | { readonly spec: InstrumentSpec; readonly points: readonly Point<number>[] }
  | { readonly spec: InstrumentSpec; readonly histograms: readonly Point<HistogramValue>[] };

/** One number, or one per list of label values. */
export type Reading = number | Iterable<readonly [labelValues: readonly string[], value: number]>;

/** A series for each value of an instrument's one label. */
export const byLabel = (counts: Iterable<readonly [value: string, count: number]>): Reading =>
  Array.from(counts, ([value, count]) => [[value], count] as const);

export interface RegistryOptions {
  /** `--metrics-max-salts`. */
  readonly saltCountMax?: number;
  /** Changes every row before it is used: `--metrics-buckets legacy`, an instance label. */
  readonly adapt?: (spec: InstrumentSpec) => InstrumentSpec;
  /** Adds to what is collected: `--metrics-aliases`. */
  readonly extend?: (families: readonly Family[]) => Family[];
}

const SALT_COUNT_MAX = 1000;

export class MetricRegistry {
  readonly bounds: LabelBounds;
  readonly #adapt: (spec: InstrumentSpec) => InstrumentSpec;
  readonly #extend: (families: readonly Family[]) => readonly Family[];
  readonly #counters = new Map<string, Counter>();
  readonly #histograms = new Map<string, Histogram>();
  #settle: () => void = () => {};
  readonly #observed: { readonly spec: InstrumentSpec; readonly read: () => Reading }[] = [];

  constructor(options: RegistryOptions = {}) {
    this.bounds = new LabelBounds(options.saltCountMax ?? SALT_COUNT_MAX);
    this.#adapt = options.adapt ?? ((spec) => spec);
    this.#extend = options.extend ?? ((families) => families);
  }

  /** The same instrument for every caller. */
  counter(spec: InstrumentSpec): Counter {
    const known = this.#counters.get(spec.name);
    if (known) return known;
    const counter = new Counter(this.#adapt(spec), this.#bound);
    this.#counters.set(spec.name, counter);
    return counter;
  }

  histogram(spec: InstrumentSpec): Histogram {
    const known = this.#histograms.get(spec.name);
    if (known) return known;
    const histogram = new Histogram(this.#adapt(spec), this.#bound);
    this.#histograms.set(spec.name, histogram);
    return histogram;
  }

  /** A counter or gauge whose numbers somebody else keeps; `read` runs when somebody collects. */
  observe(spec: InstrumentSpec, read: () => Reading): void {
    this.#observed.push({ spec: this.#adapt(spec), read });
  }

  /** `settle` runs before counters are read: what still waits to be counted is, then. */
  settleWith(settle: () => void): void {
    this.#settle = settle;
  }

  /** A worker is gone: its series would stay for ever. */
  forget(labels: readonly string[], value: string): void {
    for (const label of labels) {
      for (const counter of this.#counters.values()) counter.forget(label, value);
      for (const histogram of this.#histograms.values()) histogram.forget(label, value);
      this.bounds.forget(label, value);
    }
  }

  /** Instruments without a point are left out. One whose `read` throws is, too. */
  collect(): Family[] {
    // Before the queue is emptied, whose depth is among them.
    const observed = this.#observed.map(({ spec, read }) => ({ spec, points: pointsOf(read) }));
    this.#settle();
    const counters = Array.from(this.#counters.values(), (counter) => ({
      spec: counter.spec,
      points: counter.collect(),
    }));
    const histograms = Array.from(this.#histograms.values(), (histogram) => ({
      spec: histogram.spec,
      histograms: histogram.collect(),
    }));
    const filled = [...counters, ...histograms, ...observed].filter((family) =>
      'points' in family ? family.points.length > 0 : family.histograms.length > 0,
    );
    return [...this.#extend(filled)];
  }

  readonly #bound = (label: string, value: string): string => this.bounds.bound(label, value);
}

function pointsOf(read: () => Reading): Point<number>[] {
  let reading: Reading;
  try {
    reading = read();
  } catch {
    // A part that cannot answer must not hide all others.
    return [];
  }
  if (typeof reading === 'number') return [{ labelValues: [], value: reading }];
  return Array.from(reading, ([labelValues, value]) => ({ labelValues, value }));
}
