/** What the keeping of order asks of an L2 adapter (src/l2/adapter.ts). */
import type { DeleteResult } from '../../l2/backend.ts';
import type { L2Listener } from '../../l2/inventory.ts';
import type { ObjectKey } from '../../l2/object-key.ts';

export interface StoreUsage {
  readonly usedBytes: number;
  /** 0 = no bound. */
  readonly capacityBytes: number;
  /** Only tenants that have something, in the order in which they first had. */
  readonly bytesBySalt: ReadonlyMap<string, number>;
}

export interface ManagedStore {
  readonly id: number;
  readonly typeName: string;
  /** What an earlier server has left is not known yet. */
  readonly isScanning: boolean;
  usage(): StoreUsage;
  onChange(listener: L2Listener): void;
  onFull(makeRoom: (neededBytes: number) => Promise<void>): void;
  /** A lookup has promised it to somebody. */
  isLocked(key: ObjectKey): boolean;
  /** Locked ones answer with an error. Never rejects. */
  delete(keys: readonly ObjectKey[]): Promise<readonly DeleteResult[]>;
}
