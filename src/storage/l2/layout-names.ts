/**
 * Under which names the objects of a layout lie in one L2 adapter; src/l2/layout-record.ts says why
 * that is a question.
 *
 *   unknown ──read──▶ owned by us or another ─▶ the answer, for a while
 *                 └─▶ no record ─▶ plain names, for a shorter while
 *                        └─store─▶ write, read back ─▶ whoever has won
 *   A read that fails rejects: without the answer neither a load nor a store is safe.
 */
import type { Clock } from '../../clock.ts';
import {
  decodeLayoutRecord,
  derivedChunkHash,
  encodeLayoutRecord,
  type LayoutOwner,
  layoutFingerprint,
  layoutRecordKey,
  RECORD_SIZE_BYTES,
} from '../../l2/layout-record.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import type { Logger } from '../../observability/log.ts';
import type { L2Store } from './l2-store.ts';

/** Another server may write the first record meanwhile. */
const NO_RECORD_MS = 10_000;
/** Somebody may flush a shared store, and the next layout there has the plain names then. */
const RECORD_MS = 30_000;
const PAGE_SIZE_BYTES = 65_536;
/** A silent adapter must be found out by few look-ups, and all of them wait for the record. */
const READ_TIMEOUT_MS = 5_000;
/** Models, ranks and object groups; and layouts. The oldest is forgotten. */
const KNOWN_COUNT_MAX = 16_384;
const FINGERPRINT_COUNT_MAX = 4096;

// The compiler's library has no WebAssembly without the DOM; this is the part that is used here.
declare const WebAssembly: {
  Memory: new (options: { readonly initial: number }) => { readonly buffer: ArrayBuffer };
};

/** Null: the plain names; else the fingerprint that the names are made from. */
export type Naming = string | null;

/** `null`: there is no record; `unreadable`: the adapter changes what it is given. */
type Owner = string | null | 'unreadable';

interface Known {
  readonly owner: Owner;
  readonly sinceMs: number;
}

export interface LayoutNamesOptions {
  readonly store: L2Store;
  readonly cacheNamespace: string;
  readonly clock: Clock;
  readonly log: Logger;
}

export class LayoutNames {
  readonly #options: LayoutNamesOptions;
  readonly #known = new Map<string, Known>();
  readonly #reads = new Map<string, Promise<Owner>>();
  readonly #claims = new Map<string, Promise<Owner>>();
  readonly #fingerprints = new Map<string, string>();
  /** Places for records, at addresses that every adapter can use as they are. */
  readonly #sparePages: Uint8Array[] = [];

  constructor(options: LayoutNamesOptions) {
    this.#options = options;
  }

  /** At once when it is known. Rejects when the adapter cannot be asked. */
  forLoad(of: LayoutOwner, layoutText: string): Naming | Promise<Naming> {
    const fingerprint = this.#fingerprintOf(layoutText);
    const known = this.#find(of);
    if (known) return namingOf(known.owner, fingerprint);
    return this.#read(of).then((owner) => namingOf(owner, fingerprint));
  }

  /** As `forLoad`; where there is no record it writes one. */
  forStore(of: LayoutOwner, layoutText: string): Naming | Promise<Naming> {
    const fingerprint = this.#fingerprintOf(layoutText);
    const known = this.#find(of);
    if (known && known.owner !== null) return namingOf(known.owner, fingerprint);
    return this.#claim(of, layoutText).then((owner) => namingOf(owner, fingerprint));
  }

