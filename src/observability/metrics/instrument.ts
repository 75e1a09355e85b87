/**
 * What an instrument is: the row of the catalogue, and the values behind it.
 *
 * The instruments are ours and not those of the OpenTelemetry SDK, for three reasons: the SDK never
 * forgets a series, but workers come and go (spec observability 14.5); it folds what exceeds its
 * limit into one point without labels, and operators need to see which label overflowed; and an
 * `add` with attributes costs it over a microsecond, several times per request. What is collected
 * goes to the SDK's exporters as its own kind of data (`otel-data.ts`) and to Prometheus as text
 * (`prometheus-text.ts`).
 */
import { assert } from '../../assert.ts';

export type InstrumentKind = 'counter' | 'gauge' | 'histogram';

export interface InstrumentSpec {
  /** OpenTelemetry name; the Prometheus name follows from it, the kind and the unit. */
  readonly name: string;
  /** Name of the meter. */
  readonly scope: string;
  readonly kind: InstrumentKind;
  /** OpenTelemetry unit; '' = none. */
  readonly unit: string;
  /** In the order in which values are given. One that ends in `?` is left out when it is empty. */
  readonly labels: readonly string[];
  readonly help: string;
  /** Upper bounds of a histogram's buckets, ascending. */
  readonly buckets?: readonly number[];
  /** Values are whole numbers. */
  readonly isInteger?: boolean;
}

export interface HistogramValue {
  /** One for each bound, and one for everything above. */
  readonly bucketCounts: number[];
  count: number;
  sum: number;
  min: number;
  max: number;
}

export interface Point<V> {
  /** As `InstrumentSpec.labels`. */
  readonly labelValues: readonly string[];
  value: V;
}

/** Bounds the values of a label; see `LabelBounds`. */
export type BoundLabel = (label: string, value: string) => string;

const SEPARATOR = '\u0000';

/** The points of one instrument, by label values. */
class Points<V> {
  readonly spec: InstrumentSpec;
  readonly #bound: BoundLabel;
  readonly #create: () => V;
  readonly #points = new Map<string, Point<V>>();
  readonly #labelNames: readonly string[];

  constructor(spec: InstrumentSpec, bound: BoundLabel, create: () => V) {
    this.spec = spec;
    this.#bound = bound;
    this.#create = create;
    this.#labelNames = spec.labels.map((label) => label.replace(/\?$/, ''));
  }

  at(labelValues: readonly string[]): Point<V> {
    const key = keyOf(labelValues);
    return this.#points.get(key) ?? this.#open(labelValues);
  }

  #open(labelValues: readonly string[]): Point<V> {
    assert(labelValues.length === this.#labelNames.length, `${this.spec.name}: one value a label`);
    const bounded = labelValues.map((value, i) =>
      this.#bound(this.#labelNames[i] as string, value),
    );
    const key = keyOf(bounded);
    const known = this.#points.get(key);
    if (known) return known;
    const point = { labelValues: bounded, value: this.#create() };
    this.#points.set(key, point);
    return point;
  }

  /** Drops the points that have this value of a label. */
  forget(label: string, value: string): void {
    const index = this.#labelNames.indexOf(label);
    if (index < 0) return;
    for (const [key, { labelValues }] of this.#points) {
      if (labelValues[index] === value) this.#points.delete(key);
    }
  }

  get all(): readonly Point<V>[] {
    return [...this.#points.values()];
  }
}

/** The usual one or two labels without the detour of `join`. */
function keyOf(labelValues: readonly string[]): string {
  const [first, second] = labelValues;
  if (first === undefined) return '';
  if (second === undefined) return first;
  return labelValues.length === 2 ? first + SEPARATOR + second : labelValues.join(SEPARATOR);
}

export class Counter {
  readonly #points: Points<number>;

  constructor(spec: InstrumentSpec, bound: BoundLabel) {
    this.#points = new Points(spec, bound, () => 0);
  }

  get spec(): InstrumentSpec {
    return this.#points.spec;
  }

  /** Adds 0, too: the series is there from then on. Throws on what is not a number. */
  add(amount: number, ...labelValues: readonly string[]): void {
    if (!(amount >= 0)) throw new TypeError(`${this.spec.name}: cannot add ${amount}`);
    this.#points.at(labelValues).value += amount;
  }

  forget(label: string, value: string): void {
    this.#points.forget(label, value);
  }

  collect(): readonly Point<number>[] {
    return this.#points.all;
  }
}

export class Histogram {
  readonly #points: Points<HistogramValue>;
  readonly #bounds: readonly number[];

  constructor(spec: InstrumentSpec, bound: BoundLabel) {
    const bounds = spec.buckets ?? [];
    this.#bounds = bounds;
    this.#points = new Points(spec, bound, () => ({
      bucketCounts: new Array<number>(bounds.length + 1).fill(0),
      count: 0,
      sum: 0,
      min: Number.POSITIVE_INFINITY,
      max: Number.NEGATIVE_INFINITY,
    }));
  }

  get spec(): InstrumentSpec {
    return this.#points.spec;
  }

  record(value: number, ...labelValues: readonly string[]): void {
    if (!(value <= Number.POSITIVE_INFINITY))
      throw new TypeError(`${this.spec.name}: cannot record ${value}`);
    const point = this.#points.at(labelValues).value;
    const bounds = this.#bounds;
    let bucket = 0;
    // A bound belongs to the bucket below it.
    while (bucket < bounds.length && value > (bounds[bucket] as number)) bucket += 1;
    point.bucketCounts[bucket] = (point.bucketCounts[bucket] as number) + 1;
    point.count += 1;
    point.sum += value;
    if (value < point.min) point.min = value;
    if (value > point.max) point.max = value;
  }

  forget(label: string, value: string): void {
    this.#points.forget(label, value);
  }

  collect(): readonly Point<HistogramValue>[] {
    return this.#points.all;
  }
}
