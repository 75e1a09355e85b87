/**
 * What a value transformation has to be: bytes of an object to bytes of the store, and back.
 *
 * One instance serves one adapter. Everything is per object: a failure concerns one object, never
 * its batch. Work that takes long runs on other threads or in slices (`slices.ts`), because the
 * event loop serves PINGs meanwhile.
 */

import type { L2Object } from '../backend.ts';
import type { ConfigKeys, ConfigValues } from '../config-keys.ts';

export interface Serde {
  readonly typeName: string;
  /** Elements are converted, so it takes only objects of which it is known what they are. */
  readonly needsLayout: boolean;
  /** Transformations that run at the same time. */
  readonly workerCount: number;
  /**
   * Why values of this layout (`L2Object.layout`) cannot be transformed; null = they can. Asked
   * when a worker registers, so that an operator learns of it before the first store fails.
   */
  refusalOf(layout: string | undefined): string | null;
  /** Bytes of the value in the store; null = that is known only when it is there. */
  serializedSize(object: L2Object): number | null;
  /** Could a value of `sizeBytes` take `storedBytes` in the store? */
  acceptsSize(storedBytes: number, sizeBytes: number): boolean;
  /** The object's bytes are only read. Rejects with `ERR_L2_REFUSED`. */
  serialize(object: L2Object): Promise<Uint8Array>;
  /**
   * Fills the object's bytes, of which nothing may be used when it rejects (`ERR_L2_CORRUPT`,
   * `ERR_L2_REFUSED`). Writes nothing any more once the signal is over.
   */
  deserialize(object: L2Object, stored: Uint8Array, signal: AbortSignal): Promise<void>;
}

export interface SerdeType {
  readonly typeName: string;
  readonly about: string;
  /** Beside `type`. */
  readonly keys: ConfigKeys;
  /** Throws `ERR_CONFIG` naming key and mend. `where` names the adapter in messages. */
  open(values: ConfigValues, where: string): Promise<Serde>;
}

export const WORKER_KEYS = {
  max_workers: {
    kind: 'integer',
    fallback: 1,
    min: 1,
    max: 64,
    about: 'Values that are transformed at the same time.',
  },
} as const satisfies ConfigKeys;
