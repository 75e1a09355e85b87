/** Keys, values and L1 buffers for tests of L2 backends. */
import { Shim } from '../../src/device/shim.ts';
import type { L2Object } from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { type L1Memory, openL1Memory } from '../../src/storage/l1-memory/l1-memory.ts';
import { alignUp } from '../../src/units.ts';
import { silentLogger } from './silent-logger.ts';

/** A key whose chunk hash says which one of the test it is. */
export function l2Key(index: number, rest: Partial<ObjectKey> = {}): ObjectKey {
  const chunkHash = new Uint8Array(32).fill(0xab);
  new DataView(chunkHash.buffer).setUint32(0, index);
  return {
    chunkHash,
    modelName: 'org/model-8B',
    kvRank: 0x0100_0100,
    objectGroupId: 0,
    cacheSalt: '',
    ...rest,
  };
}

/** Bytes that no other seed has and that zstd cannot shrink to nothing. */
export function l2Value(sizeBytes: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(sizeBytes);
  let state = (seed * 2_654_435_761 + 1) >>> 0;
  for (let i = 0; i < sizeBytes; i += 1) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

export const SLOT_ALIGN_BYTES = 4096;
const GUARD_BYTES = SLOT_ALIGN_BYTES;
const GUARD = 0xa5;

/**
 * Buffers as a backend gets them: parts of real L1 memory at aligned addresses, with a guard before
 * and behind, so that a write outside shows.
 */
export class SlotArena {
  readonly #memory: L1Memory;
  #endOffset = 0;

  private constructor(memory: L1Memory) {
    this.#memory = memory;
  }

  static async open(sizeBytes: number): Promise<SlotArena> {
    const options = { shim: Shim.load(), log: silentLogger, hugePages: 'none', shm: null } as const;
    const arena = new SlotArena(await openL1Memory({ ...options, sizeBytes }));
    arena.reset();
    return arena;
  }

  /** Gives all slots back. */
  reset(): void {
    this.#memory.view(0, this.#endOffset).fill(0);
    this.#endOffset = GUARD_BYTES;
    this.#memory.view(0, GUARD_BYTES).fill(GUARD);
  }

  /** Zeros, or a copy of `content`. */
  slot(content: number | Uint8Array): Uint8Array {
    const sizeBytes = typeof content === 'number' ? content : content.length;
    const offset = this.#endOffset;
    const guardOffset = offset + sizeBytes;
    this.#endOffset = alignUp(guardOffset, SLOT_ALIGN_BYTES) + GUARD_BYTES;
    this.#memory.view(guardOffset, this.#endOffset - guardOffset).fill(GUARD);
    const slot = this.#memory.view(offset, sizeBytes);
    if (typeof content !== 'number') slot.set(content);
    return slot;
  }

  object(key: ObjectKey, content: number | Uint8Array): L2Object {
    return { key, bytes: this.slot(content) };
  }

  /** True while nobody has written outside of `slots`, which must be all since the last reset. */
  guardsHold(slots: readonly Uint8Array[]): boolean {
    let offset = 0;
    for (const slot of slots) {
      if (!this.#isGuard(offset, slot.byteOffset - this.#base)) return false;
      offset = slot.byteOffset - this.#base + slot.length;
    }
    return this.#isGuard(offset, this.#endOffset);
  }

  close(): Promise<void> {
    return this.#memory.close();
  }

  get #base(): number {
    return this.#memory.view(0, 1).byteOffset;
  }

  #isGuard(from: number, to: number): boolean {
    return this.#memory.view(from, to - from).every((byte) => byte === GUARD);
  }
}
