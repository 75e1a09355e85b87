/**
 * Shapes and strides: which bytes a tensor uses, and in which order they lie.
 *
 * Engines send permuted views (a head-major cache is a token-major tensor with swapped strides).
 * Spec engine 5.3, step 0: a contiguous tensor is taken as it is; another one has its dimensions
 * sorted by descending stride, which gives the order in memory, outermost first. A dimension of
 * size 1 can have the stride of its neighbour (a single head, that of the slots); it is then the
 * inner one. Sorting what is sorted changes nothing, so it does not matter how often it is done.
 */
import { KvdError } from '../errors.ts';
import { DTYPE_SIZE_BYTES, type TensorGeometry } from './tensor-wrapper.ts';

/** More dimensions than any cache has; bounds what the checks below walk through. */
const DIMENSION_COUNT_MAX = 16;

export interface Geometry {
  readonly shape: readonly number[];
  readonly stride: readonly number[];
}

/** Row-major without gaps; the stride of a dimension of size 1 means nothing. */
export function isContiguous({ shape, stride }: Geometry): boolean {
  let expected = 1;
  for (let d = shape.length - 1; d >= 0; d -= 1) {
    const size = shape[d] as number;
    if (size !== 1 && stride[d] !== expected) return false;
    expected *= size;
  }
  return true;
}

/** The same tensor with its dimensions in the order of memory. */
export function toPhysicalOrder(tensor: Geometry): Geometry {
  if (isContiguous(tensor)) return { shape: tensor.shape, stride: tensor.stride };
  const isSingle = (d: number) => Number(tensor.shape[d] === 1);
  const strideOf = (d: number) => tensor.stride[d] as number;
  const order = tensor.shape
    .map((_, d) => d)
    .sort((a, b) => strideOf(b) - strideOf(a) || isSingle(a) - isSingle(b));
  return {
    shape: order.map((d) => tensor.shape[d] as number),
    stride: order.map((d) => tensor.stride[d] as number),
  };
}

/** Elements from the first to behind the last one that the strides reach; 0 when empty. */
export function reachElements({ shape, stride }: Geometry): number {
  let last = 0;
  for (let d = 0; d < shape.length; d += 1) {
    const size = shape[d] as number;
    if (size === 0) return 0;
    last += (size - 1) * (stride[d] as number);
  }
  return last + 1;
}

/**
 * Refuses what is no tensor, and answers how many bytes of its storage it needs, counted from the
 * storage's start. Throws `ERR_DEVICE_MEMORY`, naming the tensor by `label`.
 */
export function storageBytesNeeded(tensor: TensorGeometry, label: string): number {
  const { shape, stride, storageOffset, dtype } = tensor;
  if (shape.length !== stride.length || shape.length > DIMENSION_COUNT_MAX) {
    throw new KvdError(
      'ERR_DEVICE_MEMORY',
      `${label}: ${shape.length} dimensions with ${stride.length} strides`,
    );
  }
  if (![...shape, ...stride, storageOffset].every((n) => Number.isSafeInteger(n) && n >= 0)) {
    throw new KvdError(
      'ERR_DEVICE_MEMORY',
      `${label}: shape [${shape}], stride [${stride}] and offset ${storageOffset} must be whole ` +
        'numbers from 0 on',
    );
  }
  const reach = reachElements(tensor);
  const bytes = reach === 0 ? 0 : (storageOffset + reach) * DTYPE_SIZE_BYTES[dtype];
  if (!Number.isSafeInteger(bytes)) {
    throw new KvdError('ERR_DEVICE_MEMORY', `${label}: shape [${shape}] is beyond any memory`);
  }
  return bytes;
}
