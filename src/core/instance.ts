/**
 * The bare WASM instance: its exports by hand, the check of its ABI, and what happens on a trap.
 *
 * A trap is a broken invariant of ours about memory that copies may be using. Nothing can be
 * trusted after it, so every export is wrapped: the wrapper hands the error to `onTrap`, which
 * does not return (`fatal` of assert.ts in the server; tests throw). `abort` gives pointers to
 * UTF-16 text with its length in bytes before it, which is decoded into the message of the trap.
 */
import type { HasherExports } from './chunk-hasher.ts';

const ABI_VERSION = 7;

// The compiler's library has no WebAssembly without the DOM; this is the part that is used here.
declare const WebAssembly: {
  Module: new (bytes: Uint8Array) => object;
  Instance: new (
    module: object,
    imports: Record<string, Record<string, unknown>>,
  ) => { readonly exports: Readonly<Record<string, unknown>> };
};

/** Ids for `region_offset`; see assembly/memory-map.ts. */
export const REGION = {
  keyHashes: 4,
  namespaces: 5,
  slots: 6,
  codes: 7,
  generations: 8,
  figures: 9,
  objectKeys: 10,
  objectPlaces: 11,
  removalRecords: 12,
  familyHashes: 13,
  departed: 14,
  namedDepartures: 15,
} as const;

/** Exports of assembly/index.ts; flags are 0 or 1, times and bytes are whole numbers. */
export interface CoreExports extends HasherExports {
  abi_version(): number;
  init(
    tokenCountMax: number,
    chunkSizeTokens: number,
    batchCountMax: number,
    objectCountMax: number,
    namespaceCountMax: number,
    seedLow: number,
    seedHigh: number,
  ): number;
  layout_size(): number;
  table_init(
    arenaSizeBytes: number,
    alignBytes: number,
    policy: number,
    writeTtlMs: number,
    readTtlMs: number,
  ): number;
  namespace_define(id: number, scope: number, tenant: number): number;
  namespace_object_count(id: number): number;
  tenant_bytes(tenant: number): number;
  tenant_limit(tenant: number, bytes: number): number;
  table_find(chunkCount: number, namespaceCount: number, writerTag: number): number;
  table_hold_prefix(chunkCount: number, namespaceCount: number, holdCount: number): number;
  table_hold(count: number, holdCount: number): number;
  table_release_holds(count: number, holdCount: number): number;
  table_pin(count: number): number;
  table_unpin(count: number): number;
  table_touch(count: number, usedCount: number): number;
  table_reserve_read(
    chunkCount: number,
    namespaceCount: number,
    leaseCount: number,
    nowMs: number,
  ): number;
  table_finish_read(count: number, leaseCount: number, isChecked: number, nowMs: number): number;
  table_reserve_write(
    chunkCount: number,
    namespaceCount: number,
    sizeBytes: number,
    writerTag: number,
    nowMs: number,
  ): number;
  table_finish_write(
    count: number,
    leaseCount: number,
    holdCount: number,
    isChecked: number,
    nowMs: number,
  ): number;
  table_discard_write(count: number, isChecked: number, nowMs: number): number;
  table_extend_write(count: number, nowMs: number): number;
  table_abandon_write(count: number, nowMs: number): number;
  table_delete(chunkCount: number, namespaceCount: number, isForced: number, nowMs: number): number;
  table_clear(isForced: number, nowMs: number): number;
  table_clear_slice(isForced: number, firstSlot: number, slotCount: number, nowMs: number): number;
  table_evict(
    bytesToFree: number,
    familyBudget: number,
    isContinued: number,
    nowMs: number,
  ): number;
  table_sweep_expired(budget: number, nowMs: number): number;
  table_announce(chunkCount: number, namespaceCount: number): number;
  removals_take(): number;
  removals_count_max(): number;
  departures_watch(hashThreshold: number): number;
  departures_take(): number;
  departures_named_count(): number;
  departures_named_max(): number;
  departures_bytes(): number;
  table_grow_arena(sizeBytes: number): number;
  table_statistics(nowMs: number): number;
  table_check(): number;
  order_init(entryCountMax: number, tenantCountMax: number, policy: number): number;
  order_add(keyLow: number, keyHigh: number, tenant: number, isReserved: number): number;
  order_insert(entry: number): number;
  order_touch(entry: number): number;
  order_refresh(entry: number): number;
  order_remove(entry: number): number;
  order_victim(isFromStart: number): number;
  order_victim_of(tenant: number, isFromStart: number): number;
  order_take(entry: number): number;
  order_count(): number;
}

/** Must not return: the state of the core is unknown. */
export type TrapHandler = (error: unknown) => never;

type Export = (...parameters: number[]) => number;

/** A string of AssemblyScript: UTF-16, its size in bytes in the word before. */
export function readText(buffer: ArrayBuffer, pointer: number): string {
  if (pointer === 0) return '';
  const sizeBytes = new DataView(buffer).getUint32(pointer - 4, true);
  return new TextDecoder('utf-16le').decode(new Uint8Array(buffer, pointer, sizeBytes));
}

/** Wraps one export. Five fixed parameters, because a rest array would cost more than the call. */
function guard(inner: Export, onTrap: TrapHandler): Export {
  return (a: number, b: number, c: number, d: number, e: number, f: number, g: number) => {
    try {
      return inner(a, b, c, d, e, f, g);
    } catch (error) {
      return onTrap(error);
    }
  };
}

/** Compiles and instantiates core.wasm; `init` is the caller's. */
export function instantiate(wasm: Uint8Array, onTrap: TrapHandler): CoreExports {
  let memory: { readonly buffer: ArrayBuffer } = { buffer: new ArrayBuffer(0) };
  const abort = (message: number, file: number, line: number, column: number): never => {
    const { buffer } = memory;
    const where = `${readText(buffer, file)}:${line}:${column}`;
    throw new Error(`assertion of the core failed: ${readText(buffer, message)} (${where})`);
  };
  const module = new WebAssembly.Module(wasm);
  const instance = new WebAssembly.Instance(module, { env: { abort } });
  memory = instance.exports['memory'] as typeof memory;
  const exports: Record<string, unknown> = { memory };
  for (const [name, value] of Object.entries(instance.exports)) {
    if (typeof value === 'function') exports[name] = guard(value as Export, onTrap);
  }
  const core = exports as unknown as CoreExports;
  const version = core.abi_version();
  if (version !== ABI_VERSION) {
    throw new Error(`core.wasm has ABI version ${version}, expected ${ABI_VERSION}`);
  }
  return core;
}
