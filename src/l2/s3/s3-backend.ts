/**
 * Values as objects of an S3 bucket, under the names and with the bytes of the peer.
 *
 *   store   PUT, whole              straight from L1
 *   lookup  HEAD                    or the size that was seen less than a minute ago
 *   load    GET of ranges           chunk by chunk into the L1 slot, several ranges at a time
 *   delete  HEAD, DELETE
 *
 * A load asks for exactly the bytes that the slot holds, and each answer says how large the whole
 * object is, so neither a shorter nor a longer object passes for the right one, and what comes
 * beyond the announced part is never written. Ranges of a value come over several connections,
 * because one connection to a distant store is slow (the peer uses ranges of the same size).
 */
import zlib from 'node:zlib';
import type { Clock } from '../../clock.ts';
import { KvdError } from '../../errors.ts';
import { MIB } from '../../units.ts';
import type {
  DeleteResult,
  L2Backend,
  L2Object,
  ListedObject,
  ListOptions,
  ListPage,
  LoadResult,
  LookupResult,
  StoreResult,
} from '../backend.ts';
import { decodeWireKey, encodeWireKey } from '../key-text.ts';
import type { ObjectKey } from '../object-key.ts';
import { WorkerGate } from '../worker-gate.ts';
import { type S3Connection, type S3Part, statusOf } from './connection.ts';
import { SizeCache } from './size-cache.ts';

export interface S3BackendOptions {
  readonly connection: S3Connection;
  readonly requestCountMax: number;
  readonly hasChecksum: boolean;
  readonly clock: Clock;
  /** Keys of the adapter's status beside the health. */
  readonly about: Record<string, unknown>;
}

const PART_BYTES = 8 * MIB;
const PAGE_SIZE_MAX = 1000;
/** `x-amz-meta-kvd-crc32`: eight hex digits of the whole value. */
const CHECKSUM_NAME = 'kvd-crc32';
/** 1 ms of the event loop at a time. */
const CHECKSUM_SLICE_BYTES = 2 * MIB;
/** Empty, `.` and `..` between slashes: some servers take them out, and two keys become one. */
const MOVING_PATH = /(^|\/)\.{0,2}(\/|$)/;
const NAME_BYTES_MAX = 1024;

export class S3Backend implements L2Backend {
  readonly #options: S3BackendOptions;
  readonly #connection: S3Connection;
  readonly #sizes: SizeCache;
  readonly #gate: WorkerGate;
  #failuresInRow = 0;

  constructor(options: S3BackendOptions) {
    this.#options = options;
    this.#connection = options.connection;
    this.#sizes = new SizeCache(options.clock);
    this.#gate = new WorkerGate(options.requestCountMax);
  }

  store(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly StoreResult[]> {
    return this.#forEach(objects, signal, async ({ key, bytes }): Promise<StoreResult> => {
      const name = nameOf(key);
      if (this.#sizes.get(name) === bytes.length) return 'present';
      const metadata = this.#options.hasChecksum
        ? { [CHECKSUM_NAME]: await checksumOf(bytes, signal) }
        : {};
      await this.#connection.put(name, { bytes, metadata, signal });
      this.#sizes.set(name, bytes.length);
      return 'stored';
    });
  }

