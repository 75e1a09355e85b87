/**
 * The bytes of one PyTorch storage in its legacy save format, as they stand inside a tensor list.
 *
 *   pickle 1   80 02 8a 0a 6c fc 9c 46 f9 20 6a a8 50 19 2e     magic
 *   pickle 2   80 02 4d e9 03 2e                                version of the format, 1001
 *   pickle 3   { protocol_version, little_endian: true, type_sizes }
 *   pickle 4   persistent id of ('storage', class, key, 'cpu', count, None)
 *   pickle 5   [key]
 *   8 bytes    count again, little-endian
 *   the rest   count × size of an element
 *
 * `count` is in elements of the class; UntypedStorage counts bytes. The key is an address in the
 * writer's process and means nothing here. The blob always holds the whole storage, of which a
 * tensor may show only a part.
 *
 * Nothing is copied: `bytes` of the result is a view of the blob. Every error is a `KvdError`.
 * Reference: spec wire 6.
 */
import { DTYPE_SIZE_BYTES, type DtypeName } from '../device/tensor-wrapper.ts';
import { KvdError } from '../errors.ts';
import {
  PickledClass,
  PickledDict,
  PickledSequence,
  PickledTag,
  type PickledValue,
  type PickleRules,
  readPickle,
} from './pickle.ts';

/** dtypes that have a storage class of their own in the legacy format, and its name in `torch`. */
export const STORAGE_CLASSES: ReadonlyMap<DtypeName, string> = new Map([
  ['float32', 'FloatStorage'],
  ['float64', 'DoubleStorage'],
  ['float16', 'HalfStorage'],
  ['bfloat16', 'BFloat16Storage'],
  ['uint8', 'ByteStorage'],
  ['int8', 'CharStorage'],
  ['int16', 'ShortStorage'],
  ['int32', 'IntStorage'],
  ['int64', 'LongStorage'],
  ['bool', 'BoolStorage'],
]);

const DTYPES: ReadonlyMap<string, DtypeName> = new Map(
  [...STORAGE_CLASSES].map(([dtype, name]) => [`torch ${name}`, dtype]),
);
const UNTYPED = 'torch.storage UntypedStorage';

/** Pickles 1 and 2, which never differ. */
export const BLOB_PREFIX = Buffer.from('80028a0a6cfc9c46f9206aa850192e80024de9032e', 'hex');

const COUNT_SIZE_BYTES = 8;

export interface Storage {
  /** Null for an untyped storage, which is nothing but bytes. */
  readonly dtype: DtypeName | null;
  readonly bytes: Uint8Array;
}

/** What the persistent id in pickle 4 names. */
class StorageTag extends PickledTag {
  readonly kind = 'persistent id of a storage';
  readonly dtype: DtypeName | null;
  readonly key: string;
  readonly count: number;

  constructor(dtype: DtypeName | null, key: string, count: number) {
    super();
    this.dtype = dtype;
    this.key = key;
    this.count = count;
  }
}

function fail(problem: string): never {
  throw new KvdError('ERR_WIRE_PAYLOAD', `storage in the tensor list: ${problem}`);
}

function isStorageClass(type: { module: string; name: string }): boolean {
  const name = `${type.module} ${type.name}`;
  return name === UNTYPED || DTYPES.has(name);
}

function resolve(id: PickledValue): PickledValue {
  if (!(id instanceof PickledSequence) || id.items.length !== 6) {
    return fail('expected a persistent id of six values');
  }
  const [kind, type, key, place, count, view] = id.items;
  if (kind !== 'storage' || !(type instanceof PickledClass) || !isStorageClass(type)) {
    return fail('expected the persistent id of a storage');
  }
  if (typeof key !== 'string' || place !== 'cpu' || view !== null) {
    return fail('expected a storage of host memory that is no view');
  }
  if (typeof count !== 'number' || count < 0) {
    return fail('expected an element count of up to 53 bits');
  }
  return new StorageTag(DTYPES.get(`${type.module} ${type.name}`) ?? null, key, count);
}

/** PyTorch writes at most 24 opcodes, 13 values and 8 memo entries in one of these pickles. */
const RULES: PickleRules = {
  subject: 'storage in the tensor list',
  errorCode: 'ERR_WIRE_PAYLOAD',
  bounds: {
    // The storage itself follows, so the size says nothing.
    inputBytesMax: Number.POSITIVE_INFINITY,
    stackCountMax: 32,
    memoCountMax: 32,
    stepCountMax: 64,
  },
  isKnownClass: (module, name) => isStorageClass({ module, name }),
  isObjectClass: () => false,
  resolve,
};

export function readStorageBlob(blob: Uint8Array): Storage {
  if (Buffer.compare(blob.subarray(0, BLOB_PREFIX.length), BLOB_PREFIX) !== 0) {
    return fail('expected the legacy format of PyTorch');
  }
  const system = readPickle(blob, RULES, BLOB_PREFIX.length);
  if (!(system.value instanceof PickledDict)) return fail('expected a dictionary of the writer');
  if (system.value.entries.get('little_endian') !== true) return fail('expected little_endian');
  const storage = readPickle(blob, RULES, system.endOffset);
  const tag = storage.value;
  if (!(tag instanceof StorageTag)) return fail('expected a persistent id');
  const keys = readPickle(blob, RULES, storage.endOffset);
  if (!(keys.value instanceof PickledSequence) || keys.value.items.length !== 1) {
    return fail('expected a list of one key');
  }
  if (keys.value.items[0] !== tag.key) return fail('expected the key of the persistent id');
  return { dtype: tag.dtype, bytes: readData(blob, keys.endOffset, tag) };
}

function readData(blob: Uint8Array, offset: number, tag: StorageTag): Uint8Array {
  if (blob.length < offset + COUNT_SIZE_BYTES) return fail('truncated before its bytes');
  const bytes = blob.subarray(offset + COUNT_SIZE_BYTES);
  const view = new DataView(blob.buffer, blob.byteOffset + offset, COUNT_SIZE_BYTES);
  if (view.getBigInt64(0, true) !== BigInt(tag.count)) return fail('two different element counts');
  const sizeBytes = tag.count * (tag.dtype === null ? 1 : DTYPE_SIZE_BYTES[tag.dtype]);
  if (sizeBytes !== bytes.length) {
    return fail(`expected ${sizeBytes} bytes, got ${bytes.length}`);
  }
  return bytes;
}
