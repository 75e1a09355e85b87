/**
 * The longest prefix that can be made readable and for which L1 has room, with its places.
 *
 * When L1 has no room for the whole prefix it evicts; if that is not enough a shorter one is taken,
 * because a part of a prompt is better than nothing (spec storage 18.8, field lessons 10.3).
 */
import type { Namespace } from '../../core/namespaces.ts';
import { alignUp } from '../../units.ts';
import type { Column } from '../l1-exchange.ts';
import type { ObjectShape } from '../l1-manager.ts';
import type { WantedObject } from './prefetch-lookup.ts';
import { NOT_LOADED, type PlanInput, type PrefetchPlan, planPrefetch } from './prefetch-plan.ts';
import { type PrefetchRoom, reportFailure } from './prefetch-room.ts';

/** Each halves what is asked for; the last one asks for a thousandth. */
const FIT_ROUNDS_MAX = 10;

/** Which column of the keys a cell belongs to follows from its index. */
export interface MissingCell {
  readonly index: number;
  /** Of the object, in this process. */
  readonly name: string;
  readonly wanted: WantedObject;
  readonly layoutTag: number;
}

export interface PrefetchColumn {
  readonly namespace: Namespace;
  /** The part of `MissingCell.name` that all its objects have. */
  readonly prefix: string;
  /** Null: its objects cannot be loaded, because nobody knows how large they are. */
  readonly shape: ObjectShape | null;
}

export interface FittingPlan {
  readonly plan: PrefetchPlan;
  /** Places of the cells that it loads, staged and pinned. */
  readonly slotOf: ReadonlyMap<number, number>;
}

type Room = Pick<PrefetchRoom, 'exchange' | 'alignBytes' | 'makeRoom' | 'bus'>;

export interface FittingPlannerOptions extends Room {
  readonly columns: readonly PrefetchColumn[];
  /** What L1 lacks, in key order. */
  readonly missing: readonly MissingCell[];
  /** What is loaded goes with its last reader. */
  readonly isTemporary: boolean;
}

export class FittingPlanner {
  readonly #options: FittingPlannerOptions;

  constructor(options: FittingPlannerOptions) {
    this.#options = options;
  }

  /** Source 0 of the input are the loads that run: what comes from there has its place already. */
  plan(input: PlanInput, chunkCountMax: number): FittingPlan {
    return this.#reserve(input, this.#planFree(input, chunkCountMax));
  }

  /**
   * Objects of foreign layouts make way for what is loaded in their place, unless somebody holds
   * them: those are as good as missing.
   */
  #planFree({ isResident, sources, windows }: PlanInput, chunkCountMax: number): PrefetchPlan {
    const { columns, exchange } = this.#options;
    for (;;) {
      const plan = planPrefetch({ isResident, sources, windows }, chunkCountMax);
      const blocked = columns.flatMap(({ namespace }, c) => {
        const cells = this.#loadedCells(plan, c);
        const isBlocked = cells.length > 0 && exchange.removeStrangers(columnOf(namespace, cells));
        return isBlocked ? cells.filter((_, i) => isBlocked[i]) : [];
      });
      if (blocked.length === 0) return plan;
      for (const { index } of blocked) for (const source of sources) source[index] = 0;
    }
  }

  /** Places for all that the plan loads, or for the longest shorter one for which there is room. */
  #reserve(input: PlanInput, whole: PrefetchPlan): FittingPlan {
    let plan = whole;
    for (let round = 0; round < FIT_ROUNDS_MAX; round += 1) {
      const slotOf = this.#reservePlan(plan);
      if (slotOf) return { plan, slotOf };
      const freeBytes = this.#options.makeRoom(this.#bytesOf(plan));
      const again = this.#reservePlan(plan);
      if (again) return { plan, slotOf: again };
      if (round === 0) this.#reportNoRoom(plan);
      plan = this.#shorten(input, plan, freeBytes / 2 ** round);
    }
    return {
      plan: planPrefetch({ ...input, sources: input.sources.slice(0, 1) }, whole.chunkCount),
      slotOf: new Map(),
    };
  }

  /** The longest plan for a shorter prefix that takes at most `bytes`. */
  #shorten(input: PlanInput, { chunkCount }: PrefetchPlan, bytes: number): PrefetchPlan {
    let low = planPrefetch(input, 0);
    let highCount = chunkCount;
    while (highCount - low.chunkCount > 1) {
      const middle = low.chunkCount + Math.floor((highCount - low.chunkCount) / 2);
      const plan = planPrefetch(input, middle);
      if (plan.chunkCount > low.chunkCount && this.#bytesOf(plan) <= bytes) low = plan;
      else highCount = middle;
    }
    return low;
  }

  #isLoaded(plan: PrefetchPlan, { index }: MissingCell): boolean {
    const source = plan.sourceOf[index] as number;
    return source !== NOT_LOADED && source > 0;
  }

  #countLoads(plan: PrefetchPlan): number {
    return this.#options.missing.filter((cell) => this.#isLoaded(plan, cell)).length;
  }

  /** Of one column. */
  #loadedCells(plan: PrefetchPlan, column: number): MissingCell[] {
    const width = this.#options.columns.length;
    return this.#options.missing.filter(
      (cell) => cell.index % width === column && this.#isLoaded(plan, cell),
    );
  }

  #reportNoRoom(plan: PrefetchPlan): void {
    const modelName = this.#options.columns[0]?.namespace.modelName ?? '';
    reportFailure(this.#options, 'l1_oom', { modelName, keyCount: this.#countLoads(plan) });
  }

  #bytesOf(plan: PrefetchPlan): number {
    const { alignBytes, missing } = this.#options;
    return missing.reduce((sum, cell) => {
      const isLoaded = this.#isLoaded(plan, cell);
      return isLoaded ? sum + alignUp(cell.wanted.sizeBytes, alignBytes) : sum;
    }, 0);
  }

  /** Places of the cells that the plan loads; null when one finds no room. */
  #reservePlan(plan: PrefetchPlan): Map<number, number> | null {
    const { exchange, columns, isTemporary } = this.#options;
    const slotOf = new Map<number, number>();
    for (const [c, { namespace, shape }] of columns.entries()) {
      const cells = this.#loadedCells(plan, c);
      if (cells.length === 0 || !shape) continue;
      const slots = exchange.reserve(columnOf(namespace, cells), shape, isTemporary);
      if (!slots) {
        const reserved = Uint32Array.from(slotOf.values());
        exchange.abandon(reserved);
        exchange.unpin(reserved);
        return null;
      }
      for (const [i, { index }] of cells.entries()) slotOf.set(index, slots[i] as number);
    }
    return slotOf;
  }
}

function columnOf(namespace: Namespace, cells: readonly MissingCell[]): Column {
  const hashSizeBytes = cells[0]?.wanted.key.chunkHash.length ?? 0;
  const bytes = new Uint8Array(cells.length * hashSizeBytes);
  for (const [i, { wanted }] of cells.entries()) bytes.set(wanted.key.chunkHash, i * hashSizeBytes);
  return { namespace, hashes: { bytes, count: cells.length, hashSizeBytes } };
}
