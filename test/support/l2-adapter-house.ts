/** An `L2Adapter` around a scripted backend under a virtual clock. */
import { L2Adapter } from '../../src/l2/adapter.ts';
import type { AdapterSettings } from '../../src/l2/adapter-spec.ts';
import type { L2Backend, L2Object } from '../../src/l2/backend.ts';
import type { ObjectKey } from '../../src/l2/object-key.ts';
import { l2Key, l2Value } from './l2-objects.ts';
import { RecordingLogger } from './recording-logger.ts';
import { ScriptedBackend } from './scripted-backend.ts';
import { VirtualClock } from './virtual-clock.ts';

export const TASK_TIMEOUT_MS = 30_000;

export interface HouseOptions extends Partial<AdapterSettings> {
  readonly capacityBytes?: number;
  /** What the adapter sees instead of the scripted backend itself. */
  readonly wrap?: (backend: ScriptedBackend) => L2Backend;
}

export class L2AdapterHouse {
  readonly backend = new ScriptedBackend();
  readonly clock = new VirtualClock();
  readonly log = new RecordingLogger();
  readonly adapter: L2Adapter;
  /** What listeners were told, oldest first: `stored 1 2`. */
  readonly told: string[] = [];

  constructor({ capacityBytes = 0, wrap = (backend) => backend, ...settings }: HouseOptions = {}) {
    this.adapter = new L2Adapter({
      id: 0,
      typeName: 'scripted',
      backend: wrap(this.backend),
      settings: {
        eviction: null,
        isPersistent: true,
        affinityTag: '_default',
        isShared: false,
        taskTimeoutMs: TASK_TIMEOUT_MS,
        inFlightMaxBytes: 1_000_000,
        hasChecksum: false,
        scansOnStart: false,
        ...settings,
      },
      capacityBytes,
      shown: {},
      clock: this.clock,
      log: this.log,
    });
    const tell = (verb: string, keys: readonly ObjectKey[]): void => {
      this.told.push([verb, ...keys.map(idOf)].join(' '));
    };
    this.adapter.onChange({
      stored: (keys) => tell('stored', keys),
      found: (keys) => tell('found', keys),
      accessed: (keys) => tell('accessed', keys),
      deleted: (keys) => tell('deleted', keys),
    });
  }
}

/** The number that `l2Key` was given. */
export function idOf({ chunkHash }: ObjectKey): number {
  return new DataView(chunkHash.buffer, chunkHash.byteOffset).getUint32(0);
}

export function objectOf(id: number, sizeBytes = 100, key = l2Key(id)): L2Object {
  return { key, bytes: l2Value(sizeBytes, id) };
}

export function emptyObject(id: number, sizeBytes = 100, key = l2Key(id)): L2Object {
  return { key, bytes: new Uint8Array(sizeBytes) };
}

/** Lets everything run that waits for nothing but its turn. */
export async function turns(count = 20): Promise<void> {
  for (let i = 0; i < count; i += 1) await Promise.resolve();
  await new Promise(setImmediate);
}

/** Whether the promise has settled by now. */
export async function hasSettled(promise: Promise<unknown>): Promise<boolean> {
  let isOver = false;
  void promise.then(() => {
    isOver = true;
  });
  await turns();
  return isOver;
}
