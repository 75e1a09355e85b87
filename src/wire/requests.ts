/**
 * The request table of the protocol as LMCache 0.5.0 speaks it: for each operation the payload
 * frames, the reply, and the value that says "failed" in the reply's own type.
 *
 * Operations are known by name here. Which integer stands for a name is a matter of the client's
 * generation (`dialects/`), and what a request means is a matter of the engine (`engine/api.ts`,
 * whose types these codecs produce; which queue it runs in is decided there, too).
 *
 * Numbers of a request are passed on as they came, also when they make no sense (a range beyond
 * the tokens, a negative block id): the handler knows what they should be. Checked here is only
 * what would be wrong for every server: kinds, the closed lists of names, and bounds that keep a
 * hostile number away from allocations. (A table; longer than other files on purpose.)
 */
import { DTYPE_SIZE_BYTES, type DtypeName } from '../device/tensor-wrapper.ts';
import type {
  BlendMatch,
  BlockAllocationRecord,
  CacheKey,
  EngineDrivenContextRequest,
  EngineGroupInfo,
  LayoutHints,
  MemoryLayout,
  ObjectKey,
  OperationName,
  ReplyOf,
  RequestOf,
  TransferContext,
  TransferReply,
  TransferSlot,
} from '../engine/api.ts';
import { KvdError } from '../errors.ts';
import { deviceWrapper } from './device-wrapper.ts';
import { inlineData } from './inline-data.ts';
import { type FramesCodec, frames, mappedFrames, noFrames, oneFrame } from './payload-frames.ts';
import {
  array,
  bool,
  bytes,
  type Codec,
  decode,
  encode,
  enumeration,
  float,
  instanceId,
  integer,
  integers,
  looseBool,
  looseInstanceId,
  looseInteger,
  mapped,
  nothing,
  nullable,
  type PayloadReader,
  pair,
  size,
  text,
  tokens,
} from './schema.ts';
import { field, fieldOr, fixed, omittable, struct } from './struct.ts';
import { readTensorList } from './tensor-list.ts';
import { writeTensorList } from './tensor-list-writer.ts';
import { CHUNK_LIST_COUNT_MAX, ELEMENTS_PER_MESSAGE_MAX } from './wire-limits.ts';

/** Names are paths and ids; 4 KiB is PATH_MAX. */
const NAME_BYTES_MAX = 4096;
const SALT_CHARS_MAX = 128;
/** A salt becomes part of keys and file names of slower stores, so it cannot hold separators. */
const SALT_FORBIDDEN = /[@/\\\0]/;
/** Ranks have 16 bits in `kv_rank` (spec wire 4). */
const WORLD_SIZE_MAX = 65_535;
/** Far above every model, far below what could overflow a size computed from it. */
const LAYER_COUNT_MAX = 65_536;
const HIDDEN_SIZE_MAX = 1 << 24;
const BLOCK_SIZE_MAX = 1 << 20;

const name = text(NAME_BYTES_MAX);
const anyInteger = integer();
const worldSize = integer(1, WORLD_SIZE_MAX);

const cacheSalt = text(SALT_CHARS_MAX * 4, (salt) => {
  // Counted as the peer counts: in code points.
  if (salt.length > SALT_CHARS_MAX && [...salt].length > SALT_CHARS_MAX) {
    return `expected a salt of at most ${SALT_CHARS_MAX} characters`;
  }
  return SALT_FORBIDDEN.test(salt) ? 'expected a salt without @ / \\ and NUL' : null;
});

export const cacheKey = struct<CacheKey>({
  modelName: field('model_name', name),
  worldSize: field('world_size', worldSize),
  workerId: field('worker_id', nullable(integer(0, WORLD_SIZE_MAX))),
  tokens: field('token_ids', tokens),
  startToken: field('start', anyInteger),
  endToken: field('end', anyInteger),
  requestId: field('request_id', name),
  cacheSalt: fieldOr('cache_salt', cacheSalt, ''),
  readerCount: fixed(null),
});

const layoutHints = nilAsDefault<LayoutHints>(
  struct<LayoutHints>({
    kvLayout: omittable('kv_layout', enumeration(['NHD', 'HND'])),
    numKvHeads: omittable('num_kv_heads', anyInteger),
    tokensPerBlock: omittable('tokens_per_block', anyInteger),
    headDim: omittable('head_dim', anyInteger),
  }),
  {},
);

