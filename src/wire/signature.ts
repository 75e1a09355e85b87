/**
 * The signature of a request: one letter for each payload, by the first byte of its msgpack.
 *
 *   m map   a array   i int   s str   b bin   f float   n nil   t bool   x ext   ? nothing of these
 *
 * It tells apart what two generations of clients call by one number (spec wire 10).
 */

import type { Kind } from './msgpack.ts';
import { kindOfByte } from './msgpack.ts';

const LETTERS: Readonly<Record<Kind, string>> = {
  nil: 'n',
  bool: 't',
  int: 'i',
  float: 'f',
  str: 's',
  bin: 'b',
  array: 'a',
  map: 'm',
  ext: 'x',
  'reserved byte': '?',
  'end of data': '?',
};

/** No form of any request has more payloads; a signature this long is nobody's. */
const PAYLOAD_COUNT_MAX = 16;

export function signatureOf(frames: readonly Uint8Array[], first: number): string {
  const end = Math.min(frames.length, first + PAYLOAD_COUNT_MAX);
  let signature = '';
  for (let index = first; index < end; index += 1) {
    signature += LETTERS[kindOfByte((frames[index] as Uint8Array)[0])];
  }
  return signature;
}
