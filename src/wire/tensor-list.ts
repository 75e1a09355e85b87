/**
 * Reads a pickled list of CPU tensors: the data of COMMIT_STORE and of PREPARE_RETRIEVE's reply
 * where client and server share no memory. (`tensor-list-writer.ts` is the other direction.)
 *
 *   list of   _rebuild_tensor_v2(storage, offset, size, stride, False, OrderedDict())
 *             _rebuild_tensor_v3(storage, offset, size, stride, False, OrderedDict(), dtype)
 *   storage = _load_from_bytes(blob)                                    `storage-blob.ts`
 *
 * v3 is for dtypes younger than the storage classes (fp8, unsigned integers): the storage is bytes
 * and the dtype comes with the tensor. Offset, size and stride count elements of the tensor.
 *
 * Python would call these four functions. Here a name is a tag, its arguments have one fixed form,
 * and what comes out is numbers and a view of `data`: nothing is executed, nothing is copied. A
 * list of 64 MiB costs as much as one of 64 bytes, about 10 µs per tensor.
 *
 * Bounds: no more tensors, and no more storages, than the caller expects chunks, and a fixed number
 * of opcodes for each; a view must lie inside its storage. A stride of 0 may make the view larger
 * than its storage: `shape` is not bounded here, the caller compares it with what it expects.
 *
 * What is no such list is a value with a reason, not an exception, because the engine must give a
 * reservation back before it refuses. Reference: spec wire 6.
 */
import { reachElements } from '../device/tensor-geometry.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../device/tensor-wrapper.ts';
import type { HostTensor, InlinePayload } from '../engine/api.ts';
import { KvdError } from '../errors.ts';
import {
  PickledClass,
  PickledSequence,
  PickledTag,
  type PickledValue,
  type PickleRules,
  readPickle,
} from './pickle.ts';
import { readStorageBlob, type Storage } from './storage-blob.ts';

const RANK_MAX = 8;
/** Python writes about 50 opcodes for a tensor of rank 8, and 80 for the first one. */
const STEPS_PER_TENSOR = 128;
const STEPS_PER_LIST = 256;
/** Values on the stack besides the tensors of the list. */
const STACK_SPARE = 64;

/** `module name` of all that may be referred to besides dtypes. */
const REBUILD_V2 = 'torch._utils _rebuild_tensor_v2';
const REBUILD_V3 = 'torch._utils _rebuild_tensor_v3';
const LOAD_STORAGE = 'torch.storage _load_from_bytes';
const ORDERED_DICT = 'collections OrderedDict';
const FUNCTIONS: ReadonlySet<string> = new Set([
  REBUILD_V2,
  REBUILD_V3,
  LOAD_STORAGE,
  ORDERED_DICT,
]);

class StorageTag extends PickledTag {
  readonly kind = 'storage';
  readonly storage: Storage;

  constructor(storage: Storage) {
    super();
    this.storage = storage;
  }
}

class TensorTag extends PickledTag {
  readonly kind = 'tensor';
  readonly tensor: HostTensor;

  constructor(tensor: HostTensor) {
    super();
    this.tensor = tensor;
  }
}

/** Backward hooks of a tensor without gradient. */
class NoHooksTag extends PickledTag {
  readonly kind = 'empty OrderedDict';
}

function fail(problem: string): never {
  throw new KvdError('ERR_WIRE_PAYLOAD', `tensor list: ${problem}`);
}

/** `data` as it came; the tensors are views of it. Never throws for what a client sent. */
export function readTensorList(data: Uint8Array, tensorCountMax: number): InlinePayload {
  if (data.length === 0) return { kind: 'none' };
  try {
    return { kind: 'tensors', tensors: readList(data, tensorCountMax) };
  } catch (error) {
    if (!(error instanceof KvdError)) throw error;
    return { kind: 'malformed', reason: error.message };
  }
}

function readList(data: Uint8Array, tensorCountMax: number): HostTensor[] {
  const { value } = readPickle(data, rulesFor(tensorCountMax));
  if (!(value instanceof PickledSequence)) return fail('expected a list');
  const { items } = value;
  if (items.length > tensorCountMax) {
    return fail(`expected at most ${tensorCountMax} tensors, got ${items.length}`);
  }
  return items.map((item) => (item instanceof TensorTag ? item.tensor : fail('expected tensors')));
}

