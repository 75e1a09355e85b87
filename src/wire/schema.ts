/**
 * The building blocks of message schemas: each is a codec that reads and writes one msgpack value,
 * so that both directions of a type stand in one place and cannot drift apart.
 *
 * Rules of spec wire 2 that live here:
 *   - nested values are strict: an int is not a float, not a bool, not a string.
 *   - a payload frame declared `int` or `bool` is coerced as Python's `int(x)` and `bool(x)` would
 *     (`looseInteger`, `looseBool`); these are only for whole frames.
 *   - a struct is a map with string keys. Unknown keys are ignored, missing keys take the default
 *     if there is one, the last of two equal keys wins. The writer writes every field in order.
 *
 * A struct key is compared with the encoded key that is expected next and decoded only when they
 * differ: real clients write the fields in order, so keys normally cost a comparison each.
 */
import type { TokenSpan } from '../core/chunk-hasher.ts';
import { KvdError } from '../errors.ts';
import { MsgpackReader, MsgpackWriter } from './msgpack.ts';

/** The part of the chunk hasher that decoding needs. */
export interface TokenReader {
  readTokens(frame: Uint8Array, offset: number): { span: TokenSpan; endOffset: number };
}

/** A msgpack reader that can also hand an array of token ids to the chunk hasher. */
export class PayloadReader extends MsgpackReader {
  readonly #tokens: TokenReader;

  constructor(tokens: TokenReader) {
    super();
    this.#tokens = tokens;
  }

  readTokens(): TokenSpan {
    const { span, endOffset } = this.#tokens.readTokens(this.bytes, this.offset);
    this.offset = endOffset;
    return span;
  }
}

export interface Codec<T> {
  read(reader: PayloadReader): T;
  write(writer: MsgpackWriter, value: T): void;
}

const INSTANCE_ID_MAX = (1n << 63n) - 1n;
/** Bounds a decimal number in a text before it is converted: no instance id has more digits. */
const DECIMAL_TEXT_MAX = 32;
const DECIMAL = /^\s*[+-]?[0-9]+(?:_[0-9]+)*\s*$/;

export const nothing: Codec<void> = {
  read: (reader) => reader.readNil(),
  write: (writer) => writer.writeNil(),
};

export const bool: Codec<boolean> = {
  read: (reader) => reader.readBool(),
  write: (writer, value) => writer.writeBool(value),
};

export const float: Codec<number> = {
  read: (reader) => reader.readFloat(),
  write: (writer, value) => writer.writeFloat(value),
};

export const bytes: Codec<Uint8Array> = {
  read: (reader) => reader.readBytes(),
  write: (writer, value) => writer.writeBytes(value),
};

export const tokens: Codec<TokenSpan> = {
  read: (reader) => reader.readTokens(),
  write: (writer, value) => writer.writeRaw(value.bytes),
};

export function integer(
  min: number = Number.MIN_SAFE_INTEGER,
  max: number = Number.MAX_SAFE_INTEGER,
): Codec<number> {
  return {
    read: (reader) => reader.readIntegerIn(min, max),
    write: (writer, value) => writer.writeInteger(value),
  };
}

/** A size that is only shown or compared, so that a value beyond 2^53 may be rounded. */
export const size: Codec<number> = {
  read: (reader) => Number(reader.readInteger()),
  write: (writer, value) => writer.writeInteger(value),
};

/** `check` returns what is wrong with a text, or null. It must not quote secrets (salts). */
export function text(
  maxBytes: number,
  check: (value: string) => string | null = () => null,
): Codec<string> {
  return {
    read(reader) {
      const start = reader.offset;
      const value = reader.readText(maxBytes);
      const problem = check(value);
      return problem === null ? value : reader.fail(problem, start);
    },
    write: (writer, value) => writer.writeText(value),
  };
}

export function enumeration<const T extends string>(values: readonly T[]): Codec<T> {
  const longest = Math.max(...values.map((value) => value.length));
  const known = new Set<string>(values);
  return {
    read(reader) {
      const start = reader.offset;
      const value = reader.readText();
      if (known.has(value)) return value as T;
      const shown = JSON.stringify(value.slice(0, longest + 16));
      return reader.fail(`expected one of ${values.join(', ')}, got ${shown}`, start);
    },
    write: (writer, value) => writer.writeText(value),
  };
}

export function nullable<T>(codec: Codec<T>): Codec<T | null> {
  return {
    read: (reader) => (reader.tryNil() ? null : codec.read(reader)),
    write(writer, value) {
      if (value === null) writer.writeNil();
      else codec.write(writer, value);
    },
  };
}

