/**
 * MessagePack as the protocol uses it: a reader that trusts nothing and a writer whose output is
 * the same as the peer's, byte for byte. (A codec; longer than other files on purpose.)
 *
 * Reader
 *   - pulls one value after the other out of a frame; there is no intermediate tree. The caller
 *     says which kind it expects, so a wrong kind is an error with its place: "expected str, got
 *     int at byte 12 (model_name)".
 *   - an announced length is compared with the bytes that are there before anything is done with
 *     it. Every element takes at least one byte, so a count above the remaining bytes is an error.
 *   - elements of arrays and pairs of maps are bounded per message (`startMessage`), also those
 *     that are only walked over: an element costs far more here than its byte on the way.
 *   - `str` and `bin` are different kinds; `str` must be valid UTF-8.
 *   - integers have 64 bits: those outside ±(2^53 − 1) come out as bigint, all others as number.
 *   - bytes are views of the frame, never copies. Whoever keeps them keeps the frame.
 *   - `skip` walks without recursion and refuses nesting above `DEPTH_MAX`.
 *
 * Writer
 *   - integers in the shortest form, floats always as float64, map keys in the order written.
 *
 *   byte        kind                      byte        kind
 *   00 – 7f     int (the byte itself)     ca cb       float32, float64
 *   80 – 8f     map, 0 – 15 pairs         cc – cf     int, unsigned 8 – 64 bits
 *   90 – 9f     array, 0 – 15 elements    d0 – d3     int, signed 8 – 64 bits
 *   a0 – bf     str, 0 – 31 bytes         d4 – d8     ext, 1 2 4 8 16 bytes
 *   c0 c2 c3    nil, false, true          d9 da db    str, length in 8, 16, 32 bits
 *   c1          reserved                  dc dd       array, count in 16, 32 bits
 *   c4 c5 c6    bin, 8 – 32 bits length   de df       map, count in 16, 32 bits
 *   c7 c8 c9    ext, 8 – 32 bits length   e0 – ff     int, −32 – −1
 *
 * Reference: github.com/msgpack/msgpack/blob/master/spec.md; rules of the peer: spec wire 2.
 */
import { assert } from '../assert.ts';
import { KvdError } from '../errors.ts';
import { ByteWriter, COPY_SIZE_MAX } from './byte-writer.ts';

export type Kind =
  | 'nil'
  | 'bool'
  | 'int'
  | 'float'
  | 'str'
  | 'bin'
  | 'array'
  | 'map'
  | 'ext'
  | 'reserved byte'
  | 'end of data';

/** Deepest nesting that `skip` walks through. Valid payloads nest four levels. */
export const DEPTH_MAX = 64;
/** Longest `str` or `bin` that the format can carry. */
const LENGTH_MAX = 0xffff_ffff;
/** Longest text that is decoded by hand: below it, a `TextDecoder` call costs more. */
const SHORT_TEXT_MAX = 48;

const KINDS: readonly Kind[] = Array.from({ length: 256 }, (_, byte): Kind => {
  if (byte <= 0x7f || byte >= 0xe0) return 'int';
  if (byte <= 0x8f) return 'map';
  if (byte <= 0x9f) return 'array';
  if (byte <= 0xbf) return 'str';
  if (byte === 0xc0) return 'nil';
  if (byte === 0xc1) return 'reserved byte';
  if (byte <= 0xc3) return 'bool';
  if (byte <= 0xc6) return 'bin';
  if (byte <= 0xc9) return 'ext';
  if (byte <= 0xcb) return 'float';
  if (byte <= 0xd3) return 'int';
  if (byte <= 0xd8) return 'ext';
  if (byte <= 0xdb) return 'str';
  return byte <= 0xdd ? 'array' : 'map';
});

/** Kind of the value that begins with `byte`; undefined = there is none. */
export function kindOfByte(byte: number | undefined): Kind {
  return byte === undefined ? 'end of data' : (KINDS[byte] as Kind);
}

const utf8Decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const EMPTY = new Uint8Array(0);

export interface Extension {
  readonly type: number;
  readonly data: Uint8Array;
}

