/**
 * A fresh storage room that answers the calls of a trace. The trace names keys, the room hands out
 * slots; in between stand ledgers of what is reserved, held and being read.
 *
 *   prepare(call)   untimed: waits for loads that the call needs, writes what was reserved, finds
 *                   slots: what a worker does between its calls
 *   run()           timed: the call of the storage room
 *   after()         untimed: notes what came of it
 *
 * To give back what one does not have is no failure: other hits than in the recording are what a
 * replay is for. What is open at the end is given back by `close`.
 */
import { createHash } from 'node:crypto';
import { NO_SLOT, type ObjectKeys } from '../core/object-table.ts';
import type { ObjectKeyFields } from '../observability/trace-file/values.ts';
import type { GroupRule, ObjectShape, Places } from '../storage/l1-manager.ts';
import type { L1Memory } from '../storage/l1-memory/l1-memory.ts';
import type { PrefetchTask } from '../storage/prefetch-controller.ts';
import type { StorageManager } from '../storage/storage-manager.ts';
import { NO_WINDOW } from '../storage/window-fold.ts';
import type { ReplayCall } from './trace-replay-calls.ts';
import { blocksOf, columnNameOf, type KeyBlock, nameOf, shapeOf } from './trace-replay-keys.ts';

export interface PreparedCall {
  run(): void;
  after(): void;
}

export interface ReplayStorage {
  /** Rejects with the reason why the call fails. */
  prepare(call: ReplayCall): Promise<PreparedCall>;
  /** Gives everything back and ends the room. */
  close(): Promise<void>;
}

export interface ReplayStorageOptions {
  readonly storage: StorageManager;
  readonly memory: Pick<L1Memory, 'view'>;
  readonly hashSizeBytes: number;
  readonly warn: (message: string) => void;
  /** Ends the room itself. */
  readonly closeHouse: () => Promise<void>;
}

type CallOf<O extends ReplayCall['operation']> = Extract<ReplayCall, { readonly operation: O }>;
type Keys = readonly ObjectKeyFields[];

/** A part of a call: keys that the room takes together. */
interface Part {
  /** As the trace has them, in the order of `objectKeys`. */
  readonly keys: Keys;
  readonly objectKeys: ObjectKeys;
}

interface Reservation {
  readonly slot: number;
  readonly offset: number;
  readonly sizeBytes: number;
}

/** Columns whose layout is remembered: models, ranks, groups and tenants of a trace. */
const COLUMN_COUNT_MAX = 65_536;

export class StorageReplay implements ReplayStorage {
  readonly #options: ReplayStorageOptions;
  /** By column: what was stored or looked up there last. */
  readonly #shapes = new Map<string, ObjectShape>();
  /** By key. */
  readonly #reserved = new Map<string, Reservation>();
  readonly #held = new Map<string, { readonly slot: number; count: number }>();
  readonly #loading = new Map<string, PrefetchTask>();
  /** By list of keys: reads that are open, oldest first, each with what it has pinned. */
  readonly #reading = new Map<string, Uint32Array[][]>();

  constructor(options: ReplayStorageOptions) {
    this.#options = options;
  }

  async prepare(call: ReplayCall): Promise<PreparedCall> {
    switch (call.operation) {
      case 'submit_prefetch_task':
        return this.#lookup(call);
      case 'reserve_write':
        return this.#reserve(call);
      case 'finish_write':
        return this.#finishWrite(call.keys);
      case 'read_prefetched_results.__enter__':
        await this.#loaded(call.keys);
        return this.#enter(call.keys);
      case 'read_prefetched_results.__exit__':
        return this.#exit(call.keys);
      case 'finish_read_prefetched':
        await this.#loaded(call.keys);
        return this.#finishRead(call);
    }
  }

