/**
 * A server with 1,000,000 objects of 4 KiB: is a LOOKUP as fast as with 10,000, what does an object
 * cost beside its bytes, and how long does a LOOKUP wait while 100,000 objects are evicted?
 *
 * Chunks have 16 tokens, so that hashing costs little and the table shows. Cost per key is the
 * slope between LOOKUPs of few and of many chunks, which takes out what every LOOKUP costs. Prompts
 * are drawn from all that were stored: most of what the table has on them is in no cache.
 *
 * L1 is so large that the watermark lies just above the objects; another 10,000 objects start an
 * eviction of 100,000 at once.
 *
 *   objects  0 ── 10,000 ──────────────── 1,000,000 ─── watermark ─── + waves of eviction
 *                 measure                  measure                     max of LOOKUPs beside
 */
import { randomBytes, randomInt } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import type { LatencySummary } from '../../src/client/load/latency-series.ts';
import { GIB } from '../../src/units.ts';
import { LookupProbe } from './lookup-probe.ts';
import { micros, type Report, summarize } from './report.ts';
import { openServer, privateBytes, type Server } from './server.ts';
import { OBJECT_BYTES, SmallObjectWorker } from './small-object-worker.ts';

const FEW_OBJECTS = 10_000;
const CHUNKS_PER_STORE = 1_000;
const CHUNKS_PER_LOOKUP = [20, 1_000] as const;
const PROMPTS_PER_PHASE = 200;
const PAUSE_MS = 1;
/** Another LOOKUP at once: what comes between two is not seen. */
const EVICTION_PAUSE_MS = 0;
const CHUNKS_WHILE_EVICTING = 512;
const EVICTED_OBJECTS = 100_000;
const EVICTION_WAVES = 3;
/** Stores come in like those of a busy cluster, 100,000 objects a second at most. */
const STORE_PAUSE_MS = 10;
const RATIO_MAX = 2;
const OBJECT_BYTES_MAX = 200;
const LOOKUP_MAX_MS = 10;

/** L1 with its watermark 1 % above `objectCount`, evicting 100,000 objects when it is reached. */
function flagsFor(objectCount: number) {
  const watermark = 0.8;
  const l1Bytes = (objectCount * 1.01 * OBJECT_BYTES) / watermark;
  return {
    '--chunk-size': 16,
    '--l1-size-gb': (l1Bytes / GIB).toFixed(4),
    '--eviction-policy': 'LRU',
    '--eviction-trigger-watermark': watermark,
    '--eviction-ratio': ((EVICTED_OBJECTS * OBJECT_BYTES) / l1Bytes).toFixed(4),
  };
}

interface Bench {
  readonly server: Server;
  readonly worker: SmallObjectWorker;
  readonly probe: LookupProbe;
  readonly phaseMs: number;
}

/** LOOKUPs at one number of objects. */
interface Level {
  readonly objectCount: number;
  /** By chunks per LOOKUP. */
  readonly latencies: readonly { readonly chunkCount: number; readonly summary: LatencySummary }[];
  readonly nanosPerKey: number;
  readonly privateBytes: number | null;
}

interface Eviction {
  readonly storing: LatencySummary;
  readonly evicting: LatencySummary;
  readonly storedCount: number;
  readonly evictedCount: number | null;
}

export async function measureOneMillionObjects(options: {
  readonly url: string | null;
  readonly objectCount: number;
  readonly seconds: number;
}): Promise<Report> {
  const { objectCount } = options;
  if (objectCount % CHUNKS_PER_STORE !== 0 || objectCount < 2 * EVICTED_OBJECTS) {
    throw new Error(`expected --objects from ${2 * EVICTED_OBJECTS}, whole thousands`);
  }
  const server = await openServer(flagsFor(objectCount), options.url);
  const probe = new LookupProbe();
  try {
    const modelName = `many-objects-${randomBytes(6).toString('hex')}`;
    const worker = await SmallObjectWorker.register(server.url, modelName);
    const bench: Bench = { server, worker, probe, phaseMs: options.seconds * 1000 };
    await storeObjects(worker, 0, FEW_OBJECTS);
    // Once for nothing: compilation belongs to neither level.
    await measureLevel(bench, FEW_OBJECTS);
    const few = await measureLevel(bench, FEW_OBJECTS);
    // What remains until the watermark is near, with a probe beside for the last part of it.
    await storeObjects(worker, FEW_OBJECTS, objectCount - EVICTED_OBJECTS);
    const storing = await probeWhileStoring(bench, objectCount - EVICTED_OBJECTS, EVICTED_OBJECTS);
    const many = await measureLevel(bench, objectCount);
    const storedCount = EVICTION_WAVES * EVICTED_OBJECTS;
    const evicting = await probeWhileStoring(bench, objectCount, storedCount);
    const leftCount = await server.objectCount();
    const evictedCount = leftCount === null ? null : objectCount + storedCount - leftCount;
    await worker.unregister();
    return reportOf([few, many], { storing, evicting, storedCount, evictedCount });
  } finally {
    await probe.stop();
    await server.stop();
  }
}

