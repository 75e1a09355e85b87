/**
 * How inline replies get their form, without the engine knowing it.
 *
 * A door plans the whole reply payload around bytes that are not there yet; the engine then has
 * the device fill the gaps, off the event loop. The payload is allocated once and copied never:
 * `buffer` itself goes back as `data` of the reply, so that the door knows it again.
 */
import type { DtypeName } from '../../device/tensor-wrapper.ts';

/** One contiguous tensor. */
export interface InlineTensor {
  readonly dtype: DtypeName;
  readonly shape: readonly number[];
  readonly sizeBytes: number;
}

export interface InlinePlan {
  /** The finished payload except for the bytes of the tensors. */
  readonly buffer: Uint8Array;
  /** Where the bytes of each tensor begin in `buffer`. */
  readonly dataOffsets: readonly number[];
}

export interface InlineWriter {
  /** Throws `ERR_UNSUPPORTED` when the payload would not fit into one message. */
  plan(tensors: readonly InlineTensor[]): InlinePlan;
}