  async close(): Promise<void> {
    const { storage, warn, closeHouse } = this.#options;
    const reads = [...this.#reading.values()].flat();
    if (reads.length > 0) warn(`${reads.length} reads were still open at the end of the trace`);
    for (const slots of reads.flat()) storage.releaseRead(slots);
    for (const { slot, count } of this.#held.values()) {
      storage.freeHolds(Uint32Array.of(slot), count);
    }
    storage.discardStore(Uint32Array.from(this.#reserved.values(), ({ slot }) => slot));
    await closeHouse();
  }

  #lookup(call: CallOf<'submit_prefetch_task'>): PreparedCall {
    const { storage } = this.#options;
    const { isPrefix, skipsL2, layout, extraCount } = call;
    const holdCount = 1 + extraCount;
    this.#noteShape(call.keys, shapeOf(layout));
    const parts = this.#partsOf(call.keys);
    const asked = (isPrefix ? parts : parts.flatMap(chunksOf)).map((part) => ({
      ...part,
      rules: this.#rulesOf(part),
    }));
    const answers: (Uint32Array | PrefetchTask)[] = [];
    return {
      run() {
        for (const { objectKeys, rules } of asked) {
          const answer = skipsL2
            ? storage.l1.hold(objectKeys, holdCount, rules)
            : storage.submitPrefetch(objectKeys, holdCount, rules);
          answers.push(answer);
        }
      },
      after: () => {
        for (const [i, answer] of answers.entries()) {
          const { keys } = asked[i]!;
          if (answer instanceof Uint32Array) this.#noteHeld(keys, answer, holdCount);
          else this.#follow(answer, keys, holdCount);
        }
      },
    };
  }

  #reserve({ keys, layout }: CallOf<'reserve_write'>): PreparedCall {
    const { storage } = this.#options;
    const shape = shapeOf(layout);
    this.#noteShape(keys, shape);
    this.#keepReserved(keys);
    const parts = this.#partsOf(keys);
    const places: Places[] = [];
    return {
      run() {
        for (const { objectKeys } of parts) places.push(storage.reserveStore(objectKeys, shape));
      },
      after: () => {
        for (const [i, place] of places.entries()) {
          this.#noteReserved(parts[i]!.keys, place, shape.objectSizeBytes);
        }
      },
    };
  }

  #finishWrite(keys: Keys): PreparedCall {
    const { storage, memory } = this.#options;
    const slots: number[] = [];
    for (const key of keys) {
      const name = nameOf(key);
      const reservation = this.#reserved.get(name);
      if (!reservation) continue;
      this.#reserved.delete(name);
      const { slot, offset, sizeBytes } = reservation;
      memory.view(offset, sizeBytes).fill(key.chunkHash[0] ?? 0);
      slots.push(slot);
    }
    return { run: () => void storage.finishStore(Uint32Array.from(slots)), after() {} };
  }

