/**
 * Which layout the workers of a model have (spec engine 0.1).
 *
 * LOOKUP asks here whether anybody serves (model, world size) at all, and how large an object of
 * it is. The newest registration decides; the count says when the last worker has left.
 */
import type { LayoutTags } from '../storage/l1-manager.ts';
import type { EngineType, MemoryLayout } from './api.ts';

export interface RegisteredLayout {
  readonly memoryLayout: MemoryLayout;
  readonly objectSizeBytes: number;
  readonly isVllm: boolean;
  /** Every tensor-parallel rank reads each object: see `countReaders` in `lookup.ts`. */
  readonly isVllmMla: boolean;
  /** Tags of all layouts that its workers have: pipeline stages differ in their layers. */
  readonly layoutTags: LayoutTags;
}

/** What the bytes of one object are. */
export interface ObjectLayout {
  readonly memoryLayout: MemoryLayout;
  readonly objectSizeBytes: number;
  readonly isMla: boolean;
  /** `layoutTagOf` the memory layout. */
  readonly layoutTag: number;
}

export interface LayoutOwner {
  readonly modelName: string;
  readonly worldSize: number;
  readonly engineType: EngineType;
  readonly layout: ObjectLayout;
}

interface Entry {
  layout: RegisteredLayout;
  /** Owners per layout tag. */
  readonly tagCounts: Map<number, number>;
}

/**
 * A number for what the bytes of an object mean: shapes and dtypes of its parts. Workers of one
 * model that differ in it must not read each other's objects, even if these have the same size
 * (field lessons 17.2). Leading dimensions of 1 mean nothing.
 */
export function layoutTagOf({ shapes, dtypes }: MemoryLayout): number {
  const parts = shapes.map((shape, i) => {
    const significant = shape.findIndex((size) => size !== 1);
    return `${dtypes[i]}[${shape.slice(Math.max(0, significant))}]`;
  });
  let tag = 0x811c9dc5; // FNV-1a
  for (const byte of new TextEncoder().encode(parts.join(';'))) {
    tag = Math.imul(tag ^ byte, 0x01000193) >>> 0;
  }
  return tag;
}

export class LayoutRegistry {
  readonly #entries = new Map<string, Entry>();

  find(modelName: string, worldSize: number): RegisteredLayout | undefined {
    return this.#entries.get(keyOf(modelName, worldSize))?.layout;
  }

  register(owner: LayoutOwner): void {
    const { memoryLayout, objectSizeBytes, isMla, layoutTag } = owner.layout;
    const key = keyOf(owner.modelName, owner.worldSize);
    const tagCounts = this.#entries.get(key)?.tagCounts ?? new Map<number, number>();
    tagCounts.set(layoutTag, (tagCounts.get(layoutTag) ?? 0) + 1);
    const isVllm = owner.engineType === 'vllm';
    const isVllmMla = isVllm && isMla;
    const layout = { memoryLayout, objectSizeBytes, isVllm, isVllmMla, layoutTags: tagCounts };
    this.#entries.set(key, { layout, tagCounts });
  }

  /** Returns true when that was the last owner of its (model, world size). */
  unregister(owner: LayoutOwner): boolean {
    const key = keyOf(owner.modelName, owner.worldSize);
    const tagCounts = this.#entries.get(key)?.tagCounts;
    if (!tagCounts) return false;
    const { layoutTag } = owner.layout;
    const count = (tagCounts.get(layoutTag) ?? 0) - 1;
    if (count > 0) tagCounts.set(layoutTag, count);
    else tagCounts.delete(layoutTag);
    if (tagCounts.size > 0) return false;
    this.#entries.delete(key);
    return true;
  }
}

function keyOf(modelName: string, worldSize: number): string {
  return `${worldSize}/${modelName}`;
}
