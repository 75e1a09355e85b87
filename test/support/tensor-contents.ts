/** What a tensor says, whatever its strides: to compare tensors of different storages. */
import { DTYPE_SIZE_BYTES } from '../../src/device/tensor-wrapper.ts';
import type { HostTensor, InlinePayload } from '../../src/engine/api.ts';
import { copyTensor } from '../../src/wire/tensor-list-writer.ts';

export interface TensorContents {
  readonly dtype: HostTensor['dtype'];
  readonly shape: readonly number[];
  /** Hexadecimal, row-major. */
  readonly bytes: string;
}

export function contentsOf(tensor: HostTensor): TensorContents {
  const { dtype, shape } = tensor;
  const count = shape.reduce((product, size) => product * size, 1);
  const bytes = Buffer.alloc(count * DTYPE_SIZE_BYTES[dtype]);
  copyTensor(tensor, bytes);
  return { dtype, shape, bytes: bytes.toString('hex') };
}

/** Throws for what is no list. */
export function contentsOfAll(payload: InlinePayload): TensorContents[] {
  if (payload.kind !== 'tensors') throw new Error(`expected tensors, got ${payload.kind}`);
  return payload.tensors.map(contentsOf);
}
