/** Lists of slots between the storage room, the table of pending transfers, and replies. */
import { NO_SLOT } from '../../core/object-table.ts';
import type { Places } from '../../storage/l1-manager.ts';
import type { TransferSlot } from '../api.ts';
import type { EngineDrivenInstance } from '../instances.ts';
import { chunkTensorOf } from './worker-layout.ts';

/** Slots with the chunk of the key's range that each of them holds. */
export interface SlotList extends Places {
  readonly chunkIndices: readonly number[];
}

export const NO_SLOTS: SlotList = {
  slots: new Uint32Array(0),
  offsets: new Float64Array(0),
  chunkIndices: [],
};

/** One place per chunk, some of them empty, to the list of those that are not. */
export function compactSlots({ slots, offsets }: Places): SlotList {
  const chunkIndices: number[] = [];
  for (let chunk = 0; chunk < slots.length; chunk += 1) {
    if (slots[chunk] !== NO_SLOT) chunkIndices.push(chunk);
  }
  return {
    slots: Uint32Array.from(chunkIndices, (chunk) => slots[chunk] as number),
    offsets: Float64Array.from(chunkIndices, (chunk) => offsets[chunk] as number),
    chunkIndices,
  };
}

/** The slots of a list in the places of their chunks, `NO_SLOT` in all others. */
export function slotsByChunk(
  { slots, chunkIndices }: Pick<SlotList, 'slots' | 'chunkIndices'>,
  chunkCount: number,
): Uint32Array {
  const placed = new Uint32Array(chunkCount).fill(NO_SLOT);
  for (const [i, chunk] of chunkIndices.entries()) placed[chunk] = slots[i] as number;
  return placed;
}

/** As the worker is told. */
export function describeSlots(
  instance: EngineDrivenInstance,
  offsets: Float64Array,
): TransferSlot[] {
  const { shape, dtype } = chunkTensorOf(instance);
  const length = instance.object.objectSizeBytes;
  return Array.from(offsets, (offset) => ({ offset, length, shape, dtype }));
}
