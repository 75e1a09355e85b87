/** Token ids from somewhere else than a frame, in the form that the hasher reads. */
import type { TokenSpan } from './chunk-hasher.ts';

const ARRAY32 = 0xdd;
const UINT32 = 0xce;
const HEADER_BYTES = 5;
const TOKEN_BYTES = 5;

/** Every id must be an integer from 0 to 2^32 − 1. */
export function tokenSpanOf(tokenIds: ArrayLike<number>): TokenSpan {
  const { length: count } = tokenIds;
  const bytes = new Uint8Array(HEADER_BYTES + TOKEN_BYTES * count);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, ARRAY32);
  view.setUint32(1, count);
  for (let index = 0; index < count; index += 1) {
    const offset = HEADER_BYTES + TOKEN_BYTES * index;
    view.setUint8(offset, UINT32);
    view.setUint32(offset + 1, tokenIds[index] as number);
  }
  return { bytes, count };
}
