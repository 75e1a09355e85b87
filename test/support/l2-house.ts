/** The storage room with scripted L2 adapters; every object has bytes that only it has. */
import type { NamespaceTable } from '../../src/core/namespaces.ts';
import { NO_SLOT, type ObjectKeys } from '../../src/core/object-table.ts';
import type { GroupRule, ObjectShape } from '../../src/storage/l1-manager.ts';
import type { L2Settings } from '../../src/storage/l2/l2-tier.ts';
import { objectKeyOf } from '../../src/storage/l2/object-names.ts';
import type { PrefetchTask } from '../../src/storage/prefetch-controller.ts';
import { ALIGN_BYTES, buildL1House, RULES, shapeOf } from './l1-house.ts';
import { nameOf, ScriptedStore } from './scripted-store.ts';

export interface L2HouseOptions {
  /** Objects of one alignment unit that L1 can hold. */
  readonly units?: number;
  readonly adapterCount?: number;
  readonly l2?: Partial<L2Settings>;
}

/** Lets everything run that can run without time going by. */
export async function turns(): Promise<void> {
  for (let i = 0; i < 4; i += 1) await new Promise((resolve) => setImmediate(resolve));
}

function namesIn(namespaces: NamespaceTable, keys: ObjectKeys): string[] {
  const width = keys.namespaceIds.length;
  return Array.from({ length: keys.chunkCount * width }, (_, i) => {
    const size = keys.hashes.hashSizeBytes;
    const at = (keys.firstChunk + Math.floor(i / width)) * size;
    const namespace = namespaces.describe(keys.namespaceIds[i % width] as number);
    return nameOf(objectKeyOf(namespace, keys.hashes.bytes.subarray(at, at + size)));
  });
}

const chunks = (keys: ObjectKeys, firstChunk: number, chunkCount = 1): ObjectKeys => ({
  ...keys,
  firstChunk,
  chunkCount,
});

/** What the object of a name is made of. */
export function contentOf(name: string, sizeBytes = ALIGN_BYTES): Uint8Array {
  return Uint8Array.from(Buffer.alloc(sizeBytes, name));
}

export function buildL2House({ units = 64, adapterCount = 1, l2 = {} }: L2HouseOptions = {}) {
  const house = buildL1House({ sizeBytes: units * ALIGN_BYTES, watermarkRatio: 1, l2 });
  const { storage, core, clock } = house;
  const stores = Array.from({ length: adapterCount }, (_, id) => new ScriptedStore(id));
  for (const store of stores) storage.l2.adapters.attach(store);

  const namesOf = (keys: ObjectKeys) => namesIn(core.namespaces, keys);
  const put = (store: ScriptedStore, keys: ObjectKeys, sizeBytes = ALIGN_BYTES) => {
    for (const name of namesOf(keys)) store.values.set(name, contentOf(name, sizeBytes));
  };
  /** Stores as an engine does, bytes and all. */
  const storeInL1 = (keys: ObjectKeys, shape: ObjectShape = shapeOf()) => {
    const { slots, offsets } = storage.reserveStore(keys, shape);
    for (const [i, name] of namesOf(keys).entries()) {
      if (slots[i] !== NO_SLOT) {
        house.bytes.set(contentOf(name, shape.objectSizeBytes), offsets[i] as number);
      }
    }
    return storage.finishStore(slots);
  };
  /** Lets time go by, and all that follows from it. */
  const run = async (deltaMs = 0) => {
    for (let i = 0; i < 4; i += 1) {
      clock.advance(i === 0 ? deltaMs : 0);
      await turns();
    }
  };
  const prefetch = (keys: ObjectKeys, holdCount = 1, rules: readonly GroupRule[] = RULES) =>
    storage.submitPrefetch(keys, holdCount, rules);
  /** Names of the objects that have other bytes than their own. */
  const wrongSlots = (keys: ObjectKeys, slots: Uint32Array) => {
    const names = namesOf(keys);
    return [...slots].flatMap((slot, i) => {
      if (slot === NO_SLOT) return [];
      const at = core.table.offsetOf(slot);
      const bytes = house.bytes.subarray(at, at + core.table.sizeOf(slot));
      const name = names[i] as string;
      return Buffer.from(bytes).equals(contentOf(name, bytes.length)) ? [] : [name];
    });
  };
  const wrongBytes = (keys: ObjectKeys, task: PrefetchTask) =>
    wrongSlots(keys, task.result?.slots ?? new Uint32Array(0));
  const release = (task: PrefetchTask, holdCount = 1) => {
    const slots = task.result?.slots.filter((slot) => slot !== NO_SLOT) ?? new Uint32Array(0);
    storage.releaseHolds(slots, holdCount);
  };
  /** Holds, pins, staged places and locks that nobody has given back. */
  const leaks = () => {
    core.table.checkConsistency();
    const { readLockedCount, pinnedCount, stagingCount, deferredCount } = house.l1.statistics();
    const lockCount = stores.reduce((sum, store) => sum + store.lockCount, 0);
    const useCount = storage.l2.adapters.all.reduce((sum, one) => sum + one.useCount, 0);
    const loading = storage.l2.loads.cellCount + storage.l2.loads.inFlight.size;
    return (
      readLockedCount + pinnedCount + stagingCount + deferredCount + lockCount + useCount + loading
    );
  };
  return {
    ...house,
    ...{ stores, store0: stores[0] as ScriptedStore, namesOf, contentOf, put },
    ...{ storeInL1, run, prefetch, wrongSlots, wrongBytes, release, leaks, chunks },
  };
}

export type L2House = ReturnType<typeof buildL2House>;
