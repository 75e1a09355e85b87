/**
 * Keeps clients from making series without end (spec observability 14.5; field lesson 13.6).
 *
 * Each label has a bound for how many different values it may take over all instruments; further
 * values share `__other__`, and each is counted once when it is folded. A value that is forgotten
 * makes room for another one.
 */

export const OTHER_LABEL = '__other__';

const COUNT_MAX: Readonly<Record<string, number>> = {
  model_name: 256,
  engine_id: 1024,
  worker_id: 1024,
  instance_id: 1024,
};
/** Labels whose values are names in the code, a peer's error texts at worst. */
const COUNT_MAX_OTHER = 100;
const SALT_LABEL = 'cache_salt';

export class LabelBounds {
  readonly #saltCountMax: number;
  readonly #values = new Map<string, Set<string>>();
  readonly #folded = new Map<string, number>();

  constructor(saltCountMax: number) {
    this.#saltCountMax = saltCountMax;
  }

  bound(label: string, value: string): string {
    let values = this.#values.get(label);
    if (!values) {
      values = new Set();
      this.#values.set(label, values);
    }
    if (value === '' || value === OTHER_LABEL || values.has(value)) return value;
    if (values.size < this.#countMaxOf(label)) {
      values.add(value);
      return value;
    }
    this.#folded.set(label, (this.#folded.get(label) ?? 0) + 1);
    return OTHER_LABEL;
  }

  forget(label: string, value: string): void {
    this.#values.get(label)?.delete(value);
  }

  /** How often a value was folded, by label; a value that comes again is counted again. */
  get foldedCounts(): ReadonlyMap<string, number> {
    return this.#folded;
  }

  #countMaxOf(label: string): number {
    return label === SALT_LABEL ? this.#saltCountMax : (COUNT_MAX[label] ?? COUNT_MAX_OTHER);
  }
}
