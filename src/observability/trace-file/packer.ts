/**
 * Puts a frame together from pieces of MessagePack.
 *
 *   +0  length of what follows, 32 bits, big-endian
 *   +4  one value
 *
 * @msgpack/msgpack encodes the pieces; whoever packs decides which number is a float, because a
 * whole number would become an int, and writes what repeats in every key only once.
 */
import { Encoder } from '@msgpack/msgpack';

export const FRAME_HEAD_BYTES = 4;

const plainEncoder = new Encoder();
/** Not for all: it makes floats of numbers beyond 32 bits. */
const bigEncoder = new Encoder({ useBigInt64: true });
const floatEncoder = new Encoder({ forceIntegerToFloat: true });

export class Packer {
  readonly #parts: Uint8Array[] = [];
  #sizeBytes = 0;

  bytes(part: Uint8Array): void {
    this.#parts.push(part);
    this.#sizeBytes += part.length;
  }

  /** Head of a map; as many keys and values follow. */
  map(count: number): void {
    this.bytes(headOf(count, { short: 0x80, wide: 0xde }));
  }

  array(count: number): void {
    this.bytes(headOf(count, { short: 0x90, wide: 0xdc }));
  }

  /** Anything but a float. */
  value(value: unknown): void {
    this.bytes((typeof value === 'bigint' ? bigEncoder : plainEncoder).encode(value));
  }

  float(value: number): void {
    this.bytes(floatEncoder.encode(value));
  }

  entry(name: string, value: unknown): void {
    this.value(name);
    this.value(value);
  }

  floatEntry(name: string, value: number): void {
    this.value(name);
    this.float(value);
  }

  joined(): Buffer {
    return Buffer.concat(this.#parts, this.#sizeBytes);
  }

  frame(): Buffer {
    const head = Buffer.alloc(FRAME_HEAD_BYTES);
    head.writeUInt32BE(this.#sizeBytes);
    return Buffer.concat([head, ...this.#parts], FRAME_HEAD_BYTES + this.#sizeBytes);
  }
}

function headOf(count: number, { short, wide }: { short: number; wide: number }): Uint8Array {
  if (count <= 0x0f) return Uint8Array.of(short | count);
  if (count <= 0xffff) return Uint8Array.of(wide, count >> 8, count & 0xff);
  const head = Buffer.alloc(5);
  head[0] = wide + 1;
  head.writeUInt32BE(count, 1);
  return head;
}
