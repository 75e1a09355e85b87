/**
 * From protobuf messages to msgpack frames, by the tables of `services.ts`.
 *
 *   message ──► frames ──► dialect C reads them, as it reads those of ZMQ
 *
 * So what a request may hold is checked in one place, by the codecs of `requests/`. This file only
 * knows how the same value is written in two formats. Nothing is made per element: a list of
 * numbers (the tokens of a prompt) goes from varints straight to the msgpack array that the chunk
 * hasher reads.
 *
 * A message is scanned first: where the values of each field lie. Fields come in any order, numbers
 * packed or one by one; fields of other numbers are skipped; of two values of a field that is there
 * once the last one counts, and two messages of such a field, which protobuf would merge, are
 * refused (no encoder writes them).
 *
 * Bounds: elements and fields of the whole message (`ELEMENTS_PER_MESSAGE_MAX`, which the frames
 * are held to anyway), messages in a list (`FieldTable.countMax`), and both before anything is
 * allocated for them. A list of numbers at most doubles; the rest is copied, and grows by names.
 * The depth is that of the tables, which do not contain themselves.
 */
import { MsgpackReader, MsgpackWriter } from '../msgpack.ts';
import { ELEMENTS_PER_MESSAGE_MAX } from '../wire-limits.ts';
import { entryTable, type FieldTable, isListOfNumbers, type MessageTable } from './fields.ts';
import { FIXED64, LENGTH, ProtobufReader, VARINT } from './protobuf.ts';

const EXTENSION_TYPE = 1;
const EMPTY = new Uint8Array(0);

/** The frames of a request. */
export interface Transcoded {
  readonly frames: readonly Uint8Array[];
  /** The content of its field of kind `data`, part of the message; its frame is empty. */
  readonly data: Uint8Array | null;
}

/** Where the values of each field begin and end, in turn. */
type Found = readonly (readonly number[])[];

const NOWHERE: readonly number[] = [];

/** Of all requests: each is written in one go. */
const writer = new MsgpackWriter();

function wireTypeOf({ kind }: FieldTable): number {
  switch (kind) {
    case 'int':
    case 'bool':
      return VARINT;
    case 'double':
      return FIXED64;
    default:
      return LENGTH;
  }
}

/** One request. Throws `ERR_WIRE_PAYLOAD`. */
export class RequestTranscoder {
  readonly #bytes: Uint8Array;
  readonly #table: MessageTable;
  readonly #found: Found;
  #elementsLeft = ELEMENTS_PER_MESSAGE_MAX;

  constructor(table: MessageTable, bytes: Uint8Array) {
    this.#table = table;
    this.#bytes = bytes;
    this.#found = this.#scan(table, 0, bytes.length);
  }

  /** Null when the message has no field of that kind. */
  get data(): Uint8Array | null {
    const index = this.#table.fields.findIndex(({ kind }) => kind === 'data');
    if (index < 0) return null;
    const [start, end] = (this.#found[index] as readonly number[]).slice(-2);
    return start === undefined ? EMPTY : this.#bytes.subarray(start, end);
  }

  transcode(): Transcoded {
    const { shape, fields } = this.#table;
    const { data } = this;
    writer.reset();
    if (shape !== 'tuple') {
      this.#writeFields(this.#table, this.#found);
      return { frames: [writer.take()], data };
    }
    const frames = fields.map((field, index) => {
      this.#writeField(field, this.#found[index] as readonly number[]);
      return writer.take();
    });
    return { frames, data };
  }

  #scan(table: MessageTable, start: number, end: number): Found {
    const found: number[][] = table.fields.map(() => []);
    const reader = new ProtobufReader(this.#bytes, start, end, table.name);
    while (!reader.isAtEnd) {
      this.#spend(1, reader);
      const at = reader.offset;
      const tag = reader.readTag();
      const type = tag & 7;
      const index = (tag >>> 3) - 1;
      const field = table.fields[index];
      if (field) reader.place = `${table.name}.${field.name}`;
      const from = reader.skipValue(type);
      if (field) {
        const isPacked = type === LENGTH && isListOfNumbers(field);
        if (!isPacked && type !== wireTypeOf(field)) {
          reader.fail(`expected ${field.kind}, got wire type ${type}`, at);
        }
        const ranges = found[index] as number[];
        // Only lists need all of them.
        if (field.label === 'once' || field.label === 'optional') {
          if (field.kind === 'message' && ranges.length > 0) reader.fail('expected it once', at);
          ranges.length = 0;
        }
        ranges.push(from, reader.offset);
      }
      reader.place = table.name;
    }
    return found;
  }

  #writeMessage(table: MessageTable, start: number, end: number): void {
    this.#writeFields(table, this.#scan(table, start, end));
  }