  lookup(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly LookupResult[]> {
    return this.#forEach(keys, signal, (key) => this.#sizeOf(nameOf(key), signal));
  }

  async load(objects: readonly L2Object[], signal: AbortSignal): Promise<readonly LoadResult[]> {
    const loads = objects.map((object) => ({ object, end: new AbortController(), checksum: '' }));
    const parts = loads.flatMap(partsOf);
    const outcomes = await this.#forEach(parts, signal, async (part): Promise<LoadResult> => {
      const { end } = part.load;
      try {
        const outcome = await this.#loadPart(part, AbortSignal.any([signal, end.signal]));
        if (outcome === 'missing') end.abort(outcome);
        return outcome;
      } catch (error) {
        // The first part that finds out has ended the others of its object.
        if (end.signal.reason === 'missing') return 'missing';
        end.abort(error);
        throw error;
      }
    });
    const results = new Map<Load, LoadResult>(loads.map((load) => [load, 'loaded']));
    for (const [i, outcome] of outcomes.entries()) {
      if (outcome !== 'loaded') results.set((parts[i] as Part).load, outcome);
    }
    return this.#forEach(loads, signal, async (load) => {
      const result = results.get(load) as LoadResult;
      if (result === 'loaded') await this.#check(load, signal);
      else this.#sizes.drop(encodeWireKey(load.object.key));
      if (result instanceof Error) throw result;
      return result;
    });
  }

  delete(keys: readonly ObjectKey[], signal: AbortSignal): Promise<readonly DeleteResult[]> {
    return this.#forEach(keys, signal, async (key): Promise<DeleteResult> => {
      const name = nameOf(key);
      this.#sizes.drop(name);
      // DELETE answers alike for what is not there.
      if ((await this.#connection.head(name, signal)) === null) return 'absent';
      await this.#connection.delete(name, signal);
      this.#sizes.drop(name);
      return 'deleted';
    });
  }

  async list({ modelName, pageSize, token, signal }: ListOptions): Promise<ListPage> {
    const prefix = modelName === null || modelName === '' ? '' : `${modelName}@`;
    const page = { prefix, pageSize: Math.min(pageSize, PAGE_SIZE_MAX), token };
    const reply = await this.#connection.list(page, signal);
    const objects: ListedObject[] = [];
    for (const { Key = '', Size = 0, LastModified } of reply.Contents ?? []) {
      const key = decodeWireKey(Key);
      if (key === null || Size === 0) continue;
      objects.push({ key, sizeBytes: Size, storedMs: LastModified?.getTime() ?? 0 });
    }
    return { objects, nextToken: reply.NextContinuationToken ?? null };
  }

  status(): Record<string, unknown> {
    return {
      is_healthy: this.#failuresInRow === 0,
      ...this.#options.about,
      connection_failures: this.#failuresInRow,
      known_sizes: this.#sizes.entryCount,
    };
  }

  async close(): Promise<void> {
    this.#connection.close();
  }

  /** A bounded number at a time over all calls; whatever `run` throws is that item's result. */
  #forEach<Item, Result>(
    items: readonly Item[],
    signal: AbortSignal,
    run: (item: Item) => Promise<Result>,
  ): Promise<(Result | Error)[]> {
    return this.#gate.map(items, async (item) => {
      try {
        signal.throwIfAborted();
        const result = await run(item);
        this.#failuresInRow = 0;
        return result;
      } catch (error) {
        if (isUnreachable(error)) this.#failuresInRow += 1;
        return toError(error);
      }
    });
  }

  async #sizeOf(name: string, signal: AbortSignal): Promise<number | null> {
    const known = this.#sizes.get(name);
    if (known !== null) return known;
    const sizeBytes = await this.#connection.head(name, signal);
    if (sizeBytes === null || sizeBytes === 0) return null;
    this.#sizes.set(name, sizeBytes);
    return sizeBytes;
  }

  async #loadPart(part: Part, signal: AbortSignal): Promise<LoadResult> {
    signal.throwIfAborted();
    const { load, offset, sizeBytes } = part;
    const { key, bytes } = load.object;
    const range = { firstByte: offset, lastByte: offset + sizeBytes - 1 };
    const reply = await this.#connection.get(nameOf(key), range, signal);
    if (reply === null) return 'missing';
    if (reply.objectSizeBytes !== bytes.length || reply.sizeBytes !== sizeBytes) {
      reply.body.destroy();
      if (reply.objectSizeBytes !== bytes.length) return 'missing';
      throw new KvdError('ERR_L2_STORE', `${reply.sizeBytes} bytes came, asked for ${sizeBytes}`);
    }
    load.checksum = reply.metadata[CHECKSUM_NAME] ?? '';
    await fill(bytes.subarray(offset, offset + sizeBytes), reply, signal);
    return 'loaded';
  }

  /** A value without a checksum was stored by somebody who has none. */
  async #check({ object: { key, bytes }, checksum }: Load, signal: AbortSignal): Promise<void> {
    if (!this.#options.hasChecksum || checksum === '') return;
    const found = await checksumOf(bytes, signal);
    if (found === checksum) return;
    const name = nameOf(key);
    this.#sizes.drop(name);
    await this.#connection.delete(name, signal);
    throw new KvdError('ERR_L2_CORRUPT', `checksum ${found} instead of ${checksum}: deleted`);
  }
}

interface Load {
  readonly object: L2Object;
  /** Ends the requests of all parts. */
  readonly end: AbortController;
  /** Of the whole value, as the store has it; empty = none. */
  checksum: string;
}

interface Part {
  readonly load: Load;
  readonly offset: number;
  readonly sizeBytes: number;
}

function partsOf(load: Load): Part[] {
  const { length } = load.object.bytes;
  const parts: Part[] = [];
  for (let offset = 0; offset < length; offset += PART_BYTES) {
    parts.push({ load, offset, sizeBytes: Math.min(PART_BYTES, length - offset) });
  }
  return parts;
}

/** Throws unless exactly as many bytes come as fit; writes none beyond. */
async function fill(target: Uint8Array, { body }: S3Part, signal: AbortSignal): Promise<void> {
  let offset = 0;
  for await (const chunk of body) {
    signal.throwIfAborted();
    if (chunk.length > target.length - offset) {
      throw new KvdError('ERR_L2_STORE', `more bytes came than the ${target.length} announced`);
    }
    target.set(chunk, offset);
    offset += chunk.length;
  }
  if (offset !== target.length) {
    throw new KvdError('ERR_L2_STORE', `${offset} of ${target.length} bytes came`);
  }
}

async function checksumOf(bytes: Uint8Array, signal: AbortSignal): Promise<string> {
  let crc = 0;
  for (let offset = 0; offset < bytes.length; offset += CHECKSUM_SLICE_BYTES) {
    if (offset > 0) await new Promise(setImmediate);
    signal.throwIfAborted();
    crc = zlib.crc32(bytes.subarray(offset, offset + CHECKSUM_SLICE_BYTES), crc);
  }
  return crc.toString(16).padStart(8, '0');
}

function nameOf(key: ObjectKey): string {
  const name = encodeWireKey(key);
  if (MOVING_PATH.test(name) || Buffer.byteLength(name) > NAME_BYTES_MAX) {
    throw new KvdError('ERR_L2_REFUSED', 'S3 has no object name for this model and salt');
  }
  return name;
}

/** No answer of the store, as opposed to one that says no. */
function isUnreachable(error: unknown): boolean {
  if ((error as Error).name === 'AbortError' || error instanceof KvdError) return false;
  const status = statusOf(error);
  return status === undefined || status >= 500;
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
