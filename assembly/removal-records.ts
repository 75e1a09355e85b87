/**
 * Chunks that have been announced as whole (announcing.ts) and are whole no more: the first of
 * their objects has lost its key. One record per chunk, in order, until the door takes them.
 *
 *   RECORD  +0 32 bytes of chunk hash, padded with zeros  +32 u32 namespace of the object that left
 *
 * Nothing is recorded of chunks that nobody has announced, so nobody who does not listen pays. The
 * door takes the records after every call that may leave some. There is room for as many as one
 * batch can leave; a walk over the whole table may leave more: they are counted, and lost.
 */
import { HASH_SIZE, reserveRegion } from './memory-map';

const RECORD_SIZE: u32 = 36;
const NAMESPACE: usize = 32;

let records: usize = 0;
let countMax: u32 = 0;
let count: u32 = 0;

export function removalRecordsLayout(recordCountMax: u32): void {
  countMax = recordCountMax;
  records = reserveRegion(<u64>RECORD_SIZE * <u64>recordCountMax);
}

/** Start of the records, which the door reads. */
export function removalRecordsRegion(): usize {
  return records;
}

export function removalRecordCountMax(): u32 {
  return countMax;
}

export function recordRemoval(hash: usize, namespaceId: u32): void {
  if (count < countMax) {
    const record = records + <usize>RECORD_SIZE * count;
    memory.copy(record, hash, HASH_SIZE);
    store<u32>(record, namespaceId, NAMESPACE);
  }
  count += 1;
}

/**
 * How many records there were; more than there is room for when some are lost. They stay readable
 * until the next call that may leave some.
 */
export function takeRemovals(): u32 {
  const taken = count;
  count = 0;
  return taken;
}
