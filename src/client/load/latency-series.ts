/** Durations of one kind of step, and what one says about them. All in milliseconds. */

export interface LatencySummary {
  readonly count: number;
  readonly meanMs: number;
  readonly minMs: number;
  readonly maxMs: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

/** Lookups of a long run; older values give way to newer ones beyond it. */
const SAMPLE_COUNT_MAX = 1 << 20;

export class LatencySeries {
  readonly #samples: number[] = [];
  #count = 0;

  add(ms: number): void {
    this.#samples[this.#count % SAMPLE_COUNT_MAX] = ms;
    this.#count += 1;
  }

  /** Null when nothing was measured. */
  summary(): LatencySummary | null {
    const sorted = Float64Array.from(this.#samples).sort();
    if (sorted.length === 0) return null;
    const at = (share: number) =>
      sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] as number;
    return {
      count: this.#count,
      meanMs: sorted.reduce((sum, ms) => sum + ms, 0) / sorted.length,
      minMs: at(0),
      maxMs: at(1),
      p50Ms: at(0.5),
      p99Ms: at(0.99),
    };
  }
}

/** The steps of a request, by name. */
export class LatencyBook {
  readonly #series = new Map<string, LatencySeries>();

  add(step: string, ms: number): void {
    const known = this.#series.get(step);
    if (known) {
      known.add(ms);
      return;
    }
    const series = new LatencySeries();
    series.add(ms);
    this.#series.set(step, series);
  }

  summary(step: string): LatencySummary | null {
    return this.#series.get(step)?.summary() ?? null;
  }
}
