/**
 * Values in a record: what MessagePack knows, as it is, and the reference's types as
 * `{"__t__": tag, "v": payload}`. Encoding and decoding are mirror images:
 *
 *   ObjectKey          {chunk_hash: bin, model_name, kv_rank, object_group_id}, and cache_salt when
 *                      it is not empty: the reference's own traces lose it, its reader ignores it
 *   MemoryLayoutDesc   {shapes: [[int]], dtypes: [str]}
 *   PrefetchHandle     a map, in which submit_time is a float
 *   TrimPolicy, torch.dtype      str
 *   torch.Size, tuple, set       list
 *   anything else      kept as it is: newer traces have more types
 *
 * A decoded map is a `Map`, so that it is never taken for a typed value.
 */
import { Packer } from './packer.ts';

export interface ObjectKeyFields {
  readonly chunkHash: Uint8Array;
  readonly modelName: string;
  readonly kvRank: number;
  readonly objectGroupId: number;
  readonly cacheSalt: string;
}

export interface LayoutFields {
  readonly shapes: readonly (readonly number[])[];
  /** With the reference's prefix: `torch.float16`. */
  readonly dtypes: readonly string[];
}

export type TypedValue =
  | { readonly tag: 'ObjectKey'; readonly value: ObjectKeyFields }
  | { readonly tag: 'MemoryLayoutDesc'; readonly value: LayoutFields }
  | { readonly tag: 'PrefetchHandle'; readonly value: ReadonlyMap<string, TraceValue> }
  | { readonly tag: 'TrimPolicy' | 'torch.dtype'; readonly value: string }
  | { readonly tag: 'torch.Size' | 'tuple' | 'set'; readonly value: readonly TraceValue[] }
  /** Of a type that is not known here. */
  | { readonly tag: 'opaque'; readonly name: string; readonly value: TraceValue };

export type TraceValue =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | readonly TraceValue[]
  | ReadonlyMap<string, TraceValue>
  | TypedValue
  /** An extension of MessagePack; nothing writes one. */
  | { readonly tag: 'extension'; readonly value: unknown };

/** A value that cannot be what its tag says. */
export class TraceValueError extends Error {
  override readonly name = 'TraceValueError';
}

const FLOAT_FIELDS: ReadonlySet<string> = new Set(['submit_time']);
const HASH_SIZE_MAX_BYTES = 255;
/** What surrounds the hash in a key, by all else in it; more kinds do not meet in a trace. */
const KEY_FRAME_COUNT_MAX = 4096;
const keyFrames = new Map<string, { readonly head: Uint8Array; readonly tail: Uint8Array }>();

export function packValue(packer: Packer, value: TraceValue): void {
  if (Array.isArray(value)) {
    packer.array(value.length);
    for (const entry of value) packValue(packer, entry);
  } else if (value instanceof Map) {
    packer.map(value.size);
    for (const [name, entry] of value) {
      packer.value(name);
      packValue(packer, entry);
    }
  } else if (isTyped(value)) packTyped(packer, value);
  else packer.value(value);
}

function isTyped(value: TraceValue): value is Extract<TraceValue, { tag: string }> {
  return typeof value === 'object' && value !== null && 'tag' in value;
}

function packTyped(packer: Packer, typed: Extract<TraceValue, { tag: string }>): void {
  switch (typed.tag) {
    case 'ObjectKey':
      packKey(packer, typed.value);
      return;
    case 'extension':
      packer.value(typed.value);
      return;
  }
  packer.map(2);
  packer.entry('__t__', typed.tag === 'opaque' ? typed.name : typed.tag);
  packer.value('v');
  if (typed.tag === 'MemoryLayoutDesc') packer.value(typed.value);
  else if (typed.tag === 'PrefetchHandle') packHandle(packer, typed.value);
  else packValue(packer, typed.value);
}

function packHandle(packer: Packer, fields: ReadonlyMap<string, TraceValue>): void {
  packer.map(fields.size);
  for (const [name, value] of fields) {
    packer.value(name);
    if (FLOAT_FIELDS.has(name) && typeof value === 'number') packer.float(value);
    else packValue(packer, value);
  }
}

/** A record has thousands of keys that differ in their hash, which is copied between two pieces. */
function packKey(packer: Packer, key: ObjectKeyFields): void {
  const { chunkHash, modelName, kvRank, objectGroupId, cacheSalt } = key;
  const name = `${chunkHash.length} ${kvRank} ${objectGroupId} ${modelName.length} ${modelName}`;
  let frame = keyFrames.get(name + cacheSalt);
  if (!frame) {
    frame = { head: keyHead(key), tail: keyTail(key) };
    if (keyFrames.size >= KEY_FRAME_COUNT_MAX) keyFrames.clear();
    keyFrames.set(name + cacheSalt, frame);
  }
  packer.bytes(frame.head);
  packer.bytes(chunkHash);
  packer.bytes(frame.tail);
}

function keyHead({ chunkHash, cacheSalt }: ObjectKeyFields): Uint8Array {
  if (chunkHash.length > HASH_SIZE_MAX_BYTES) {
    throw new TraceValueError(`expected a hash of at most 255 bytes, got ${chunkHash.length}`);
  }
  const packer = new Packer();
  packer.map(2);
  packer.entry('__t__', 'ObjectKey');
  packer.value('v');
  packer.map(cacheSalt === '' ? 4 : 5);
  packer.value('chunk_hash');
  packer.bytes(Uint8Array.of(0xc4, chunkHash.length));
  return packer.joined();
}

