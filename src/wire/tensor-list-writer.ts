/**
 * Writes the pickled tensor lists that `tensor-list.ts` reads, in one canonical form: GLOBAL
 * opcodes, no frames, no memo, storage key = index, every tensor contiguous and alone in its
 * storage.
 *
 *   80 04 ] (      per tensor, then      e .
 *   c torch._utils _rebuild_tensor_v2
 *   (   c torch.storage _load_from_bytes   B length, blob = [ head │ tensor bytes ]   85 R
 *       K 00   (sizes t   (strides t   89   c collections OrderedDict ) R   t R
 *
 * A dtype without a storage class of its own (fp8, unsigned integers) goes as ByteStorage with
 * `_rebuild_tensor_v3` and the dtype as seventh argument. PyTorch itself writes UntypedStorage
 * there, and cannot load that again.
 *
 * `plan` writes everything but the tensor bytes into a buffer that the encoder of the message will
 * not copy (`inline-data.ts`); whoever has the bytes puts them into the gaps. Cost: about 10 µs and
 * 0.5 KiB per tensor.
 *
 * Reference: spec wire 6; golden bytes `tensor_pickles_canonical` of test/vectors.
 */
import { assert } from '../assert.ts';
import { isContiguous } from '../device/tensor-geometry.ts';
import { DTYPE_SIZE_BYTES } from '../device/tensor-wrapper.ts';
import type { HostTensor, InlinePayload } from '../engine/api.ts';
import type { InlinePlan, InlineTensor, InlineWriter } from '../engine/transfer/inline-writer.ts';
import { KvdError } from '../errors.ts';
import { allocateInlineData } from './inline-data.ts';
import { integer, littleEndian } from './pickle-writer.ts';
import { BLOB_PREFIX, STORAGE_CLASSES } from './storage-blob.ts';

/** A message carries the list as one msgpack `bin`. */
const LIST_BYTES_MAX = 0xffff_ffff;

const LIST_HEAD = latin1('\x80\x04](');
const LIST_TAIL = latin1('e.');

const BYTE_STORAGE = 'ByteStorage';
const REBUILD_V2 = latin1(`${reference('torch._utils', '_rebuild_tensor_v2')}(`);
const REBUILD_V3 = latin1(`${reference('torch._utils', '_rebuild_tensor_v3')}(`);
const LOAD_STORAGE = latin1(`${reference('torch.storage', '_load_from_bytes')}B`);
/** TUPLE1 and REDUCE for the storage, then storage offset 0. */
const CALL_LOAD = latin1('\x85RK\0');
/** requires_grad false, no hooks. */
const NO_GRADIENT = latin1(`\x89${reference('collections', 'OrderedDict')})R`);
const CALL_REBUILD = latin1('tR');

/** The first two pickles of a blob, and the third, which says how the writer's machine counts. */
const BLOB_HEAD = Buffer.concat([
  BLOB_PREFIX,
  latin1(`\x80\x02}(${text('protocol_version')}M\xe9\x03${text('little_endian')}\x88`),
  latin1(`${text('type_sizes')}}(`),
  latin1(`${text('short')}K\x02${text('int')}K\x04${text('long')}K\x04uu.`),
]);

function latin1(value: string): Buffer {
  return Buffer.from(value, 'latin1');
}

/** GLOBAL */
function reference(module: string, name: string): string {
  return `c${module}\n${name}\n`;
}

/** BINUNICODE of a text of less than 256 ASCII characters. */
function text(value: string): string {
  return `X${String.fromCharCode(value.length)}\0\0\0${value}`;
}

/** What stands before and behind the bytes of one tensor. */
interface Literals {
  readonly head: Buffer;
  readonly tail: Buffer;
}

function literals({ dtype, shape, sizeBytes }: InlineTensor, index: number): Literals {
  const count = shape.reduce((product, size) => product * size, 1);
  assert(
    count * DTYPE_SIZE_BYTES[dtype] === sizeBytes,
    `a ${dtype} tensor of shape [${shape}] has not ${sizeBytes} bytes`,
  );
  const storageClass = STORAGE_CLASSES.get(dtype);
  const storageCount = storageClass === undefined ? sizeBytes : count;
  const key = text(String(index));
  const blobHead = Buffer.concat([
    BLOB_HEAD,
    latin1(`\x80\x02(${text('storage')}${reference('torch', storageClass ?? BYTE_STORAGE)}`),
    latin1(`${key}${text('cpu')}`),
    Buffer.from(integer(storageCount)),
    latin1(`NtQ.\x80\x02]${key}a.`),
    Buffer.from(littleEndian(BigInt(storageCount), 8)),
  ]);
  return {
    head: Buffer.concat([
      storageClass === undefined ? REBUILD_V3 : REBUILD_V2,
      LOAD_STORAGE,
      Buffer.from(littleEndian(BigInt(blobHead.length + sizeBytes), 4)),
      blobHead,
    ]),
    tail: Buffer.concat([
      CALL_LOAD,
      tuple(shape),
      tuple(contiguousStride(shape)),
      NO_GRADIENT,
      latin1(storageClass === undefined ? reference('torch', dtype) : ''),
      CALL_REBUILD,
    ]),
  };
}

