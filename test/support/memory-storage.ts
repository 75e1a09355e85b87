/** The storage room as transfers see it, over a `Map`; counts pins and keeps what was stored. */
import { createHash } from 'node:crypto';
import type { ChunkHashes, TokenSpan } from '../../src/core/chunk-hasher.ts';
import type { ObjectKeys } from '../../src/core/object-table.ts';
import type { GivenUpRead } from '../../src/engine/lookup-share.ts';
import type {
  TransferHasher,
  TransferSessions,
  TransferStorage,
} from '../../src/engine/transfer/ports.ts';
import type { ObjectShape } from '../../src/storage/l1-manager.ts';
import type { StoreGroup } from '../../src/storage/storage-manager.ts';

const NO_SLOT = 0xffff_ffff;

interface StoredObject {
  readonly key: string;
  readonly offset: number;
  readonly sizeBytes: number;
  readonly layoutTag: number;
  state: 'staging' | 'resident';
  pinCount: number;
}

type Namespace = Parameters<TransferStorage['internNamespace']>[0];

export class MemoryStorage implements TransferStorage {
  readonly #namespaces: string[] = [];
  readonly #objects: StoredObject[] = [];
  readonly #slots = new Map<string, number>();
  #usedBytes = 0;
  capacityBytes: number;

  constructor(capacityBytes: number) {
    this.capacityBytes = capacityBytes;
  }

  get residentCount(): number {
    return this.#count((object) => object.state === 'resident');
  }

  get stagingCount(): number {
    return this.#count((object) => object.state === 'staging');
  }

  get pinCount(): number {
    return this.#objects.reduce((sum, object) => sum + object.pinCount, 0);
  }

  internNamespace(namespace: Namespace): number {
    const text = JSON.stringify(namespace);
    const known = this.#namespaces.indexOf(text);
    return known >= 0 ? known : this.#namespaces.push(text) - 1;
  }

