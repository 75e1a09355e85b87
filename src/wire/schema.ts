/**
 * The building blocks of message schemas: each is a codec that reads and writes one msgpack value,
 * so that both directions of a type stand in one place and cannot drift apart.
 *
 * Rules of spec wire 2 that live here:
 *   - nested values are strict: an int is not a float, not a bool, not a string.
 *   - a payload frame declared `int` or `bool` is coerced as Python's `int(x)` and `bool(x)` would
 *     (`looseInteger`, `looseBool`); these are only for whole frames.
 *
 * Maps with named fields are in `struct.ts`, requests of several frames in `payload-frames.ts`.
 */
import type { TokenSpan } from '../core/chunk-hasher.ts';
import { MsgpackReader, MsgpackWriter } from './msgpack.ts';
import { ELEMENTS_PER_MESSAGE_MAX, LIST_COUNT_MAX } from './wire-limits.ts';

/** The part of the chunk hasher that decoding needs. */
export interface TokenReader {
  readonly chunkSizeTokens: number;
  /** Longest array that it reads. */
  readonly tokenCountMax: number;
  readTokens(frame: Uint8Array, offset: number): { span: TokenSpan; endOffset: number };
}

/** A msgpack reader that can also hand an array of token ids to the chunk hasher. */
export class PayloadReader extends MsgpackReader {
  readonly #tokens: TokenReader;

  constructor(tokens: TokenReader) {
    super();
    this.#tokens = tokens;
  }

  /** Tokens per chunk of this server: how many chunks a key can name. */
  get chunkSizeTokens(): number {
    return this.#tokens.chunkSizeTokens;
  }

  /** Longest prompt of this server. */
  get tokenCountMax(): number {
    return this.#tokens.tokenCountMax;
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

/** An unsigned integer of 64 bits. */
export const bigInteger: Codec<bigint> = {
  read(reader) {
    const start = reader.offset;
    const value = BigInt(reader.readInteger());
    return value >= 0n ? value : reader.fail(`expected an integer from 0, got ${value}`, start);
  },
  write: (writer, value) => writer.writeInteger(value),
};

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

/** Integers as they came, however many: the budget of the message bounds them. */
export const integers: Codec<readonly number[]> = {
  read: (reader) => reader.readIntegers(),
  write(writer, values) {
    writer.writeArrayHeader(values.length);
    for (const value of values) writer.writeInteger(value);
  },
};

export function array<T>(codec: Codec<T>, countMax: number = LIST_COUNT_MAX): Codec<readonly T[]> {
  return {
    read(reader) {
      const count = reader.readArrayHeader(countMax);
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

/** A map whose keys are integers from 0. */
export function mapOf<T>(
  codec: Codec<T>,
  countMax: number = LIST_COUNT_MAX,
): Codec<ReadonlyMap<number, T>> {
  return {
    read(reader) {
      const count = reader.readMapHeader(countMax);
      const map = new Map<number, T>();
      for (let pair = 0; pair < count; pair += 1) {
        const key = reader.readIntegerIn(0, Number.MAX_SAFE_INTEGER);
        map.set(key, codec.read(reader));
      }
      return map;
    },
    write(writer, map) {
      writer.writeMapHeader(map.size);
      for (const [key, value] of map) {
        writer.writeInteger(key);
        codec.write(writer, value);
      }
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

const sharedWriter = new MsgpackWriter();

/** One value as a frame of its own. */
export function encode<T>(codec: Codec<T>, value: T): Uint8Array {
  sharedWriter.reset();
  codec.write(sharedWriter, value);
  return sharedWriter.take();
}

/** A message of one frame that must hold exactly one value. */
export function decode<T>(codec: Codec<T>, frame: Uint8Array, reader: PayloadReader): T {
  reader.startMessage(ELEMENTS_PER_MESSAGE_MAX);
  return decodeFrame(codec, frame, reader);
}

/** One frame of a message that has been started. */
export function decodeFrame<T>(codec: Codec<T>, frame: Uint8Array, reader: PayloadReader): T {
  reader.reset(frame);
  const value = codec.read(reader);
  reader.end();
  return value;
}