  #enter(keys: Keys): PreparedCall {
    const { storage } = this.#options;
    const wanted = this.#partsOf(keys).flatMap((part) => this.#readable(part));
    const pinned: Uint32Array[] = [];
    return {
      run() {
        for (const { objectKeys, shape } of wanted) {
          const places = storage.acquireForRead(objectKeys, shape);
          if (places) pinned.push(places.slots);
        }
      },
      after: () => {
        const name = listNameOf(keys);
        const reads = this.#reading.get(name);
        if (reads) reads.push(pinned);
        else this.#reading.set(name, [pinned]);
      },
    };
  }

  #exit(keys: Keys): PreparedCall {
    const { storage, warn } = this.#options;
    const name = listNameOf(keys);
    const reads = this.#reading.get(name) ?? [];
    const pinned = reads.shift();
    if (reads.length === 0) this.#reading.delete(name);
    if (!pinned) warn(`the end of a read of ${keys.length} keys that has no beginning`);
    return {
      run() {
        for (const slots of pinned ?? []) storage.releaseRead(slots);
      },
      after() {},
    };
  }

  #finishRead({ keys, extraCount }: CallOf<'finish_read_prefetched'>): PreparedCall {
    const { storage } = this.#options;
    /** By the number of holds that each gives back. */
    const slots = new Map<number, number[]>();
    for (const key of keys) {
      const name = nameOf(key);
      const held = this.#held.get(name);
      if (!held) continue;
      const count = Math.min(held.count, 1 + extraCount);
      held.count -= count;
      if (held.count === 0) this.#held.delete(name);
      const list = slots.get(count);
      if (list) list.push(held.slot);
      else slots.set(count, [held.slot]);
    }
    const lists = [...slots].map(([count, list]) => [count, Uint32Array.from(list)] as const);
    return {
      run() {
        for (const [count, list] of lists) storage.releaseHolds(list, count);
      },
      after() {},
    };
  }

  /** Ends when no lookup is loading any of these keys any more. */
  async #loaded(keys: Keys): Promise<void> {
    if (this.#loading.size === 0) return;
    const tasks = new Set(keys.map((key) => this.#loading.get(nameOf(key))));
    for (const task of tasks) {
      if (task) await new Promise<void>((resolve) => task.onDone(() => resolve()));
    }
  }

  /** Notes what a lookup holds, as soon as that is known. */
  #follow(task: PrefetchTask, keys: Keys, holdCount: number): void {
    const names = task.result ? [] : keys.map(nameOf);
    for (const name of names) this.#loading.set(name, task);
    task.onDone(({ slots }) => {
      for (const name of names) {
        if (this.#loading.get(name) === task) this.#loading.delete(name);
      }
      this.#noteHeld(keys, slots, holdCount);
    });
  }

  #noteHeld(keys: Keys, slots: Uint32Array, holdCount: number): void {
    for (const [i, slot] of slots.entries()) {
      if (slot === NO_SLOT) continue;
      const name = nameOf(keys[i]!);
      const held = this.#held.get(name);
      if (held?.slot === slot) held.count += holdCount;
      else this.#noteNewlyHeld(name, slot, holdCount);
    }
  }

  /** Another object of the same key was held and cleared meanwhile: its holders are forgotten. */
  #noteNewlyHeld(name: string, slot: number, count: number): void {
    const former = this.#held.get(name);
    if (former) this.#options.storage.freeHolds(Uint32Array.of(former.slot), former.count);
    this.#held.set(name, { slot, count });
  }

  #noteReserved(keys: Keys, { slots, offsets }: Places, sizeBytes: number): void {
    const { storage } = this.#options;
    for (const [i, slot] of slots.entries()) {
      if (slot === NO_SLOT) continue;
      const name = nameOf(keys[i]!);
      const former = this.#reserved.get(name);
      this.#reserved.set(name, { slot, offset: offsets[i]!, sizeBytes });
      // A key that the call names twice is pinned twice, and will be finished once.
      if (former?.slot === slot) storage.releaseAbandoned(Uint32Array.of(slot));
    }
  }

  /** A trace does not say that a writer has given up: the next one takes its places over. */
  #keepReserved(keys: Keys): void {
    if (this.#reserved.size === 0) return;
    const slots = keys.flatMap((key) => this.#reserved.get(nameOf(key))?.slot ?? []);
    if (slots.length > 0) this.#options.storage.extendStore(Uint32Array.from(slots));
  }

  #noteShape(keys: Keys, shape: ObjectShape): void {
    for (const key of keys) this.#shapes.set(columnNameOf(key), shape);
    if (this.#shapes.size > COLUMN_COUNT_MAX) this.#shapes.clear();
  }

  #rulesOf({ keys, objectKeys }: Part): GroupRule[] {
    return objectKeys.namespaceIds.map((_, column) => {
      const shape = this.#shapes.get(columnNameOf(keys[column]!)) as ObjectShape;
      return { layoutTags: new Set([shape.layoutTag]), windowChunks: NO_WINDOW, shape };
    });
  }

  /** A read takes objects of one shape; without one nobody can have stored these. */
  #readable(part: Part): (Part & { readonly shape: ObjectShape })[] {
    const columns = part.keys.slice(0, part.objectKeys.namespaceIds.length);
    const shapes = columns.map((key) => this.#shapes.get(columnNameOf(key)));
    const [first] = shapes;
    if (shapes.every((shape) => shape === first)) return first ? [{ ...part, shape: first }] : [];
    return shapes.flatMap((shape, column) => {
      if (!shape) return [];
      const keys = part.keys.filter((_, i) => i % columns.length === column);
      const namespaceIds = [part.objectKeys.namespaceIds[column]!];
      return [{ keys, objectKeys: { ...part.objectKeys, namespaceIds }, shape }];
    });
  }

  #partsOf(keys: Keys): Part[] {
    const { hashSizeBytes } = this.#options;
    return blocksOf(keys, hashSizeBytes).map((block) => ({
      keys: keys.slice(block.start, block.start + block.chunkCount * block.columns.length),
      objectKeys: this.#objectKeysOf(block),
    }));
  }

  #objectKeysOf({ columns, chunkCount, hashes: bytes }: KeyBlock): ObjectKeys {
    const { storage, hashSizeBytes } = this.#options;
    return {
      hashes: { bytes, count: chunkCount, hashSizeBytes },
      firstChunk: 0,
      chunkCount,
      namespaceIds: columns.map((column) => storage.internNamespace(column)),
    };
  }
}

/** Each chunk for itself: what a lookup wants that does not end at the first gap. */
function chunksOf({ keys, objectKeys }: Part): Part[] {
  const width = objectKeys.namespaceIds.length;
  return Array.from({ length: objectKeys.chunkCount }, (_, chunk) => ({
    keys: keys.slice(chunk * width, (chunk + 1) * width),
    objectKeys: { ...objectKeys, firstChunk: chunk, chunkCount: 1 },
  }));
}

/** One list of keys and no other has this name. */
function listNameOf(keys: Keys): string {
  const hash = createHash('sha256');
  for (const key of keys) hash.update(`${nameOf(key)}\n`, 'utf8');
  return hash.digest('base64');
}
