/**
 * Announcing chunks: which of them have become whole, for those who follow what the table holds.
 *
 *            announce: every object that it names is resident
 *   unknown ───────────────────────────────────────────────────▶ announced
 *      ▲                                                             │
 *      └───────────── any object of the family loses its key ────────┘  (removal-records.ts)
 *
 * Which objects make a chunk whole (ranks, object groups) is the caller's knowledge. A family is
 * announced once, whoever completes it, and its end is recorded once, whatever ends it: so stored
 * and removed alternate for each chunk, and what is announced is whole at every moment.
 */
import { hashOfChunk, isKeyBatch, namespaceOfBatch, setCode } from './batch';
import { familyIsAnnounced, setFamilyAnnounced } from './family';
import { objectFind } from './lifecycle';
import { isNamespace, scopeOf } from './namespace';
import { objectFamily, RESIDENT_TAG } from './object';
import { ALREADY_ANNOUNCED, INVALID_ARGUMENT, KEY_NOT_EXIST, SUCCESS } from './result';

/** The family of a chunk of which every object of the batch is resident, or 0. */
function wholeFamily(hash: usize, namespaceCount: u32): u32 {
  let family: u32 = 0;
  for (let n: u32 = 0; n < namespaceCount; n++) {
    const namespaceId = namespaceOfBatch(n);
    const slot = isNamespace(namespaceId) ? objectFind(hash, namespaceId, RESIDENT_TAG) : 0;
    if (slot === 0) return 0;
    family = objectFamily(slot);
  }
  return family;
}

/** All known namespaces must be of one scope, so that their objects of a chunk are one family. */
function isOneScope(namespaceCount: u32): bool {
  let first: i64 = -1;
  for (let n: u32 = 0; n < namespaceCount; n++) {
    const namespaceId = namespaceOfBatch(n);
    if (!isNamespace(namespaceId)) continue;
    const scope = <i64>scopeOf(namespaceId);
    if (first >= 0 && scope !== first) return false;
    first = scope;
  }
  return true;
}

/**
 * Announces the chunks that are whole. CODES[chunk] is SUCCESS for those that were not announced
 * yet, ALREADY_ANNOUNCED, or KEY_NOT_EXIST where an object is missing. Answers the SUCCESSes.
 */
export function announceBatch(chunkCount: u32, namespaceCount: u32): i32 {
  if (!isKeyBatch(chunkCount, namespaceCount) || !isOneScope(namespaceCount)) {
    return INVALID_ARGUMENT;
  }
  let announced = 0;
  for (let chunk: u32 = 0; chunk < chunkCount; chunk++) {
    const family = wholeFamily(hashOfChunk(chunk), namespaceCount);
    let code = KEY_NOT_EXIST;
    if (family !== 0) {
      code = familyIsAnnounced(family) ? ALREADY_ANNOUNCED : SUCCESS;
      if (code === SUCCESS) announced += 1;
      setFamilyAnnounced(family, true);
    }
    setCode(chunk, code);
  }
  return announced;
}
