/**
 * Which layout the workers of a model have (spec engine 0.1).
 *
 * LOOKUP asks here whether anybody serves (model, world size) at all, and how large an object of
 * it is. Of the workers that are there the newest decides.
 */
import type { GroupRule, ObjectShape } from '../storage/l1-manager.ts';
import type { EngineType, MemoryLayout } from './api.ts';
import type { LayoutRules } from './client-traits.ts';

export interface RegisteredLayout {
  readonly isVllm: boolean;
  /** Every tensor-parallel rank reads each object: see `countReaders` in `lookup.ts`. */
  readonly isVllmMla: boolean;
  /** What the newest worker has of each chunk, as far as it makes a hit. */
  readonly objectGroups: readonly ObjectGroupLayout[];
  readonly objectGroupIds: readonly number[];
  /** In the same order: what a prefix must have of them. */
  readonly groupRules: readonly GroupRule[];
}

/**
 * What the bytes of the objects of one object group are: the layout text is `describeLayout` of
 * them, the layout tag is `layoutTagOf` it.
 */
export interface ObjectGroupLayout extends ObjectShape {
  readonly objectGroupId: number;
  /** Chunks at the end of a prefix that its readers need; `NO_WINDOW` = all of it. */
  readonly windowChunks: number;
  /** Private to a connector: no part of a hit, and no RETRIEVE reads it. */
  readonly isAuxiliary: boolean;
  /** One shape and dtype per kernel group. */
  readonly memoryLayout: MemoryLayout;
}

/** What a worker stores of each chunk. */
export interface ObjectLayout {
  readonly isMla: boolean;
  /** At least one. */
  readonly objectGroups: readonly ObjectGroupLayout[];
}

export interface LayoutOwner {
  readonly modelName: string;
  readonly worldSize: number;
  readonly engineType: EngineType;
  readonly layoutRules: LayoutRules;
  readonly layout: ObjectLayout;
}

/**
 * What the bytes of an object mean, in a form that may be written beside them: element type and
 * shape of each part, e.g. `float16[2,4,256,1024]`. Workers of one model that differ in it must not
 * read each other's objects, even if these have the same size (field lessons 17.2). Equal bytes
 * have equal texts, whatever format they came from: leading dimensions of 1 mean nothing, and the
 * order of slots and heads is the same everywhere (spec engine 5.5).
 *
 * `blockTexts`: for parts whose blocks have an order of their own, what it is; `''` for the others.
 */
export function describeLayout(
  { shapes, dtypes }: MemoryLayout,
  blockTexts: readonly string[] = [],
): string {
  const parts = shapes.map((shape, i) => {
    const significant = shape.findIndex((size) => size !== 1);
    const blockText = blockTexts[i] ? `{${blockTexts[i]}}` : '';
    return `${dtypes[i]}[${shape.slice(Math.max(0, significant))}]${blockText}`;
  });
  return parts.join(';');
}

/** A number for a layout text, to compare by in memory. What is kept longer keeps the text. */
export function layoutTagOf(layoutText: string): number {
  let tag = 0x811c9dc5; // FNV-1a
  for (const byte of new TextEncoder().encode(layoutText)) {
    tag = Math.imul(tag ^ byte, 0x01000193) >>> 0;
  }
  return tag;
}

/** The layouts of some workers of one (model, world size). */
class LayoutFamily {
  /** In the order of registration. */
  readonly #layouts = new Map<LayoutOwner, RegisteredLayout>();
  #newest: RegisteredLayout | undefined;
  /**
   * Owners per layout tag, for each object group. All layouts that the workers of a model have
   * count: pipeline stages differ in their layers.
   */
  readonly #tagCounts: Map<number, number>[] = [];

  get isEmpty(): boolean {
    return this.#layouts.size === 0;
  }

  /** Of the worker that has registered last. */
  get layout(): RegisteredLayout | undefined {
    return this.#newest;
  }

  add(owner: LayoutOwner): void {
    const { engineType, layout } = owner;
    const { objectGroups, isMla } = layout;
    for (const { objectGroupId, layoutTag } of objectGroups) {
      const counts = this.#tagCounts[objectGroupId] ?? new Map<number, number>();
      counts.set(layoutTag, (counts.get(layoutTag) ?? 0) + 1);
      this.#tagCounts[objectGroupId] = counts;
    }
    const isVllm = engineType === 'vllm';
    const ofHits = objectGroups.filter(({ isAuxiliary }) => !isAuxiliary);
    this.#newest = {
      isVllm,
      isVllmMla: isVllm && isMla,
      groupRules: ofHits.map((shape) => {
        const layoutTags = this.#tagCounts[shape.objectGroupId] as Map<number, number>;
        return { layoutTags, windowChunks: shape.windowChunks, shape };
      }),
      objectGroups: ofHits,
      objectGroupIds: ofHits.map(({ objectGroupId }) => objectGroupId),
    };
    this.#layouts.set(owner, this.#newest);
  }

  remove(owner: LayoutOwner): void {
    if (!this.#layouts.delete(owner)) return;
    this.#newest = [...this.#layouts.values()].at(-1);
    for (const { objectGroupId, layoutTag } of owner.layout.objectGroups) {
      const counts = this.#tagCounts[objectGroupId] as Map<number, number>;
      const count = (counts.get(layoutTag) ?? 0) - 1;
      if (count > 0) counts.set(layoutTag, count);
      else counts.delete(layoutTag);
    }
  }
}

/** All workers, and those of each generation's rules. */
type Entry = Map<LayoutRules | 'any', LayoutFamily>;

export class LayoutRegistry {
  readonly #entries = new Map<string, Entry>();

  /**
   * What the workers have that read tensors by `layoutRules`: generations that lay out a model
   * differently may share a server, and an object of the other one is no hit. Without such workers,
   * or without `layoutRules`, what any worker has.
   */
  find(
    modelName: string,
    worldSize: number,
    layoutRules?: LayoutRules,
  ): RegisteredLayout | undefined {
    const entry = this.#entries.get(keyOf(modelName, worldSize));
    return (entry?.get(layoutRules ?? 'any') ?? entry?.get('any'))?.layout;
  }

  register(owner: LayoutOwner): void {
    const key = keyOf(owner.modelName, owner.worldSize);
    const entry: Entry = this.#entries.get(key) ?? new Map();
    this.#entries.set(key, entry);
    for (const rules of ['any', owner.layoutRules] as const) {
      const family = entry.get(rules) ?? new LayoutFamily();
      family.add(owner);
      entry.set(rules, family);
    }
  }

  /** Returns true when that was the last owner of its (model, world size). */
  unregister(owner: LayoutOwner): boolean {
    const key = keyOf(owner.modelName, owner.worldSize);
    const entry = this.#entries.get(key);
    if (!entry) return false;
    for (const rules of ['any', owner.layoutRules] as const) {
      const family = entry.get(rules);
      family?.remove(owner);
      if (family?.isEmpty) entry.delete(rules);
    }
    if (entry.size > 0) return false;
    this.#entries.delete(key);
    return true;
  }
}

function keyOf(modelName: string, worldSize: number): string {
  return `${worldSize}/${modelName}`;
}
