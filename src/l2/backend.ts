/**
 * What an L2 adapter has to be: a store of values under keys, in batches.
 *
 * A backend moves bytes between L1 and one kind of store, and nothing else. What all of them need
 * is around it, once, in `adapter.ts`: locks, accounting per tenant, capacity, deadlines, health
 * and back-off, value transformations, events. So a backend is small, and a new one is one file in
 * `adapters/` that exports an `L2BackendType` as `backendType`; nothing else has to know of it.
 *
 * Rules
 *   - Results are per object. A failure of one is a value (an `Error`), never a rejection; a call
 *     that rejects counts as a failure of all its objects.
 *   - A value is there as a whole or not at all, also after a crash in the middle of a store.
 *   - Buffers are parts of L1 and belong to the caller again when the promise has settled, not
 *     earlier: a call that was aborted settles when nothing touches its buffers any more.
 *   - `load` never writes outside of its buffer, and says `missing` for a value of another size.
 *   - Whoever reads what the peer has written follows its key and value forms (spec l2-adapters).
 */
import type { Clock } from '../clock.ts';
import type { Logger } from '../observability/log.ts';
import type { ConfigKeys, ConfigValues } from './config-keys.ts';
import type { ObjectKey } from './object-key.ts';

/** A value and where it is (store) or goes (load). The length of `bytes` is the value's own. */
export interface L2Object {
  readonly key: ObjectKey;
  readonly bytes: Uint8Array;
  /**
   * What the bytes mean, e.g. `float16[2,4,256,1024]`: for value transformations that depend on it.
   * Stores take no notice.
   */
  readonly layout?: string | undefined;
}

/**
 * `present`: a whole value of this size was there already. A number: stored, and takes so many
 * bytes there, which are not those of the object (only value transformations answer that).
 */
export type StoreResult = 'stored' | 'present' | number | Error;
export type LoadResult = 'loaded' | 'missing' | Error;
/** Bytes of the value; null = absent. */
export type LookupResult = number | null | Error;
export type DeleteResult = 'deleted' | 'absent' | Error;

export interface ListedObject {
  readonly key: ObjectKey;
  readonly sizeBytes: number;
  /** Milliseconds since 1970, as far as the store knows; 0 = unknown. */
  readonly storedMs: number;
}

export interface ListPage {
  readonly objects: readonly ListedObject[];
  /** To be handed back for the next page; null = that was the last one. */
  readonly nextToken: string | null;
}

export interface ListOptions {
  /** Null = all. */
  readonly modelName: string | null;
  readonly pageSize: number;
  readonly token: string | null;
  readonly signal: AbortSignal;
}

export interface L2Backend {
  store(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly StoreResult[]>;
  lookup(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly LookupResult[]>;
  load(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly LoadResult[]>;
  delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly DeleteResult[]>;
  /**
   * May `storedBytes`, as `lookup` says, be a value of `sizeBytes`? Absent: if they are equal. For
   * stores that pad, and for value transformations.
   */
  acceptsSize?(storedBytes: number, sizeBytes: number): boolean;
  /** What a value of this size takes of the capacity. Absent: its size. */
  chargedBytes?(sizeBytes: number): number;
  /** Names that are not of this kind of store's own are left out. Absent: it cannot list. */
  list?(options: ListOptions): Promise<ListPage>;
  /** Keys of this adapter in `GET /status`; no secrets. */
  status(): Record<string, unknown>;
  /** Ends connections and files. Nothing is running any more. */
  close(): Promise<void>;
}

export interface L2BackendContext {
  readonly log: Logger;
  readonly clock: Clock;
  /** Alignment of L1 slots: buffers begin at multiples of it. */
  readonly alignBytes: number;
  /**
   * Locks an open file against other servers; false = one of them has it. The lock ends with the
   * descriptor. Node has no such call, and what has one is not for this room to see.
   */
  readonly lockFile: (descriptor: number) => boolean;
  /** Opens the backend that another one wraps (fault_inject), from its JSON. */
  readonly openInner: (spec: unknown) => Promise<L2Backend>;
}

export interface L2BackendType {
  /** As in `--l2-adapter '{"type": …}'`. */
  readonly typeName: string;
  /** One sentence for docs and error messages. */
  readonly about: string;
  /** Keys of its JSON beside those that all adapters have. */
  readonly keys: ConfigKeys;
  /** Secrets of `values` are in clear. Throws `ERR_CONFIG` naming key and mend. */
  open(values: ConfigValues, context: L2BackendContext): Promise<L2Backend>;
  /** Bytes that the store may hold, out of `values`; 0 = no bound of its own. */
  capacityBytes(values: ConfigValues): number;
}
