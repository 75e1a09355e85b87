/** The storage room over the real core, with plain memory behind L1. */
import { readFileSync } from 'node:fs';
import type { ChunkHashes } from '../../src/core/chunk-hasher.ts';
import { Core } from '../../src/core/core.ts';
import type { ObjectKeys } from '../../src/core/object-table.ts';
import type { EvictionPolicy } from '../../src/core/policy.ts';
import { EventBus } from '../../src/observability/event-bus.ts';
import { type GroupRule, L1Manager, type ObjectShape } from '../../src/storage/l1-manager.ts';
import type { L1Memory } from '../../src/storage/l1-memory/l1-memory.ts';
import type { L2Settings } from '../../src/storage/l2/l2-tier.ts';
import { StorageManager } from '../../src/storage/storage-manager.ts';
import type { StorageTrace } from '../../src/storage/trace-recording.ts';
import { NO_WINDOW } from '../../src/storage/window-fold.ts';
import { RecordingLogger } from './recording-logger.ts';
import { VirtualClock } from './virtual-clock.ts';

export const ALIGN_BYTES = 4096;
export const WRITE_TTL_MS = 10_000;
export const READ_TTL_MS = 5_000;
const L2_SETTINGS: Omit<L2Settings, 'hashSizeBytes'> = {
  storePolicy: 'default',
  prefetchPolicy: 'default',
  prefetchMaxInFlight: 8,
  lookupTimeoutMs: 10_000,
  loadTimeoutMs: 60_000,
  cacheNamespace: '',
};
const LAYOUT_TAG = 7;
/** What readers of the house's objects ask for: their layout, and all of a prefix. */
export const RULES: readonly GroupRule[] = [
  { layoutTags: new Map([[LAYOUT_TAG, 1]]), windowChunks: NO_WINDOW, shape: shapeOf() },
];

export function shapeOf(objectSizeBytes = ALIGN_BYTES, layoutTag = LAYOUT_TAG): ObjectShape {
  return { objectSizeBytes, layoutTag, layoutText: `layout ${layoutTag}` };
}
const WASM = readFileSync(new URL('../../build/core.wasm', import.meta.url));

export interface L1HouseOptions {
  readonly sizeBytes: number;
  readonly evictionPolicy?: EvictionPolicy;
  readonly watermarkRatio?: number;
  readonly evictionRatio?: number;
  readonly l2?: Partial<L2Settings>;
  /** See `L1Reports`. */
  readonly sampleThreshold?: number;
  readonly trace?: StorageTrace;
}

function loadCore(sizeBytes: number, evictionPolicy: EvictionPolicy): Core {
  return Core.load(
    {
      hashAlgorithm: 'blake3',
      chunkSizeTokens: 16,
      tokenCountMax: 4096,
      objectCountMax: Math.max(1024, sizeBytes / ALIGN_BYTES),
      arenaSizeBytes: sizeBytes,
      alignBytes: ALIGN_BYTES,
      evictionPolicy,
      writeTtlMs: WRITE_TTL_MS,
      readTtlMs: READ_TTL_MS,
      onTrap: (error) => {
        throw error;
      },
    },
    WASM,
  );
}

/** Hashes of `count` chunks of a prompt that only this number names. */
function hashesOf(prompt: number, count: number): ChunkHashes {
  const bytes = new Uint8Array(count * 32);
  const view = new DataView(bytes.buffer);
  for (let chunk = 0; chunk < count; chunk += 1) {
    view.setUint32(chunk * 32, prompt);
    view.setUint32(chunk * 32 + 4, chunk);
  }
  return { bytes, count, hashSizeBytes: 32 };
}

export function buildL1House(options: L1HouseOptions) {
  const { sizeBytes, evictionPolicy = 'LRU', watermarkRatio = 0.8, evictionRatio = 0.2 } = options;
  const ground = { clock: new VirtualClock(), bus: new EventBus(), log: new RecordingLogger() };
  const core = loadCore(sizeBytes, evictionPolicy);
  const prepared: number[] = [];
  const bytes = new Uint8Array(sizeBytes);
  const memory: Omit<L1Memory, 'kind' | 'memory' | 'close'> = {
    view: (offset, length) => bytes.subarray(offset, offset + length),
    sizeBytes,
    shmName: null,
    preparedBytes: 0,
    prepareAhead: (highWaterBytes) => prepared.push(highWaterBytes),
  };
  const { table, namespaces } = core;
  const { hashSizeBytes } = core.hasher;
  const l1 = new L1Manager({
    ...ground,
    table,
    namespaces,
    memory: memory as L1Memory,
    hashSizeBytes,
    sampleThreshold: options.sampleThreshold ?? 0,
  });
  const storage = new StorageManager({
    ...ground,
    l1,
    alignBytes: ALIGN_BYTES,
    evictionPolicy,
    watermarkRatio,
    evictionRatio,
    writeTtlMs: WRITE_TTL_MS,
    readTtlMs: READ_TTL_MS,
    namespaces,
    l2: { ...L2_SETTINGS, hashSizeBytes: core.hasher.hashSizeBytes, ...options.l2 },
    trace: options.trace ?? null,
  });

  /** Keys of `count` chunks of a prompt over `ranks` ranks. */
  function keysOf(prompt: number, count = 1, ranks = 1, cacheSalt = ''): ObjectKeys {
    const rest = { modelName: 'm', worldSize: ranks, objectGroupId: 0, cacheSalt };
    const namespaceIds = Array.from({ length: ranks }, (_, workerId) =>
      l1.internNamespace({ ...rest, workerId }),
    );
    return { hashes: hashesOf(prompt, count), firstChunk: 0, chunkCount: count, namespaceIds };
  }

  /** Returns how many objects were admitted. */
  const store = (keys: ObjectKeys, shape = shapeOf()) =>
    storage.finishStore(storage.reserveStore(keys, shape).slots);

  const hitChunks = (keys: ObjectKeys) => {
    const held = l1.hold(keys, 1, RULES);
    l1.releaseHolds(held, 1);
    return held.length / keys.namespaceIds.length;
  };

  return { ...ground, core, l1, storage, bytes, prepared, keysOf, store, hitChunks };
}
