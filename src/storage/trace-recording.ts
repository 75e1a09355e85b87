/**
 * Tells a recorder which calls the engine makes, with the keys of what they are about.
 *
 * The engine gives slots back, the recorder wants keys. A slot that somebody holds keeps its place,
 * but its key may be cleared meanwhile and its number in the table given to another chunk; so the
 * keys are kept from the moment in which a call hands slots out until all of them are back:
 *
 *   lookup, acquire, reserve ──▶ key of each slot, and how many times it is out
 *                                     └──▶ release, finish, discard: the keys again, counted down
 *
 * Only a server that records has one of these; without it the storage room pays a look at a null.
 */
import type { Namespace, NamespaceTable } from '../core/namespaces.ts';
import { NO_NAMESPACE } from '../core/namespaces.ts';
import { NO_SLOT, type ObjectKeys } from '../core/object-table.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../device/tensor-wrapper.ts';
import type { GroupRule, ObjectShape, Places } from './l1-manager.ts';
import type { PrefetchTask } from './prefetch-controller.ts';
import type { StoreGroup } from './storage-manager.ts';

export interface TracedKey {
  readonly chunkHash: Uint8Array;
  readonly namespace: Namespace;
}

/** What the bytes of an object are, in the reference's words. */
export interface TracedLayout {
  readonly shapes: readonly (readonly number[])[];
  /** `torch.float16`, … */
  readonly dtypes: readonly string[];
}

/** A call under the reference's name. */
export interface TracedCall {
  readonly operation:
    | 'reserve_write'
    | 'finish_write'
    | 'submit_prefetch_task'
    | 'read_prefetched_results.__enter__'
    | 'read_prefetched_results.__exit__'
    | 'finish_read_prefetched';
  readonly keys: readonly TracedKey[];
  readonly layout?: TracedLayout;
  /** Readers beside the first. */
  readonly extraCount?: number;
}

/** Who wants to know. Must not throw. */
export interface StorageTrace {
  record(call: TracedCall): void;
}

/** Layouts of a server; more at a time are read again. */
const LAYOUT_COUNT_MAX = 1024;
const NO_LAYOUT: TracedLayout = { shapes: [], dtypes: [] };

interface SlotOut {
  readonly key: TracedKey;
  count: number;
}

export class CallTracer {
  readonly #trace: StorageTrace;
  readonly #namespaces: NamespaceTable;
  readonly #slotsOut = new Map<number, SlotOut>();
  readonly #layouts = new Map<string, TracedLayout>();

  constructor(trace: StorageTrace, namespaces: NamespaceTable) {
    this.#trace = trace;
    this.#namespaces = namespaces;
  }

  /** Slots that are out; for tests. */
  get slotCount(): number {
    return this.#slotsOut.size;
  }

