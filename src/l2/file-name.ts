/**
 * Under which name a key's value lies in a folder.
 *
 * The peer's form (`key-text.ts`) wherever it is safe, so that both servers can use one folder.
 * It is not safe for a model name that would be read back as another one, because it holds the
 * marker for `/` (`org-SEP-x` would read the values of `org/x`) or makes one with its neighbours
 * (`-SEP/` and `/SEP-` are both `-SEP-SEP-`), for one with a NUL, and when the name is longer than
 * a file system takes.
 * Those keys have a short name, and a sibling with the key as text, so that a listing can tell
 * whose value it is:
 *
 *   ~<first 40 hex digits of SHA-256 of the plain name>.data    the value
 *   ~<the same>.key                                             the plain name
 *
 * The plain name keeps `/` and the marker apart, so no two keys share a short name.
 */
import { createHash } from 'node:crypto';
import {
  decodeFileName,
  decodePlainName,
  encodeFileName,
  encodePlainName,
  SLASH_IN_FILE_NAMES,
} from './key-text.ts';
import type { ObjectKey } from './object-key.ts';

/** Of ext4, XFS, Btrfs and nearly all others. */
const NAME_BYTES_MAX = 255;
const SHORT_DIGIT_COUNT = 40;
const SHORT_NAME = /^~[0-9a-f]{40}\.data$/;

export interface FileName {
  readonly name: string;
  /** Of a short name: what its sibling holds. */
  readonly plainName: string | null;
}

export function fileNameOf(key: ObjectKey): FileName {
  const name = encodeFileName(key);
  const readBack = key.modelName
    .replaceAll('/', SLASH_IN_FILE_NAMES)
    .replaceAll(SLASH_IN_FILE_NAMES, '/');
  const isSafe =
    readBack === key.modelName &&
    !key.modelName.includes('\0') &&
    Buffer.byteLength(name) <= NAME_BYTES_MAX;
  if (isSafe) return { name, plainName: null };
  const plainName = encodePlainName(key);
  const digest = createHash('sha256').update(plainName).digest('hex');
  return { name: `~${digest.slice(0, SHORT_DIGIT_COUNT)}.data`, plainName };
}

export function isShortName(name: string): boolean {
  return SHORT_NAME.test(name);
}

/** The sibling of a short name. */
export function keyFileOf(shortName: string): string {
  return shortName.replace(/\.data$/, '.key');
}

/** Null for a name that is not of ours or the peer's making; short names need their sibling. */
export function keyOfFileName(name: string): ObjectKey | null {
  return decodeFileName(name);
}

/** Null when the sibling does not belong to this short name. */
export function keyOfShortName(shortName: string, plainName: string): ObjectKey | null {
  const key = decodePlainName(plainName);
  return key !== null && fileNameOf(key).name === shortName ? key : null;
}