export function array<T>(codec: Codec<T>): Codec<readonly T[]> {
  return {
    read(reader) {
      const count = reader.readArrayHeader();
      // Grows with the elements that are really there, not with the announced count.
      const items: T[] = [];
      for (let index = 0; index < count; index += 1) items.push(codec.read(reader));
      return items;
    },
    write(writer, items) {
      writer.writeArrayHeader(items.length);
      for (const item of items) codec.write(writer, item);
    },
  };
}

/** An array of exactly two values of different types. */
export function pair<A, B>(first: Codec<A>, second: Codec<B>): Codec<[A, B]> {
  return {
    read(reader) {
      const start = reader.offset;
      const count = reader.readArrayHeader();
      if (count !== 2) reader.fail(`expected an array of 2 elements, got ${count}`, start);
      return [first.read(reader), second.read(reader)];
    },
    write(writer, value) {
      writer.writeArrayHeader(2);
      first.write(writer, value[0]);
      second.write(writer, value[1]);
    },
  };
}

/** The same bytes under another type. */
export function mapped<Inner, Outer>(
  codec: Codec<Inner>,
  fromWire: (value: Inner, reader: PayloadReader) => Outer,
  toWire: (value: Outer) => Inner,
): Codec<Outer> {
  return {
    read: (reader) => fromWire(codec.read(reader), reader),
    write: (writer, value) => codec.write(writer, toWire(value)),
  };
}

/** A worker id as a field of a struct. */
export const instanceId: Codec<bigint> = {
  read(reader) {
    const start = reader.offset;
    return checkInstanceId(BigInt(reader.readInteger()), reader, start);
  },
  write: (writer, value) => writer.writeInteger(value),
};

/** A worker id as a whole frame. */
export const looseInstanceId: Codec<bigint> = {
  read(reader) {
    const start = reader.offset;
    return checkInstanceId(readLooseInteger(reader), reader, start);
  },
  write: (writer, value) => writer.writeInteger(value),
};

/** An `int` as a whole frame. */
export const looseInteger: Codec<number> = {
  read(reader) {
    const start = reader.offset;
    const value = readLooseInteger(reader);
    const number = Number(value);
    if (Number.isSafeInteger(number)) return number;
    return reader.fail(`expected an integer within ±(2^53 − 1), got ${value}`, start);
  },
  write: (writer, value) => writer.writeInteger(value),
};

/** A `bool` as a whole frame. */
export const looseBool: Codec<boolean> = {
  read: readLooseBool,
  write: (writer, value) => writer.writeBool(value),
};

function checkInstanceId(value: bigint, reader: PayloadReader, start: number): bigint {
  if (value >= 0n && value <= INSTANCE_ID_MAX) return value;
  return reader.fail(`expected an instance id from 0 to 2^63 − 1, got ${value}`, start);
}

/** Python's `int(x)` for what msgpack can carry. */
function readLooseInteger(reader: PayloadReader): bigint {
  const start = reader.offset;
  const kind = reader.peek();
  switch (kind) {
    case 'int':
      return BigInt(reader.readInteger());
    case 'bool':
      return reader.readBool() ? 1n : 0n;
    case 'float': {
      const value = reader.readFloat();
      if (Number.isFinite(value)) return BigInt(Math.trunc(value));
      return reader.fail(`expected int, got ${value}`, start);
    }
    case 'str':
    case 'bin': {
      const digits =
        kind === 'str' ? reader.readText() : Buffer.from(reader.readBytes()).toString('latin1');
      if (digits.length <= DECIMAL_TEXT_MAX && DECIMAL.test(digits)) {
        return parseDecimal(digits.trim().replaceAll('_', ''));
      }
      return reader.fail(`expected int, got a ${kind} that is no number`, start);
    }
    default:
      return reader.fail(`expected int, got ${kind}`);
  }
}

/** `BigInt('+7')` is an error in JavaScript, `BigInt('-7')` is not. */
function parseDecimal(digits: string): bigint {
  return BigInt(digits.startsWith('+') ? digits.slice(1) : digits);
}

/** Python's `bool(x)`: false for nil, zero and everything empty. */
function readLooseBool(reader: PayloadReader): boolean {
  switch (reader.peek()) {
    case 'nil':
      reader.readNil();
      return false;
    case 'bool':
      return reader.readBool();
    case 'int':
      return reader.readInteger() !== 0;
    case 'float':
      return reader.readFloat() !== 0;
    case 'str':
      return reader.readText() !== '';
    case 'bin':
      return reader.readBytes().length > 0;
    case 'array':
    case 'map': {
      const start = reader.offset;
      const isArray = reader.peek() === 'array';
      const count = isArray ? reader.readArrayHeader() : reader.readMapHeader();
      reader.offset = start;
      reader.skip();
      return count > 0;
    }
    default:
      reader.skip();
      return true;
  }
}