function tuple(values: readonly number[]): Buffer {
  if (values.length === 0) return latin1(')');
  return Buffer.concat([latin1('('), Buffer.from(values.flatMap(integer)), latin1('t')]);
}

/** As PyTorch numbers it: a dimension of size 0 counts as 1. */
export function contiguousStride(shape: readonly number[]): number[] {
  const stride: number[] = [];
  let step = 1;
  for (const size of shape.toReversed()) {
    stride.unshift(step);
    step *= Math.max(size, 1);
  }
  return stride;
}

function plan(tensors: readonly InlineTensor[]): InlinePlan {
  let sizeBytes = tensors.reduce((sum, tensor) => sum + tensor.sizeBytes, 0);
  // Sizes within this bound fit the 32-bit length of every blob, too, but for the literal part.
  checkSize(sizeBytes);
  const parts = tensors.map(literals);
  sizeBytes += LIST_HEAD.length + LIST_TAIL.length;
  for (const { head, tail } of parts) sizeBytes += head.length + tail.length;
  checkSize(sizeBytes);
  const buffer = allocateInlineData(sizeBytes);
  const dataOffsets: number[] = [];
  let offset = 0;
  const put = (piece: Uint8Array) => {
    buffer.set(piece, offset);
    offset += piece.length;
  };
  put(LIST_HEAD);
  for (const [index, { head, tail }] of parts.entries()) {
    put(head);
    dataOffsets.push(offset);
    offset += (tensors[index] as InlineTensor).sizeBytes;
    put(tail);
  }
  put(LIST_TAIL);
  return { buffer, dataOffsets };
}

function checkSize(sizeBytes: number): void {
  if (sizeBytes <= LIST_BYTES_MAX) return;
  throw new KvdError(
    'ERR_UNSUPPORTED',
    `an inline transfer has at most 4 GiB, this one has ${sizeBytes} bytes: ` +
      'let server and engine share /dev/shm, or lower the context length',
  );
}

export const tensorListWriter: InlineWriter = { plan };

/** The bytes to send for `payload`: what a client does, here all at once on this thread. */
export function writeTensorList(payload: InlinePayload): Uint8Array {
  if (payload.kind === 'none') return new Uint8Array(0);
  assert(payload.kind === 'tensors', 'what is malformed cannot be written');
  const { tensors } = payload;
  const contiguous = tensors.map(({ dtype, shape }): InlineTensor => {
    const count = shape.reduce((product, size) => product * size, 1);
    return { dtype, shape, sizeBytes: count * DTYPE_SIZE_BYTES[dtype] };
  });
  const { buffer, dataOffsets } = plan(contiguous);
  for (const [index, tensor] of tensors.entries()) {
    const start = dataOffsets[index] as number;
    const { sizeBytes } = contiguous[index] as InlineTensor;
    copyTensor(tensor, buffer.subarray(start, start + sizeBytes));
  }
  return buffer;
}

/** Copies the elements of a strided view to `target`, row-major and without gaps. */
export function copyTensor(tensor: HostTensor, target: Uint8Array): void {
  const { dtype, shape, stride, offsetBytes, bytes } = tensor;
  if (isContiguous(tensor)) {
    target.set(bytes.subarray(offsetBytes, offsetBytes + target.length));
    return;
  }
  const [count, ...innerShape] = shape as [number, ...number[]];
  const [step, ...innerStride] = stride as [number, ...number[]];
  const inner = { dtype, shape: innerShape, stride: innerStride, bytes };
  const sizeBytes = target.length / count;
  for (let index = 0; index < count; index += 1) {
    const start = index * sizeBytes;
    copyTensor(
      { ...inner, offsetBytes: offsetBytes + index * step * DTYPE_SIZE_BYTES[dtype] },
      target.subarray(start, start + sizeBytes),
    );
  }
}
