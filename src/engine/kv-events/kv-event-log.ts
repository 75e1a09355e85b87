/**
 * KvEventLog: the latest changes of what L1 holds, numbered, for subscribers that come and go.
 *
 *   dropped │ seq 41  42  43 … 99 │ next 100           a cursor is the last number that was seen
 *           └ oldest              └ newest
 *
 * A subscriber that has seen everything up to its cursor needs the records behind it. It has lost
 * some when the first of them is not there any more, when its cursor is of another log (it lies in
 * the future), or when a record says that nothing said before may be relied on: L1 was cleared, or
 * changes went by unseen. Then it must forget what it knows, and goes on with what follows.
 *
 * Bounds: records (`--kv-event-log-size`) and bytes. The oldest go first.
 *
 * Tenants. A subscriber is of one model and sees all tenants of it; a record has no place for the
 * salt, and the chunk hash does not depend on it. So the hash that subscribers see does: chunks of
 * the empty salt keep theirs, others get one derived from salt and hash. Equal tokens of two
 * tenants are two chunks, and the end of one is not the end of the other (field lessons 3.1).
 */
import { createHash } from 'node:crypto';
import type { EventBus } from '../../observability/event-bus.ts';
import type { ChunkScope, RemovedChunks, StoredChunks } from '../../observability/events.ts';
import type { KvEventRecord } from '../api.ts';

/** Half of that is what the default size takes with chunks of 256 tokens. */
const LOG_BYTES_MAX = 64 * 1024 * 1024;
/** Of a record and its views, beside the bytes that it shows. */
const RECORD_OVERHEAD_BYTES = 256;
const MEDIUM = 'CPU';

type Change =
  | {
      readonly kind: 'stored';
      readonly scope: ChunkScope;
      readonly hash: Uint8Array;
      readonly parentHash: Uint8Array | null;
      readonly tokenIds: Uint32Array;
    }
  | { readonly kind: 'removed'; readonly scope: ChunkScope; readonly hashes: readonly Uint8Array[] }
  /** All records before it are void. */
  | { readonly kind: 'void' };

export interface KvEventFilter {
  readonly modelName: string;
  /** Null = all. */
  readonly worldSize: number | null;
}

export interface KvEventPage {
  readonly nextCursor: number;
  readonly isLost: boolean;
  readonly events: readonly KvEventRecord[];
}

export interface KvEventLogOptions {
  readonly bus: EventBus;
  /** 0 = no log. */
  readonly recordCountMax: number;
  /** Default 64 MiB. */
  readonly bytesMax?: number;
}

export class KvEventLog {
  readonly recordCountMax: number;
  readonly #bytesMax: number;
  /** Records of `#firstSeq` and up; those before `#head` have been dropped. */
  #changes: (Change | undefined)[] = [];
  #head = 0;
  #firstSeq = 1;
  #bytes = 0;
  #listener: (() => void) | null = null;
  /** Records that say that changes went by unseen. */
  lostMarkerCount = 0;
  clearedMarkerCount = 0;

