/**
 * `fp8`: one byte per element instead of two or four. Loses precision, as the user has asked for.
 *
 *   value   bf16, fp16 or fp32 elements in row order        stored   one byte each, same order
 *
 * No header: what an element was is known from the layout of the object, and both sides must have
 * the same one. Encoding rounds to nearest, ties to even. `float8_e4m3fn` has no infinity and
 * saturates at ±448; `float8_e5m2` overflows to infinity. Both as torch does it, bit by bit
 * (test/vectors/l2/serde).
 *
 * Tables do the work: 65,536 codes for the 16-bit patterns, 256 values back. A fp32 element goes
 * through the bf16 table with its lower half folded into the last bit ("round to odd"): bf16 keeps
 * four more bits than fp8 has, so nothing is rounded twice.
 */
import { KvdError } from '../../errors.ts';
import type { L2Object } from '../backend.ts';
import { type Serde, type SerdeType, WORKER_KEYS } from './serde.ts';
import { inSlices } from './slices.ts';

/** Elements between two turns of the event loop: about 0.3 ms. */
const SLICE_ELEMENT_COUNT = 128 * 1024;

interface Fp8Format {
  readonly mantissaBits: number;
  readonly bias: number;
  readonly maxFinite: number;
  /** What follows the largest finite value; null = it saturates. */
  readonly infinityCode: number | null;
  readonly nanCode: number;
}

const FORMATS: Readonly<Record<string, Fp8Format>> = {
  float8_e4m3fn: { mantissaBits: 3, bias: 7, maxFinite: 448, infinityCode: null, nanCode: 0x7f },
  float8_e5m2: {
    mantissaBits: 2,
    bias: 15,
    maxFinite: 57_344,
    infinityCode: 0x7c,
    nanCode: 0x7f,
  },
};

/** How elements lie in L1. `bits` of a pattern ⇄ its number. */
interface ElementType {
  readonly sizeBytes: 2 | 4;
  toNumber(pattern: number): number;
  /** Exact for every value that fp8 has. */
  toPattern(value: number): number;
  /** What torch makes of an fp8 that is no number. */
  nanPattern(code: number, mantissaBits: number): number;
}

const scratch = new DataView(new ArrayBuffer(4));

const ELEMENT_TYPES: Readonly<Record<string, ElementType>> = {
  bfloat16: {
    sizeBytes: 2,
    toNumber(pattern) {
      scratch.setUint32(0, pattern * 65_536);
      return scratch.getFloat32(0);
    },
    toPattern(value) {
      scratch.setFloat32(0, value);
      return scratch.getUint32(0) >>> 16;
    },
    nanPattern: () => 0x7fc0,
  },
  float16: {
    sizeBytes: 2,
    toNumber(pattern) {
      scratch.setUint16(0, pattern);
      return scratch.getFloat16(0);
    },
    toPattern(value) {
      scratch.setFloat16(0, value);
      return scratch.getUint16(0);
    },
    nanPattern(code, mantissaBits) {
      const mantissa = code & ((1 << mantissaBits) - 1);
      return ((code & 0x80) << 8) | 0x7e00 | (mantissa << (10 - mantissaBits));
    },
  },
  float32: {
    sizeBytes: 4,
    toNumber(pattern) {
      scratch.setUint32(0, pattern);
      return scratch.getFloat32(0);
    },
    toPattern(value) {
      scratch.setFloat32(0, value);
      return scratch.getUint32(0);
    },
    nanPattern: () => 0x7fc0_0000,
  },
};

function encodeFp8(value: number, format: Fp8Format): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x80 : 0;
  const { mantissaBits, bias, maxFinite, infinityCode } = format;
  const magnitude = Math.abs(value);
  const exponent = Math.max(exponentOf(magnitude), 1 - bias);
  const step = 2 ** (exponent - mantissaBits);
  const steps = roundHalfToEven(magnitude / step);
  if (steps * step > maxFinite) return sign | (infinityCode ?? encodeFp8(maxFinite, format));
  // Rounding up to the next power of two carries into the exponent by itself.
  const base = exponent === 1 - bias ? 0 : (exponent + bias - 1) << mantissaBits;
  return sign | (base + steps);
}

