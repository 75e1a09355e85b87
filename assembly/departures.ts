/**
 * Objects that have lost their place in the index while they were readable: counted by namespace,
 * and some of them by name, for those who follow how long objects live.
 *
 *   DEPARTED   u32 namespace  +4 u32 count             (8 bytes, one per namespace that lost any)
 *   NAMED      +0 32 bytes of chunk hash, padded with zeros  +32 u32 namespace       (36 bytes)
 *
 * Which objects are named decides their hash: its first four bytes, as a big-endian number, are
 * below the threshold. The counts are exact; names for which there is no room are lost, and
 * counted. Nobody watches: an object costs one comparison. The door takes what there is after
 * every call that may have removed something.
 */
import { HASH_SIZE, reserveRegion } from './memory-map';

const DEPARTED_SIZE: usize = 8;
const NAMED_SIZE: usize = 36;
const NAMESPACE: usize = 32;
/** More than a slice of eviction or of a clear can name. */
const NAMED_COUNT_MAX: u32 = 8192;

let departed: usize = 0;
let named: usize = 0;
/** Per namespace: 1 + its place in DEPARTED; 0 = none. */
let places: usize = 0;
let isWatched: bool = false;
let threshold: u64 = 0;
let departedCount: u32 = 0;
let namedCount: u32 = 0;
let units: u64 = 0;

export function departuresLayout(namespaceCountMax: u32): void {
  departed = reserveRegion(DEPARTED_SIZE * <u64>namespaceCountMax);
  places = reserveRegion(4 * <u64>namespaceCountMax);
  named = reserveRegion(NAMED_SIZE * <u64>NAMED_COUNT_MAX);
}

export function departedRegion(): usize {
  return departed;
}

export function namedDeparturesRegion(): usize {
  return named;
}

export function namedDepartureCountMax(): u32 {
  return NAMED_COUNT_MAX;
}

/** From now on; `hashThreshold` 0 names nothing, 2^32 everything. */
export function watchDepartures(hashThreshold: u64): void {
  isWatched = true;
  threshold = hashThreshold;
}

export function recordDeparture(hash: usize, namespaceId: u32, objectUnits: u32): void {
  if (!isWatched) return;
  countDeparture(namespaceId, objectUnits);
  if (<u64>bswap(load<u32>(hash)) >= threshold) return;
  if (namedCount < NAMED_COUNT_MAX) {
    const record = named + NAMED_SIZE * <usize>namedCount;
    memory.copy(record, hash, HASH_SIZE);
    store<u32>(record, namespaceId, NAMESPACE);
  }
  namedCount += 1;
}

/** As `recordDeparture` for one of so many that nobody wants to know which. */
export function countDeparture(namespaceId: u32, objectUnits: u32): void {
  if (!isWatched) return;
  units += <u64>objectUnits;
  const place = places + 4 * <usize>namespaceId;
  let index = load<u32>(place);
  if (index === 0) {
    departedCount += 1;
    index = departedCount;
    store<u32>(place, index);
    store<u32>(departed + DEPARTED_SIZE * <usize>(index - 1), namespaceId);
    store<u32>(departed + DEPARTED_SIZE * <usize>(index - 1), 0, 4);
  }
  const entry = departed + DEPARTED_SIZE * <usize>(index - 1);
  store<u32>(entry, load<u32>(entry, 4) + 1, 4);
}

/** Units of the arena that those had whom the next `takeDepartures` tells of. */
export function departedUnits(): u64 {
  return units;
}

/** Records of NAMED; more than there is room for when some are lost. Before `takeDepartures`. */
export function namedDepartures(): u32 {
  return namedCount;
}

/** How many records DEPARTED has. They stay readable until the next call that may remove. */
export function takeDepartures(): u32 {
  const taken = departedCount;
  for (let i: u32 = 0; i < taken; i++) {
    const namespaceId = load<u32>(departed + DEPARTED_SIZE * <usize>i);
    store<u32>(places + 4 * <usize>namespaceId, 0);
  }
  departedCount = 0;
  namedCount = 0;
  units = 0;
  return taken;
}