const engineGroupInfos = nilAsDefault<readonly EngineGroupInfo[]>(
  array(
    struct<EngineGroupInfo>({
      engineGroupId: field('engine_group_id', anyInteger),
      layerIndices: fieldOr('layer_indices', integers, []),
      tokensPerBlock: fieldOr('tokens_per_block', anyInteger, 0),
      slidingWindowTokens: fieldOr('sw_size_tokens', anyInteger, -1),
    }),
  ),
  [],
);

/** The client's interface allows None where the peer's schema does not; None means empty. */
function nilAsDefault<T>(codec: Codec<T>, fallback: T): Codec<T> {
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
const dtype = enumeration(dtypeNames);
/** The worker's own spelling, with PyTorch's aliases. */
const dtypeText = mapped<string, DtypeName>(
  enumeration([...dtypeNames, ...DTYPE_ALIASES.keys()]),
  (value) => DTYPE_ALIASES.get(value) ?? (value as DtypeName),
  (value) => value,
);

const engineDrivenContext = struct<EngineDrivenContextRequest>({
  instanceId: field('instance_id', instanceId),
  modelName: field('model_name', name),
  worldSize: field('world_size', worldSize),
  blockSize: field('block_size', integer(1, BLOCK_SIZE_MAX)),
  layerCount: field('num_layers', integer(1, LAYER_COUNT_MAX)),
  hiddenSize: field('hidden_dim_size', integer(1, HIDDEN_SIZE_MAX)),
  dtype: field('dtype_str', dtypeText),
  usesMla: field('use_mla', bool),
});

const transferContext = struct<TransferContext>({
  slots: omittable(
    'slots',
    array(
      struct<TransferSlot>({
        offset: field('offset', anyInteger),
        length: field('length', anyInteger),
        shape: field('shape', integers),
        dtype: field('dtype', text(NAME_BYTES_MAX)),
      }),
      CHUNK_LIST_COUNT_MAX,
    ),
  ),
  chunk_indices: omittable('chunk_indices', integers),
});

const blockAllocationRecord = struct<BlockAllocationRecord>({
  requestId: field('req_id', name),
  newBlockIds: field('new_block_ids', integers),
  newTokenIds: field('new_token_ids', integers),
});

const blendMatch = struct<BlendMatch>({
  oldStart: field('old_st', anyInteger),
  oldEnd: field('old_ed', anyInteger),
  currentStart: field('cur_st', anyInteger),
  currentEnd: field('cur_ed', anyInteger),
  hash: field('hash', bytes),
});
const blendMatches = array(blendMatch, CHUNK_LIST_COUNT_MAX);

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

/** WAIT's timeout: any number, also infinity, but not "not a number". */
const timeoutSeconds = mapped<number, number>(
  float,
  (value, reader) => (Number.isNaN(value) ? reader.fail('expected a number of seconds') : value),
  (value) => value,
);

const blockIdsPerGroup = array(integers);
const tokenRanges = array(pair(anyInteger, anyInteger), CHUNK_LIST_COUNT_MAX);
const wrappers = array(deviceWrapper);

/** A name of a request as a whole frame. */
const byRequest = frames<{ readonly requestId: string }>({ requestId: name });
const byInstance = frames<{ readonly instanceId: bigint }>({ instanceId: looseInstanceId });
const keyed = { key: cacheKey, instanceId: looseInstanceId };
const withTpSize = frames<RequestOf<'LOOKUP'>>({ key: cacheKey, tpSize: looseInteger });

const transferReply = mapped<[Uint8Array, boolean], TransferReply>(
  pair(bytes, bool),
  ([event, ok]) => ({ event, ok }),
  ({ event, ok }) => [event, ok],
);

/** How a failed request is answered in the reply's own type (spec wire 7.3). */
export type Neutral =
  /** A frame that never changes. */
  | { readonly kind: 'frame'; readonly frame: Uint8Array }
  /** `[event, false]`, whose event depends on the device. */
  | { readonly kind: 'refused transfer' }
  /** A registration: every reply means success, so only silence or an exception says no. */
  | { readonly kind: 'none' };

export interface Operation<N extends OperationName = OperationName> {
  readonly name: N;
  readonly payloadCount: number;
  readonly neutral: Neutral;
  /** Throws `KvdError` whose message names the payload; `payloads[first]` is the first one. */
  decodeRequest(
    payloads: readonly Uint8Array[],
    first: number,
    reader: PayloadReader,
  ): RequestOf<N>;
  encodeRequest(request: RequestOf<N>): Uint8Array[];
  /** The response frame, or null when the protocol leaves it out. */
  encodeReply(reply: ReplyOf<N>): Uint8Array | null;
  decodeReply(frame: Uint8Array | undefined, reader: PayloadReader): ReplyOf<N>;
}

const noFailureValue: Neutral = { kind: 'none' };
const refusedTransfer: Neutral = { kind: 'refused transfer' };

function neutral<T>(codec: Codec<T>, value: T): Neutral {
  return { kind: 'frame', frame: encode(codec, value) };
}

function operation<N extends OperationName>(
  operationName: N,
  request: FramesCodec<RequestOf<N>>,
  reply: Codec<ReplyOf<N>>,
  neutralReply: Neutral,
): Operation<N> {
  return {
    name: operationName,
    payloadCount: request.count,
    neutral: neutralReply,
    decodeRequest(payloads, first, reader) {
      const count = payloads.length - first;
      if (count !== request.count) {
        throw new KvdError(
          'ERR_WIRE_FRAME_COUNT',
          `expected ${request.count} payload frames, got ${count}`,
        );
      }
      reader.startMessage(ELEMENTS_PER_MESSAGE_MAX);
      return request.read(payloads, first, reader);
    },
    encodeRequest: (value) => request.write(value),
    encodeReply: (value) => (value === null || value === undefined ? null : encode(reply, value)),
    decodeReply(frame, reader) {
      if (frame === undefined) return null as ReplyOf<N>;
      return decode(reply, frame, reader);
    },
  };
}

const NIL = neutral(nothing, undefined);
const FALSE = neutral(bool, false);
const ZERO = neutral(anyInteger, 0);
const MINUS_ONE = neutral(anyInteger, -1);
const EMPTY_ARRAY = neutral(integers, []);

const poolReply = struct<ReplyOf<'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT'>>({
  shmName: fieldOr('shm_name', name, ''),
  poolSizeBytes: fieldOr('pool_size', size, 0),
});
const prepareStoreReply = struct<ReplyOf<'PREPARE_STORE'>>({
  context: fieldOr('context', transferContext, {}),
});
const prepareRetrieveReply = struct<ReplyOf<'PREPARE_RETRIEVE'>>({
  success: field('success', bool),
  data: fieldOr('data', inlineData, new Uint8Array(0)),
  context: fieldOr('context', transferContext, {}),
});
type UnifiedLookup = NonNullable<ReplyOf<'CB_UNIFIED_LOOKUP'>>;
const unifiedLookupReply = struct<UnifiedLookup>({
  prefixCoverageTokens: field('prefix_coverage_tokens', anyInteger),
  nonPrefixSegments: field('non_prefix_segments', blendMatches),
  segmentedPrefixSegments: fieldOr('segmented_prefix_segments', blendMatches, []),
});
const transferAddresses = array(
  struct<{ readonly offset: number; readonly size: number }>({
    offset: field('offset', anyInteger),
    size: field('size', anyInteger),
  }),
  CHUNK_LIST_COUNT_MAX,
);

const storeFrames = { ...keyed, blockIds: blockIdsPerGroup, event: bytes };
const registration = {
  instanceId: looseInstanceId,
  wrappers,
  modelName: name,
  worldSize: mapped(looseInteger, checkWorldSize, (value: number) => value),
};

/** A whole frame declared `int` is read loosely, so the bound is checked afterwards. */
function checkWorldSize(value: number, reader: PayloadReader): number {
  if (value >= 1 && value <= WORLD_SIZE_MAX) return value;
  return reader.fail(`expected a world size from 1 to ${WORLD_SIZE_MAX}, got ${value}`);
}

const blendStore = frames<RequestOf<'CB_STORE_FINAL'>>({
  key: cacheKey,
  offset: looseInteger,
  instanceId: looseInstanceId,
  event: bytes,
});

/** A malformed list is a value: only the engine can give back what was reserved for it. */
const commitStoreFrames = mappedFrames(
  frames<Omit<RequestOf<'COMMIT_STORE'>, 'data'> & { data: Uint8Array }>({
    ...keyed,
    data: inlineData,
  }),
  ({ data, ...rest }, reader): RequestOf<'COMMIT_STORE'> => ({
    ...rest,
    data: readTensorList(data, chunkCountMax(rest.key, reader.chunkSizeTokens)),
  }),
  ({ data, ...rest }) => ({ ...rest, data: writeTensorList(data) }),
);

/** Chunks that the range of a key can touch. The range may be nonsense: the handler says so. */
function chunkCountMax(
  { startToken, endToken, tokens }: CacheKey,
  chunkSizeTokens: number,
): number {
  const first = Math.floor(Math.max(startToken, 0) / chunkSizeTokens);
  const end = Math.ceil(Math.min(endToken, tokens.count) / chunkSizeTokens);
  return Math.max(end - first, 0);
}

export type OperationTable = { readonly [N in OperationName]: Operation<N> };

/** Every operation as 0.5.0 has it. Dialects take these, and replace those that changed. */
export const OPERATIONS: OperationTable = {
  REGISTER_KV_CACHE: operation(
    'REGISTER_KV_CACHE',
    frames<RequestOf<'REGISTER_KV_CACHE'>>({
      ...registration,
      engineType: enumeration(['vllm', 'sglang', 'trtllm', 'mock']),
      layoutHints,
      engineGroupInfos,
    }),
    nothing,
    noFailureValue,
  ),
  UNREGISTER_KV_CACHE: operation('UNREGISTER_KV_CACHE', byInstance, nothing, NIL),
  STORE: operation(
    'STORE',
    frames<RequestOf<'STORE'>>(storeFrames),
    transferReply,
    refusedTransfer,
  ),
  RETRIEVE: operation(
    'RETRIEVE',
    frames<RequestOf<'RETRIEVE'>>({ ...storeFrames, skipFirstTokens: looseInteger }),
    transferReply,
    refusedTransfer,
  ),
  LOOKUP: operation('LOOKUP', withTpSize, nothing, NIL),
  QUERY_PREFETCH_STATUS: operation('QUERY_PREFETCH_STATUS', byRequest, nullable(anyInteger), ZERO),
  WAIT_PREFETCH_STATUS: operation(
    'WAIT_PREFETCH_STATUS',
    frames<RequestOf<'WAIT_PREFETCH_STATUS'>>({ requestId: name, timeoutSeconds }),
    nullable(anyInteger),
    ZERO,
  ),
  QUERY_PREFETCH_LOOKUP_HITS: operation(
    'QUERY_PREFETCH_LOOKUP_HITS',
    byRequest,
    nullable(anyInteger),
    ZERO,
  ),
  FREE_LOOKUP_LOCKS: operation('FREE_LOOKUP_LOCKS', withTpSize, nothing, NIL),
  END_SESSION: operation('END_SESSION', byRequest, nothing, NIL),
  REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: operation(
    'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
    oneFrame(engineDrivenContext),
    poolReply,
    noFailureValue,
  ),
  UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: operation(
    'UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
    byInstance,
    nothing,
    NIL,
  ),
  PREPARE_STORE: operation(
    'PREPARE_STORE',
    frames<RequestOf<'PREPARE_STORE'>>(keyed),
    prepareStoreReply,
    neutral(prepareStoreReply, { context: {} }),
  ),
  COMMIT_STORE: operation('COMMIT_STORE', commitStoreFrames, bool, FALSE),
  PREPARE_RETRIEVE: operation(
    'PREPARE_RETRIEVE',
    frames<RequestOf<'PREPARE_RETRIEVE'>>(keyed),
    prepareRetrieveReply,
    neutral(prepareRetrieveReply, { success: false, data: new Uint8Array(0), context: {} }),
  ),
  COMMIT_RETRIEVE: operation(
    'COMMIT_RETRIEVE',
    frames<RequestOf<'COMMIT_RETRIEVE'>>(keyed),
    bool,
    FALSE,
  ),
  CLEAR: operation('CLEAR', noFrames<RequestOf<'CLEAR'>>({ isForced: true }), nothing, NIL),
  GET_CHUNK_SIZE: operation('GET_CHUNK_SIZE', noFrames({}), looseInteger, MINUS_ONE),
  PING: operation(
    'PING',
    frames<RequestOf<'PING'>>({ instanceId: nullable(instanceId) }),
    bool,
    FALSE,
  ),
  REPORT_BLOCK_ALLOCATION: operation(
    'REPORT_BLOCK_ALLOCATION',
    frames<RequestOf<'REPORT_BLOCK_ALLOCATION'>>({
      instanceId: looseInstanceId,
      modelName: name,
      records: array(blockAllocationRecord),
    }),
    nothing,
    NIL,
  ),
  NOOP: operation('NOOP', noFrames({}), name, neutral(name, 'ERROR')),
  CB_REGISTER_KV_CACHE: operation(
    'CB_REGISTER_KV_CACHE',
    frames<RequestOf<'CB_REGISTER_KV_CACHE'>>(registration),
    nothing,
    noFailureValue,
  ),
  CB_UNREGISTER_KV_CACHE: operation('CB_UNREGISTER_KV_CACHE', byInstance, nothing, NIL),
  CB_STORE_PRE_COMPUTED: operation(
    'CB_STORE_PRE_COMPUTED',
    blendStore,
    transferReply,
    refusedTransfer,
  ),
  CB_LOOKUP_PRE_COMPUTED: operation(
    'CB_LOOKUP_PRE_COMPUTED',
    frames<RequestOf<'CB_LOOKUP_PRE_COMPUTED'>>({ key: cacheKey }),
    tokenRanges,
    EMPTY_ARRAY,
  ),
  CB_RETRIEVE_PRE_COMPUTED: operation(
    'CB_RETRIEVE_PRE_COMPUTED',
    frames<RequestOf<'CB_RETRIEVE_PRE_COMPUTED'>>({
      key: cacheKey,
      ranges: tokenRanges as Codec<[number, number][]>,
      offset: looseInteger,
      instanceId: looseInstanceId,
      event: bytes,
    }),
    transferReply,
    refusedTransfer,
  ),
  CB_STORE_FINAL: operation('CB_STORE_FINAL', blendStore, transferReply, refusedTransfer),
  CB_LOOKUP_PRE_COMPUTED_V2: operation(
    'CB_LOOKUP_PRE_COMPUTED_V2',
    frames<RequestOf<'CB_LOOKUP_PRE_COMPUTED_V2'>>({ key: cacheKey }),
    blendMatches,
    EMPTY_ARRAY,
  ),
  CB_RETRIEVE_PRE_COMPUTED_V2: operation(
    'CB_RETRIEVE_PRE_COMPUTED_V2',
    frames<RequestOf<'CB_RETRIEVE_PRE_COMPUTED_V2'>>({
      key: cacheKey,
      matches: blendMatches,
      offset: looseInteger,
      instanceId: looseInstanceId,
      event: bytes,
    }),
    transferReply,
    refusedTransfer,
  ),
  CB_REGISTER_ROPE_V3: operation(
    'CB_REGISTER_ROPE_V3',
    frames<RequestOf<'CB_REGISTER_ROPE_V3'>>({
      instanceId: looseInstanceId,
      cosSinCache: deviceWrapper,
      headSize: looseInteger,
      isNeoxStyle: looseBool,
    }),
    nothing,
    noFailureValue,
  ),
  CB_UNREGISTER_ROPE_V3: operation('CB_UNREGISTER_ROPE_V3', byInstance, nothing, NIL),
  CB_RETRIEVE_PRE_COMPUTED_V3: operation(
    'CB_RETRIEVE_PRE_COMPUTED_V3',
    frames<RequestOf<'CB_RETRIEVE_PRE_COMPUTED_V3'>>({
      key: cacheKey,
      matches: blendMatches,
      blockIds: integers,
      instanceId: looseInstanceId,
      event: bytes,
    }),
    transferReply,
    refusedTransfer,
  ),
  CB_UNIFIED_LOOKUP: operation(
    'CB_UNIFIED_LOOKUP',
    withTpSize,
    nullable(unifiedLookupReply),
    neutral(unifiedLookupReply, {
      prefixCoverageTokens: 0,
      nonPrefixSegments: [],
      segmentedPrefixSegments: [],
    }),
  ),
  P2P_LOOKUP_AND_LOCK: operation(
    'P2P_LOOKUP_AND_LOCK',
    frames<RequestOf<'P2P_LOOKUP_AND_LOCK'>>({ keys: objectKeys, layout: memoryLayout }),
    looseInteger,
    MINUS_ONE,
  ),
  P2P_QUERY_LOOKUP_RESULTS: operation(
    'P2P_QUERY_LOOKUP_RESULTS',
    frames<RequestOf<'P2P_QUERY_LOOKUP_RESULTS'>>({ taskId: looseInteger }),
    nullable(transferAddresses),
    NIL,
  ),
  P2P_UNLOCK_OBJECTS: operation(
    'P2P_UNLOCK_OBJECTS',
    frames<RequestOf<'P2P_UNLOCK_OBJECTS'>>({ keys: objectKeys }),
    nothing,
    NIL,
  ),
};