function decodeFp8(code: number, format: Fp8Format): number {
  const { mantissaBits, bias, infinityCode, nanCode } = format;
  const magnitude = code & 0x7f;
  const sign = code & 0x80 ? -1 : 1;
  if (infinityCode === null ? magnitude === nanCode : magnitude > infinityCode) return Number.NaN;
  if (magnitude === infinityCode) return sign * Number.POSITIVE_INFINITY;
  const exponent = magnitude >> mantissaBits;
  const mantissa = magnitude & ((1 << mantissaBits) - 1);
  const steps = exponent === 0 ? mantissa : mantissa + (1 << mantissaBits);
  return sign * steps * 2 ** (Math.max(exponent, 1) - bias - mantissaBits);
}

/** Of the leading bit; exact, unlike Math.log2. */
function exponentOf(magnitude: number): number {
  if (magnitude === 0 || !Number.isFinite(magnitude)) return magnitude === 0 ? -1100 : 1024;
  let exponent = Math.floor(Math.log2(magnitude));
  if (2 ** exponent > magnitude) exponent -= 1;
  else if (2 ** (exponent + 1) <= magnitude) exponent += 1;
  return exponent;
}

function roundHalfToEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest !== 0.5) return rest < 0.5 ? floor : floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

/** 65,536 codes for the patterns of a 16-bit type. */
function encodeTable(elements: ElementType, format: Fp8Format): Uint8Array {
  return Uint8Array.from({ length: 65_536 }, (_, pattern) => {
    const value = elements.toNumber(pattern);
    // A number does not tell the sign of a NaN.
    if (Number.isNaN(value)) return ((pattern >> 8) & 0x80) | format.nanCode;
    return encodeFp8(value, format);
  });
}

interface Codec {
  readonly sizeBytes: 2 | 4;
  readonly encode: Uint8Array;
  readonly decode: Uint16Array | Uint32Array;
}

function codecsOf(format: Fp8Format): ReadonlyMap<string, Codec> {
  const bfloat16 = encodeTable(ELEMENT_TYPES['bfloat16'] as ElementType, format);
  return new Map(
    Object.entries(ELEMENT_TYPES).map(([name, elements]) => {
      const patterns = Array.from({ length: 256 }, (_, code) => {
        const value = decodeFp8(code, format);
        if (Number.isNaN(value)) return elements.nanPattern(code, format.mantissaBits);
        return elements.toPattern(value);
      });
      const { sizeBytes } = elements;
      const decode = sizeBytes === 2 ? Uint16Array.from(patterns) : Uint32Array.from(patterns);
      const encode = name === 'float16' ? encodeTable(elements, format) : bfloat16;
      return [name, { sizeBytes, encode, decode }] as const;
    }),
  );
}

interface Part {
  readonly codec: Codec;
  readonly elementCount: number;
}

class Fp8Serde implements Serde {
  readonly typeName = 'fp8';
  readonly needsLayout = true;
  readonly workerCount: number;
  readonly #codecs: ReadonlyMap<string, Codec>;
  /** Few layouts, many objects. */
  #lastLayout: { text: string; parts: readonly Part[] } | null = null;

  constructor(format: Fp8Format, workerCount: number) {
    this.#codecs = codecsOf(format);
    this.workerCount = workerCount;
  }

  refusalOf(layout: string | undefined): string | null {
    const parts = this.#readLayout(layout);
    return typeof parts === 'string' ? parts : null;
  }

  serializedSize(object: L2Object): number {
    return this.#partsOf(object).reduce((sum, { elementCount }) => sum + elementCount, 0);
  }

  acceptsSize(storedBytes: number, sizeBytes: number): boolean {
    // Mixed layouts lie between.
    return storedBytes * 2 <= sizeBytes && sizeBytes <= storedBytes * 4;
  }

  async serialize(object: L2Object): Promise<Uint8Array> {
    const parts = this.#partsOf(object);
    const stored = Buffer.allocUnsafeSlow(this.serializedSize(object));
    const source = aligned(object.bytes);
    let offset = 0;
    let index = 0;
    for (const { codec, elementCount } of parts) {
      const target = stored.subarray(index, index + elementCount);
      const elements = viewOf(source, offset, elementCount, codec.sizeBytes);
      await inSlices({ count: elementCount, sliceCount: SLICE_ELEMENT_COUNT }, (from, to) =>
        encodeElements(elements, target, codec.encode, from, to),
      );
      offset += elementCount * codec.sizeBytes;
      index += elementCount;
    }
    return stored;
  }

