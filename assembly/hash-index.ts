/**
 * Open addressing from a key to a number, used for objects and for families.
 *
 * The index holds no keys: an entry is a value (object slot or family number, never 0) and a tag,
 * the 32 mixed bits of the key. The owner of the keys walks the entries with an equal tag and
 * compares the rest, so a miss costs one cache line and a false comparison is one in 2^32.
 *
 *   +0  u32 value   0 = empty entry
 *   +4  u32 tag
 *
 * The home of a tag is `tag * capacity >> 32`, so the capacity need not be a power of two: it is
 * 1.5 times the largest number of entries (12 bytes per entry, load at most 2/3). Linear probing
 * with backward-shift deletion: no tombstones, probes stay short for ever.
 */

export const ENTRY_SIZE: u32 = 8;
const TAG: usize = 4;

export function indexCapacity(entryCountMax: u32): u32 {
  return entryCountMax + entryCountMax / 2 + 2;
}

export function indexHome(tag: u32, capacity: u32): u32 {
  return <u32>((<u64>tag * <u64>capacity) >> 32);
}

export function indexNext(position: u32, capacity: u32): u32 {
  const next = position + 1;
  return next === capacity ? 0 : next;
}

export function entryAt(index: usize, position: u32): usize {
  return index + ((<usize>position) << 3);
}

export function entryValue(entry: usize): u32 {
  return load<u32>(entry);
}

export function entryTag(entry: usize): u32 {
  return load<u32>(entry, TAG);
}

export function indexInsert(index: usize, capacity: u32, tag: u32, value: u32): void {
  let position = indexHome(tag, capacity);
  let entry = entryAt(index, position);
  while (entryValue(entry) !== 0) {
    position = indexNext(position, capacity);
    entry = entryAt(index, position);
  }
  store<u32>(entry, value);
  store<u32>(entry, tag, TAG);
}

/** Removes the entry with this tag and value, which must be there. */
export function indexRemove(index: usize, capacity: u32, tag: u32, value: u32): void {
  let hole = indexHome(tag, capacity);
  for (;;) {
    const found = entryValue(entryAt(index, hole));
    assert(found !== 0, 'an entry is missing from its index');
    if (found === value) break;
    hole = indexNext(hole, capacity);
  }
  let position = hole;
  for (;;) {
    position = indexNext(position, capacity);
    const entry = entryAt(index, position);
    if (entryValue(entry) === 0) break;
    const home = indexHome(entryTag(entry), capacity);
    // Distances on the ring: an entry may move back to the hole if its home is not behind the hole.
    const fromHome = position >= home ? position - home : position + capacity - home;
    const fromHole = position >= hole ? position - hole : position + capacity - hole;
    if (fromHome >= fromHole) {
      store<u64>(entryAt(index, hole), load<u64>(entry));
      hole = position;
    }
  }
  store<u64>(entryAt(index, hole), 0);
}

/** 64 well-mixed bits of a 32-byte hash together with a number and the seed of the instance. */
export function mixKeyWide(hash: usize, salt: u32, seed: u64): u64 {
  // Hashes of the supported kinds carry their entropy in the first 16 bytes; the multiplications
  // are for short and for chosen hashes (splitmix64 finalizer).
  let mixed = load<u64>(hash) ^ seed;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed += load<u64>(hash, 8) ^ (<u64>salt * 0x9e3779b97f4a7c15);
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

/** 32 of these bits. */
export function mixKey(hash: usize, salt: u32, seed: u64): u32 {
  return <u32>(mixKeyWide(hash, salt, seed) >> 16);
}

export function hashEquals(left: usize, right: usize): bool {
  const first = v128.xor(v128.load(left), v128.load(right));
  const second = v128.xor(v128.load(left, 16), v128.load(right, 16));
  return !v128.any_true(v128.or(first, second));
}