/** One field of a struct: `name` on the wire, the codec, and what a missing key means. */
export interface Field<T> {
  readonly name: string;
  readonly codec: Codec<T>;
  readonly isRequired: boolean;
  /** Value of a missing key; undefined = the property stays out of the object. */
  readonly fallback: T | undefined;
}

export function field<T>(name: string, codec: Codec<T>): Field<T> {
  return { name, codec, isRequired: true, fallback: undefined };
}

export function fieldOr<T>(name: string, codec: Codec<T>, fallback: T): Field<T> {
  return { name, codec, isRequired: false, fallback };
}

/** A field that is not written when it is undefined, and left out when it does not come. */
export function omittable<T>(name: string, codec: Codec<T>): Field<T> {
  return { name, codec, isRequired: false, fallback: undefined };
}

/** A field that this protocol generation does not carry: always `value`, never on the wire. */
export function fixed<T>(value: T): Field<T> {
  return {
    name: '',
    codec: { read: () => value, write: () => {} },
    isRequired: false,
    fallback: value,
  };
}

export type FieldsOf<T> = { readonly [K in keyof T]-?: Field<NonNullable<T[K]> | T[K]> };

interface FieldEntry {
  readonly property: string;
  readonly keyBytes: Uint8Array;
  readonly field: Field<unknown>;
}

export function struct<T extends object>(fields: FieldsOf<T>): Codec<T> {
  const keyWriter = new MsgpackWriter();
  const entries = Object.entries<Field<unknown>>(fields).map(([property, entry]): FieldEntry => {
    keyWriter.writeText(entry.name);
    return { property, keyBytes: keyWriter.take(), field: entry };
  });
  const carried = entries.filter((entry) => entry.field.name !== '');
  return {
    read: (reader) => readStruct(reader, entries, carried) as T,
    write: (writer, value) => writeStruct(writer, carried, value as Record<string, unknown>),
  };
}

function readStruct(
  reader: PayloadReader,
  entries: readonly FieldEntry[],
  carried: readonly FieldEntry[],
): Record<string, unknown> {
  const start = reader.offset;
  const count = reader.readMapHeader();
  const found: Record<string, unknown> = {};
  let next = 0;
  for (let pair = 0; pair < count; pair += 1) {
    const index = matchKey(reader, carried, next);
    if (index < 0) {
      reader.skip();
      continue;
    }
    const entry = carried[index] as FieldEntry;
    reader.place = entry.field.name;
    found[entry.property] = entry.field.codec.read(reader);
    next = index + 1;
  }
  for (const { property, field } of entries) {
    if (property in found) continue;
    if (field.isRequired) {
      reader.place = field.name;
      reader.fail('missing key in the map', start);
    }
    if (field.fallback !== undefined) found[property] = field.fallback;
  }
  return found;
}

/** Index of the field whose key comes next in the frame, or −1 for an unknown key. */
function matchKey(reader: PayloadReader, carried: readonly FieldEntry[], next: number): number {
  const expected = carried[next];
  if (expected && reader.tryExact(expected.keyBytes)) return next;
  reader.place = 'key of a map';
  const name = reader.readText();
  return carried.findIndex((entry) => entry.field.name === name);
}

function writeStruct(
  writer: MsgpackWriter,
  carried: readonly FieldEntry[],
  value: Record<string, unknown>,
): void {
  const present = carried.filter(({ property, field }) =>
    field.isRequired || field.fallback !== undefined ? true : value[property] !== undefined,
  );
  writer.writeMapHeader(present.length);
  for (const { property, keyBytes, field } of present) {
    writer.writeRaw(keyBytes);
    field.codec.write(writer, value[property]);
  }
}

const sharedWriter = new MsgpackWriter();

/** One value as a frame of its own. */
export function encode<T>(codec: Codec<T>, value: T): Uint8Array {
  sharedWriter.reset();
  codec.write(sharedWriter, value);
  return sharedWriter.take();
}

/** A frame that must hold exactly one value. */
export function decode<T>(codec: Codec<T>, frame: Uint8Array, reader: PayloadReader): T {
  reader.reset(frame);
  const value = codec.read(reader);
  reader.end();
  return value;
}

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
    return decode(codec, payloads[first + index] as Uint8Array, reader);
  } catch (error) {
    if (!(error instanceof KvdError)) throw error;
    throw new KvdError(error.code, `payload ${index}: ${error.message}`, { cause: error });
  }
}
