/**
 * What a scrape reads: plain numbers, collected by whoever owns them.
 *
 * `server.ts` makes a `MetricsSource`; `instruments.ts` says how each number is called. Nothing is
 * pushed: the rooms count in plain fields, and a scrape reads them all at once, so that the numbers
 * of one answer belong together.
 */

/** Count per label value, for example requests per operation. */
export type Counts = ReadonlyMap<string, number>;

export interface MetricsSnapshot {
  readonly l1UsedBytes: number;
  readonly l1TotalBytes: number;
  readonly objectCount: number;
  readonly stagingObjectCount: number;
  readonly sessionCount: number;
  readonly instanceCount: number;
  /** Engine-driven workers get L1 as shared memory. */
  readonly isEngineDrivenShm: boolean;
  readonly quarantinedBytes: number;
  readonly prefetchJobCount: number;
  readonly kvEventLogDepth: number;
  readonly inFlightRequestCount: number;
  readonly requestCounts: Counts;
  /** By generation of clients. */
  readonly requestCountsByDialect: Counts;
  /** Connections that are remembered, by generation of clients. */
  readonly clientCounts: Counts;
  readonly failedRequestCounts: Counts;
}

export interface MetricsSource {
  snapshot(): MetricsSnapshot;
}

/** Distinct label values of one counter; a peer must not be able to grow it without bound. */
const LABEL_COUNT_MAX = 100;
export const OTHER_LABEL = '__other__';

/** A counter per label value that cannot grow without bound. */
export class BoundedCounts {
  readonly #counts = new Map<string, number>();

  add(label: string, amount = 1): void {
    const isRoom = this.#counts.has(label) || this.#counts.size < LABEL_COUNT_MAX;
    const bounded = isRoom ? label : OTHER_LABEL;
    this.#counts.set(bounded, (this.#counts.get(bounded) ?? 0) + amount);
  }

  get counts(): Counts {
    return this.#counts;
  }
}
