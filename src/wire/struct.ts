/**
 * Structs: msgpack maps with declared fields (spec wire 2).
 *
 * Unknown keys are ignored, missing keys take the default if there is one, the last of two equal
 * keys wins; of both there is a bound (`FOREIGN_PAIRS_MAX`). The writer writes every field in the
 * declared order, defaults included.
 *
 * A key is compared with the encoded key that is expected next and decoded only when they differ:
 * real clients write the fields in order, so keys normally cost a comparison each.
 */
import { MsgpackWriter } from './msgpack.ts';
import type { Codec, PayloadReader } from './schema.ts';

/**
 * Pairs of a map beyond one for each field. Newer clients add a few fields, none sends a key twice;
 * without a bound a list could be read again and again under one key.
 */
const FOREIGN_PAIRS_MAX = 32;

/** One field of a struct: `name` on the wire, the codec, and what a missing key means. */
export interface Field<T> {
  readonly name: string;
  readonly codec: Codec<T>;
  readonly isRequired: boolean;
  /** Value of a missing key; undefined = the property stays out of the object. */
  readonly fallback: T | undefined;
  /** Which structs have it when they are written; absent = those in which it is not undefined. */
  readonly isWritten?: (value: object) => boolean;
}

export function field<T>(name: string, codec: Codec<T>): Field<T> {
  return { name, codec, isRequired: true, fallback: undefined };
}

export function fieldOr<T>(name: string, codec: Codec<T>, fallback: T): Field<T> {
  return { name, codec, isRequired: false, fallback };
}

/** A field that is not written when it is undefined, and left out when it does not come. */
export function omittable<T>(name: string, codec: Codec<T>): Field<T> {
  return { name, codec, isRequired: false, fallback: undefined };
}

/** A field of newer clients: written when the value is that of one, else `fallback` when read. */
export function fieldWhen<T>(
  name: string,
  codec: Codec<NonNullable<T>> | Codec<T>,
  fallback: T,
  // A method of any struct: its type is known where the fields are put together.
  isWritten: (value: never) => boolean,
): Field<T> {
  return {
    name,
    codec: codec as Codec<T>,
    isRequired: false,
    fallback,
    isWritten: isWritten as (value: object) => boolean,
  };
}

export type FieldsOf<T> = { readonly [K in keyof T]-?: Field<NonNullable<T[K]> | T[K]> };

interface FieldEntry {
  readonly property: string;
  readonly keyBytes: Uint8Array;
  readonly field: Field<unknown>;
}

export function struct<T extends object>(fields: FieldsOf<T>): Codec<T> {
  const keyWriter = new MsgpackWriter();
  const entries = Object.entries<Field<unknown>>(fields).map(([property, entry]): FieldEntry => {
    keyWriter.writeText(entry.name);
    return { property, keyBytes: keyWriter.take(), field: entry };
  });
  return {
    read: (reader) => readStruct(reader, entries) as T,
    write: (writer, value) => writeStruct(writer, entries, value as Record<string, unknown>),
  };
}

function readStruct(
  reader: PayloadReader,
  entries: readonly FieldEntry[],
): Record<string, unknown> {
  const start = reader.offset;
  const count = reader.readMapHeader(entries.length + FOREIGN_PAIRS_MAX);
  const found: Record<string, unknown> = {};
  let next = 0;
  for (let pair = 0; pair < count; pair += 1) {
    const index = matchKey(reader, entries, next);
    if (index < 0) {
      reader.skip();
      continue;
    }
    const entry = entries[index] as FieldEntry;
    reader.place = entry.field.name;
    found[entry.property] = entry.field.codec.read(reader);
    next = index + 1;
  }
  for (const { property, field } of entries) {
    if (property in found) continue;
    if (field.isRequired) {
      reader.place = field.name;
      reader.fail('missing key in the map', start);
    }
    if (field.fallback !== undefined) found[property] = field.fallback;
  }
  return found;
}

/** Index of the field whose key comes next in the frame, or −1 for an unknown key. */
function matchKey(reader: PayloadReader, entries: readonly FieldEntry[], next: number): number {
  const expected = entries[next];
  if (expected && reader.tryExact(expected.keyBytes)) return next;
  reader.place = 'key of a map';
  const name = reader.readText();
  return entries.findIndex((entry) => entry.field.name === name);
}

function writeStruct(
  writer: MsgpackWriter,
  entries: readonly FieldEntry[],
  value: Record<string, unknown>,
): void {
  const present = entries.filter(({ property, field }) =>
    field.isWritten ? field.isWritten(value) : field.isRequired || value[property] !== undefined,
  );
  writer.writeMapHeader(present.length);
  for (const { property, keyBytes, field } of present) {
    writer.writeRaw(keyBytes);
    field.codec.write(writer, value[property]);
  }
}