  async deserialize(object: L2Object, stored: Uint8Array, signal: AbortSignal): Promise<void> {
    const parts = this.#partsOf(object);
    const sizeBytes = this.serializedSize(object);
    if (stored.length !== sizeBytes) {
      throw new KvdError(
        'ERR_L2_CORRUPT',
        `fp8: expected ${sizeBytes} bytes, got ${stored.length}`,
      );
    }
    const target = aligned(object.bytes);
    let offset = 0;
    let index = 0;
    for (const { codec, elementCount } of parts) {
      const source = stored.subarray(index, index + elementCount);
      const elements = viewOf(target, offset, elementCount, codec.sizeBytes);
      const slices = { count: elementCount, sliceCount: SLICE_ELEMENT_COUNT, signal };
      const isWhole = await inSlices(slices, (from, to) => {
        for (let i = from; i < to; i += 1)
          elements[i] = codec.decode[source[i] as number] as number;
      });
      if (!isWhole) throw new KvdError('ERR_L2_TIMEOUT', 'fp8: the task is over');
      offset += elementCount * codec.sizeBytes;
      index += elementCount;
    }
    if (target !== object.bytes) object.bytes.set(target);
  }

  #partsOf({ layout, bytes }: L2Object): readonly Part[] {
    const parts = this.#readLayout(layout);
    if (typeof parts === 'string') throw new KvdError('ERR_L2_REFUSED', `fp8: ${parts}`);
    const sizeBytes = parts.reduce(
      (sum, { codec, elementCount }) => sum + codec.sizeBytes * elementCount,
      0,
    );
    if (sizeBytes === bytes.length) return parts;
    throw new KvdError(
      'ERR_L2_REFUSED',
      `fp8: the layout ${layout} has ${sizeBytes} bytes, the object ${bytes.length}`,
    );
  }

  /** Or why it cannot be transformed. */
  #readLayout(layout: string | undefined): readonly Part[] | string {
    if (layout === undefined) return 'the element type of the object is not known';
    if (this.#lastLayout?.text === layout) return this.#lastLayout.parts;
    const parts: Part[] = [];
    for (const match of layout.matchAll(/([a-z0-9_]+)\[([\d,]*)\](?:\{[^}]*\})?;?/g)) {
      const [, dtype = '', shape = ''] = match;
      const codec = this.#codecs.get(dtype);
      if (!codec) {
        return `elements are ${dtype}; only ${[...this.#codecs.keys()].join(', ')} can be made fp8`;
      }
      const sizes = shape === '' ? [] : shape.split(',').map(Number);
      parts.push({ codec, elementCount: sizes.reduce((product, size) => product * size, 1) });
    }
    if (parts.length === 0) return `the layout "${layout}" names no elements`;
    this.#lastLayout = { text: layout, parts };
    return parts;
  }
}

function encodeElements(
  elements: Uint16Array | Uint32Array,
  target: Uint8Array,
  table: Uint8Array,
  from: number,
  to: number,
): void {
  if (elements instanceof Uint16Array) {
    for (let i = from; i < to; i += 1) target[i] = table[elements[i] as number] as number;
    return;
  }
  for (let i = from; i < to; i += 1) {
    const bits = elements[i] as number;
    target[i] = table[(bits >>> 16) | ((bits & 0xffff) === 0 ? 0 : 1)] as number;
  }
}

/** Objects in L1 are; others are copied. */
function aligned(bytes: Uint8Array): Uint8Array {
  return bytes.byteOffset % 4 === 0 ? bytes : Uint8Array.from(bytes);
}

/** kvd runs on little-endian machines only. */
function viewOf(bytes: Uint8Array, offset: number, count: number, sizeBytes: 2 | 4) {
  const start = bytes.byteOffset + offset;
  if (sizeBytes === 2) return new Uint16Array(bytes.buffer, start, count);
  if (start % 4 === 0) return new Uint32Array(bytes.buffer, start, count);
  throw new KvdError('ERR_L2_REFUSED', 'fp8: fp32 elements behind an odd number of 16-bit ones');
}

export const fp8Type: SerdeType = {
  typeName: 'fp8',
  about: 'One byte per bf16, fp16 or fp32 element. Lossy.',
  keys: {
    fp8_dtype: {
      kind: 'text',
      fallback: 'float8_e4m3fn',
      choices: Object.keys(FORMATS),
      about: 'Format of the stored elements, by its torch name.',
    },
    ...WORKER_KEYS,
  },
  async open(values) {
    const format = FORMATS[values['fp8_dtype'] as string] as Fp8Format;
    return new Fp8Serde(format, values['max_workers'] as number);
  },
};
