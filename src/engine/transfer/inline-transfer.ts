/**
 * Transfers of workers that cannot reach L1 themselves: their tensors come and go inside messages
 * (spec engine 6.4). The bytes are copied once each way, by the device, off the event loop; how a
 * message holds tensors is the business of the door (`HostTensor`, `InlineWriter`).
 *
 * A reply takes memory from the moment at which it is laid out, and it has the size of the prompt
 * (up to 4 GiB). All that are being filled have one room (`READ_BYTES_MAX`); further reads wait for
 * it rather than fail, because a failure makes their worker unhealthy, and room is back in a
 * fraction of a second. What has been filled is the outbox's, which has bounds of its own.
 */
import type { Device, HostTensorCopy } from '../../device/device.ts';
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../device/tensor-wrapper.ts';
import { KvdError } from '../../errors.ts';
import { GIB } from '../../units.ts';
import type { HostTensor } from '../api.ts';
import type { Attempt } from '../handlers.ts';
import { ByteRoom } from './byte-room.ts';
import type { InlineWriter } from './inline-writer.ts';
import type { WorkerStorage } from './ports.ts';

/**
 * More would not make it faster: a GiB keeps all copy threads busy for a tenth of a second. It is
 * beside L1, so it must be small against the memory of a machine that serves a cache.
 */
const READ_BYTES_MAX = GIB;

export interface InlineTransferOptions {
  readonly device: Pick<Device, 'copyHostTensors'>;
  readonly storage: Pick<WorkerStorage, 'finishStore' | 'discardStore'>;
  readonly writer: InlineWriter;
  /** Default 1 GiB. */
  readonly readBytesMax?: number;
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
  readonly #room: ByteRoom;

  constructor(options: InlineTransferOptions) {
    this.#options = options;
    this.#room = new ByteRoom(options.readBytesMax ?? READ_BYTES_MAX);
  }

  status(): Record<string, unknown> {
    return {
      inline_read_bytes: this.#room.usedBytes,
      inline_read_bytes_max: this.#room.bytesMax,
      inline_reads_waiting: this.#room.waitingCount,
    };
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

  /**
   * The payload with the objects at these places of L1, which must stay pinned meanwhile. Rejects
   * when nobody wants it any more by the time that there is room.
   */
  read(
    chunk: ChunkTensor,
    sizeBytes: number,
    offsets: Float64Array,
    attempt: Pick<Attempt, 'isAbandoned'>,
  ): Promise<Uint8Array> {
    return this.#room.within(sizeBytes * offsets.length, () => {
      if (!attempt.isAbandoned) return this.#fill(chunk, sizeBytes, offsets);
      throw new KvdError('ERR_TIMEOUT', 'the request met its deadline while it waited for room');
    });
  }

  async #fill(chunk: ChunkTensor, sizeBytes: number, offsets: Float64Array): Promise<Uint8Array> {
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
