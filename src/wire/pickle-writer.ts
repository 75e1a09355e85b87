/**
 * Writes the pickle of one wrapper of host shared memory, byte for byte as Python's protocol 4
 * does, for our own client (tests, `kvd bench`). The server never writes a wrapper.
 *
 * The opcodes and their order are drawn in `pickle.ts`. Python puts every string, tuple and object
 * into its memo with one MEMOIZE each, whether or not it is needed again; an empty tuple is not
 * memoized. FRAME holds the length of everything behind it.
 */
import { assert } from '../assert.ts';
import type { CpuShmWrapper } from '../device/tensor-wrapper.ts';

const PROTO_4 = [0x80, 0x04];
const FRAME = 0x95;
const STACK_GLOBAL = 0x93;
const MEMOIZE = 0x94;
const EMPTY_TUPLE = 0x29;
const NEWOBJ = 0x81;
const EMPTY_DICT = 0x7d;
const MARK = 0x28;
const SETITEMS = 0x75;
const BUILD = 0x62;
const STOP = 0x2e;
const NONE = 0x4e;
const SHORT_BINUNICODE = 0x8c;
const TUPLE = 0x74;
/** Opcodes for tuples of one, two and three elements. */
const SHORT_TUPLES: readonly number[] = [0x85, 0x86, 0x87];

export function writeShmWrapperPickle(wrapper: CpuShmWrapper): Uint8Array {
  const body = [
    ...classReference('lmcache.v1.platform.cpu.shm', 'CpuShmTensorWrapper'),
    ...[EMPTY_TUPLE, NEWOBJ, MEMOIZE, EMPTY_DICT, MEMOIZE, MARK],
    ...text('shm_name'),
    ...text(wrapper.shmName),
    ...text('nbytes'),
    ...integer(wrapper.sizeBytes),
    ...text('handle'),
    NONE,
    ...text('dtype'),
    ...classReference('torch', wrapper.dtype),
    ...text('shape'),
    ...tuple(wrapper.shape),
    ...text('stride'),
    ...tuple(wrapper.stride),
    ...text('storage_offset'),
    ...integer(wrapper.storageOffset),
    ...text('device_uuid'),
    ...text(wrapper.deviceUuid),
    ...[SETITEMS, BUILD, STOP],
  ];
  return Uint8Array.from([...PROTO_4, FRAME, ...littleEndian(BigInt(body.length), 8), ...body]);
}

function classReference(module: string, name: string): number[] {
  return [...text(module), ...text(name), STACK_GLOBAL, MEMOIZE];
}

function text(value: string): number[] {
  const encoded = Buffer.from(value, 'utf8');
  assert(encoded.length <= 0xff, 'names in a wrapper have at most 255 bytes');
  return [SHORT_BINUNICODE, encoded.length, ...encoded, MEMOIZE];
}

function tuple(values: readonly number[]): number[] {
  if (values.length === 0) return [EMPTY_TUPLE];
  const items = values.flatMap(integer);
  const short = SHORT_TUPLES[values.length - 1];
  return short === undefined ? [MARK, ...items, TUPLE, MEMOIZE] : [...items, short, MEMOIZE];
}

/** BININT1, BININT2, BININT or LONG1, whichever is shortest; `value` is never negative here. */
export function integer(value: number): number[] {
  if (value <= 0xff) return [0x4b, value];
  if (value <= 0xffff) return [0x4d, ...littleEndian(BigInt(value), 2)];
  if (value <= 0x7fff_ffff) return [0x4a, ...littleEndian(BigInt(value), 4)];
  // LONG1 is signed, so the top bit of its last byte stays clear.
  const size = Math.floor(BigInt(value).toString(2).length / 8) + 1;
  return [0x8a, size, ...littleEndian(BigInt(value), size)];
}

export function littleEndian(value: bigint, size: number): number[] {
  return Array.from({ length: size }, (_, index) => Number((value >> BigInt(index * 8)) & 0xffn));
}
