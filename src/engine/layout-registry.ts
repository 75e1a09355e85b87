/**
 * Which layout the workers of a model have (spec engine 0.1).
 *
 * LOOKUP asks here whether anybody serves (model, world size) at all, and how large an object of
 * it is. The newest registration decides; the count says when the last worker has left.
 */
import type { EngineType, MemoryLayout } from './api.ts';

export interface RegisteredLayout {
  readonly memoryLayout: MemoryLayout;
  readonly objectSizeBytes: number;
  /** Every tensor-parallel rank reads each object: see `countReaders` in `lookup.ts`. */
  readonly isVllmMla: boolean;
}

/** What the bytes of one object are. */
export interface ObjectLayout {
  readonly memoryLayout: MemoryLayout;
  readonly objectSizeBytes: number;
  readonly isMla: boolean;
}

export interface LayoutOwner {
  readonly modelName: string;
  readonly worldSize: number;
  readonly engineType: EngineType;
  readonly layout: ObjectLayout;
}

interface Entry {
  layout: RegisteredLayout;
  ownerCount: number;
}

export class LayoutRegistry {
  readonly #entries = new Map<string, Entry>();

  find(modelName: string, worldSize: number): RegisteredLayout | undefined {
    return this.#entries.get(keyOf(modelName, worldSize))?.layout;
  }

  register(owner: LayoutOwner): void {
    const { memoryLayout, objectSizeBytes, isMla } = owner.layout;
    const layout = {
      memoryLayout,
      objectSizeBytes,
      isVllmMla: isMla && owner.engineType === 'vllm',
    };
    const key = keyOf(owner.modelName, owner.worldSize);
    const entry = this.#entries.get(key);
    if (entry) {
      entry.layout = layout;
      entry.ownerCount += 1;
    } else {
      this.#entries.set(key, { layout, ownerCount: 1 });
    }
  }

  /** Returns true when that was the last owner of its (model, world size). */
  unregister(owner: LayoutOwner): boolean {
    const key = keyOf(owner.modelName, owner.worldSize);
    const entry = this.#entries.get(key);
    if (!entry) return false;
    entry.ownerCount -= 1;
    if (entry.ownerCount > 0) return false;
    this.#entries.delete(key);
    return true;
  }
}

function keyOf(modelName: string, worldSize: number): string {
  return `${worldSize}/${modelName}`;
}