  #writeFields({ shape, fields }: MessageTable, found: Found): void {
    if (shape === 'map') writer.writeMapHeader(fields.length);
    if (shape === 'tuple') writer.writeArrayHeader(fields.length);
    for (const [index, field] of fields.entries()) {
      if (shape === 'map') writer.writeText(field.name);
      this.#writeField(field, found[index] ?? NOWHERE);
    }
  }

  #writeField(field: FieldTable, ranges: readonly number[]): void {
    if (isListOfNumbers(field)) this.#writeNumbers(field, ranges);
    else if (field.label === 'many' || field.label === 'entries') this.#writeList(field, ranges);
    else if (ranges.length > 0) this.#writeValue(field, ranges[0] as number, ranges[1] as number);
    else if (field.label === 'optional') writer.writeNil();
    else this.#writeDefault(field);
  }

  #writeDefault(field: FieldTable): void {
    switch (field.kind) {
      case 'int':
        writer.writeInteger(0);
        break;
      case 'bool':
        writer.writeBool(false);
        break;
      case 'double':
        writer.writeFloat(0);
        break;
      default:
        this.#writeValue(field, 0, 0);
    }
  }

  #writeValue(field: FieldTable, start: number, end: number): void {
    switch (field.kind) {
      case 'int':
        writer.writeInteger(this.#readerOf(field, start, end).readInteger());
        break;
      case 'bool':
        writer.writeBool(this.#readerOf(field, start, end).readBool());
        break;
      case 'double':
        writer.writeFloat(this.#readerOf(field, start, end).readDouble());
        break;
      case 'text':
        writer.writeUtf8(this.#bytes.subarray(start, end));
        break;
      case 'bytes':
        writer.writeBytes(this.#bytes.subarray(start, end));
        break;
      case 'data':
        writer.writeBytes(EMPTY);
        break;
      case 'wrapper':
        writer.writeExtension(EXTENSION_TYPE, this.#bytes.subarray(start, end));
        break;
      case 'msgpack':
        this.#writeMsgpack(field, start, end);
        break;
      case 'message':
        this.#writeMessage(field.message as MessageTable, start, end);
        break;
    }
  }

  /** Must be one whole value, or what is behind it would be read in its place. */
  #writeMsgpack({ name }: FieldTable, start: number, end: number): void {
    if (start === end) {
      writer.writeMapHeader(0);
      return;
    }
    const value = this.#bytes.subarray(start, end);
    const reader = new MsgpackReader();
    reader.startMessage(this.#elementsLeft);
    reader.reset(value);
    reader.place = name;
    reader.skip();
    reader.end();
    writer.writeRaw(value);
  }

  #writeList(field: FieldTable, ranges: readonly number[]): void {
    const count = ranges.length / 2;
    if (count > field.countMax) {
      const reader = this.#readerOf(field, ranges[0] as number, this.#bytes.length);
      reader.fail(`expected at most ${field.countMax} elements, got ${count}`);
    }
    const isMap = field.label === 'entries';
    if (isMap) writer.writeMapHeader(count);
    else writer.writeArrayHeader(count);
    const entry = isMap ? entryTable(field) : null;
    for (let index = 0; index < ranges.length; index += 2) {
      const start = ranges[index] as number;
      const end = ranges[index + 1] as number;
      if (entry === null) this.#writeValue(field, start, end);
      else this.#writeEntry(entry, start, end);
    }
  }

  #writeEntry(entry: MessageTable, start: number, end: number): void {
    const found = this.#scan(entry, start, end);
    for (const [index, field] of entry.fields.entries()) {
      this.#writeField(field, found[index] ?? NOWHERE);
    }
  }

  #writeNumbers(field: FieldTable, ranges: readonly number[]): void {
    const bytes = this.#bytes;
    let count = 0;
    let sizeBytes = 0;
    for (let index = 0; index < ranges.length; index += 2) {
      const start = ranges[index] as number;
      const end = ranges[index + 1] as number;
      sizeBytes += end - start;
      for (let at = start; at < end; at += 1) if ((bytes[at] as number) < 0x80) count += 1;
      if (end > start && (bytes[end - 1] as number) >= 0x80) {
        this.#readerOf(field, end, end).fail('truncated varint');
      }
    }
    this.#spend(count, this.#readerOf(field, ranges[0] ?? 0, bytes.length));
    writer.writeArrayHeader(count);
    writer.writeFilled(2 * sizeBytes, (buffer, at) => {
      let size = at;
      for (let index = 0; index < ranges.length; index += 2) {
        const end = ranges[index + 1] as number;
        const reader = this.#readerOf(field, ranges[index] as number, end);
        size = transcodeNumbers(reader, buffer, size);
      }
      return size;
    });
  }

  #readerOf({ name }: FieldTable, start: number, end: number): ProtobufReader {
    return new ProtobufReader(this.#bytes, start, end, name);
  }

  #spend(count: number, reader: ProtobufReader): void {
    this.#elementsLeft -= count;
    if (this.#elementsLeft < 0) {
      reader.fail(`expected at most ${ELEMENTS_PER_MESSAGE_MAX} elements and fields`);
    }
  }
}

const wideNumber = new MsgpackWriter();

/**
 * Varints up to the end of `reader`, whose last one ends there, to msgpack integers in their
 * shortest form, behind `size`. A varint of 1 to 10 bytes becomes 1, 3, 5, 5 or 9 bytes: at most
 * twice as many. Numbers below 2^21, which all vocabularies are, cost about 5 ns.
 */
function transcodeNumbers(reader: ProtobufReader, target: Buffer, size: number): number {
  const { bytes, end } = reader;
  let at = size;
  let offset = reader.offset;
  while (offset < end) {
    const first = bytes[offset] as number;
    if (first < 0x80) {
      target[at++] = first;
      offset += 1;
      continue;
    }
    const second = bytes[offset + 1] as number;
    const third = second < 0x80 ? 0 : (bytes[offset + 2] as number);
    if (third < 0x80) {
      const value = (first & 0x7f) | ((second & 0x7f) << 7) | (third << 14);
      offset += second < 0x80 ? 2 : 3;
      if (value > 0xffff) {
        target[at++] = 0xce;
        target[at++] = 0;
        target[at++] = value >>> 16;
      } else target[at++] = value > 0xff ? 0xcd : 0xcc;
      if (value > 0xff) target[at++] = value >>> 8;
      target[at++] = value;
      continue;
    }
    reader.offset = offset;
    wideNumber.reset();
    wideNumber.writeInteger(reader.readInteger());
    offset = reader.offset;
    const wide = wideNumber.take();
    target.set(wide, at);
    at += wide.length;
  }
  return at;
}
