/** What the storage room asks of an L2 adapter (src/l2/adapter.ts). */
import type { L2Object, LoadResult, StoreResult } from '../../l2/backend.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import type { L2Task } from '../../l2/task.ts';

export interface L2Store {
  /** 0, 1, 2, … in the order of their making; never used again. */
  readonly id: number;
  readonly typeName: string;
  /** How many bytes it moves at a time; more than that would only wait. */
  readonly settings: { readonly inFlightMaxBytes: number };
  /** False while it is left alone after failures: it would refuse every store. */
  readonly canStore: boolean;
  store(objects: readonly L2Object[]): L2Task<readonly StoreResult[]>;
  /** 1 where a value of just this size is; it is locked until `unlock`. Never rejects. */
  lookup(
    keys: readonly ObjectKey[],
    sizesBytes: ArrayLike<number>,
    timeoutMs?: number,
  ): Promise<Uint8Array>;
  load(objects: readonly L2Object[], timeoutMs?: number): L2Task<readonly LoadResult[]>;
  /** Once per hit of a lookup. */
  unlock(keys: readonly ObjectKey[]): void;
  /** Its part of `GET /status`. */
  status(): Record<string, unknown>;
}
