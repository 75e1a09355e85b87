/**
 * Every negative result of the core, in one table. Results >= 0 are values or counts.
 *
 * -1..-15 are answers about one key, named as the reference names them (L1Error); they are normal.
 * -16..-31 say that the caller (`src/core/`) broke the contract of a call; nothing was changed.
 * -32..-47 belong to the token reader and the chunk hasher.
 * `src/core/result.ts` repeats the numbers; `test/core/abi.test.ts` compares the two.
 */

export const SUCCESS: i32 = 0;
/** A finished reservation whose key became resident meanwhile; its copy was dropped. */
export const ALREADY_RESIDENT: i32 = 1;
/** A whole chunk that has been announced before. */
export const ALREADY_ANNOUNCED: i32 = 2;

/** Answers of work in slices: there may be more to do, or nothing could be done. */
export const DONE: i32 = 0;
export const MORE: i32 = 1;
export const NOTHING_TO_DO: i32 = 2;

export const KEY_NOT_EXIST: i32 = -1;
export const KEY_NOT_READABLE: i32 = -2;
export const KEY_NOT_WRITABLE: i32 = -3;
export const KEY_IN_WRONG_STATE: i32 = -4;
export const KEY_IS_LOCKED: i32 = -5;
/** The arena has no room for all missing objects of the call. */
export const OUT_OF_MEMORY: i32 = -6;
/** The table has no free slot or family record; treated like OUT_OF_MEMORY by callers. */
export const TABLE_FULL: i32 = -7;

export const INVALID_ARGUMENT: i32 = -16;
export const NOT_INITIALIZED: i32 = -17;
export const ALREADY_INITIALIZED: i32 = -18;
/** The regions would not fit into 4 GiB, or the engine refused to grow the memory. */
export const MEMORY_LIMIT: i32 = -19;

// Chunk hasher and token reader: -32 and below.
/** The array ends before its last element does. */
export const TOKENS_TRUNCATED: i32 = -32;
/** An element is not an integer. */
export const TOKEN_NOT_INTEGER: i32 = -33;
/** An element is an integer, but not one of 0..2^32-1. */
export const TOKEN_OUT_OF_RANGE: i32 = -34;
