/**
 * What requests of several subjects are made of: names, numbers, dtypes, keys.
 *
 * Numbers are passed on as they came, also when they make no sense (a range beyond the tokens, a
 * negative block id): the handler knows what they should be. Checked here is only what would be
 * wrong for every server: kinds, the closed lists of names, and bounds that keep a hostile number
 * away from allocations.
 */
import { DTYPE_SIZE_BYTES, type DtypeName } from '../../device/tensor-wrapper.ts';
import type { CacheKey, InstanceId, TransferReply } from '../../engine/api.ts';
import { freeMap } from '../free-form.ts';
import { neutral } from '../operation.ts';
import { frames } from '../payload-frames.ts';
import {
  array,
  bool,
  bytes,
  type Codec,
  enumeration,
  integer,
  integers,
  looseInstanceId,
  looseInteger,
  mapped,
  nothing,
  nullable,
  type PayloadReader,
  pair,
  text,
  tokens,
} from '../schema.ts';
import { field, fieldOr, fieldWhen, struct } from '../struct.ts';

/** Names are paths and ids; 4 KiB is PATH_MAX. */
export const NAME_BYTES_MAX = 4096;
const SALT_CHARS_MAX = 128;
/** A salt becomes part of keys and file names of slower stores, so it cannot hold separators. */
const SALT_FORBIDDEN = /[@/\\\0]/;
/** Ranks have 16 bits in `kv_rank` (spec wire 4). */
export const WORLD_SIZE_MAX = 65_535;

export const name = text(NAME_BYTES_MAX);
export const anyInteger = integer();
export const worldSize = integer(1, WORLD_SIZE_MAX);

export const cacheSalt = text(SALT_CHARS_MAX * 4, (salt) => {
  // Counted as the peer counts: in code points.
  if (salt.length > SALT_CHARS_MAX && [...salt].length > SALT_CHARS_MAX) {
    return `expected a salt of at most ${SALT_CHARS_MAX} characters`;
  }
  return SALT_FORBIDDEN.test(salt) ? 'expected a salt without @ / \\ and NUL' : null;
});

/** The last two fields exist since 0.5.5, and clients that have them write them always. */
const isSince055 = ({ readerCount }: CacheKey) => readerCount !== null;

export const cacheKey = struct<CacheKey>({
  modelName: field('model_name', name),
  worldSize: field('world_size', worldSize),
  workerId: field('worker_id', nullable(integer(0, WORLD_SIZE_MAX))),
  tokens: field('token_ids', tokens),
  startToken: field('start', anyInteger),
  endToken: field('end', anyInteger),
  requestId: field('request_id', name),
  cacheSalt: fieldOr('cache_salt', cacheSalt, ''),
  requestConfigs: fieldWhen('request_configs', nullable(freeMap), null, isSince055),
  readerCount: fieldWhen('num_kv_readers', integer(0, WORLD_SIZE_MAX), null, isSince055),
});

/** The client's interface allows None where the peer's schema does not; None means empty. */
export function nilAsDefault<T>(codec: Codec<T>, fallback: T): Codec<T> {
  return mapped(
    nullable(codec),
    (value) => value ?? fallback,
    (value) => value,
  );
}

const DTYPE_ALIASES: ReadonlyMap<string, DtypeName> = new Map([
  ['half', 'float16'],
  ['float', 'float32'],
  ['double', 'float64'],
  ['short', 'int16'],
  ['int', 'int32'],
  ['long', 'int64'],
]);

const dtypeNames = Object.keys(DTYPE_SIZE_BYTES) as DtypeName[];
export const dtype = enumeration(dtypeNames);
/** The worker's own spelling, with PyTorch's aliases. */
export const dtypeText = mapped<string, DtypeName>(
  enumeration([...dtypeNames, ...DTYPE_ALIASES.keys()]),
  (value) => DTYPE_ALIASES.get(value) ?? (value as DtypeName),
  (value) => value,
);

export const blockIdsPerGroup = array(integers);

/** A name of a request as a whole frame. */
export const byRequest = frames<{ readonly requestId: string }>({ requestId: name });
export const byInstance = frames<{ readonly instanceId: InstanceId }>({
  instanceId: looseInstanceId,
});
export const keyed = { key: cacheKey, instanceId: looseInstanceId };
export const withTpSize = frames<{ readonly key: CacheKey; readonly tpSize: number }>({
  key: cacheKey,
  tpSize: looseInteger,
});

export const transferReply = mapped<[Uint8Array, boolean], TransferReply>(
  pair(bytes, bool),
  ([event, ok]) => ({ event, ok }),
  ({ event, ok }) => [event, ok],
);

/** A whole frame declared `int` is read loosely, so its bounds are checked afterwards. */
export function looseIntegerIn(min: number, max: number, what: string): Codec<number> {
  const check = (value: number, reader: PayloadReader): number => {
    if (value >= min && value <= max) return value;
    return reader.fail(`expected ${what} from ${min} to ${max}, got ${value}`);
  };
  return mapped(looseInteger, check, (value) => value);
}

export const NIL = neutral(nothing, undefined);
export const FALSE = neutral(bool, false);
export const ZERO = neutral(anyInteger, 0);
export const MINUS_ONE = neutral(anyInteger, -1);
export const EMPTY_ARRAY = neutral(integers, []);
