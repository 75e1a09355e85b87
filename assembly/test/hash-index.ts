/** The index under chosen tags: collisions, the turn at its end, and removal from inside a run. */
import {
  ENTRY_SIZE,
  entryAt,
  entryTag,
  entryValue,
  hashEquals,
  indexCapacity,
  indexHome,
  indexInsert,
  indexNext,
  indexRemove,
  mixKey,
} from '../hash-index';
import { beginLayout, endLayout, HASH_OUTPUT, reserveRegion } from '../memory-map';

const ENTRY_COUNT_MAX: u32 = 100;

let index: usize = 0;
let capacity: u32 = 0;

function openIndex(): void {
  assert(beginLayout(64, 1, 16) === 0);
  capacity = indexCapacity(ENTRY_COUNT_MAX);
  index = reserveRegion(<u64>ENTRY_SIZE * <u64>capacity);
  assert(endLayout() === 0);
}

function isFound(tag: u32, value: u32): bool {
  let position = indexHome(tag, capacity);
  while (entryValue(entryAt(index, position)) !== 0) {
    const entry = entryAt(index, position);
    if (entryValue(entry) === value && entryTag(entry) === tag) return true;
    position = indexNext(position, capacity);
  }
  return false;
}

/** Tag of value `value`: spread over the table, over its last quarter, or all the same. */
function tagOf(value: u32, spread: u32): u32 {
  if (spread === 0) return value * 0x9e3779b9;
  if (spread === 1) return 0xc000_0000 + value * 0x0040_0000;
  return 0xffff_ffff;
}

/** Fills the index, then removes in an order that mixes both ends; all others stay findable. */
function checkRemovals(spread: u32): void {
  openIndex();
  for (let value: u32 = 1; value <= ENTRY_COUNT_MAX; value++) {
    indexInsert(index, capacity, tagOf(value, spread), value);
  }
  for (let step: u32 = 0; step < ENTRY_COUNT_MAX; step++) {
    const removed = ((step * 37) % ENTRY_COUNT_MAX) + 1;
    indexRemove(index, capacity, tagOf(removed, spread), removed);
    assert(!isFound(tagOf(removed, spread), removed), 'a removed entry is still found');
    for (let later = step + 1; later < ENTRY_COUNT_MAX; later++) {
      const value = ((later * 37) % ENTRY_COUNT_MAX) + 1;
      assert(isFound(tagOf(value, spread), value), 'an entry was lost by the removal of another');
    }
  }
  for (let position: u32 = 0; position < capacity; position++) {
    assert(entryValue(entryAt(index, position)) === 0, 'an emptied index is not empty');
  }
}

export function test_index_keeps_all_other_entries_when_one_is_removed(): void {
  checkRemovals(0);
}

export function test_index_keeps_runs_that_turn_at_its_end(): void {
  checkRemovals(1);
}

export function test_index_keeps_entries_that_all_have_one_tag(): void {
  checkRemovals(2);
}

export function test_hashes_differ_when_any_of_their_bits_does(): void {
  openIndex();
  const other = HASH_OUTPUT + 32;
  memory.fill(HASH_OUTPUT, 0x5a, 64);
  assert(hashEquals(HASH_OUTPUT, other), 'equal hashes');
  for (let bit: u32 = 0; bit < 256; bit++) {
    const at = other + (bit >> 3);
    const before = load<u8>(at);
    store<u8>(at, before ^ ((<u8>1) << (<u8>(bit & 7))));
    assert(!hashEquals(HASH_OUTPUT, other), 'a different bit was overlooked');
    store<u8>(at, before);
  }
}

export function test_keys_mix_differently_for_another_seed_and_another_namespace(): void {
  openIndex();
  memory.fill(HASH_OUTPUT, 0x11, 32);
  const tag = mixKey(HASH_OUTPUT, 1, 1);
  assert(tag === mixKey(HASH_OUTPUT, 1, 1), 'the same key and seed');
  assert(tag !== mixKey(HASH_OUTPUT, 2, 1), 'another namespace');
  assert(tag !== mixKey(HASH_OUTPUT, 1, 2), 'another seed');
}

/** Short hashes are numbers in a few bytes; they must not share homes. */
export function test_small_hashes_spread_over_the_index(): void {
  openIndex();
  const wide: u32 = 4096;
  let taken: u32 = 0;
  const homes = HASH_OUTPUT + 64;
  memory.fill(homes, 0, 1024);
  for (let chunk: u32 = 0; chunk < 256; chunk++) {
    memory.fill(HASH_OUTPUT, 0, 32);
    store<u32>(HASH_OUTPUT, bswap(chunk));
    const home = indexHome(mixKey(HASH_OUTPUT, 0, 0), wide) >> 4;
    if (load<u8>(homes + home) === 0) taken += 1;
    store<u8>(homes + home, 1);
  }
  // 256 balls into 256 boxes leave 162 boxes used on average.
  assert(taken > 130, 'small hashes crowd together');
}
