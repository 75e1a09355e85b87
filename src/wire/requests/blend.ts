/**
 * Blending: chunks that are reused away from the beginning of a prompt (spec wire 3, modules B and
 * V). The operations of two older engines, which 0.5.5 dropped, and those of V3, whose requests
 * changed with every second release.
 */
import type { BlendMatch, ReplyOf, RequestOf } from '../../engine/api.ts';
import { describedWrapper, pickledWrapper } from '../device-wrapper.ts';
import { form, neutral, operation, REFUSED_TRANSFER, REGISTRATION } from '../operation.ts';
import { type FramesCodec, frames, mappedFrames } from '../payload-frames.ts';
import {
  array,
  bool,
  bytes,
  type Codec,
  integers,
  looseBool,
  looseInstanceId,
  looseInteger,
  mapped,
  nothing,
  nullable,
  pair,
  text,
} from '../schema.ts';
import { field, fieldOr, struct } from '../struct.ts';
import { CHUNK_LIST_COUNT_MAX } from '../wire-limits.ts';
import {
  anyInteger,
  blockIdsPerGroup,
  byInstance,
  cacheKey,
  EMPTY_ARRAY,
  looseIntegerIn,
  NAME_BYTES_MAX,
  NIL,
  name,
  transferReply,
  WORLD_SIZE_MAX,
  withTpSize,
} from './fields.ts';

const blendMatches = array(
  struct<BlendMatch>({
    oldStart: field('old_st', anyInteger),
    oldEnd: field('old_ed', anyInteger),
    currentStart: field('cur_st', anyInteger),
    currentEnd: field('cur_ed', anyInteger),
    hash: field('hash', bytes),
  }),
  CHUNK_LIST_COUNT_MAX,
);
const tokenRanges = array(pair(anyInteger, anyInteger), CHUNK_LIST_COUNT_MAX);

type UnifiedLookup = NonNullable<ReplyOf<'CB_UNIFIED_LOOKUP'>>;
const unifiedLookupReply = struct<UnifiedLookup>({
  prefixCoverageTokens: field('prefix_coverage_tokens', anyInteger),
  nonPrefixSegments: field('non_prefix_segments', blendMatches),
  segmentedPrefixSegments: fieldOr('segmented_prefix_segments', blendMatches, []),
});

const handshakeReply = mapped<[number, boolean], ReplyOf<'CB_PROTOCOL_HANDSHAKE'>>(
  pair(anyInteger, bool),
  ([serverVersion, isCompatible]) => ({ serverVersion, isCompatible }),
  ({ serverVersion, isCompatible }) => [serverVersion, isCompatible],
);

const nothingFound: UnifiedLookup = {
  prefixCoverageTokens: 0,
  nonPrefixSegments: [],
  segmentedPrefixSegments: [],
};

export const BLEND_OPERATIONS = {
  CB_REGISTER_KV_CACHE: operation('CB_REGISTER_KV_CACHE', nothing, REGISTRATION),
  CB_UNREGISTER_KV_CACHE: operation('CB_UNREGISTER_KV_CACHE', nothing, NIL),
  CB_STORE_PRE_COMPUTED: operation('CB_STORE_PRE_COMPUTED', transferReply, REFUSED_TRANSFER),
  CB_LOOKUP_PRE_COMPUTED: operation('CB_LOOKUP_PRE_COMPUTED', tokenRanges, EMPTY_ARRAY),
  CB_RETRIEVE_PRE_COMPUTED: operation('CB_RETRIEVE_PRE_COMPUTED', transferReply, REFUSED_TRANSFER),
  CB_STORE_FINAL: operation('CB_STORE_FINAL', transferReply, REFUSED_TRANSFER),
  CB_LOOKUP_PRE_COMPUTED_V2: operation('CB_LOOKUP_PRE_COMPUTED_V2', blendMatches, EMPTY_ARRAY),
  CB_RETRIEVE_PRE_COMPUTED_V2: operation(
    'CB_RETRIEVE_PRE_COMPUTED_V2',
    transferReply,
    REFUSED_TRANSFER,
  ),
  CB_REGISTER_ROPE_V3: operation('CB_REGISTER_ROPE_V3', nothing, REGISTRATION),
  CB_UNREGISTER_ROPE_V3: operation('CB_UNREGISTER_ROPE_V3', nothing, NIL),
  CB_RETRIEVE_PRE_COMPUTED_V3: operation(
    'CB_RETRIEVE_PRE_COMPUTED_V3',
    transferReply,
    REFUSED_TRANSFER,
  ),
  CB_UNIFIED_LOOKUP: operation(
    'CB_UNIFIED_LOOKUP',
    nullable(unifiedLookupReply),
    neutral(unifiedLookupReply, nothingFound),
  ),
  CB_PROTOCOL_HANDSHAKE: operation(
    'CB_PROTOCOL_HANDSHAKE',
    handshakeReply,
    neutral(handshakeReply, { serverVersion: 0, isCompatible: false }),
  ),
  CB_REORDER_PLAN: operation('CB_REORDER_PLAN', integers, EMPTY_ARRAY),
} as const;

const blendStore = form(
  'miib',
  frames<RequestOf<'CB_STORE_FINAL'>>({
    key: cacheKey,
    offset: looseInteger,
    instanceId: looseInstanceId,
    event: bytes,
  }),
);

