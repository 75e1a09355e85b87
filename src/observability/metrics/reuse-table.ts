/**
 * When sampled chunks were used last, by tenant. Bounded: in a full table a random entry makes
 * room, so what stays is a fair sample of what came. Finding and entering take the same time
 * however full it is:
 *
 *   index   name → place           names    [ a | b | c | d ]
 *                                  uses     [ … | … | … | … ]
 *   e comes, the draw is 1: it takes the place of b.
 */
import type { Random } from './key-sampling.ts';

export interface Use {
  atSeconds: number;
  /** Accesses of the tenant until then. */
  accessCount: number;
}

export class ReuseTable {
  readonly #index = new Map<string, number>();
  readonly #names: string[] = [];
  readonly #uses: Use[] = [];
  readonly #countMax: number;
  readonly #random: Random;

  constructor(countMax: number, random: Random) {
    this.#countMax = countMax;
    this.#random = random;
  }

  get size(): number {
    return this.#names.length;
  }

  find(name: string): Use | undefined {
    const place = this.#index.get(name);
    return place === undefined ? undefined : this.#uses[place];
  }

  /** `name` is not in the table. */
  admit(name: string, use: Use): void {
    let place = this.#names.length;
    if (place === this.#countMax) {
      place = Math.floor(this.#random() * this.#countMax);
      this.#index.delete(this.#names[place] as string);
    }
    this.#index.set(name, place);
    this.#names[place] = name;
    this.#uses[place] = use;
  }
}
