/**
 * The protobuf wire format, as far as the services of `services.ts` need it.
 *
 *   message   field field …                in any order
 *   field     tag value                    tag = varint of number << 3 | type
 *
 *   type 0    varint                       7 bits a byte, the lowest first, 0x80 = more follow
 *   type 1    8 bytes, little endian       double
 *   type 2    varint n, n bytes            text, bytes, message, packed numbers
 *   type 5    4 bytes                      only skipped
 *   others    groups, which proto3 does not have: refused
 *
 * A reader walks over one message or a part of it and never looks beyond its end. Lengths are
 * checked against what is there before anything is made of them; a varint has at most ten bytes and
 * 64 bits. What is wrong is `ERR_WIRE_PAYLOAD` with the place and the byte.
 *
 * Integers are `int64` everywhere: two's complement, so a negative one has ten bytes. They are
 * numbers where a number holds them and bigints elsewhere.
 */
import { KvdError } from '../../errors.ts';
import { ByteWriter } from '../byte-writer.ts';

export const VARINT = 0;
export const FIXED64 = 1;
export const LENGTH = 2;
const FIXED32 = 5;

const TWO_32 = 0x1_0000_0000;
/** The upper half of −2^53: with a lower half of zero that is the first one no longer exact. */
const HIGH_SMALL_NEGATIVE = 0xffe0_0000;
/** The upper half of 2^53. */
const HIGH_SAFE_END = 0x20_0000;
const VARINT_BYTES_MAX = 10;

export class ProtobufReader {
  readonly bytes: Uint8Array;
  offset: number;
  readonly end: number;
  /** Name of what is read, for messages. */
  place: string;
  /** The two halves of the last varint, without sign. */
  #low = 0;
  #high = 0;

  constructor(bytes: Uint8Array, start: number, end: number, place: string) {
    this.bytes = bytes;
    this.offset = start;
    this.end = end;
    this.place = place;
  }

  get isAtEnd(): boolean {
    return this.offset >= this.end;
  }

  fail(problem: string, offset = this.offset): never {
    throw new KvdError('ERR_WIRE_PAYLOAD', `${problem} at byte ${offset} (${this.place})`);
  }

  /** Field number and wire type of the next field: `number << 3 | type`. */
  readTag(): number {
    const start = this.offset;
    this.#readVarint();
    // Field numbers have 29 bits, and 0 is none.
    if (this.#high !== 0 || this.#low < 8) this.fail('expected a field', start);
    return this.#low;
  }

  readInteger(): number | bigint {
    this.#readVarint();
    const low = this.#low;
    const high = this.#high;
    if (high < HIGH_SAFE_END) return high * TWO_32 + low;
    const isSmallNegative = high > HIGH_SMALL_NEGATIVE || (high === HIGH_SMALL_NEGATIVE && low > 0);
    if (isSmallNegative) return (high - TWO_32) * TWO_32 + low;
    return BigInt.asIntN(64, (BigInt(high) << 32n) | BigInt(low));
  }

  readBool(): boolean {
    this.#readVarint();
    return this.#low !== 0 || this.#high !== 0;
  }

  readDouble(): number {
    const at = this.#take(8);
    const { buffer, byteOffset } = this.bytes;
    return new DataView(buffer, byteOffset + at, 8).getFloat64(0, true);
  }

  /** Takes the value of a field and leaves `offset` behind it; returns where its content begins. */
  skipValue(type: number): number {
    switch (type) {
      case VARINT: {
        const start = this.offset;
        this.#readVarint();
        return start;
      }
      case FIXED64:
        return this.#take(8);
      case LENGTH: {
        const start = this.offset;
        this.#readVarint();
        const length = this.#high * TWO_32 + this.#low;
        if (length > this.end - this.offset) this.fail(`truncated: ${length} bytes`, start);
        return this.#take(length);
      }
      case FIXED32:
        return this.#take(4);
      default:
        return this.fail(`expected a value, got wire type ${type}`);
    }
  }

  #take(length: number): number {
    const start = this.offset;
    if (length > this.end - start) this.fail(`truncated: ${length} bytes`);
    this.offset = start + length;
    return start;
  }

  #readVarint(): void {
    const { bytes, end } = this;
    const start = this.offset;
    let offset = start;
    let low = 0;
    let high = 0;
    let byte = 0x80;
    for (let shift = 0; byte >= 0x80; shift += 7) {
      if (offset >= end) this.fail('truncated varint', start);
      if (offset - start >= VARINT_BYTES_MAX) this.fail('expected a varint of 64 bits', start);
      byte = bytes[offset] as number;
      offset += 1;
      const bits = byte & 0x7f;
      if (shift < 28) low |= bits << shift;
      else if (shift === 28) {
        low |= bits << 28;
        high = bits >>> 4;
      } else if (shift < 63) high |= bits << (shift - 32);
      else if (bits > 1) this.fail('expected a varint of 64 bits', start);
      else high |= bits << 31;
    }
    this.offset = offset;
    this.#low = low >>> 0;
    this.#high = high >>> 0;
  }
}

export class ProtobufWriter extends ByteWriter {
  writeTag(number: number, type: number): void {
    this.writeInteger((number << 3) | type);
  }

  writeInteger(value: number | bigint): void {
    if (typeof value === 'number' && value >= 0) {
      let rest = value;
      for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) this.writeByte((rest % 0x80) | 0x80);
      this.writeByte(rest);
      return;
    }
    let rest = BigInt.asUintN(64, BigInt(value));
    for (; rest >= 0x80n; rest >>= 7n) this.writeByte(Number(rest & 0x7fn) | 0x80);
    this.writeByte(Number(rest));
  }

  writeDouble(value: number): void {
    const at = this.reserve(8);
    this.buffer.writeDoubleLE(value, at);
  }

  writeBytes(value: Uint8Array): void {
    this.writeInteger(value.length);
    const at = this.reserve(value.length);
    this.buffer.set(value, at);
  }

  /** A length and what `write` writes, in one pass: the content moves when the length is longer. */
  writeNested(write: () => void): void {
    const start = this.reserve(1);
    write();
    const length = this.length - start - 1;
    if (length < 0x80) {
      this.buffer[start] = length;
      return;
    }
    const end = this.length;
    const shift = Math.ceil((32 - Math.clz32(length)) / 7) - 1;
    this.reserve(shift);
    this.buffer.copyWithin(start + 1 + shift, start + 1, end);
    this.length = start;
    this.writeInteger(length);
    this.length = end + shift;
  }
}