function rulesFor(tensorCountMax: number): PickleRules {
  const stepCountMax = STEPS_PER_LIST + STEPS_PER_TENSOR * tensorCountMax;
  let storageCount = 0;
  return {
    subject: 'tensor list',
    errorCode: 'ERR_WIRE_PAYLOAD',
    bounds: {
      // Bytes of storages are not walked through, so the size says nothing.
      inputBytesMax: Number.POSITIVE_INFINITY,
      stackCountMax: STACK_SPARE + tensorCountMax,
      memoCountMax: stepCountMax,
      stepCountMax,
    },
    isKnownClass: (module, name) =>
      FUNCTIONS.has(`${module} ${name}`) ||
      (module === 'torch' && Object.hasOwn(DTYPE_SIZE_BYTES, name)),
    isObjectClass: () => false,
    call(callee, args) {
      switch (`${callee.module} ${callee.name}`) {
        case LOAD_STORAGE:
          storageCount += 1;
          if (storageCount > tensorCountMax) fail(`more than ${tensorCountMax} storages`);
          return loadStorage(args);
        case REBUILD_V2:
          return rebuildV2(args);
        case REBUILD_V3:
          return rebuildV3(args);
        case ORDERED_DICT:
          return args.length === 0 ? new NoHooksTag() : fail('expected an empty OrderedDict');
        default:
          return fail('a dtype cannot be called');
      }
    },
  };
}

function loadStorage(args: readonly PickledValue[]): PickledValue {
  const [blob] = args;
  if (args.length !== 1 || !(blob instanceof Uint8Array)) {
    return fail('expected the bytes of a storage');
  }
  return new StorageTag(readStorageBlob(blob));
}

function rebuildV2(args: readonly PickledValue[]): PickledValue {
  const [tag] = args;
  if (args.length !== 6 || !(tag instanceof StorageTag)) {
    return fail('expected six arguments for _rebuild_tensor_v2, a storage first');
  }
  const { dtype, bytes } = tag.storage;
  return dtype === null ? fail('the storage has no dtype') : rebuild(dtype, bytes, args);
}

function rebuildV3(args: readonly PickledValue[]): PickledValue {
  const tag = args[0];
  const dtype = args[6];
  if (args.length !== 7 || !(tag instanceof StorageTag)) {
    return fail('expected seven arguments for _rebuild_tensor_v3, a storage first');
  }
  if (!(dtype instanceof PickledClass) || !Object.hasOwn(DTYPE_SIZE_BYTES, dtype.name)) {
    return fail('expected a dtype as the last argument of _rebuild_tensor_v3');
  }
  if (tag.storage.dtype !== null && tag.storage.dtype !== 'uint8') {
    return fail('expected a storage of bytes for _rebuild_tensor_v3');
  }
  return rebuild(dtype.name as DtypeName, tag.storage.bytes, args);
}

/** What both generations of the function have in common. */
function rebuild(
  dtype: DtypeName,
  bytes: Uint8Array,
  [, offset, size, strides, requiresGradient, hooks]: readonly PickledValue[],
): PickledValue {
  if (requiresGradient !== false || !(hooks instanceof NoHooksTag)) {
    return fail('expected a tensor without gradient and hooks');
  }
  const shape = counts(size);
  const stride = counts(strides);
  if (shape.length !== stride.length) {
    return fail(`a shape of ${shape.length} dimensions with ${stride.length} strides`);
  }
  const first = count(offset);
  const reach = reachElements({ shape, stride });
  // A view without elements may begin anywhere, as it reads nothing.
  if (reach === 0) return new TensorTag({ dtype, shape, stride, offsetBytes: 0, bytes });
  // Beyond 2^53 digits are lost, but the end stays larger than any storage.
  const endBytes = (first + reach) * DTYPE_SIZE_BYTES[dtype];
  if (endBytes > bytes.length) {
    return fail(`the view ends at byte ${endBytes} of a storage of ${bytes.length} bytes`);
  }
  const offsetBytes = first * DTYPE_SIZE_BYTES[dtype];
  return new TensorTag({ dtype, shape, stride, offsetBytes, bytes });
}

function counts(value: PickledValue | undefined): number[] {
  if (!(value instanceof PickledSequence)) return fail('expected a tuple of sizes or strides');
  if (value.items.length > RANK_MAX) return fail(`more than ${RANK_MAX} dimensions`);
  return value.items.map(count);
}

function count(value: PickledValue | undefined): number {
  if (typeof value === 'number' && value >= 0) return value;
  return fail('expected sizes, strides and offset from 0 to 2^53 − 1');
}
