/** The ground of the contract tests of L2 backends: an empty store, L1 buffers, and their steps. */
import * as assert from 'uvu/assert';
import type { L2Backend, L2Object, LoadResult, StoreResult } from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { KIB } from '../../src/units.ts';
import { l2Key, l2Value, SlotArena } from '../support/l2-objects.ts';

/** An empty place that backends of one kind can be opened on. */
export interface L2Store {
  /** Another backend on the same place. The suite closes it. */
  open(): Promise<L2Backend>;
  /** After all backends are closed. */
  dispose(): Promise<void>;
  /** Puts this value under the key behind the backend's back, as a damaged store would have it. */
  plant?(key: ObjectKey, bytes: Uint8Array): Promise<void>;
  /** From now on no value can be stored under this key. */
  spoil?(key: ObjectKey): Promise<void>;
}

export const never = new AbortController().signal;
export const OBJECT_BYTES = 4 * KIB;

export interface House {
  readonly store: L2Store;
  readonly backend: L2Backend;
  readonly arena: SlotArena;
  openAnother(): Promise<L2Backend>;
  closeAll(): Promise<void>;
}

type Body = (house: House) => Promise<void>;
export type InHouse = (body: Body) => () => Promise<void>;

export function housesOf(makeStore: () => Promise<L2Store>, arenaBytes: number): InHouse {
  return (body) => async () => {
    const store = await makeStore();
    const arena = await SlotArena.open(arenaBytes);
    const opened: L2Backend[] = [];
    const openAnother = async (): Promise<L2Backend> => {
      const backend = await store.open();
      opened.push(backend);
      return backend;
    };
    const closeAll = async (): Promise<void> => {
      for (const backend of opened.splice(0)) await backend.close();
    };
    try {
      await body({ store, arena, openAnother, closeAll, backend: await openAnother() });
    } finally {
      await closeAll();
      await store.dispose();
      await arena.close();
    }
  };
}

export function objectsOf(arena: SlotArena, keys: readonly ObjectKey[], sizeBytes = OBJECT_BYTES) {
  return keys.map((key, index) => arena.object(key, l2Value(sizeBytes, index)));
}

export function isKept(result: StoreResult | undefined): boolean {
  return result === 'stored' || result === 'present';
}

export async function storeAll(backend: L2Backend, objects: readonly L2Object[]): Promise<void> {
  const results = await backend.store(objects, never);
  assert.is(results.length, objects.length);
  for (const [i, result] of results.entries()) assert.ok(isKept(result), `object ${i}: ${result}`);
}

/** Loads into fresh slots and compares. */
export async function expectLoaded(
  house: House,
  objects: readonly L2Object[],
  from = house.backend,
) {
  const targets = objects.map(({ key, bytes }) => house.arena.object(key, bytes.length));
  const results = await from.load(targets, never);
  assert.equal(
    results,
    targets.map(() => 'loaded'),
  );
  for (const [i, target] of targets.entries()) {
    assert.ok(sameBytes(target.bytes, objects[i]?.bytes), `object ${i} came back with other bytes`);
  }
}

export async function expectAbsent(
  { backend, arena }: House,
  keys: readonly ObjectKey[],
): Promise<void> {
  assert.equal(
    await backend.lookup(keys, never),
    keys.map(() => null),
  );
  const targets = keys.map((key) => arena.object(key, OBJECT_BYTES));
  assert.equal(
    await backend.load(targets, never),
    keys.map(() => 'missing'),
  );
}

export function sameBytes(a: Uint8Array, b: Uint8Array | undefined): boolean {
  return b !== undefined && Buffer.compare(a, b) === 0;
}

/** Missing, or an error that says why: what a load may answer for a value it cannot give. */
export function isMiss(result: LoadResult | undefined): boolean {
  return result === 'missing' || result instanceof Error;
}

export const keysUpTo = (count: number, rest: Partial<ObjectKey> = {}): ObjectKey[] =>
  Array.from({ length: count }, (_, index) => l2Key(index, rest));

/** A call that is broken off may reject or say so object by object. */
export function ignoreRejection(error: unknown): undefined {
  assert.instance(error, Error);
}