function keyTail({ modelName, kvRank, objectGroupId, cacheSalt }: ObjectKeyFields): Uint8Array {
  const packer = new Packer();
  packer.entry('model_name', modelName);
  packer.entry('kv_rank', kvRank);
  packer.entry('object_group_id', objectGroupId);
  if (cacheSalt !== '') packer.entry('cache_salt', cacheSalt);
  return packer.joined();
}

/** `raw`: as @msgpack/msgpack decodes it. Throws `TraceValueError`. */
export function readValue(raw: unknown): TraceValue {
  if (raw instanceof Uint8Array) return raw;
  if (Array.isArray(raw)) return raw.map(readValue);
  if (typeof raw === 'bigint') return isSafe(raw) ? Number(raw) : raw;
  if (typeof raw !== 'object' || raw === null) return raw as TraceValue;
  if (Object.getPrototypeOf(raw) !== Object.prototype) return { tag: 'extension', value: raw };
  const fields = raw as Readonly<Record<string, unknown>>;
  const tag = fields['__t__'];
  if (typeof tag === 'string' && 'v' in fields && Object.keys(fields).length === 2) {
    return readTyped(tag, fields['v']);
  }
  return readMap(fields);
}

function readMap(fields: Readonly<Record<string, unknown>>): ReadonlyMap<string, TraceValue> {
  return new Map(Object.entries(fields).map(([name, entry]) => [name, readValue(entry)]));
}

const isSafe = (value: bigint) => Number.isSafeInteger(Number(value));

function readTyped(tag: string, payload: unknown): TypedValue {
  switch (tag) {
    case 'ObjectKey':
      return { tag, value: readKey(fieldsOf(tag, payload)) };
    case 'MemoryLayoutDesc':
      return { tag, value: readLayout(fieldsOf(tag, payload)) };
    case 'PrefetchHandle':
      return { tag, value: readMap(fieldsOf(tag, payload)) };
    case 'TrimPolicy':
    case 'torch.dtype':
      return { tag, value: textOf(tag, payload) };
    case 'torch.Size':
    case 'tuple':
    case 'set':
      if (!Array.isArray(payload)) throw unexpected(tag, 'a list', payload);
      return { tag, value: payload.map(readValue) };
    default:
      return { tag: 'opaque', name: tag, value: readValue(payload) };
  }
}

function readKey(fields: Readonly<Record<string, unknown>>): ObjectKeyFields {
  const chunkHash = fields['chunk_hash'];
  if (!(chunkHash instanceof Uint8Array)) {
    throw unexpected('ObjectKey.chunk_hash', 'bytes', chunkHash);
  }
  return {
    chunkHash,
    modelName: textOf('ObjectKey.model_name', fields['model_name']),
    kvRank: integerOf('ObjectKey.kv_rank', fields['kv_rank']),
    objectGroupId: integerOf('ObjectKey.object_group_id', fields['object_group_id'] ?? 0),
    cacheSalt: textOf('ObjectKey.cache_salt', fields['cache_salt'] ?? ''),
  };
}

function readLayout({ shapes, dtypes }: Readonly<Record<string, unknown>>): LayoutFields {
  const place = 'MemoryLayoutDesc';
  if (!Array.isArray(shapes)) throw unexpected(`${place}.shapes`, 'a list', shapes);
  if (!Array.isArray(dtypes)) throw unexpected(`${place}.dtypes`, 'a list', dtypes);
  return {
    shapes: shapes.map((shape) => {
      if (!Array.isArray(shape)) throw unexpected(`${place}.shapes`, 'lists', shape);
      return shape.map((size) => integerOf(`${place}.shapes`, size));
    }),
    dtypes: dtypes.map((dtype) => textOf(`${place}.dtypes`, dtype)),
  };
}

function fieldsOf(place: string, payload: unknown): Readonly<Record<string, unknown>> {
  const isMap = typeof payload === 'object' && payload !== null;
  if (!isMap || Object.getPrototypeOf(payload) !== Object.prototype) {
    throw unexpected(place, 'a map', payload);
  }
  return payload as Readonly<Record<string, unknown>>;
}

function textOf(place: string, value: unknown): string {
  if (typeof value !== 'string') throw unexpected(place, 'text', value);
  return value;
}

function integerOf(place: string, value: unknown): number {
  const number = typeof value === 'bigint' && isSafe(value) ? Number(value) : value;
  if (typeof number === 'number' && Number.isSafeInteger(number) && number >= 0) return number;
  throw unexpected(place, 'a whole number', value);
}

const TEXT_SHOWN_MAX = 40;

function unexpected(place: string, wanted: string, got: unknown): TraceValueError {
  const kind = got === null ? 'nil' : Array.isArray(got) ? 'a list' : typeof got;
  const isShort = typeof got === 'number' || typeof got === 'string' || typeof got === 'bigint';
  const shown = isShort ? ` ${JSON.stringify(String(got)).slice(0, TEXT_SHOWN_MAX)}` : '';
  return new TraceValueError(`${place}: expected ${wanted}, got ${kind}${shown}`);
}