/** Forms that never changed, or whose operations went before they could. */
export const BLEND_FORMS = {
  CB_REGISTER_KV_CACHE: [
    form(
      'iasi',
      frames<RequestOf<'CB_REGISTER_KV_CACHE'>>({
        instanceId: looseInstanceId,
        wrappers: array(pickledWrapper),
        modelName: name,
        worldSize: looseIntegerIn(1, WORLD_SIZE_MAX, 'a world size'),
      }),
    ),
  ],
  CB_UNREGISTER_KV_CACHE: [form('i', byInstance)],
  CB_STORE_PRE_COMPUTED: [blendStore],
  CB_LOOKUP_PRE_COMPUTED: [
    form('m', frames<RequestOf<'CB_LOOKUP_PRE_COMPUTED'>>({ key: cacheKey })),
  ],
  CB_RETRIEVE_PRE_COMPUTED: [
    form(
      'maiib',
      frames<RequestOf<'CB_RETRIEVE_PRE_COMPUTED'>>({
        key: cacheKey,
        ranges: tokenRanges as Codec<[number, number][]>,
        offset: looseInteger,
        instanceId: looseInstanceId,
        event: bytes,
      }),
    ),
  ],
  CB_STORE_FINAL: [blendStore],
  CB_LOOKUP_PRE_COMPUTED_V2: [
    form('m', frames<RequestOf<'CB_LOOKUP_PRE_COMPUTED_V2'>>({ key: cacheKey })),
  ],
  CB_RETRIEVE_PRE_COMPUTED_V2: [
    form(
      'maiib',
      frames<RequestOf<'CB_RETRIEVE_PRE_COMPUTED_V2'>>({
        key: cacheKey,
        matches: blendMatches,
        offset: looseInteger,
        instanceId: looseInstanceId,
        event: bytes,
      }),
    ),
  ],
  CB_UNREGISTER_ROPE_V3: [form('i', byInstance)],
  CB_UNIFIED_LOOKUP: [form('mi', withTpSize)],
  CB_PROTOCOL_HANDSHAKE: [
    form('i', frames<RequestOf<'CB_PROTOCOL_HANDSHAKE'>>({ clientVersion: looseInteger })),
  ],
  CB_REORDER_PLAN: [
    form(
      'mii',
      frames<RequestOf<'CB_REORDER_PLAN'>>({
        key: cacheKey,
        keepPrefix: looseInteger,
        budgetMs: looseInteger,
      }),
    ),
  ],
} as const;

type RopeRequest = RequestOf<'CB_REGISTER_ROPE_V3'>;

const pickledCaches = array(pickledWrapper);
const describedCaches = array(describedWrapper);
/** The one cache that clients of 0.5.0 and 0.5.1 have. */
const onlyCache = mapped(
  pickledWrapper,
  (cache) => [cache] as RopeRequest['cosSinCaches'],
  ([cache]) => cache as RopeRequest['cosSinCaches'][number],
);

const rope = (cosSinCaches: Codec<RopeRequest['cosSinCaches']>) => ({
  instanceId: looseInstanceId,
  cosSinCaches,
  headSize: looseInteger,
  isNeoxStyle: looseBool,
});
const groupToCache = { groupToCache: integers };
const groupRotations = { groupRotations: array(pair(anyInteger, anyInteger)) };
const headSizes = {
  groupHeadSizes: integers,
  kvQuantisation: text(NAME_BYTES_MAX),
};

/** What the shorter forms do not say. */
const PLAIN_ROPE = {
  groupToCache: [],
  groupRotations: [],
  groupHeadSizes: [],
  kvQuantisation: '',
} as const;

function completed<T extends object>(codec: FramesCodec<T>): FramesCodec<RopeRequest> {
  return mappedFrames(
    codec,
    (request) => ({ ...PLAIN_ROPE, ...request }) as unknown as RopeRequest,
    (request) => request as unknown as T,
  );
}

export const ROPE_SINCE_050 = form('ixit', completed(frames(rope(onlyCache))));
export const ROPE_SINCE_052 = form(
  'iaita',
  completed(frames({ ...rope(pickledCaches), ...groupToCache })),
);
export const ROPE_SINCE_053 = form(
  'iaitaa',
  completed(frames({ ...rope(pickledCaches), ...groupToCache, ...groupRotations })),
);
export const ROPE_SINCE_056 = form(
  'iaitaaas',
  frames<RopeRequest>({
    ...rope(describedCaches),
    ...groupToCache,
    ...groupRotations,
    ...headSizes,
  }),
);

/** Clients of 0.5.0 and 0.5.1 know one kernel group: one list, not nested. */
const oneOrManyLists: Codec<readonly (readonly number[])[]> = {
  read(reader) {
    const start = reader.offset;
    const count = reader.readArrayHeader();
    const isNested = count > 0 && reader.peek() === 'array';
    reader.offset = start;
    return isNested ? blockIdsPerGroup.read(reader) : [integers.read(reader)];
  },
  write(writer, lists) {
    if (lists.length === 1) integers.write(writer, lists[0] as readonly number[]);
    else blockIdsPerGroup.write(writer, lists);
  },
};

const blendRetrieve = (blockIds: Codec<readonly (readonly number[])[]>) =>
  form(
    'maaib',
    frames<RequestOf<'CB_RETRIEVE_PRE_COMPUTED_V3'>>({
      key: cacheKey,
      matches: blendMatches,
      blockIds,
      instanceId: looseInstanceId,
      event: bytes,
    }),
  );

export const BLEND_RETRIEVE_OF_BLOCKS = blendRetrieve(oneOrManyLists);
export const BLEND_RETRIEVE_OF_GROUPS = blendRetrieve(blockIdsPerGroup);
