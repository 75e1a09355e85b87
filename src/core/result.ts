/** Results of the core, as in assembly/result.ts (`test/core/abi.test.ts` compares them). */
export const RESULT = {
  SUCCESS: 0,
  /** Finished, but the key had become resident meanwhile; the copy was dropped. */
  ALREADY_RESIDENT: 1,
  /** The chunk is whole, and was announced before. */
  ALREADY_ANNOUNCED: 2,
  KEY_NOT_EXIST: -1,
  KEY_NOT_READABLE: -2,
  KEY_NOT_WRITABLE: -3,
  KEY_IN_WRONG_STATE: -4,
  KEY_IS_LOCKED: -5,
  OUT_OF_MEMORY: -6,
  /** No free slot in the table: to be treated like OUT_OF_MEMORY. */
  TABLE_FULL: -7,
  INVALID_ARGUMENT: -16,
  NOT_INITIALIZED: -17,
  ALREADY_INITIALIZED: -18,
  MEMORY_LIMIT: -19,
  TOKENS_TRUNCATED: -32,
  TOKEN_NOT_INTEGER: -33,
  TOKEN_OUT_OF_RANGE: -34,
} as const;

export type ResultName = keyof typeof RESULT;

/** The name of a code, for messages and for the vectors; ALREADY_RESIDENT is a success. */
export function resultName(code: number): string {
  if (code >= 0) return 'SUCCESS';
  for (const [name, value] of Object.entries(RESULT)) if (value === code) return name;
  return `code ${code}`;
}

/** How a slice of long work ended; the index is the number that the core answers. */
export const SLICE_RESULTS = ['done', 'more', 'nothing-to-do'] as const;
export type SliceResult = (typeof SLICE_RESULTS)[number];
