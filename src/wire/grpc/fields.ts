/**
 * How messages are described: tables that say which field is which msgpack value.
 *
 * The protobuf messages of the gRPC transport say the same as the msgpack frames of clients that
 * use ZMQ, value by value. So a table needs no types of its own:
 *
 *   shape      as msgpack
 *   map        a map; the names of the fields are its keys, in this order
 *   tuple      an array, one element per field; of a request: one frame per field
 *   only       the value of the only field
 *
 *   kind       as protobuf           as msgpack
 *   int        int64                 int
 *   bool       bool                  bool
 *   double     double                float
 *   text       string                str
 *   bytes      bytes                 bin
 *   msgpack    bytes                 those bytes; none at all = an empty map
 *   wrapper    bytes                 ext 1 (`device-wrapper.ts`)
 *   data       bytes                 an empty bin; the bytes are handed over as they lie
 *   message    message               by its own table
 *
 * A field is there once (missing = zero or empty, as proto3 has it), `optional` (missing = nil),
 * `many` (an array), or `entries` (a map from integers to messages).
 */
import { assert } from '../../assert.ts';
import { LIST_COUNT_MAX } from '../wire-limits.ts';

export type Kind =
  | 'int'
  | 'bool'
  | 'double'
  | 'text'
  | 'bytes'
  | 'msgpack'
  | 'wrapper'
  | 'data'
  | 'message';

export interface FieldTable {
  /** From 1, without gaps: the index in its message plus one. */
  readonly number: number;
  readonly name: string;
  readonly kind: Kind;
  readonly label: 'once' | 'optional' | 'many' | 'entries';
  /** Of `message`. */
  readonly message?: MessageTable;
  /** Of `many` and `entries` of messages; numbers are bounded by the budget of the request. */
  readonly countMax: number;
}

export interface MessageTable {
  readonly name: string;
  readonly shape: 'map' | 'tuple' | 'only';
  readonly fields: readonly FieldTable[];
}

const scalar =
  (kind: Kind) =>
  (number: number, name: string): FieldTable => ({
    ...{ number, name, kind, label: 'once', countMax: LIST_COUNT_MAX },
  });

export const int = scalar('int');
export const bool = scalar('bool');
export const double = scalar('double');
export const text = scalar('text');
export const bytes = scalar('bytes');
export const msgpack = scalar('msgpack');
export const wrapper = scalar('wrapper');
export const data = scalar('data');

export function nested(number: number, name: string, message: MessageTable): FieldTable {
  return { number, name, kind: 'message', label: 'once', message, countMax: LIST_COUNT_MAX };
}

export function optional(field: FieldTable): FieldTable {
  return { ...field, label: 'optional' };
}

export function many(field: FieldTable, countMax: number = LIST_COUNT_MAX): FieldTable {
  return { ...field, label: 'many', countMax };
}

export function entries(field: FieldTable): FieldTable {
  return { ...field, label: 'entries' };
}

const ofShape =
  (shape: MessageTable['shape']) =>
  (name: string, ...fields: readonly FieldTable[]): MessageTable => {
    const isInOrder = fields.every(({ number }, index) => number === index + 1);
    assert(isInOrder, `the fields of ${name} are in order and without gaps`);
    return { name, shape, fields };
  };

export const map = ofShape('map');
export const tuple = ofShape('tuple');
export const only = ofShape('only');

/** Which may be packed: all of them in one value. */
export function isListOfNumbers({ kind, label }: FieldTable): boolean {
  return kind === 'int' && label === 'many';
}

/** One entry of a protobuf map: a message of key and value. */
export function entryTable(field: FieldTable): MessageTable {
  return map(field.name, int(1, 'key'), nested(2, 'value', field.message as MessageTable));
}