  constructor({ bus, recordCountMax, bytesMax = LOG_BYTES_MAX }: KvEventLogOptions) {
    this.recordCountMax = recordCountMax;
    this.#bytesMax = bytesMax;
    if (!this.isEnabled) return;
    bus.subscribe('l1.chunks.stored', (chunks) => this.#appendStored(chunks));
    bus.subscribe('l1.chunks.removed', (chunks) => this.#appendRemoved(chunks));
    bus.subscribe('l1.chunks.cleared', () => {
      this.clearedMarkerCount += 1;
      this.#append({ kind: 'void' });
    });
    bus.subscribe('l1.chunks.lost', () => {
      this.lostMarkerCount += 1;
      this.#append({ kind: 'void' });
    });
  }

  get isEnabled(): boolean {
    return this.recordCountMax > 0;
  }

  get depth(): number {
    return this.#changes.length - this.#head;
  }

  get sizeBytes(): number {
    return this.#bytes;
  }

  /** Number that the next record will have. */
  get nextSeq(): number {
    return this.#firstSeq + this.depth;
  }

  /** Runs at every record, in the middle of what made it: it may only make a note of it. */
  onAppend(listener: () => void): void {
    this.#listener = listener;
  }

  /** Up to `eventCountMax` records behind the cursor that pass the filter. */
  read(filter: KvEventFilter, cursor: number, eventCountMax: number): KvEventPage {
    const lastSeq = this.nextSeq - 1;
    let isLost = cursor + 1 < this.#firstSeq || cursor > lastSeq;
    let nextCursor = Math.min(cursor, lastSeq);
    let events: KvEventRecord[] = [];
    const start = Math.max(cursor + 1, this.#firstSeq);
    for (let seq = start; seq <= lastSeq && events.length < eventCountMax; seq += 1) {
      const change = this.#changes[this.#head + seq - this.#firstSeq] as Change;
      nextCursor = seq;
      if (change.kind === 'void') {
        isLost = true;
        events = [];
      } else if (passes(filter, change.scope)) {
        events.push(recordOf(seq, change));
      }
    }
    return { nextCursor, isLost, events };
  }

  /** One record per chunk: a page is cut between chunks. */
  #appendStored(chunks: StoredChunks): void {
    const { hashes, tokenIds } = chunks;
    const tokenCount = tokenIds.length / hashes.length;
    const scope = scopeOf(chunks);
    let { parentHash } = chunks;
    // Views of what all chunks of one store share: it stays until the last of them has left.
    for (const [i, hash] of hashes.entries()) {
      const own = tokenIds.subarray(i * tokenCount, (i + 1) * tokenCount);
      this.#append({ kind: 'stored', scope, hash, parentHash, tokenIds: own });
      parentHash = hash;
    }
  }

  #appendRemoved(chunks: RemovedChunks): void {
    this.#append({ kind: 'removed', scope: scopeOf(chunks), hashes: chunks.hashes });
  }

  #append(change: Change): void {
    this.#changes.push(change);
    this.#bytes += sizeOf(change);
    while (this.depth > this.recordCountMax || (this.#bytes > this.#bytesMax && this.depth > 1)) {
      this.#dropOldest();
    }
    this.#listener?.();
  }

  #dropOldest(): void {
    this.#bytes -= sizeOf(this.#changes[this.#head] as Change);
    this.#changes[this.#head] = undefined;
    this.#head += 1;
    this.#firstSeq += 1;
    if (this.#head < this.depth) return;
    this.#changes = this.#changes.slice(this.#head);
    this.#head = 0;
  }
}

function scopeOf({ modelName, worldSize, cacheSalt }: ChunkScope): ChunkScope {
  return { modelName, worldSize, cacheSalt };
}

function sizeOf(change: Change): number {
  if (change.kind === 'void') return RECORD_OVERHEAD_BYTES;
  if (change.kind === 'stored') {
    const hashBytes = change.hash.byteLength + (change.parentHash?.byteLength ?? 0);
    return RECORD_OVERHEAD_BYTES + hashBytes + change.tokenIds.byteLength;
  }
  return change.hashes.reduce((sum, hash) => sum + hash.byteLength, RECORD_OVERHEAD_BYTES);
}

function passes({ modelName, worldSize }: KvEventFilter, scope: ChunkScope): boolean {
  return scope.modelName === modelName && (worldSize === null || scope.worldSize === worldSize);
}

function recordOf(seq: number, change: Exclude<Change, { kind: 'void' }>): KvEventRecord {
  const { kind, scope } = change;
  const { modelName } = scope;
  const outside = (hash: Uint8Array) => tenantHash(scope.cacheSalt, hash);
  if (kind === 'removed') {
    const blockHashes = change.hashes.map(outside);
    return {
      seq,
      kind,
      medium: MEDIUM,
      modelName,
      blockHashes,
      parentBlockHash: null,
      tokenIds: [],
    };
  }
  return {
    seq,
    kind,
    medium: MEDIUM,
    modelName,
    blockHashes: [outside(change.hash)],
    parentBlockHash: change.parentHash && outside(change.parentHash),
    tokenIds: Array.from(change.tokenIds),
  };
}

/** The hash by which everybody outside knows a chunk of a tenant. */
function tenantHash(cacheSalt: string, hash: Uint8Array): Uint8Array {
  if (cacheSalt === '') return hash;
  const digest = createHash('sha256').update(hash).update(cacheSalt).digest();
  return new Uint8Array(digest.buffer, digest.byteOffset, hash.byteLength);
}
