/**
 * `zstd`: values are compressed without loss. The peer cannot read them.
 *
 * A value is one zstd frame (RFC 8878) that states its content size and ends in a checksum of the
 * content: a frame without either is not ours. The platform's zstd works on the thread pool.
 *
 *   offset  0            4            5 …
 *           28 b5 2f fd  descriptor   [window] content size …  blocks …  checksum[4]
 *           descriptor: bits 7-6 field size of the content size, 5 single segment, 2 checksum
 */
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';
import { KvdError } from '../../errors.ts';
import type { L2Object } from '../backend.ts';
import { type Serde, type SerdeType, WORKER_KEYS } from './serde.ts';
import { inSlices } from './slices.ts';

const MAGIC = 0xfd2f_b528;
/** Of one byte. The longest content size ends there, too. */
const FRAME_BYTES_MIN = 14;
const CHECKSUM_FLAG = 0x04;
const SINGLE_SEGMENT_FLAG = 0x20;
/**
 * Output in one piece: several are put together on the event loop. Memory that is not written to
 * costs nothing.
 */
const CHUNK_BYTES_MIN = 64;
const CHUNK_BYTES_MAX = 256 * 1024 * 1024;
/** Bytes that are copied between two turns of the event loop: about 0.1 ms. */
const SLICE_BYTES = 1024 * 1024;

class ZstdSerde implements Serde {
  readonly typeName = 'zstd';
  readonly needsLayout = false;
  readonly workerCount: number;
  readonly #level: number;

  constructor(level: number, workerCount: number) {
    this.#level = level;
    this.workerCount = workerCount;
  }

  refusalOf(): null {
    return null;
  }

  serializedSize(): null {
    return null;
  }

  acceptsSize(storedBytes: number, sizeBytes: number): boolean {
    return storedBytes > 0 && storedBytes <= compressBound(sizeBytes);
  }

  serialize({ bytes }: L2Object): Promise<Uint8Array> {
    const params = {
      [constants.ZSTD_c_compressionLevel]: this.#level,
      [constants.ZSTD_c_checksumFlag]: 1,
      [constants.ZSTD_c_contentSizeFlag]: 1,
    };
    const chunkSize = chunkSizeFor(compressBound(bytes.length));
    const options = { params, chunkSize, pledgedSrcSize: bytes.length };
    return new Promise((resolve, reject) => {
      zstdCompress(bytes, options, (error, stored) => {
        if (error) reject(new KvdError('ERR_L2_REFUSED', `zstd: ${error.message}`));
        else resolve(stored);
      });
    });
  }

  async deserialize(object: L2Object, stored: Uint8Array, signal: AbortSignal): Promise<void> {
    const sizeBytes = object.bytes.length;
    const stated = contentSizeOf(stored);
    if (stated !== sizeBytes) {
      throw corrupt(`the frame has ${stated ?? 'no known number of'} bytes, not ${sizeBytes}`);
    }
    const chunkSize = chunkSizeFor(sizeBytes);
    const value = await new Promise<Uint8Array>((resolve, reject) => {
      zstdDecompress(stored, { chunkSize, maxOutputLength: sizeBytes }, (error, decoded) => {
        if (error) reject(corrupt(error.message, error));
        else resolve(decoded);
      });
    });
    if (value.length !== sizeBytes) throw corrupt(`${value.length} bytes, not ${sizeBytes}`);
    const slices = { count: sizeBytes, sliceCount: SLICE_BYTES, signal };
    const isWhole = await inSlices(slices, (from, to) =>
      object.bytes.set(value.subarray(from, to), from),
    );
    if (!isWhole) throw new KvdError('ERR_L2_TIMEOUT', 'zstd: the task is over');
  }
}

/** Null when the frame is none of ours. */
function contentSizeOf(frame: Uint8Array): number | null {
  if (frame.length < FRAME_BYTES_MIN) return null;
  const view = new DataView(frame.buffer, frame.byteOffset, frame.length);
  const descriptor = view.getUint8(4);
  if (view.getUint32(0, true) !== MAGIC || (descriptor & CHECKSUM_FLAG) === 0) return null;
  const isSingleSegment = (descriptor & SINGLE_SEGMENT_FLAG) !== 0;
  const offset = isSingleSegment ? 5 : 6;
  switch (descriptor >> 6) {
    case 0:
      return isSingleSegment ? view.getUint8(offset) : null;
    case 1:
      return view.getUint16(offset, true) + 256;
    case 2:
      return view.getUint32(offset, true);
    default:
      return Number(view.getBigUint64(offset, true));
  }
}

/** One byte more than needed, so that the end is seen without another piece. */
function chunkSizeFor(sizeBytes: number): number {
  return Math.max(CHUNK_BYTES_MIN, Math.min(CHUNK_BYTES_MAX, sizeBytes + 1));
}

/** As zstd's own `ZSTD_COMPRESSBOUND`. */
function compressBound(sizeBytes: number): number {
  const small = sizeBytes < 131_072 ? (131_072 - sizeBytes) >> 11 : 0;
  return sizeBytes + Math.floor(sizeBytes / 256) + small + 64;
}

function corrupt(reason: string, cause?: unknown): KvdError {
  return new KvdError('ERR_L2_CORRUPT', `zstd: ${reason}`, { cause });
}

export const zstdType: SerdeType = {
  typeName: 'zstd',
  about: 'Compresses values without loss. The peer cannot read them.',
  keys: {
    level: {
      kind: 'integer',
      fallback: 3,
      min: 1,
      max: 19,
      about: 'From fast to small.',
    },
    ...WORKER_KEYS,
  },
  async open(values) {
    return new ZstdSerde(values['level'] as number, values['max_workers'] as number);
  },
};