  lookup(
    of: { readonly keys: ObjectKeys; readonly holdCount: number },
    rules: readonly GroupRule[],
    task: PrefetchTask,
  ): void {
    const { holdCount } = of;
    const keys = this.#keysOf(of.keys);
    this.#trace.record({
      operation: 'submit_prefetch_task',
      keys: keys.filter((key) => key !== null),
      layout: this.#layoutOf(rules[0]?.shape),
      extraCount: Math.max(0, holdCount - 1),
    });
    task.onDone(({ slots }) => {
      this.#noteOut(keys, slots, Math.max(1, holdCount));
      // Nobody will give back what nobody holds; the reference's call always holds once.
      if (holdCount === 0) this.holdsReleased(slots, 1);
    });
  }

  holdsReleased(slots: Uint32Array, holdCount: number): void {
    const keys = this.#takeBack(slots, holdCount);
    if (keys.length === 0 || holdCount < 1) return;
    this.#trace.record({
      operation: 'finish_read_prefetched',
      keys,
      extraCount: holdCount - 1,
    });
  }

  /** `places` null: something of it is not there. */
  acquired(keys: ObjectKeys, places: Places | null): void {
    const named = this.#keysOf(keys);
    const known = named.filter((key) => key !== null);
    if (known.length === 0) return;
    this.#trace.record({ operation: 'read_prefetched_results.__enter__', keys: known });
    if (places) this.#noteOut(named, places.slots, 1);
    else this.#trace.record({ operation: 'read_prefetched_results.__exit__', keys: known });
  }

  readReleased(slots: Uint32Array): void {
    const keys = this.#takeBack(slots, 1);
    if (keys.length === 0) return;
    this.#trace.record({ operation: 'read_prefetched_results.__exit__', keys });
  }

  reserved({ keys, shape, isLeftOut }: StoreGroup, slots: Uint32Array): void {
    const named = this.#keysOf(keys);
    const isAsked = (chunk: number) => !isLeftOut?.[chunk];
    const columnCount = keys.namespaceIds.length;
    this.#trace.record({
      operation: 'reserve_write',
      keys: named.filter(
        (key, i): key is TracedKey => key !== null && isAsked(Math.floor(i / columnCount)),
      ),
      layout: this.#layoutOf(shape),
    });
    this.#noteOut(named, slots, 1);
  }

  stored(slots: Uint32Array): void {
    const keys = this.#takeBack(slots, 1);
    if (keys.length > 0) this.#trace.record({ operation: 'finish_write', keys });
  }

  /** Reservations that nobody finishes; the reference has no call for that. */
  discarded(slots: Uint32Array): void {
    this.#takeBack(slots, 1);
  }

  /** In key order; null where nobody has ever stored to the namespace. */
  #keysOf({ hashes, firstChunk, chunkCount, namespaceIds }: ObjectKeys): (TracedKey | null)[] {
    const { bytes, hashSizeBytes } = hashes;
    const namespaces = namespaceIds.map((id) =>
      id === NO_NAMESPACE ? null : this.#namespaces.describe(id),
    );
    const keys: (TracedKey | null)[] = [];
    for (let chunk = firstChunk; chunk < firstChunk + chunkCount; chunk += 1) {
      const chunkHash = bytes.subarray(chunk * hashSizeBytes, (chunk + 1) * hashSizeBytes);
      for (const namespace of namespaces) keys.push(namespace && { chunkHash, namespace });
    }
    return keys;
  }

  #noteOut(keys: readonly (TracedKey | null)[], slots: Uint32Array, count: number): void {
    for (const [i, slot] of slots.entries()) {
      const key = keys[i];
      if (slot === NO_SLOT || !key) continue;
      const outCount = this.#slotsOut.get(slot)?.count ?? 0;
      this.#slotsOut.set(slot, { key, count: outCount + count });
    }
  }

  #takeBack(slots: Uint32Array, count: number): TracedKey[] {
    const keys: TracedKey[] = [];
    for (const slot of slots) {
      const out = this.#slotsOut.get(slot);
      if (!out) continue;
      keys.push(out.key);
      out.count -= count;
      if (out.count <= 0) this.#slotsOut.delete(slot);
    }
    return keys;
  }

  #layoutOf(shape: ObjectShape | undefined): TracedLayout {
    if (!shape) return NO_LAYOUT;
    const { layoutText } = shape;
    const known = this.#layouts.get(layoutText);
    if (known) return known;
    const layout = readLayout(shape);
    if (this.#layouts.size >= LAYOUT_COUNT_MAX) this.#layouts.clear();
    this.#layouts.set(layoutText, layout);
    return layout;
  }
}

/** `float16[2,4,256,1024];uint8[3]{16x4}`: what the engine says of an object; else its bytes. */
function readLayout({ layoutText, objectSizeBytes }: ObjectShape): TracedLayout {
  const shapes: number[][] = [];
  const dtypes: string[] = [];
  let sizeBytes = 0;
  for (const [, dtype = '', sizes = ''] of layoutText.matchAll(/([a-z\d_]+)\[([\d,]*)\]/g)) {
    const shape = sizes === '' ? [] : sizes.split(',').map(Number);
    const elementBytes = DTYPE_SIZE_BYTES[dtype as DtypeName] ?? 0;
    sizeBytes += shape.reduce((product, size) => product * size, elementBytes);
    shapes.push(shape);
    dtypes.push(`torch.${dtype}`);
  }
  if (sizeBytes === objectSizeBytes) return { shapes, dtypes };
  return { shapes: [[objectSizeBytes]], dtypes: ['torch.uint8'] };
}
