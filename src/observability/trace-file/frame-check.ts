/**
 * Looks over a frame before it is decoded: a trace comes from anywhere, and the decoder believes
 * what it reads. Walks the MessagePack without recursion and without allocation for what a frame
 * announces, and refuses
 *
 *   a length or count that is more than the bytes that are left (each element has one at least)
 *   nesting above DEPTH_MAX, more values than VALUE_COUNT_MAX (a value takes far more room than
 *   its byte), bytes behind the value, the reserved byte c1
 *
 *   00-7f e0-ff c0 c2 c3   1 byte                 cc-cf d0-d3    int, 1 2 4 8 bytes follow
 *   80-8f 90-9f a0-bf      map, array, str        d4-d8          ext, type and 1 2 4 8 16 bytes
 *   c4-c6 d9-db            bin, str: length       dc-df          array, map: count
 *   c7-c9                  ext: length, type      ca cb          float, 4 8 bytes follow
 */

/** A record nests seven levels. */
export const DEPTH_MAX = 32;
/** The largest record has half a million keys of fifteen values. */
export const VALUE_COUNT_MAX = 10_000_000;

/** What is wrong with a frame; null = it is one whole value of MessagePack. */
export function faultOfFrame(frame: Uint8Array): string | null {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
  /** Values that are still to come on each level. */
  const counts = new Float64Array(DEPTH_MAX + 1);
  counts[0] = 1;
  let depth = 0;
  let offset = 0;
  let valueCount = 0;
  while (depth >= 0) {
    if (counts[depth] === 0) {
      depth -= 1;
      continue;
    }
    counts[depth] = (counts[depth] as number) - 1;
    const head = frame[offset];
    if (head === undefined) return `expected a value at byte ${offset}, got the end`;
    const size = sizeOf(head, view, offset);
    if (size === null) return `expected a value at byte ${offset}, got byte ${head.toString(16)}`;
    const { bytes, elements } = size;
    if (offset + bytes + elements > frame.length) {
      const wanted = elements > 0 ? `${elements} elements` : `${bytes} bytes`;
      const known = Number.isFinite(bytes + elements) ? wanted : 'a length';
      return `expected ${known} at byte ${offset}, got ${frame.length - offset} bytes`;
    }
    offset += bytes;
    if (elements === 0) continue;
    valueCount += elements;
    if (valueCount > VALUE_COUNT_MAX) return `expected at most ${VALUE_COUNT_MAX} values, got more`;
    if (depth === DEPTH_MAX) return `expected at most ${DEPTH_MAX} levels, got more`;
    depth += 1;
    counts[depth] = elements;
  }
  const restBytes = frame.length - offset;
  return restBytes === 0 ? null : `expected one value, got ${restBytes} bytes behind it`;
}

interface Size {
  /** Head, length field and content, without elements. */
  readonly bytes: number;
  /** Values that follow: of an array, or keys and values of a map. */
  readonly elements: number;
}

const plain = (bytes: number): Size => ({ bytes, elements: 0 });
const SCALAR = plain(1);
/** cc-cf, d0-d3: integers; ca, cb: floats; d4-d8: extensions of a fixed size. */
const FIXED: readonly (Size | undefined)[] = Array.from({ length: 256 }, (_, head) => {
  if (head === 0xca || head === 0xcb) return plain(head === 0xca ? 5 : 9);
  if (head >= 0xcc && head <= 0xcf) return plain(1 + 2 ** (head - 0xcc));
  if (head >= 0xd0 && head <= 0xd3) return plain(1 + 2 ** (head - 0xd0));
  if (head >= 0xd4 && head <= 0xd8) return plain(2 + 2 ** (head - 0xd4));
  const isScalar = head <= 0x7f || head >= 0xe0 || head === 0xc0 || head === 0xc2 || head === 0xc3;
  return isScalar ? SCALAR : undefined;
});

function sizeOf(head: number, view: DataView, offset: number): Size | null {
  const fixed = FIXED[head];
  if (fixed) return fixed;
  if (head <= 0x8f) return { bytes: 1, elements: 2 * (head & 0x0f) };
  if (head <= 0x9f) return { bytes: 1, elements: head & 0x0f };
  if (head <= 0xbf) return plain(1 + (head & 0x1f));
  switch (head) {
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return variable(view, offset, head - 0xc4, 0);
    case 0xc7:
    case 0xc8:
    case 0xc9:
      return variable(view, offset, head - 0xc7, 1);
    case 0xd9:
    case 0xda:
    case 0xdb:
      return variable(view, offset, head - 0xd9, 0);
    case 0xdc:
    case 0xdd:
      return { bytes: 1 + 2 ** (head - 0xdb), elements: lengthAt(view, offset + 1, head - 0xdb) };
    case 0xde:
    case 0xdf: {
      const count = lengthAt(view, offset + 1, head - 0xdd);
      return { bytes: 1 + 2 ** (head - 0xdd), elements: 2 * count };
    }
    default:
      return null;
  }
}

function variable(view: DataView, offset: number, exponent: number, extraBytes: number): Size {
  return plain(1 + 2 ** exponent + extraBytes + lengthAt(view, offset + 1, exponent));
}

/** A length field of 2^exponent bytes; infinite where the frame ends before it. */
function lengthAt(view: DataView, offset: number, exponent: number): number {
  if (offset + 2 ** exponent > view.byteLength) return Number.POSITIVE_INFINITY;
  if (exponent === 0) return view.getUint8(offset);
  return exponent === 1 ? view.getUint16(offset) : view.getUint32(offset);
}
