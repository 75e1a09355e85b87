/**
 * Cost of the object table through its typed door, at 10,000 and at 1,000,000 objects.
 *
 *   node_modules/.bin/node bench/micro/table.ts
 *
 * Every figure is a median over batches of 128 chunks (a prompt of 32,768 tokens), whose objects
 * lie where earlier batches left them, so at a million objects most lines of the indexes are
 * cold. Sketch: a search reads an index entry, a key and a hash, so up to three cache misses, of
 * which the last two share lines with their neighbours: about 100 ns when cold, 30 ns when not.
 */
import { randomBytes, randomInt } from 'node:crypto';
import { performance } from 'node:perf_hooks';
import { Core } from '../../src/core/core.ts';
import type { ObjectKeys } from '../../src/core/object-table.ts';

const CHUNKS_PER_BATCH = 128;
const HASH_SIZE_BYTES = 32;
const OBJECT_SIZE_BYTES = 2 ** 20;
const WRITER = 1;
/** Batches that are measured of each call. */
const SAMPLES = 300;

function open(objectCountMax: number): Core {
  return Core.load({
    hashAlgorithm: 'blake3',
    chunkSizeTokens: 256,
    tokenCountMax: 1_048_576,
    objectCountMax,
    arenaSizeBytes: objectCountMax * OBJECT_SIZE_BYTES,
    alignBytes: 4096,
    evictionPolicy: 'LRU',
    writeTtlMs: 600_000,
    readTtlMs: 300_000,
  });
}

/** Distinct prompts, each a batch of chunks with random hashes. */
function makeBatches(objectCount: number, namespaceId: number): ObjectKeys[] {
  const batchCount = Math.floor(objectCount / CHUNKS_PER_BATCH);
  return Array.from({ length: batchCount }, () => ({
    hashes: {
      bytes: randomBytes(CHUNKS_PER_BATCH * HASH_SIZE_BYTES),
      count: CHUNKS_PER_BATCH,
      hashSizeBytes: HASH_SIZE_BYTES,
    },
    firstChunk: 0,
    chunkCount: CHUNKS_PER_BATCH,
    namespaceIds: [namespaceId],
  }));
}

class Samples {
  readonly #nanosPerKey = new Map<string, number[]>();

  time<T>(name: string, keyCount: number, call: () => T): T {
    const start = performance.now();
    const result = call();
    const nanos = ((performance.now() - start) * 1e6) / keyCount;
    const list = this.#nanosPerKey.get(name);
    if (list) list.push(nanos);
    else this.#nanosPerKey.set(name, [nanos]);
    return result;
  }

  /** Median and 99th percentile of each call. */
  summary(): Map<string, [p50: number, p99: number]> {
    return new Map(
      [...this.#nanosPerKey].map(([name, list]) => {
        const sorted = list.toSorted((a, b) => a - b);
        const at = (share: number) => sorted[Math.floor(share * (sorted.length - 1))]!;
        return [name, [at(0.5), at(0.99)]];
      }),
    );
  }
}

function fill(core: Core, batches: readonly ObjectKeys[]): void {
  for (const keys of batches) {
    const { slots } = core.table.reserveWrite(keys, OBJECT_SIZE_BYTES, WRITER, 0);
    core.table.finishWrite(slots, 0);
  }
}

function measure(objectCount: number): Map<string, [number, number]> {
  const core = open(objectCount);
  const { table } = core;
  const modelName = 'model';
  const namespaceId = core.namespaces.intern({
    modelName,
    worldSize: 1,
    workerId: 0,
    objectGroupId: 0,
    cacheSalt: '',
  });
  const batches = makeBatches(objectCount, namespaceId);
  const strangers = makeBatches(SAMPLES * CHUNKS_PER_BATCH, namespaceId);
  const residentBefore = process.memoryUsage().rss;
  fill(core, batches);
  const residentBytes = process.memoryUsage().rss - residentBefore;
  // Let V8 finish with the calls before anything is measured.
  for (const keys of batches.slice(0, 50)) table.releaseHolds(table.holdPrefix(keys, 1), 1);

  const samples = new Samples();
  for (let i = 0; i < SAMPLES; i += 1) {
    const keys = batches[randomInt(batches.length)]!;
    const slots = samples.time('hold prefix', CHUNKS_PER_BATCH, () => table.holdPrefix(keys, 1));
    samples.time('touch', CHUNKS_PER_BATCH, () => table.touchSlots(slots));
    samples.time('release holds', CHUNKS_PER_BATCH, () => table.releaseHolds(slots, 1));
    const other = batches[randomInt(batches.length)]!;
    const found = samples.time('find', CHUNKS_PER_BATCH, () => table.find(other));
    samples.time('pin', CHUNKS_PER_BATCH, () => table.pin(found));
    samples.time('unpin', CHUNKS_PER_BATCH, () => table.unpin(found));
    samples.time('find, absent', CHUNKS_PER_BATCH, () => table.find(strangers[i]!));
  }
  for (const keys of strangers) {
    samples.time('evict', CHUNKS_PER_BATCH, () =>
      table.evict(CHUNKS_PER_BATCH * OBJECT_SIZE_BYTES, 1000, 0),
    );
    const { slots } = samples.time('reserve', CHUNKS_PER_BATCH, () =>
      table.reserveWrite(keys, OBJECT_SIZE_BYTES, WRITER, 0),
    );
    samples.time('finish', CHUNKS_PER_BATCH, () => table.finishWrite(slots, 0));
  }
  const { objectCount: count } = table.statistics();
  samples.time('clear, whole table', count, () => table.clear(true, 0));
  const perObject = (bytes: number) => `${(bytes / objectCount).toFixed(0)} bytes`;
  console.log(
    `${objectCount} objects: ${perObject(core.reservedBytes)} reserved per object (regions of ` +
      `requests included), ${perObject(residentBytes)} resident`,
  );
  return samples.summary();
}

const small = measure(10_000);
const large = measure(1_000_000);
console.log(`Node ${process.version}, batches of ${CHUNKS_PER_BATCH} keys, ns per key`);
console.log(`${''.padEnd(20)}${'10,000 objects'.padStart(22)}${'1,000,000 objects'.padStart(22)}`);
for (const [name, [p50, p99]] of small) {
  const [largeP50, largeP99] = large.get(name)!;
  const cell = (a: number, b: number) => `p50 ${a.toFixed(0)}  p99 ${b.toFixed(0)}`.padStart(22);
  console.log(`${name.padEnd(20)}${cell(p50, p99)}${cell(largeP50, largeP99)}`);
}
