/**
 * Values between L1 and slots: header, value and padding in one call to the kernel each way.
 *
 *     slot      │ header │ whole blocks of the value │ last block │
 *     memory      lane     the caller's own buffer     lane: the rest of the value, zeros
 *
 * With O_DIRECT, memory, lengths and places must be at block boundaries. Slots of L1 begin at such
 * ones and end anywhere, so the last block goes through memory of ours. Buffers of others (value
 * transformations) begin anywhere: where the kernel does not take them (EINVAL), the value is
 * copied piece by piece.
 *
 * A value counts as read only if the header beside it says that it is the one.
 */
import { ByteGate } from '../byte-gate.ts';
import { errnoOf } from '../files.ts';
import type { BlockDevice } from './block-device.ts';
import { type DeviceLayout, isSlotOf, offsetOfSlot, writeSlotHeader } from './layout.ts';

/** Memory at block boundaries for one value on its way. */
interface Lane {
  readonly header: Buffer;
  readonly lastBlock: Buffer;
  readonly pieces: Buffer;
}

/** Where a value is on the device, and by which header it is known. */
export interface ValuePlace {
  readonly slot: number;
  readonly identity: Uint8Array;
}

const PIECES_BYTES = 256 * 1024;
const WASM_PAGE_BYTES = 64 * 1024;

// The compiler's library has no WebAssembly without the DOM; this is the part that is used here.
declare const WebAssembly: {
  Memory: new (limits: { initial: number; maximum: number }) => { readonly buffer: ArrayBuffer };
};

/** WebAssembly memory begins at a page; nothing else that JavaScript allocates does. */
export function pageAligned(sizeBytes: number): ArrayBuffer {
  const initial = Math.ceil(sizeBytes / WASM_PAGE_BYTES);
  return new WebAssembly.Memory({ initial, maximum: initial }).buffer;
}

export function stagingBytesOf({ blockAlignBytes }: DeviceLayout): number {
  return Math.max(PIECES_BYTES, blockAlignBytes);
}

/** As many values at once as it has lanes. */
export class SlotIo {
  readonly #device: BlockDevice;
  readonly #layout: DeviceLayout;
  readonly #laneBytes: number;
  readonly #gate: ByteGate;
  readonly #lanes: Lane[];

  constructor(device: BlockDevice, layout: DeviceLayout, laneCount: number) {
    this.#device = device;
    this.#layout = layout;
    const { headerBytes, blockAlignBytes } = layout;
    const piecesBytes = stagingBytesOf(layout);
    this.#laneBytes = headerBytes + blockAlignBytes + piecesBytes;
    this.#gate = new ByteGate(this.#laneBytes * laneCount);
    const memory = pageAligned(this.#laneBytes * laneCount);
    this.#lanes = Array.from({ length: laneCount }, (_, i) => {
      const offset = i * this.#laneBytes;
      const lastBlockOffset = offset + headerBytes;
      return {
        header: Buffer.from(memory, offset, headerBytes),
        lastBlock: Buffer.from(memory, lastBlockOffset, blockAlignBytes),
        pieces: Buffer.from(memory, lastBlockOffset + blockAlignBytes, piecesBytes),
      };
    });
  }

  /** Rejects with the signal's reason when no lane was free before. */
  write(place: ValuePlace, bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    return this.#withLane(signal, async (lane) => {
      const offset = offsetOfSlot(this.#layout, place.slot);
      const body = this.#bodyOf(bytes);
      lane.header.fill(0);
      writeSlotHeader(lane.header, place.identity, bytes.length);
      const last = this.#lastBlockOf(bytes, lane);
      last.fill(0);
      last.set(bytes.subarray(body.length));
      try {
        await this.#device.write(withoutEmpty([lane.header, body, last]), offset);
      } catch (error) {
        if (errnoOf(error) !== 'EINVAL') throw error;
        await this.#device.write([lane.header], offset);
        await this.#forPieces(body, lane, async (piece, part, position) => {
          piece.set(part);
          await this.#device.write([piece], offset + position);
        });
        if (last.length > 0) {
          await this.#device.write([last], offset + this.#layout.headerBytes + body.length);
        }
      }
    });
  }

  /** False when the slot holds something else; `bytes` may have changed then. */
  read(place: ValuePlace, bytes: Uint8Array, signal: AbortSignal): Promise<boolean> {
    return this.#withLane(signal, async (lane) => {
      const offset = offsetOfSlot(this.#layout, place.slot);
      const body = this.#bodyOf(bytes);
      const last = this.#lastBlockOf(bytes, lane);
      try {
        await this.#device.read(withoutEmpty([lane.header, body, last]), offset);
      } catch (error) {
        if (errnoOf(error) !== 'EINVAL') throw error;
        await this.#device.read([lane.header], offset);
        await this.#forPieces(body, lane, async (piece, part, position) => {
          await this.#device.read([piece], offset + position);
          part.set(piece);
        });
        if (last.length > 0) {
          await this.#device.read([last], offset + this.#layout.headerBytes + body.length);
        }
      }
      const isOurs = isSlotOf(lane.header, place.identity, bytes.length);
      if (isOurs) bytes.set(last.subarray(0, bytes.length - body.length), body.length);
      return isOurs;
    });
  }

  /** Whether the slot's header is the one of this value. */
  holds(place: ValuePlace, sizeBytes: number, signal: AbortSignal): Promise<boolean> {
    return this.#withLane(signal, async (lane) => {
      const head = lane.lastBlock;
      await this.#device.read([head], offsetOfSlot(this.#layout, place.slot));
      return isSlotOf(head, place.identity, sizeBytes);
    });
  }

  async #withLane<T>(signal: AbortSignal, run: (lane: Lane) => Promise<T>): Promise<T> {
    if (!(await this.#gate.enter(this.#laneBytes, signal))) throw signal.reason;
    const lane = this.#lanes.pop() as Lane;
    try {
      return await run(lane);
    } finally {
      this.#lanes.push(lane);
      this.#gate.leave(this.#laneBytes);
    }
  }

  /** Its whole blocks. */
  #bodyOf(bytes: Uint8Array): Uint8Array {
    return bytes.subarray(0, bytes.length - (bytes.length % this.#layout.blockAlignBytes));
  }

  /** Empty when the value ends with a block. */
  #lastBlockOf(bytes: Uint8Array, lane: Lane): Buffer {
    return bytes.length % this.#layout.blockAlignBytes === 0
      ? lane.lastBlock.subarray(0, 0)
      : lane.lastBlock;
  }

  /** `position` counts from the beginning of the slot. */
  async #forPieces(
    body: Uint8Array,
    lane: Lane,
    run: (piece: Buffer, part: Uint8Array, position: number) => Promise<void>,
  ): Promise<void> {
    for (let done = 0; done < body.length; done += lane.pieces.length) {
      const part = body.subarray(done, done + lane.pieces.length);
      const piece = lane.pieces.subarray(0, part.length);
      await run(piece, part, this.#layout.headerBytes + done);
    }
  }
}

const withoutEmpty = (buffers: readonly Uint8Array[]): Uint8Array[] =>
  buffers.filter(({ length }) => length > 0);
