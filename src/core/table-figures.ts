/**
 * Figures of the table: its counters, and the sums that a call leaves behind.
 *
 * All lie in one region of doubles (assembly/table.ts and batch.ts); reading them costs no walk.
 */
import { type CoreExports, REGION } from './instance.ts';
import { SLICE_RESULTS, type SliceResult } from './result.ts';

export interface SliceOutcome {
  readonly result: SliceResult;
  readonly freedBytes: number;
  readonly objectCount: number;
  readonly familyCount: number;
}

export interface ClearOutcome {
  readonly removedCount: number;
  /** Of these, objects whose memory follows with its last holder. */
  readonly deferredCount: number;
  readonly freedBytes: number;
}

export interface ClearSlice extends ClearOutcome {
  /** Where the next slice begins; null after the last one. */
  readonly nextSlot: number | null;
}

/** Figures of the core, in its order (assembly/table.ts). */
const STATISTICS = [
  'objectCount',
  'stagingCount',
  'deferredCount',
  'writeLockedCount',
  'readLockedCount',
  'temporaryCount',
  'pinnedCount',
  'expiredCount',
  'usedBytes',
  'stagingBytes',
  'deferredBytes',
  'arenaBytes',
  'largestFreeBytes',
  'freeBlockCount',
  'familyCount',
  'trackedFamilyCount',
  'slotHighWater',
  'lateReleaseCount',
] as const;
const USED_BYTES = STATISTICS.indexOf('usedBytes');

/** Places of the sums of a call (assembly/batch.ts). */
const SUM_FREED_BYTES = 24;
const SUM_REMOVED = 25;
const SUM_DEFERRED = 26;
const SUM_FAMILIES = 27;
const FIGURE_COUNT = 32;

export type TableStatistics = Readonly<Record<(typeof STATISTICS)[number], number>>;

export class TableFigures {
  readonly #figures: Float64Array;

  constructor(core: CoreExports) {
    const offset = core.region_offset(REGION.figures);
    this.#figures = new Float64Array(core.memory.buffer, offset, FIGURE_COUNT);
  }

  /** The counters as the last `table_statistics` has written them. */
  read(): TableStatistics {
    const figures: Record<string, number> = {};
    for (const [place, name] of STATISTICS.entries()) figures[name] = this.#figures[place]!;
    return figures as TableStatistics;
  }

  get usedBytes(): number {
    return this.#figures[USED_BYTES]!;
  }

  clearOutcome(): ClearOutcome {
    return {
      removedCount: this.#figures[SUM_REMOVED]!,
      deferredCount: this.#figures[SUM_DEFERRED]!,
      freedBytes: this.#figures[SUM_FREED_BYTES]!,
    };
  }

  /** `result` is the number that the slice has answered. */
  sliceOutcome(result: number): SliceOutcome {
    return {
      result: SLICE_RESULTS[result]!,
      freedBytes: this.#figures[SUM_FREED_BYTES]!,
      objectCount: this.#figures[SUM_REMOVED]!,
      familyCount: this.#figures[SUM_FAMILIES]!,
    };
  }
}