export class MsgpackReader {
  /** Name of the value being read, for messages only. */
  place = '';
  bytes: Uint8Array = EMPTY;
  offset = 0;
  #view: DataView = new DataView(EMPTY.buffer);
  #elementCountMax = Number.POSITIVE_INFINITY;
  #elementsLeft = Number.POSITIVE_INFINITY;

  /** The frames until the next call are one message, which may have so many elements in all. */
  startMessage(elementCountMax: number): void {
    this.#elementCountMax = elementCountMax;
    this.#elementsLeft = elementCountMax;
  }

  /** Starts over with another frame. One reader serves all messages of a loop. */
  reset(bytes: Uint8Array): void {
    this.bytes = bytes;
    this.offset = 0;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get remaining(): number {
    return this.bytes.length - this.offset;
  }

  /** Kind of the next value, without taking it. */
  peek(): Kind {
    return kindOfByte(this.bytes[this.offset]);
  }

  fail(problem: string, offset = this.offset): never {
    const place = this.place === '' ? '' : ` (${this.place})`;
    throw new KvdError('ERR_WIRE_PAYLOAD', `${problem} at byte ${offset}${place}`);
  }

  /** Fails unless the frame has been read to its last byte. */
  end(): void {
    if (this.remaining > 0) this.fail(`expected end of data, got ${this.remaining} bytes more`);
  }

  /** Takes a nil if there is one. */
  tryNil(): boolean {
    if (this.bytes[this.offset] !== 0xc0) return false;
    this.offset += 1;
    return true;
  }

  readNil(): void {
    if (!this.tryNil()) this.#wrongKind('nil');
  }

  readBool(): boolean {
    const byte = this.bytes[this.offset];
    if (byte !== 0xc2 && byte !== 0xc3) this.#wrongKind('bool');
    this.offset += 1;
    return byte === 0xc3;
  }

  /** An integer of the full 64-bit range; bigint where a number would lose digits. */
  readInteger(): number | bigint {
    const byte = this.#head('int');
    if (byte <= 0x7f) {
      this.offset += 1;
      return byte;
    }
    if (byte >= 0xe0) {
      this.offset += 1;
      return byte - 256;
    }
    return this.#readSizedInteger(byte);
  }

  /** An integer in [min, max], both safe. */
  readIntegerIn(min: number, max: number): number {
    const start = this.offset;
    const value = this.readInteger();
    if (typeof value === 'number' && value >= min && value <= max) return value;
    return this.fail(`expected an integer from ${min} to ${max}, got ${value}`, start);
  }

  /**
   * An array of safe integers. Lists of block ids have up to a million, so the usual widths are
   * read without a call for each: 3 ns instead of 15, and 8 instead of 80 in the longest lists.
   */
  readIntegers(): number[] {
    const count = this.readArrayHeader();
    const { bytes } = this;
    const end = bytes.length;
    const values = new Array<number>(count);
    let offset = this.offset;
    for (let index = 0; index < count; index += 1) {
      const head = bytes[offset] as number;
      if (head <= 0x7f) {
        values[index] = head;
        offset += 1;
      } else if (head === 0xcd && offset + 3 <= end) {
        values[index] = ((bytes[offset + 1] as number) << 8) | (bytes[offset + 2] as number);
        offset += 3;
      } else if (head === 0xce && offset + 5 <= end) {
        values[index] = this.#view.getUint32(offset + 1);
        offset += 5;
      } else {
        this.offset = offset;
        values[index] = this.readIntegerIn(Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);
        offset = this.offset;
      }
    }
    this.offset = offset;
    return values;
  }

  /** A float; integers are accepted as the peer accepts them. */
  readFloat(): number {
    const byte = this.bytes[this.offset];
    if (byte === 0xca) {
      const at = this.#payload(1, 4);
      return this.#view.getFloat32(at);
    }
    if (byte === 0xcb) {
      const at = this.#payload(1, 8);
      return this.#view.getFloat64(at);
    }
    if (this.peek() !== 'int') this.#wrongKind('float');
    return Number(this.readInteger());
  }

  readText(maxBytes = LENGTH_MAX): string {
    const start = this.offset;
    const byte = this.#head('str');
    let length: number;
    if (byte <= 0xbf) {
      length = byte & 0x1f;
      this.offset += 1;
    } else {
      length = this.#readLength(byte - 0xd9);
    }
    this.#need(length);
    if (length > maxBytes) this.fail(`expected at most ${maxBytes} bytes, got ${length}`, start);
    const from = this.offset;
    this.offset += length;
    return this.#decodeText(from, length, start);
  }

  /** A view of the frame. */
  readBytes(): Uint8Array {
    const byte = this.#head('bin');
    const length = this.#readLength(byte - 0xc4);
    this.#need(length);
    const from = this.offset;
    this.offset += length;
    return this.bytes.subarray(from, this.offset);
  }

  /**
   * Element count of an array whose elements follow. Never more than `countMax`, the bytes that are
   * left and the elements that the message may still have.
   */
  readArrayHeader(countMax = LENGTH_MAX): number {
    const start = this.offset;
    const byte = this.#head('array');
    const count = byte <= 0x9f ? this.#short(byte & 0x0f) : this.#readLength(byte - 0xdc + 1);
    if (count > this.remaining) this.fail(`truncated: array of ${count} elements`, start);
    if (count > countMax) this.fail(`expected at most ${countMax} elements, got ${count}`, start);
    this.#spend(count, start);
    return count;
  }

  /** Pair count of a map whose keys and values follow, bounded likewise. */
  readMapHeader(countMax = LENGTH_MAX): number {
    const start = this.offset;
    const byte = this.#head('map');
    const count = byte <= 0x8f ? this.#short(byte & 0x0f) : this.#readLength(byte - 0xde + 1);
    if (count * 2 > this.remaining) this.fail(`truncated: map of ${count} pairs`, start);
    if (count > countMax) this.fail(`expected at most ${countMax} pairs, got ${count}`, start);
    this.#spend(count, start);
    return count;
  }

  readExtension(): Extension {
    const byte = this.#head('ext');
    let length: number;
    if (byte >= 0xd4) {
      length = 1 << (byte - 0xd4);
      this.offset += 1;
    } else {
      length = this.#readLength(byte - 0xc7);
    }
    this.#need(length + 1);
    const type = this.#view.getInt8(this.offset);
    const from = this.offset + 1;
    this.offset = from + length;
    return { type, data: this.bytes.subarray(from, this.offset) };
  }

  /** True, and the bytes taken, when they come next. Lets structs match their keys undecoded. */
  tryExact(expected: Uint8Array): boolean {
    const { bytes, offset } = this;
    const length = expected.length;
    if (offset + length > bytes.length) return false;
    for (let index = 0; index < length; index += 1) {
      if (bytes[offset + index] !== expected[index]) return false;
    }
    this.offset = offset + length;
    return true;
  }

  /** Walks over one value of any kind. */
  skip(): void {
    // `pending[d]` = values still to walk at depth d.
    const pending: number[] = [1];
    while (pending.length > 0) {
      const depth = pending.length - 1;
      if (pending[depth] === 0) {
        pending.pop();
        continue;
      }
      (pending[depth] as number) -= 1;
      const children = this.#skipOne();
      if (children === 0) continue;
      if (pending.length >= DEPTH_MAX) this.fail(`nesting deeper than ${DEPTH_MAX}`);
      pending.push(children);
    }
  }

  /** Takes one value without its children; returns how many of those follow. */
  #skipOne(): number {
    switch (this.peek()) {
      case 'nil':
      case 'bool':
        this.offset += 1;
        return 0;
      case 'int':
        this.readInteger();
        return 0;
      case 'float':
        this.readFloat();
        return 0;
      case 'str':
        this.readText();
        return 0;
      case 'bin':
        this.readBytes();
        return 0;
      case 'ext':
        this.readExtension();
        return 0;
      case 'array':
        return this.readArrayHeader();
      case 'map':
        return this.readMapHeader() * 2;
      default:
        return this.#wrongKind('a value');
    }
  }

