/**
 * Transfers of workers that cannot reach L1 themselves: their tensors come and go inside messages
 * (spec engine 6.4). The bytes are copied once each way, by the device, off the event loop; how a
 * message holds tensors is the business of the door (`HostTensor`, `InlineWriter`).
 */
import type { Device, HostTensorCopy } from '../../device/device.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../device/tensor-wrapper.ts';
import type { HostTensor } from '../api.ts';
import type { InlineWriter } from './inline-writer.ts';
import type { WorkerStorage } from './ports.ts';

export interface InlineTransferOptions {
  readonly device: Pick<Device, 'copyHostTensors'>;
  readonly storage: Pick<WorkerStorage, 'finishStore' | 'discardStore'>;
  readonly writer: InlineWriter;
}

/** The tensor of one chunk, as the worker registered it. */
export interface ChunkTensor {
  readonly shape: readonly number[];
  readonly dtype: DtypeName;
}

/** Reserved objects that wait for their bytes. */
export interface InlineTargets {
  readonly slots: Uint32Array;
  readonly offsets: Float64Array;
  /** For each slot, the tensor that belongs to it. */
  readonly chunkIndices: readonly number[];
}

export class InlineTransfer {
  readonly #options: InlineTransferOptions;

  constructor(options: InlineTransferOptions) {
    this.#options = options;
  }

  /**
   * Fills the targets and makes them readable. A target whose tensor is missing or is not what the
   * worker registered is given back. Resolves to the objects that are readable now; when the copy
   * fails all targets are given back and it rejects.
   */
  async store(
    chunk: ChunkTensor,
    targets: InlineTargets,
    tensors: readonly HostTensor[],
  ): Promise<number> {
    const { storage, device } = this.#options;
    const copies: HostTensorCopy[] = [];
    const filled: number[] = [];
    const unfilled: number[] = [];
    for (const [i, slot] of targets.slots.entries()) {
      const tensor = tensors[targets.chunkIndices[i] as number];
      if (!tensor || !isChunk(tensor, chunk)) {
        unfilled.push(slot);
        continue;
      }
      filled.push(slot);
      const { bytes, offsetBytes, stride } = tensor;
      copies.push({ bytes, offsetBytes, stride, objectOffset: targets.offsets[i] as number });
    }
    storage.discardStore(Uint32Array.from(unfilled));
    const slots = Uint32Array.from(filled);
    try {
      if (copies.length > 0) await device.copyHostTensors(copyJob('to-l1', chunk, copies));
    } catch (error) {
      storage.discardStore(slots);
      throw error;
    }
    return storage.finishStore(slots);
  }

  /** The payload with the objects at these places of L1, which must stay pinned meanwhile. */
  async read(chunk: ChunkTensor, sizeBytes: number, offsets: Float64Array): Promise<Uint8Array> {
    const { device, writer } = this.#options;
    const { shape, dtype } = chunk;
    const plan = writer.plan(Array.from(offsets, () => ({ dtype, shape, sizeBytes })));
    const stride = contiguousStride(shape);
    const copies = Array.from(offsets, (objectOffset, i) => ({
      bytes: plan.buffer,
      offsetBytes: plan.dataOffsets[i] as number,
      stride,
      objectOffset,
    }));
    await device.copyHostTensors(copyJob('from-l1', chunk, copies));
    return plan.buffer;
  }
}

function copyJob(
  direction: 'to-l1' | 'from-l1',
  { shape, dtype }: ChunkTensor,
  copies: readonly HostTensorCopy[],
) {
  return { direction, shape, itemSizeBytes: DTYPE_SIZE_BYTES[dtype], copies };
}

/** Bytes of another dtype mean something else: converting them would change what is stored. */
function isChunk(tensor: HostTensor, { shape, dtype }: ChunkTensor): boolean {
  return (
    tensor.dtype === dtype &&
    tensor.shape.length === shape.length &&
    shape.every((count, d) => tensor.shape[d] === count)
  );
}

function contiguousStride(shape: readonly number[]): number[] {
  return shape.map((_, d) => shape.slice(d + 1).reduce((product, count) => product * count, 1));
}
