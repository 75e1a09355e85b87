/**
 * The identity of an object outside of this process: what slower stores file it under.
 *
 * The core knows a chunk hash and a namespace number; a store that survives the process needs the
 * names behind that number (spec l2-adapters 1.1, engine 2.1).
 */
export interface ObjectKey {
  readonly chunkHash: Uint8Array;
  /** Never holds `@`. */
  readonly modelName: string;
  /** Up to 40 bits for world sizes above 255: a number, never a 32-bit integer. */
  readonly kvRank: number;
  readonly objectGroupId: number;
  /** Never holds `@`, `/`, `\` or NUL; at most 128 characters. */
  readonly cacheSalt: string;
}