  #wrongKind(expected: string): never {
    return this.fail(`expected ${expected}, got ${this.peek()}`);
  }

  #head(expected: Kind): number {
    const byte = this.bytes[this.offset];
    if (byte === undefined || KINDS[byte] !== expected) this.#wrongKind(expected);
    return byte as number;
  }

  #spend(count: number, start: number): void {
    this.#elementsLeft -= count;
    if (this.#elementsLeft < 0) {
      this.fail(`more than ${this.#elementCountMax} elements in one message`, start);
    }
  }

  #need(length: number): void {
    if (length > this.remaining) {
      this.fail(`truncated: ${length} bytes needed, ${this.remaining} left`);
    }
  }

  #short(count: number): number {
    this.offset += 1;
    return count;
  }

  /** Moves past `headBytes` and `length` bytes, and returns where the latter begin. */
  #payload(headBytes: number, length: number): number {
    this.#need(headBytes + length);
    const at = this.offset + headBytes;
    this.offset = at + length;
    return at;
  }

  /** Length field of 1, 2 or 4 bytes (`width` 0, 1, 2) behind the head byte. */
  #readLength(width: number): number {
    if (width === 0) return this.#view.getUint8(this.#payload(1, 1));
    if (width === 1) return this.#view.getUint16(this.#payload(1, 2));
    return this.#view.getUint32(this.#payload(1, 4));
  }

  #readSizedInteger(byte: number): number | bigint {
    const view = this.#view;
    switch (byte) {
      case 0xcc:
        return view.getUint8(this.#payload(1, 1));
      case 0xcd:
        return view.getUint16(this.#payload(1, 2));
      case 0xce:
        return view.getUint32(this.#payload(1, 4));
      case 0xcf:
        return narrow(view.getBigUint64(this.#payload(1, 8)));
      case 0xd0:
        return view.getInt8(this.#payload(1, 1));
      case 0xd1:
        return view.getInt16(this.#payload(1, 2));
      case 0xd2:
        return view.getInt32(this.#payload(1, 4));
      default:
        return narrow(view.getBigInt64(this.#payload(1, 8)));
    }
  }

  #decodeText(from: number, length: number, start: number): string {
    const { bytes } = this;
    if (length <= SHORT_TEXT_MAX) {
      let text = '';
      let index = from;
      for (; index < from + length; index += 1) {
        const byte = bytes[index] as number;
        if (byte >= 0x80) break;
        text += String.fromCharCode(byte);
      }
      if (index === from + length) return text;
    }
    try {
      return utf8Decoder.decode(bytes.subarray(from, from + length));
    } catch {
      // The decoder's own error says no more than this.
      return this.fail('expected valid UTF-8, got other bytes in a str', start);
    }
  }
}

function narrow(value: bigint): number | bigint {
  return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER
    ? Number(value)
    : value;
}

export class MsgpackWriter extends ByteWriter {
  writeNil(): void {
    this.writeByte(0xc0);
  }

  writeBool(value: boolean): void {
    this.writeByte(value ? 0xc3 : 0xc2);
  }

  writeInteger(value: number | bigint): void {
    if (typeof value === 'bigint') {
      this.#writeBigInteger(value);
      return;
    }
    assert(Number.isInteger(value), `only whole numbers are integers, not ${value}`);
    if (!Number.isSafeInteger(value)) this.#writeBigInteger(BigInt(value));
    else if (value >= 0) this.#writeUnsigned(value);
    else this.#writeNegative(value);
  }

  writeFloat(value: number): void {
    const at = this.reserve(9);
    this.buffer[at] = 0xcb;
    this.buffer.writeDoubleBE(value, at + 1);
  }

  writeText(value: string): void {
    const length = Buffer.byteLength(value, 'utf8');
    if (length <= 31) this.writeByte(0xa0 | length);
    else this.#writeLength(0xd9, length);
    const at = this.reserve(length);
    this.buffer.write(value, at, length, 'utf8');
  }

  /** A text that is there as UTF-8. */
  writeUtf8(value: Uint8Array): void {
    if (value.length <= 31) this.writeByte(0xa0 | value.length);
    else this.#writeLength(0xd9, value.length);
    this.writeRaw(value);
  }

  writeBytes(value: Uint8Array): void {
    this.#writeLength(0xc4, value.length);
    this.writeRaw(value);
  }

  /**
   * A `bin` of the bytes from `start` to `end` of `frame`, which are not copied: what has been
   * written moves in front of them, and `frame` becomes the buffer. It needs room for that.
   */
  writeBytesInPlace(frame: Buffer, start: number, end: number): void {
    // Small results are copied by `take` and the buffer used again, so it must not be a caller's.
    if (end - start <= COPY_SIZE_MAX) {
      this.writeBytes(frame.subarray(start, end));
      return;
    }
    this.#writeLength(0xc4, end - start);
    const origin = start - this.length;
    assert(origin >= 0, `${this.length} bytes do not fit in front of the data`);
    this.buffer.copy(frame, origin, 0, this.length);
    this.buffer = frame.subarray(origin);
    this.length = end - origin;
  }

  writeArrayHeader(count: number): void {
    if (count <= 15) this.writeByte(0x90 | count);
    else this.#writeWideCount(0xdc, count);
  }

  writeMapHeader(count: number): void {
    if (count <= 15) this.writeByte(0x80 | count);
    else this.#writeWideCount(0xde, count);
  }

  writeExtension(type: number, data: Uint8Array): void {
    const { length } = data;
    if (length === 1 || length === 2 || length === 4 || length === 8 || length === 16) {
      this.writeByte(0xd4 + Math.log2(length));
    } else {
      this.#writeLength(0xc7, length);
    }
    this.writeByte(type & 0xff);
    this.writeRaw(data);
  }

  /** What `fill` writes from `at` on, `sizeMax` bytes at most; it returns the end. */
  writeFilled(sizeMax: number, fill: (buffer: Buffer, at: number) => number): void {
    const at = this.reserve(sizeMax);
    this.length = fill(this.buffer, at);
  }

  /** Bytes that are msgpack already. */
  writeRaw(value: Uint8Array): void {
    const at = this.reserve(value.length);
    this.buffer.set(value, at);
  }

  #writeUnsigned(value: number): void {
    if (value <= 0x7f) this.writeByte(value);
    else if (value <= 0xffff_ffff) this.#writeLength(0xcc, value);
    else this.#writeBigInteger(BigInt(value));
  }

  #writeNegative(value: number): void {
    if (value >= -32) {
      this.writeByte(value + 256);
    } else if (value >= -0x80) {
      const at = this.reserve(2);
      this.buffer[at] = 0xd0;
      this.buffer.writeInt8(value, at + 1);
    } else if (value >= -0x8000) {
      const at = this.reserve(3);
      this.buffer[at] = 0xd1;
      this.buffer.writeInt16BE(value, at + 1);
    } else if (value >= -0x8000_0000) {
      const at = this.reserve(5);
      this.buffer[at] = 0xd2;
      this.buffer.writeInt32BE(value, at + 1);
    } else {
      this.#writeBigInteger(BigInt(value));
    }
  }

  #writeBigInteger(value: bigint): void {
    if (value >= -0x8000_0000n && value <= 0xffff_ffffn) {
      this.writeInteger(Number(value));
      return;
    }
    const at = this.reserve(9);
    if (value >= 0n) {
      assert(value < 1n << 64n, 'an integer has at most 64 bits');
      this.buffer[at] = 0xcf;
      this.buffer.writeBigUInt64BE(value, at + 1);
    } else {
      assert(value >= -(1n << 63n), 'an integer has at most 64 bits');
      this.buffer[at] = 0xd3;
      this.buffer.writeBigInt64BE(value, at + 1);
    }
  }

  /** `head`, `head + 1` or `head + 2` and the value in 8, 16 or 32 bits. */
  #writeLength(head: number, value: number): void {
    if (value <= 0xff) {
      const at = this.reserve(2);
      this.buffer[at] = head;
      this.buffer[at + 1] = value;
    } else {
      this.#writeWideCount(head + 1, value);
    }
  }

  /** `head` or `head + 1` and the value in 16 or 32 bits. */
  #writeWideCount(head: number, value: number): void {
    assert(value <= LENGTH_MAX, `msgpack cannot carry ${value} bytes or elements`);
    const isShort = value <= 0xffff;
    const at = this.reserve(isShort ? 3 : 5);
    this.buffer[at] = isShort ? head : head + 1;
    if (isShort) this.buffer.writeUInt16BE(value, at + 1);
    else this.buffer.writeUInt32BE(value, at + 1);
  }
}
