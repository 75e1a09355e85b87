/**
 * Requests of several frames: one msgpack value each, in a fixed order and number.
 */
import { KvdError } from '../errors.ts';
import { type Codec, decodeFrame, encode, type PayloadReader } from './schema.ts';

/** The payload frames of one operation, in order. */
export interface FramesCodec<T> {
  readonly count: number;
  read(frames: readonly Uint8Array[], first: number, reader: PayloadReader): T;
  write(value: T): Uint8Array[];
}

/** One frame per property, in the order of the properties. */
export function frames<T extends object>(
  codecs: {
    readonly [K in keyof T]-?: Codec<T[K]>;
  },
): FramesCodec<T> {
  const entries = Object.entries<Codec<unknown>>(codecs);
  return {
    count: entries.length,
    read(payloads, first, reader) {
      const request: Record<string, unknown> = {};
      for (let index = 0; index < entries.length; index += 1) {
        const [property, codec] = entries[index] as [string, Codec<unknown>];
        request[property] = readFrame(codec, payloads, first, index, reader);
      }
      return request as T;
    },
    write: (value) =>
      entries.map(([property, codec]) =>
        encode(codec, (value as Record<string, unknown>)[property]),
      ),
  };
}

/** A single frame that holds the whole request. */
export function oneFrame<T>(codec: Codec<T>): FramesCodec<T> {
  return {
    count: 1,
    read: (payloads, first, reader) => readFrame(codec, payloads, first, 0, reader),
    write: (value) => [encode(codec, value)],
  };
}

/** No frames: the request is always `value`. */
export function noFrames<T>(value: T): FramesCodec<T> {
  return { count: 0, read: () => value, write: () => [] };
}

/** The same frames under another type. */
export function mappedFrames<Inner, Outer>(
  codec: FramesCodec<Inner>,
  fromWire: (value: Inner, reader: PayloadReader) => Outer,
  toWire: (value: Outer) => Inner,
): FramesCodec<Outer> {
  return {
    count: codec.count,
    read: (payloads, first, reader) => fromWire(codec.read(payloads, first, reader), reader),
    write: (value) => codec.write(toWire(value)),
  };
}

/** Reads payload `index`; an error says which payload it was. */
function readFrame<T>(
  codec: Codec<T>,
  payloads: readonly Uint8Array[],
  first: number,
  index: number,
  reader: PayloadReader,
): T {
  try {
    reader.place = '';
    return decodeFrame(codec, payloads[first + index] as Uint8Array, reader);
  } catch (error) {
    if (!(error instanceof KvdError)) throw error;
    throw new KvdError(error.code, `payload ${index}: ${error.message}`, { cause: error });
  }
}
