/**
 * From the response frame that dialect C writes, or the failure value of an operation, to a
 * protobuf message, by the tables of `services.ts`.
 *
 * The frame is our own, so what does not fit its table is our error. Numbers of value zero, empty
 * texts and empty bytes are left out where proto3 leaves them out.
 */
import { assert } from '../../assert.ts';
import { MsgpackReader } from '../msgpack.ts';
import { entryTable, type FieldTable, isListOfNumbers, type MessageTable } from './fields.ts';
import { FIXED64, LENGTH, ProtobufWriter, VARINT } from './protobuf.ts';

const EMPTY = new Uint8Array(0);

const reader = new MsgpackReader();
const writer = new ProtobufWriter();

/** The message of a response frame; null = the frame that the protocol leaves out. */
export function transcodeReply(table: MessageTable, frame: Uint8Array | null): Buffer {
  writer.reset();
  reader.startMessage(Number.POSITIVE_INFINITY);
  if (frame !== null) {
    reader.reset(frame);
    if (table.fields.length === 0) reader.readNil();
    else if (!reader.tryNil()) writeFields(table);
    reader.end();
  }
  return writer.take();
}

function writeFields({ name, shape, fields }: MessageTable): void {
  const count = fields.length;
  if (shape === 'map') assert(reader.readMapHeader() === count, `${name} has ${count} keys`);
  if (shape === 'tuple') {
    assert(reader.readArrayHeader() === count, `${name} has ${count} elements`);
  }
  for (const field of fields) {
    if (shape === 'map') assert(reader.readText() === field.name, `${name} has ${field.name}`);
    writeField(field);
  }
}

function writeField(field: FieldTable): void {
  const { number, label } = field;
  if (label === 'optional') {
    if (!reader.tryNil()) writeValue(field, true);
  } else if (label === 'once') writeValue(field, field.kind === 'message');
  else if (isListOfNumbers(field)) {
    const values = reader.readIntegers();
    if (values.length === 0) return;
    writer.writeTag(number, LENGTH);
    writer.writeNested(() => {
      for (const value of values) writer.writeInteger(value);
    });
  } else if (label === 'many') {
    for (let left = reader.readArrayHeader(); left > 0; left -= 1) writeValue(field, true);
  } else {
    const { fields } = entryTable(field);
    for (let left = reader.readMapHeader(); left > 0; left -= 1) {
      writer.writeTag(number, LENGTH);
      writer.writeNested(() => {
        for (const each of fields) writeValue(each, true);
      });
    }
  }
}

/** `isExplicit`: it is written also when it is zero or empty. */
function writeValue(field: FieldTable, isExplicit: boolean): void {
  const { number, kind } = field;
  switch (kind) {
    case 'int': {
      const value = reader.readInteger();
      if (value === 0 && !isExplicit) return;
      writer.writeTag(number, VARINT);
      writer.writeInteger(value);
      break;
    }
    case 'bool': {
      const value = reader.readBool();
      if (!value && !isExplicit) return;
      writer.writeTag(number, VARINT);
      writer.writeInteger(value ? 1 : 0);
      break;
    }
    case 'double': {
      const value = reader.readFloat();
      if (value === 0 && !isExplicit) return;
      writer.writeTag(number, FIXED64);
      writer.writeDouble(value);
      break;
    }
    case 'message':
      writer.writeTag(number, LENGTH);
      writer.writeNested(() => writeFields(field.message as MessageTable));
      break;
    default: {
      const content = readContent(field);
      if (content.length === 0 && !isExplicit) return;
      writer.writeTag(number, LENGTH);
      writer.writeBytes(content);
    }
  }
}

function readContent({ kind }: FieldTable): Uint8Array {
  switch (kind) {
    case 'text':
      return Buffer.from(reader.readText());
    case 'wrapper':
      return reader.readExtension().data;
    case 'msgpack': {
      const start = reader.offset;
      reader.skip();
      const value = reader.bytes.subarray(start, reader.offset);
      return value.length === 1 && value[0] === 0x80 ? EMPTY : value;
    }
    default:
      return reader.readBytes();
  }
}
