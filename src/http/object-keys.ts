/**
 * Object keys in JSON (spec http 5.4): `{chunk_hash_hex, model_name, kv_rank, object_group_id,
 * cache_salt}`. Types are checked first, for all keys; then contents, with the reference's texts.
 */
import { HTTPException } from 'hono/http-exception';
import type { ObjectKey } from '../l2/object-key.ts';
import type { FieldReader } from './validation.ts';

/** Of one request. */
const KEY_COUNT_MAX = 10_000;
const SALT_CHARS_MAX = 128;
const FORBIDDEN_IN_SALT = ['@', '/', '\\', '\0'];

interface EncodedKey {
  readonly hashHex: string;
  readonly modelName: string;
  readonly kvRank: number;
  readonly objectGroupId: number;
  readonly cacheSalt: string;
}

/** Types only: the caller calls `finish`, then `decodeKeys`. */
export function readEncodedKeys(fields: FieldReader, raw: unknown): EncodedKey[] {
  const place = ['body', 'keys'];
  return fields.bodyObjects(place, raw).map((entry, index) => {
    const at = (name: string) => [...place, index, name];
    return {
      hashHex: fields.bodyText(at('chunk_hash_hex'), entry['chunk_hash_hex'], null),
      modelName: fields.bodyText(at('model_name'), entry['model_name'], null),
      kvRank: Number(fields.bodyInteger(at('kv_rank'), entry['kv_rank'], null)),
      objectGroupId: Number(
        fields.bodyInteger(at('object_group_id'), entry['object_group_id'], 0n),
      ),
      cacheSalt: fields.bodyText(at('cache_salt'), entry['cache_salt'], ''),
    };
  });
}

export function decodeKeys(encoded: readonly EncodedKey[]): ObjectKey[] {
  if (encoded.length > KEY_COUNT_MAX) {
    const counts = `(limit=${KEY_COUNT_MAX}, got=${encoded.length})`;
    throw new HTTPException(400, { message: `too many keys in a single request ${counts}` });
  }
  return encoded.map(({ hashHex, ...rest }, index) => {
    const chunkHash = readHex(hashHex);
    const problem = typeof chunkHash === 'string' ? chunkHash : problemOf(rest);
    if (problem !== null) throw new HTTPException(400, { message: `keys[${index}]: ${problem}` });
    return { chunkHash: chunkHash as Uint8Array, ...rest };
  });
}

export function encodeKey(key: ObjectKey): Record<string, unknown> {
  const { chunkHash, modelName, kvRank, objectGroupId, cacheSalt } = key;
  return {
    chunk_hash_hex: Buffer.from(chunkHash).toString('hex'),
    model_name: modelName,
    kv_rank: kvRank,
    object_group_id: objectGroupId,
    cache_salt: cacheSalt,
  };
}

/** Null: a tenant may have this name. */
export function saltProblem(cacheSalt: string): string | null {
  const found = FORBIDDEN_IN_SALT.filter((character) => cacheSalt.includes(character));
  if (found.length > 0) {
    const shown = found.map((character) => (character === '\0' ? "'\\x00'" : quote(character)));
    return `cache_salt must not contain frozenset({${shown.join(', ')}}) (got ${quote(cacheSalt)})`;
  }
  const length = [...cacheSalt].length;
  if (length <= SALT_CHARS_MAX) return null;
  return `cache_salt must have at most ${SALT_CHARS_MAX} characters (got ${length})`;
}

function problemOf({ modelName, kvRank, objectGroupId, cacheSalt }: Omit<ObjectKey, 'chunkHash'>) {
  if (modelName.includes('@')) return `model_name must not contain '@' (got ${quote(modelName)})`;
  if (!Number.isSafeInteger(kvRank)) return `kv_rank must have at most 53 bits (got ${kvRank})`;
  if (objectGroupId < 0) return `object_group_id must be >= 0 (got ${objectGroupId})`;
  return saltProblem(cacheSalt);
}

/** As the reference shows texts. */
function quote(text: string): string {
  return `'${text.replaceAll('\\', '\\\\')}'`;
}

/** The bytes, or what is wrong. Blanks between bytes are skipped. */
function readHex(text: string): Uint8Array | string {
  const bytes: number[] = [];
  for (let at = 0; at < text.length; ) {
    if (/\s/.test(text[at] as string)) {
      at += 1;
      continue;
    }
    const bad = [at, at + 1].find((place) => !/[\da-f]/i.test(text[place] ?? ''));
    if (bad !== undefined) {
      return `non-hexadecimal number found in fromhex() arg at position ${bad}`;
    }
    bytes.push(Number.parseInt(text.slice(at, at + 2), 16));
    at += 2;
  }
  return Uint8Array.from(bytes);
}
