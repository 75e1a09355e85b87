/**
 * The core, loaded: one WASM instance with everything that must be deterministic and fast.
 *
 *   core.hasher      token arrays to chunk hashes           chunk-hasher.ts
 *   core.table       objects, their places and holders      object-table.ts
 *   core.namespaces  names to numbers                       namespaces.ts
 *
 * One instance has one writer: only the main thread calls it. Its memory is reserved once, here;
 * pages that nothing has written to cost nothing, so a large `objectCountMax` is cheap until used.
 * Sketch for a million objects: 192 MB reserved; resident are 164 bytes per object in use, and 28
 * per ghost of the policies that have them.
 */
import { fatal } from '../assert.ts';
import { KvdError } from '../errors.ts';
import { readAsset } from '../native.ts';
import { ChunkHasher, type ChunkHasherOptions } from './chunk-hasher.ts';
import { type CoreExports, instantiate, type TrapHandler } from './instance.ts';
import { NAMESPACE_COUNT_MAX, NamespaceTable } from './namespaces.ts';
import { ObjectTable } from './object-table.ts';
import { type EvictionPolicy, POLICY_ID } from './policy.ts';
import { RESULT, resultName } from './result.ts';

export interface CoreOptions extends ChunkHasherOptions {
  readonly objectCountMax: number;
  readonly arenaSizeBytes: number;
  /** A power of two; every object begins at a multiple. */
  readonly alignBytes: number;
  readonly evictionPolicy: EvictionPolicy;
  readonly writeTtlMs: number;
  readonly readTtlMs: number;
  /** Any number that clients do not know, so that they cannot choose colliding keys. */
  readonly indexSeed?: readonly [low: number, high: number];
  /** Replaces the end of the process, for tests. Must not return. */
  readonly onTrap?: TrapHandler;
}

/** Objects of one call: 16 per chunk of the longest request, within these bounds. */
const BATCH_COUNT_MIN = 65_536;
const BATCH_COUNT_MAX = 1_048_576;

function batchCount(options: CoreOptions): number {
  const chunkCount = Math.ceil(options.tokenCountMax / options.chunkSizeTokens);
  return Math.min(BATCH_COUNT_MAX, Math.max(BATCH_COUNT_MIN, 16 * chunkCount));
}

/** The address space counts units of the alignment in 32 bits: 16 TiB with 4 KiB. */
const ARENA_UNIT_COUNT_MAX = 2 ** 32 - 2;

function initialize(core: CoreExports, options: CoreOptions, batchCountMax: number): void {
  if (options.arenaSizeBytes / options.alignBytes > ARENA_UNIT_COUNT_MAX) {
    throw new KvdError(
      'ERR_CONFIG',
      `L1 of ${options.arenaSizeBytes} bytes has more than ${ARENA_UNIT_COUNT_MAX} units of ` +
        `${options.alignBytes} bytes: raise the alignment`,
    );
  }
  const [seedLow, seedHigh] = options.indexSeed ?? [0, 0];
  const layout = core.init(
    options.tokenCountMax,
    options.chunkSizeTokens,
    batchCountMax,
    options.objectCountMax,
    NAMESPACE_COUNT_MAX,
    seedLow,
    seedHigh,
  );
  if (layout === RESULT.MEMORY_LIMIT) {
    throw new KvdError(
      'ERR_CONFIG',
      `tables for ${options.objectCountMax} objects do not fit: raise the chunk size or lower L1`,
    );
  }
  if (layout !== RESULT.SUCCESS) throw new Error(`init answers ${resultName(layout)}`);
  const table = core.table_init(
    options.arenaSizeBytes,
    options.alignBytes,
    POLICY_ID[options.evictionPolicy],
    options.writeTtlMs,
    options.readTtlMs,
  );
  if (table !== RESULT.SUCCESS) throw new Error(`table_init answers ${resultName(table)}`);
}

export class Core {
  readonly hasher: ChunkHasher;
  readonly table: ObjectTable;
  readonly namespaces: NamespaceTable;
  /** Address space of the instance; resident are only the pages in use. */
  readonly reservedBytes: number;

  private constructor(core: CoreExports, options: CoreOptions, onTrap: TrapHandler) {
    const batchCountMax = batchCount(options);
    initialize(core, options, batchCountMax);
    this.hasher = new ChunkHasher(core, options);
    this.namespaces = new NamespaceTable(core);
    this.table = new ObjectTable(
      core,
      {
        objectCountMax: options.objectCountMax,
        batchCountMax,
        alignBytes: options.alignBytes,
      },
      onTrap,
    );
    this.reservedBytes = core.layout_size();
  }

  /** Loads core.wasm (the one of this build if no bytes are given) and lays its memory out. */
  static load(options: CoreOptions, wasm: Uint8Array = readAsset('core.wasm')): Core {
    let core: Core | undefined;
    const dump = () => {
      try {
        return core?.table.statistics();
      } catch {
        // The core is broken; that it cannot even count is part of the same news.
        return null;
      }
    };
    let isTrapped = false;
    const end: TrapHandler = (error) => {
      // A second trap comes from the dump of the first.
      if (isTrapped) throw error;
      isTrapped = true;
      return fatal(error instanceof Error ? error.message : String(error), dump());
    };
    const onTrap = options.onTrap ?? end;
    core = new Core(instantiate(wasm, onTrap), options, onTrap);
    return core;
  }
}
