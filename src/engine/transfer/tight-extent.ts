/**
 * Tensors as everything after this step reads them: dimensions in the order of memory (the device
 * sorts them, spec engine 5.3 step 0), inner ones without gaps, and at most a gap behind every
 * outermost element:
 *
 *   shape  [NB, BS, HS]      stride  [BS*HS + gap, HS, 1]      gap = 0 unless `isPadded`
 */
import { toPhysicalOrder } from '../../device/tensor-geometry.ts';
import { KvdError } from '../../errors.ts';

/** Shape and stride in elements. */
export interface Extent {
  readonly shape: readonly number[];
  readonly stride: readonly number[];
}

export interface TightExtent extends Extent {
  /** True when outermost elements do not touch each other. */
  readonly isPadded: boolean;
}

/** Throws `ERR_LAYOUT` naming the tensor when its memory has other gaps, or none of it exists. */
export function toTightExtent(tensor: Extent, name: string): TightExtent {
  const isUsable =
    tensor.shape.length > 0 &&
    tensor.shape.length === tensor.stride.length &&
    tensor.shape.every((size) => size > 0);
  if (!isUsable) {
    throw new KvdError(
      'ERR_LAYOUT',
      `${name}: expected a tensor without empty dimensions, got ${describeExtent(tensor)}`,
    );
  }
  const { shape, stride: given } = toPhysicalOrder(tensor);
  const stride = new Array<number>(shape.length);
  let expected = 1;
  for (let dimension = shape.length - 1; dimension > 0; dimension -= 1) {
    const size = shape[dimension] as number;
    // The stride of a dimension of size 1 is never used and may be anything.
    if (size > 1 && given[dimension] !== expected) throw looseError(tensor, name);
    stride[dimension] = expected;
    expected *= size;
  }
  const outermost = shape[0] === 1 ? expected : (given[0] as number);
  if (!(outermost >= expected)) throw looseError(tensor, name);
  stride[0] = outermost;
  return { shape, stride, isPadded: outermost > expected };
}

function looseError(tensor: Extent, name: string): KvdError {
  return new KvdError(
    'ERR_LAYOUT',
    `${name}: its memory is neither contiguous nor padded in the outermost dimension only, ` +
      `got ${describeExtent(tensor)}`,
  );
}

function describeExtent(extent: Extent): string {
  return `shape [${extent.shape.join(', ')}], stride [${extent.stride.join(', ')}]`;
}