  reserveStore(keys: ObjectKeys, shape: ObjectShape) {
    const sizeBytes = shape.objectSizeBytes;
    const names = this.#namesOf(keys);
    const missing = names.filter((name) => !this.#slots.has(name));
    const hasRoom = this.#usedBytes + missing.length * sizeBytes <= this.capacityBytes;
    const slots = new Uint32Array(names.length).fill(NO_SLOT);
    const offsets = new Float64Array(names.length).fill(-1);
    for (const [i, key] of names.entries()) {
      if (!hasRoom || this.#slots.has(key)) continue;
      const object: StoredObject = {
        key,
        offset: this.#usedBytes,
        sizeBytes,
        layoutTag: shape.layoutTag,
        state: 'staging',
        pinCount: 1,
      };
      this.#usedBytes += sizeBytes;
      slots[i] = this.#objects.push(object) - 1;
      offsets[i] = object.offset;
      this.#slots.set(key, slots[i] as number);
    }
    return { slots, offsets };
  }

  reserveStoreGroups(groups: readonly StoreGroup[]) {
    return groups.map(({ keys, shape, isLeftOut }) => {
      const slots = new Uint32Array(keys.chunkCount).fill(NO_SLOT);
      const offsets = new Float64Array(keys.chunkCount).fill(-1);
      for (let chunk = 0; chunk < keys.chunkCount; chunk += 1) {
        if (isLeftOut?.[chunk]) continue;
        const one = { ...keys, firstChunk: keys.firstChunk + chunk, chunkCount: 1 };
        const places = this.reserveStore(one, shape);
        slots.set(places.slots, chunk);
        offsets.set(places.offsets, chunk);
      }
      return { slots, offsets };
    });
  }

  /** Set by tests: reservations whose time is over when they are finished. */
  hasExpired = false;

  finishStore(slots: Uint32Array): number {
    if (this.hasExpired) {
      this.discardStore(slots);
      return 0;
    }
    const objects = this.#at(slots);
    for (const object of objects) {
      object.state = 'resident';
      object.pinCount -= 1;
    }
    return objects.length;
  }

  discardStore(slots: Uint32Array): void {
    for (const object of this.#at(slots)) {
      object.pinCount -= 1;
      this.#slots.delete(object.key);
    }
  }

  acquireForRead(keys: ObjectKeys, shape: ObjectShape) {
    const names = this.#namesOf(keys);
    const slots = Uint32Array.from(names, (name) => this.#slots.get(name) ?? NO_SLOT);
    const objects = this.#at(slots);
    const isComplete =
      objects.length === names.length &&
      objects.every((object) => object.state === 'resident' && isOfShape(object, shape));
    if (!isComplete) return null;
    for (const object of objects) object.pinCount += 1;
    return { slots, offsets: Float64Array.from(objects, (object) => object.offset) };
  }

  releaseRead(slots: Uint32Array): void {
    for (const object of this.#at(slots)) object.pinCount -= 1;
  }

  /** Forgets the object of chunk `chunk` in every namespace, as a forced clear would. */
  forget(hashes: ChunkHashes, chunk: number): void {
    const prefix = hashText(hashes, chunk);
    for (const name of [...this.#slots.keys()]) {
      if (name.startsWith(prefix)) this.#slots.delete(name);
    }
  }

  #at(slots: Uint32Array): StoredObject[] {
    return [...slots]
      .filter((slot) => slot !== NO_SLOT)
      .map((slot) => this.#objects[slot] as StoredObject);
  }

  #namesOf(keys: ObjectKeys): string[] {
    return Array.from({ length: keys.chunkCount }, (_, i) => keys.firstChunk + i).flatMap((chunk) =>
      keys.namespaceIds.map((id) => `${hashText(keys.hashes, chunk)}/${id}`),
    );
  }

  #count(matches: (object: StoredObject) => boolean): number {
    return [...this.#slots.values()].filter((slot) => matches(this.#objects[slot] as StoredObject))
      .length;
  }
}

function isOfShape(object: StoredObject, shape: ObjectShape): boolean {
  return object.sizeBytes === shape.objectSizeBytes && object.layoutTag === shape.layoutTag;
}

function hashText(hashes: ChunkHashes, chunk: number): string {
  const { bytes, hashSizeBytes } = hashes;
  const at = chunk * hashSizeBytes;
  return Buffer.from(bytes.subarray(at, at + hashSizeBytes)).toString('hex');
}

/** Token spans of this hasher hold u32 words in host order instead of msgpack. */
export class MemoryHasher implements TransferHasher {
  readonly chunkSizeTokens: number;
  isSliced = false;
  slicedCount = 0;

  constructor(chunkSizeTokens: number) {
    this.chunkSizeTokens = chunkSizeTokens;
  }

  static spanOf(tokens: readonly number[]): TokenSpan {
    return { bytes: new Uint8Array(Uint32Array.from(tokens).buffer), count: tokens.length };
  }

  hashChunks(span: TokenSpan, endToken = span.count): ChunkHashes {
    const chunkBytes = this.chunkSizeTokens * 4;
    const count = Math.floor(Math.min(endToken, span.count) / this.chunkSizeTokens);
    const bytes = new Uint8Array(count * 32);
    for (let chunk = 0; chunk < count; chunk += 1) {
      const digest = createHash('sha256');
      if (chunk > 0) digest.update(bytes.subarray((chunk - 1) * 32, chunk * 32));
      digest.update(span.bytes.subarray(chunk * chunkBytes, (chunk + 1) * chunkBytes));
      bytes.set(digest.digest(), chunk * 32);
    }
    return { bytes, count, hashSizeBytes: 32 };
  }

  /** Settles in a later turn when told so, as the real one does for very long prompts. */
  hashPrompt(span: TokenSpan, endToken?: number): ChunkHashes | Promise<ChunkHashes> {
    if (!this.isSliced) return this.hashChunks(span, endToken);
    this.slicedCount += 1;
    return new Promise((resolve) => setImmediate(() => resolve(this.hashChunks(span, endToken))));
  }
}

export class RecordingSessions implements TransferSessions {
  readonly consumed: { requestId: string; connectionId: number; slotCount: number }[] = [];
  readonly recorded: { requestId: string; chunkCount: number }[] = [];
  readonly givenUp: { requestId: string; read: GivenUpRead }[] = [];

  recordTransfer(requestId: string, hashes: ChunkHashes): void {
    this.recorded.push({ requestId, chunkCount: hashes.count });
  }

  recordRetrieve(requestId: string, hashes: ChunkHashes): void {
    this.recordTransfer(requestId, hashes);
  }

  giveUpRead(requestId: string, _connectionId: number, { read }: { read: GivenUpRead }): void {
    this.givenUp.push({ requestId, read });
  }

  consumeHolds(requestId: string, connectionId: number, slots: Uint32Array): void {
    this.consumed.push({ requestId, connectionId, slotCount: slots.length });
  }
}
