/** Other servers: objects that they read from this one (spec wire 3, P2P). */
import type { MemoryLayout, ReplyOf, RequestOf } from '../../engine/api.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import { form, operation } from '../operation.ts';
import { frames } from '../payload-frames.ts';
import {
  array,
  bytes,
  type Codec,
  integer,
  integers,
  looseInteger,
  mapOf,
  mapped,
  nothing,
  nullable,
  text,
} from '../schema.ts';
import { field, fieldOr, struct } from '../struct.ts';
import { CHUNK_LIST_COUNT_MAX } from '../wire-limits.ts';
import { anyInteger, cacheSalt, dtype, MINUS_ONE, NAME_BYTES_MAX, NIL } from './fields.ts';

const objectKeys = array(
  struct<ObjectKey>({
    chunkHash: field('chunk_hash', bytes),
    modelName: field(
      'model_name',
      text(NAME_BYTES_MAX, (value) =>
        value.includes('@') ? 'expected a model name without @' : null,
      ),
    ),
    kvRank: field('kv_rank', anyInteger),
    objectGroupId: fieldOr('object_group_id', integer(0), 0),
    cacheSalt: fieldOr('cache_salt', cacheSalt, ''),
  }),
  CHUNK_LIST_COUNT_MAX,
);

const memoryLayout = mapped<MemoryLayout, MemoryLayout>(
  struct<MemoryLayout>({
    shapes: field('shapes', array(integers)),
    dtypes: field('dtypes', array(dtype)),
  }),
  (layout, reader) => {
    const { shapes, dtypes } = layout;
    if (shapes.length === dtypes.length) return layout;
    return reader.fail(
      `expected as many dtypes as shapes, got ${dtypes.length} and ${shapes.length}`,
    );
  },
  (layout) => layout,
);

type Layouts = RequestOf<'P2P_LOOKUP_AND_LOCK'>['layouts'];

/** Before 0.5.3 all objects were of one group. */
const singleLayout = mapped<MemoryLayout, Layouts>(
  memoryLayout,
  (layout) => new Map([[0, layout]]),
  (layouts) => layouts.get(0) as MemoryLayout,
);

const transferAddresses: Codec<NonNullable<ReplyOf<'P2P_QUERY_LOOKUP_RESULTS'>>> = array(
  struct<{ readonly offset: number; readonly size: number }>({
    offset: field('offset', anyInteger),
    size: field('size', anyInteger),
  }),
  CHUNK_LIST_COUNT_MAX,
);

export const PEER_OPERATIONS = {
  P2P_LOOKUP_AND_LOCK: operation('P2P_LOOKUP_AND_LOCK', looseInteger, MINUS_ONE),
  P2P_QUERY_LOOKUP_RESULTS: operation('P2P_QUERY_LOOKUP_RESULTS', nullable(transferAddresses), NIL),
  P2P_UNLOCK_OBJECTS: operation('P2P_UNLOCK_OBJECTS', nothing, NIL),
} as const;

export const PEER_FORMS = {
  P2P_QUERY_LOOKUP_RESULTS: [
    form('i', frames<RequestOf<'P2P_QUERY_LOOKUP_RESULTS'>>({ taskId: looseInteger })),
  ],
  P2P_UNLOCK_OBJECTS: [form('a', frames<RequestOf<'P2P_UNLOCK_OBJECTS'>>({ keys: objectKeys }))],
} as const;

const peerLookup = (layouts: Codec<Layouts>) =>
  form('am', frames<RequestOf<'P2P_LOOKUP_AND_LOCK'>>({ keys: objectKeys, layouts }));

export const P2P_LOOKUP_OF_ONE_LAYOUT = peerLookup(singleLayout);
export const P2P_LOOKUP_OF_GROUPS = peerLookup(mapOf(memoryLayout));
