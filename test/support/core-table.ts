/** The object table over a fresh core, with small lists of keys written as plain numbers. */
import { Core, type CoreOptions } from '../../src/core/core.ts';
import type { NamespaceKey } from '../../src/core/namespaces.ts';
import { NO_SLOT, type ObjectKeys } from '../../src/core/object-table.ts';

export const UNIT_BYTES = 4096;

export interface OpenTableOptions {
  readonly units?: number;
  readonly objectCountMax?: number;
  readonly evictionPolicy?: CoreOptions['evictionPolicy'];
  readonly writeTtlMs?: number;
  readonly readTtlMs?: number;
  readonly wasm?: Uint8Array;
}

/** A core without a process to end: a trap is an error of the test. */
export function openCoreTable(options: OpenTableOptions = {}): Core {
  const core: CoreOptions = {
    hashAlgorithm: 'blake3',
    chunkSizeTokens: 16,
    tokenCountMax: 256,
    objectCountMax: options.objectCountMax ?? 256,
    arenaSizeBytes: (options.units ?? 64) * UNIT_BYTES,
    alignBytes: UNIT_BYTES,
    evictionPolicy: options.evictionPolicy ?? 'LRU',
    writeTtlMs: options.writeTtlMs ?? 1000,
    readTtlMs: options.readTtlMs ?? 500,
    onTrap: (error) => {
      throw error;
    },
  };
  return Core.load(core, options.wasm);
}

export function namespaceKey(part: Partial<NamespaceKey> = {}): NamespaceKey {
  return {
    modelName: 'm',
    worldSize: 1,
    workerId: 0,
    objectGroupId: 0,
    cacheSalt: '',
    ...part,
  };
}

/** Keys of chunks named by number; the hash is the number in 4 bytes, as in the vectors. */
export function keysOf(chunks: readonly number[], namespaceIds: readonly number[]): ObjectKeys {
  const bytes = new Uint8Array(4 * chunks.length);
  const view = new DataView(bytes.buffer);
  for (const [index, chunk] of chunks.entries()) view.setUint32(4 * index, chunk);
  const hashes = { bytes, count: chunks.length, hashSizeBytes: 4 };
  return { hashes, firstChunk: 0, chunkCount: chunks.length, namespaceIds };
}

/** The writer that `openRanks` stores as. */
export const WRITER = 1;

/** A table with the ranks of one model, and a short way to store to all of them. */
export function openRanks(worldSize: number, options: OpenTableOptions = {}) {
  const core = openCoreTable(options);
  const ranks = Array.from({ length: worldSize }, (_, workerId) =>
    core.namespaces.intern(namespaceKey({ worldSize, workerId })),
  );
  const store = (chunks: readonly number[], sizeBytes = UNIT_BYTES, nowMs = 0): Uint32Array => {
    const { slots } = core.table.reserveWrite(keysOf(chunks, ranks), sizeBytes, WRITER, nowMs);
    core.table.finishWrite(slots, nowMs);
    return slots;
  };
  const resident = (chunks: readonly number[]): number[] =>
    chunks.filter((chunk) => !core.table.find(keysOf([chunk], ranks)).includes(NO_SLOT));
  return { core, table: core.table, ranks, store, resident };
}