  #find(of: LayoutOwner): Known | undefined {
    const known = this.#known.get(nameOf(of));
    if (!known) return undefined;
    const validMs = known.owner === null ? NO_RECORD_MS : RECORD_MS;
    const isOld = this.#options.clock.nowMs() - known.sinceMs >= validMs;
    return isOld ? undefined : known;
  }

  #fingerprintOf(layoutText: string): string {
    const known = this.#fingerprints.get(layoutText);
    if (known !== undefined) return known;
    const fingerprint = layoutFingerprint(layoutText, this.#options.cacheNamespace);
    this.#fingerprints.set(layoutText, fingerprint);
    forgetOldest(this.#fingerprints, FINGERPRINT_COUNT_MAX);
    return fingerprint;
  }

  #read(of: LayoutOwner): Promise<Owner> {
    return shared(this.#reads, nameOf(of), async () => {
      const owner = await this.#load(of);
      this.#known.set(nameOf(of), { owner, sinceMs: this.#options.clock.nowMs() });
      forgetOldest(this.#known, KNOWN_COUNT_MAX);
      return owner;
    });
  }

  #claim(of: LayoutOwner, layoutText: string): Promise<Owner> {
    return shared(this.#claims, nameOf(of), async () => {
      const before = await this.#read(of);
      if (before !== null) return before;
      const record = encodeLayoutRecord(this.#fingerprintOf(layoutText), layoutText);
      await this.#write(of, record);
      const owner = await this.#read(of);
      if (owner === 'unreadable') {
        const { store, log } = this.#options;
        log.warn(
          `L2 adapter ${store.id} (${store.typeName}) does not give values back as they were: ` +
            'it cannot tell layouts of one model apart',
        );
      }
      return owner;
    });
  }

  async #load(of: LayoutOwner): Promise<Owner> {
    const bytes = this.#takePage();
    const record = { key: layoutRecordKey(of), bytes };
    const { outcome, released } = this.#options.store.load([record], READ_TIMEOUT_MS);
    const [result] = await outcome;
    const text = result === 'loaded' ? decodeLayoutRecord(bytes) : null;
    void released.then(() => this.#sparePages.push(bytes));
    if (result === 'missing') return null;
    if (result === 'loaded') return text ?? 'unreadable';
    throw result ?? new Error('the adapter gives no result');
  }

  async #write(of: LayoutOwner, record: Uint8Array): Promise<void> {
    const bytes = this.#takePage();
    bytes.set(record);
    const { outcome, released } = this.#options.store.store([{ key: layoutRecordKey(of), bytes }]);
    const [result] = await outcome;
    void released.then(() => this.#sparePages.push(bytes));
    if (result instanceof Error) throw result;
  }

  #takePage(): Uint8Array {
    const spare = this.#sparePages.pop();
    if (spare) return spare;
    const { buffer } = new WebAssembly.Memory({ initial: 1 });
    for (let at = RECORD_SIZE_BYTES; at < PAGE_SIZE_BYTES; at += RECORD_SIZE_BYTES) {
      this.#sparePages.push(new Uint8Array(buffer, at, RECORD_SIZE_BYTES));
    }
    return new Uint8Array(buffer, 0, RECORD_SIZE_BYTES);
  }
}

/** The key under which an adapter knows an object. */
export function nameObject(key: ObjectKey, naming: Naming): ObjectKey {
  return naming === null ? key : { ...key, chunkHash: derivedChunkHash(key.chunkHash, naming) };
}

function namingOf(owner: Owner, fingerprint: string): Naming {
  const isOurs = owner === null || owner === 'unreadable' || owner === fingerprint;
  return isOurs ? null : fingerprint;
}

function forgetOldest(map: Map<string, unknown>, countMax: number): void {
  if (map.size <= countMax) return;
  for (const oldest of map.keys()) {
    map.delete(oldest);
    return;
  }
}

function nameOf({ modelName, kvRank, objectGroupId }: LayoutOwner): string {
  return `${kvRank}/${objectGroupId}/${modelName}`;
}

/** One run at a time for each name; whoever asks meanwhile gets its result. */
function shared<T>(
  running: Map<string, Promise<T>>,
  name: string,
  run: () => Promise<T>,
): Promise<T> {
  const known = running.get(name);
  if (known) return known;
  const promise = run().finally(() => running.delete(name));
  running.set(name, promise);
  return promise;
}
