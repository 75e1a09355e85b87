/**
 * Whose bytes an L2 store holds under its plain names: one small value per model, rank and object
 * group, which says what layout the first server had that stored there (field lessons 17.2).
 *
 * Objects of one model that differ in dtype or shape have the same names in the reference, and may
 * have the same size. So the first layout gets the plain names, together with the reference; every
 * other layout gets names of its own, made from the plain ones and its fingerprint. Nothing is
 * replaced, nobody reads foreign bytes, and a change of the layout back finds what was left.
 *
 *   record   "kvd-layout-1\n" hex(sha256(layout text, 0, cache namespace)) "\n" layout text, spaces
 *
 * A store without a record (the reference's own, or a new one) counts as matching; the record is
 * written with the first object. Records have a chunk hash that no prompt has, and are neither
 * evicted nor counted by quotas: whoever walks over the keys of a store asks `isLayoutRecord`.
 */
import { createHash } from 'node:crypto';
import type { ObjectKey } from './object-key.ts';

/** Stores know objects by their exact size, so all records have the same one. */
export const RECORD_SIZE_BYTES = 4096;
const MAGIC = 'kvd-layout-1\n';
const DIGEST_SIZE_CHARS = 64;
/** SHA-256 of a name, as good as any prompt's hash and no prompt's. */
const RECORD_HASH = createHash('sha256').update('kvd layout record').digest();

/** The part of an object key that a record is about. */
export type LayoutOwner = Pick<ObjectKey, 'modelName' | 'kvRank' | 'objectGroupId'>;

export function layoutRecordKey({ modelName, kvRank, objectGroupId }: LayoutOwner): ObjectKey {
  return { chunkHash: RECORD_HASH, modelName, kvRank, objectGroupId, cacheSalt: '' };
}

export function isLayoutRecord({ chunkHash }: Pick<ObjectKey, 'chunkHash'>): boolean {
  return RECORD_HASH.equals(chunkHash);
}

/** Hex digits. */
export function layoutFingerprint(layoutText: string, cacheNamespace: string): string {
  return createHash('sha256').update(`${layoutText}\0${cacheNamespace}`).digest('hex');
}

export function encodeLayoutRecord(fingerprint: string, layoutText: string): Buffer {
  const record = Buffer.alloc(RECORD_SIZE_BYTES, ' ');
  record.write(`${MAGIC}${fingerprint}\n${layoutText}`);
  return record;
}

/** The fingerprint; null when these bytes are no record. */
export function decodeLayoutRecord(bytes: Uint8Array): string | null {
  const head = Buffer.from(bytes.subarray(0, MAGIC.length + DIGEST_SIZE_CHARS)).toString('latin1');
  const fingerprint = head.slice(MAGIC.length);
  return head.startsWith(MAGIC) && /^[0-9a-f]{64}$/.test(fingerprint) ? fingerprint : null;
}

/** The name of a chunk for a layout that does not own the plain names. */
export function derivedChunkHash(chunkHash: Uint8Array, fingerprint: string): Uint8Array {
  const digest = createHash('sha256').update(chunkHash).update(fingerprint, 'hex').digest();
  return digest.subarray(0, Math.min(chunkHash.length, digest.length));
}
