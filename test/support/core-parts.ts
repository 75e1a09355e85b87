/** Exports of assembly/test/parts.ts: the single parts of the core. */
import { startAssembly } from './compile-assembly.ts';

export interface CoreParts {
  readonly memory: { readonly buffer: ArrayBuffer };
  open(countMax: number): number;
  lock_acquire(nowMs: number, ttlMs: number): void;
  lock_release(): void;
  lock_reset(): void;
  lock_is_held(nowMs: number): number;
  lock_count(): number;
  lock_generation(): number;
  address_reset(units: number): void;
  address_allocate(units: number, count: number): number;
  address_free(start: number, units: number): void;
  address_grow(units: number): void;
  address_free_units(): number;
  address_heap_units(): number;
  address_blocks(): number;
  policy_select(kind: number): void;
  policy_family(chunk: number, tenant: number): number;
  policy_insert(family: number): void;
  policy_reserve(family: number): void;
  policy_refresh(family: number): void;
  policy_touch(family: number): void;
  policy_remove(family: number): void;
  policy_victim(isFromStart: number): number;
  policy_victim_of(tenant: number, isFromStart: number): number;
  policy_take(family: number): number;
  policy_word(family: number): number;
  policy_key(family: number): bigint;
  policy_ghosts(list: number): number;
  policy_arc_capacity(): number;
  policy_arc_target(): number;
  policy_count(): number;
  bitmap_bytes(size: number): number;
  bitmap_reset(n: number, size: number, prefix: number): void;
  bitmap_set(n: number, size: number, position: number): void;
  bitmap_clear(n: number, size: number, position: number): void;
  bitmap_test(n: number, size: number, position: number): number;
  bitmap_set_range(n: number, size: number, start: number, end: number): void;
  bitmap_popcount(n: number, size: number): number;
  bitmap_highest(n: number, size: number): number;
  bitmap_next_one(n: number, size: number, start: number): number;
  bitmap_leading_ones(n: number, size: number): number;
  bitmap_leading_zeros(n: number, size: number): number;
  bitmap_and(sizeA: number, sizeB: number): number;
  bitmap_or(sizeA: number, sizeB: number): number;
  bitmap_not(size: number): void;
  bitmap_gather(size: number, itemCount: number): number;
}

/** A fresh instance, and the words of its scratch region. */
export function openCoreParts(countMax: number): { parts: CoreParts; scratch: Uint32Array } {
  const parts = startAssembly<CoreParts>('assembly/test/parts.ts');
  const offset = parts.open(countMax);
  return { parts, scratch: new Uint32Array(parts.memory.buffer, offset, 16_384) };
}
