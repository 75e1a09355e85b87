/**
 * What the transfer modules need from the storage room and from the sessions, and no more.
 *
 * The real classes are `StorageManager` and `SessionTable`; tests bring their own.
 */
import type { ChunkHasher } from '../../core/chunk-hasher.ts';
import type { ObjectKeys } from '../../core/object-table.ts';
import type { ObjectShape, Places } from '../../storage/l1-manager.ts';
import type { StorageManager, StoreGroup } from '../../storage/storage-manager.ts';
import type { SessionTable } from '../session.ts';

export type TransferHasher = Pick<ChunkHasher, 'chunkSizeTokens' | 'hashPrompt'>;

export interface TransferStorage extends Pick<StorageManager, 'internNamespace'> {
  /** Pinned staging for the objects that must be written; offset −1 where nothing is to be done. */
  reserveStore(keys: ObjectKeys, shape: ObjectShape): Places;
  /** The same for several object groups of the same chunks, which are of use only together. */
  reserveStoreGroups(groups: readonly StoreGroup[]): Places[];
  /** Returns how many objects are readable now; the others had expired or were cleared. */
  finishStore(slots: Uint32Array): number;
  discardStore(slots: Uint32Array): void;
  /**
   * Pins every object of `keys`, or none: null when one is not readable or has not that shape
   * (another layout wrote it; a copy would run into the neighbour's bytes).
   */
  acquireForRead(keys: ObjectKeys, shape: ObjectShape): Places | null;
  releaseRead(slots: Uint32Array): void;
}

/** Reservations that a worker writes itself, at its own pace. All slots here are reserved ones. */
export interface WorkerStorage extends Omit<TransferStorage, 'reserveStoreGroups'> {
  /** The writer lives: its reservations get their time anew, also when it was over. */
  extendStore(slots: Uint32Array): void;
  /** Gives the keys up and keeps the memory out of use until `releaseAbandoned`. */
  abandonStore(slots: Uint32Array): void;
  releaseAbandoned(slots: Uint32Array): void;
}

export type TransferSessions = Pick<
  SessionTable,
  'recordTransfer' | 'recordRetrieve' | 'consumeHolds' | 'giveUpRead'
>;
