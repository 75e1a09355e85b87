/** Tensors as a client sends and gets them inline, without PyTorch. */
import type { HostTensor } from '../engine/api.ts';
import { KvdError } from '../errors.ts';
import { readTensorList } from '../wire/tensor-list.ts';
import { contiguousStride } from '../wire/tensor-list-writer.ts';

/** A contiguous tensor of all of `bytes`: for `data` of COMMIT_STORE. */
export function hostTensor(
  dtype: HostTensor['dtype'],
  shape: readonly number[],
  bytes: Uint8Array,
): HostTensor {
  return { dtype, shape, stride: contiguousStride(shape), offsetBytes: 0, bytes };
}

/** The tensors in `data` of a PREPARE_RETRIEVE reply, as views of it. */
export function tensorsOf(data: Uint8Array, tensorCountMax: number): readonly HostTensor[] {
  const payload = readTensorList(data, tensorCountMax);
  if (payload.kind === 'malformed') throw new KvdError('ERR_WIRE_PAYLOAD', payload.reason);
  return payload.kind === 'none' ? [] : payload.tensors;
}
