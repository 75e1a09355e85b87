/**
 * A map of a client's own making (`request_configs`): text keys, and values of whatever kind
 * msgpack has. It is carried along as plain data and never resolved, called or executed.
 *
 *   kind        value                       kind    value
 *   nil         null                        array   array
 *   bool        boolean                     map     object without a prototype (text keys only)
 *   int         number, or bigint           bin     a copy, because the frame is given back
 *   float       number                      ext     `{ type, data }`, a copy
 *
 * Bounds: depth, elements and bytes of the whole map. What is beyond them is refused as malformed.
 */
import type { MsgpackWriter } from './msgpack.ts';
import type { Codec, PayloadReader } from './schema.ts';

/** Real ones have a handful of pairs of names and numbers. */
const DEPTH_MAX = 16;
const ELEMENTS_MAX = 4096;
const BYTES_MAX = 64 * 1024;

type FreeMap = Record<string, unknown>;

export const freeMap: Codec<Readonly<FreeMap>> = {
  read: (reader) => new FreeReader(reader).readMap(1),
  write: writeMap,
};

class FreeReader {
  readonly #reader: PayloadReader;
  readonly #start: number;
  #elementCount = 0;

  constructor(reader: PayloadReader) {
    this.#reader = reader;
    this.#start = reader.offset;
  }

  readMap(depth: number): FreeMap {
    const count = this.#enter(this.#reader.readMapHeader(), depth);
    // Without a prototype no key means anything but itself.
    const map: FreeMap = Object.create(null);
    for (let pair = 0; pair < count; pair += 1) {
      const key = this.#reader.readText(BYTES_MAX);
      map[key] = this.#readValue(depth);
    }
    return map;
  }

  #readValue(depth: number): unknown {
    const reader = this.#reader;
    switch (reader.peek()) {
      case 'nil':
        return reader.readNil() ?? null;
      case 'bool':
        return reader.readBool();
      case 'int':
        return reader.readInteger();
      case 'float':
        return reader.readFloat();
      case 'bin':
        return this.#within(Uint8Array.from(reader.readBytes()));
      case 'array':
        return this.#readArray(depth + 1);
      case 'map':
        return this.readMap(depth + 1);
      case 'ext': {
        const { type, data } = reader.readExtension();
        return this.#within({ type, data: Uint8Array.from(data) });
      }
      default:
        return this.#within(reader.readText(BYTES_MAX));
    }
  }

  #readArray(depth: number): unknown[] {
    const count = this.#enter(this.#reader.readArrayHeader(), depth);
    const items: unknown[] = [];
    for (let index = 0; index < count; index += 1) items.push(this.#readValue(depth));
    return items;
  }

  #enter(count: number, depth: number): number {
    this.#elementCount += count;
    if (depth > DEPTH_MAX) this.#reader.fail(`nesting deeper than ${DEPTH_MAX}`);
    if (this.#elementCount > ELEMENTS_MAX) this.#reader.fail(`more than ${ELEMENTS_MAX} elements`);
    return this.#within(count);
  }

  #within<T>(value: T): T {
    if (this.#reader.offset - this.#start > BYTES_MAX) {
      this.#reader.fail(`more than ${BYTES_MAX} bytes`);
    }
    return value;
  }
}

function writeMap(writer: MsgpackWriter, map: Readonly<FreeMap>): void {
  const entries = Object.entries(map);
  writer.writeMapHeader(entries.length);
  for (const [key, value] of entries) {
    writer.writeText(key);
    writeValue(writer, value);
  }
}

function writeValue(writer: MsgpackWriter, value: unknown): void {
  if (value === null || value === undefined) writer.writeNil();
  else if (typeof value === 'boolean') writer.writeBool(value);
  else if (typeof value === 'bigint' || Number.isInteger(value)) {
    writer.writeInteger(value as number | bigint);
  } else if (typeof value === 'number') writer.writeFloat(value);
  else if (typeof value === 'string') writer.writeText(value);
  else if (value instanceof Uint8Array) writer.writeBytes(value);
  else if (Array.isArray(value)) {
    writer.writeArrayHeader(value.length);
    for (const item of value) writeValue(writer, item);
  } else writeMap(writer, value as FreeMap);
}