/** Objects `first` to `end`; prompts are numbered by their first object. */
async function storeObjects(
  worker: SmallObjectWorker,
  first: number,
  end: number,
  pauseMs = 0,
): Promise<void> {
  for (let object = first; object < end; object += CHUNKS_PER_STORE) {
    await worker.store(object / CHUNKS_PER_STORE, CHUNKS_PER_STORE);
    if (pauseMs > 0) await pause(pauseMs);
  }
}

async function measureLevel(bench: Bench, objectCount: number): Promise<Level> {
  const { worker, probe, phaseMs, server } = bench;
  const promptCount = objectCount / CHUNKS_PER_STORE;
  const latencies: { chunkCount: number; summary: LatencySummary }[] = [];
  for (const chunkCount of CHUNKS_PER_LOOKUP) {
    const sequences = Array.from({ length: PROMPTS_PER_PHASE }, () => randomInt(promptCount));
    const samples = await probe.measure(
      {
        url: server.url,
        modelName: worker.modelName,
        tokenCount: chunkCount * worker.chunkSizeTokens,
        sequences,
        expectedChunkCount: chunkCount,
        pauseMs: PAUSE_MS,
      },
      phaseMs,
    );
    latencies.push({ chunkCount, summary: summarize(samples) });
  }
  const [short, long] = latencies as [(typeof latencies)[0], (typeof latencies)[0]];
  const addedMs = long.summary.p50Ms - short.summary.p50Ms;
  const nanosPerKey = (1e6 * addedMs) / (long.chunkCount - short.chunkCount);
  return { objectCount, latencies, nanosPerKey, privateBytes: privateBytes(server) };
}

/** The prompt that is looked up is used all the time, so it is never the one to go. */
async function probeWhileStoring(
  { worker, probe, server }: Bench,
  firstObject: number,
  objectCount: number,
): Promise<LatencySummary> {
  await probe.begin({
    url: server.url,
    modelName: worker.modelName,
    tokenCount: CHUNKS_WHILE_EVICTING * worker.chunkSizeTokens,
    sequences: [firstObject / CHUNKS_PER_STORE - 1],
    expectedChunkCount: CHUNKS_WHILE_EVICTING,
    pauseMs: EVICTION_PAUSE_MS,
  });
  await storeObjects(worker, firstObject, firstObject + objectCount, STORE_PAUSE_MS);
  return summarize(await probe.end());
}

function reportOf(levels: readonly [Level, Level], eviction: Eviction): Report {
  const [few, many] = levels;
  const cells = ({ p50Ms, p99Ms, maxMs, count }: LatencySummary) => [
    micros(p50Ms),
    micros(p99Ms),
    micros(maxMs),
    count,
  ];
  const levelRows = levels.flatMap(({ objectCount, latencies, nanosPerKey }) =>
    latencies.map(({ chunkCount, summary }) => [
      `${objectCount} objects, ${chunkCount} keys`,
      ...cells(summary),
      Math.round(nanosPerKey),
    ]),
  );
  const { storing, evicting, storedCount, evictedCount } = eviction;
  const addedBytes =
    few.privateBytes === null || many.privateBytes === null
      ? null
      : (many.privateBytes - few.privateBytes) / (many.objectCount - few.objectCount);
  return {
    name: 'one-million-objects',
    header: ['LOOKUP hit', 'p50 µs', 'p99 µs', 'max µs', 'n', 'ns per key'],
    rows: [
      ...levelRows,
      [`while ${EVICTED_OBJECTS} objects are stored`, ...cells(storing), null],
      [
        `while ${storedCount} are stored and ${evictedCount ?? 'as many'} evicted`,
        ...cells(evicting),
        null,
      ],
    ],
    verdicts: [
      {
        what: `cost per key at ${many.objectCount} objects, in times of that at ${few.objectCount}`,
        value: many.nanosPerKey / few.nanosPerKey,
        unit: '',
        target: RATIO_MAX,
      },
      {
        what: 'resident memory without L1, per object',
        value: addedBytes,
        unit: ' bytes',
        target: OBJECT_BYTES_MAX,
      },
      {
        what: `slowest LOOKUP while ${EVICTED_OBJECTS} objects at a time are evicted`,
        value: evicting.maxMs,
        unit: ' ms',
        target: LOOKUP_MAX_MS,
      },
    ],
    details: { levels, eviction },
  };
}
