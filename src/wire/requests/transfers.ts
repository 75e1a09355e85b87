/**
 * Workers: registration of their caches, and transfers in both modes (spec wire 3, 8.1).
 *
 * Registrations have two forms each. Newer clients add fields and describe device memory without a
 * pickle; both are read from everybody, and written by those clients that have them.
 */
import type {
  CacheKey,
  EngineDrivenContextRequest,
  EngineGroupInfo,
  InlinePayload,
  LayoutHints,
  ReplyOf,
  RequestOf,
  TransferContext,
  TransferSlot,
} from '../../engine/api.ts';
import { describedWrapper, pickledWrapper } from '../device-wrapper.ts';
import { inlineData } from '../inline-data.ts';
import {
  type Form,
  form,
  neutral,
  operation,
  REFUSED_TRANSFER,
  REGISTRATION,
} from '../operation.ts';
import { frames, mappedFrames, oneFrame } from '../payload-frames.ts';
import {
  array,
  bool,
  bytes,
  enumeration,
  instanceId,
  integer,
  integers,
  looseInstanceId,
  looseInteger,
  nothing,
  nullable,
  size,
  text,
} from '../schema.ts';
import { type Field, field, fieldOr, fieldWhen, omittable, struct } from '../struct.ts';
import { readTensorList } from '../tensor-list.ts';
import { writeTensorList } from '../tensor-list-writer.ts';
import { CHUNK_LIST_COUNT_MAX } from '../wire-limits.ts';
import {
  anyInteger,
  blockIdsPerGroup,
  byInstance,
  dtypeText,
  FALSE,
  keyed,
  looseIntegerIn,
  NAME_BYTES_MAX,
  NIL,
  name,
  nilAsDefault,
  transferReply,
  WORLD_SIZE_MAX,
  worldSize,
} from './fields.ts';

/** Far above every model, far below what could overflow a size computed from it. */
const LAYER_COUNT_MAX = 65_536;
const HIDDEN_SIZE_MAX = 1 << 24;
const BLOCK_SIZE_MAX = 1 << 20;

type Generation = 'before 0.5.5' | 'since 0.5.5';

/** A field that clients have since 0.5.5. */
function newField<T>(generation: Generation, { name: key, codec, fallback }: Field<T>): Field<T> {
  if (generation === 'since 0.5.5') return fieldOr(key, codec, fallback as T);
  return fieldWhen(key, codec, fallback as T, () => false);
}

const layoutHints = nilAsDefault<LayoutHints>(
  struct<LayoutHints>({
    kvLayout: omittable('kv_layout', enumeration(['NHD', 'HND', 'BLHNC', 'BLNHC'])),
    kvListLayout: omittable('kv_list_layout', enumeration(['k_v', 'unified'])),
    numKvHeads: omittable('num_kv_heads', anyInteger),
    tokensPerBlock: omittable('tokens_per_block', anyInteger),
    headDim: omittable('head_dim', anyInteger),
  }),
  {},
);

const engineGroupInfos = (generation: Generation) =>
  nilAsDefault<readonly EngineGroupInfo[]>(
    array(
      struct<EngineGroupInfo>({
        engineGroupId: field('engine_group_id', anyInteger),
        layerIndices: fieldOr('layer_indices', integers, []),
        tokensPerBlock: fieldOr('tokens_per_block', anyInteger, 0),
        slidingWindowTokens: fieldOr('sw_size_tokens', anyInteger, -1),
        extraObjectGroupTag: newField(generation, fieldOr('extra_object_group_tag', anyInteger, 0)),
        isRecurrentState: newField(generation, fieldOr('recurrent_state', bool, false)),
      }),
    ),
    [],
  );

const wrappersOf = (generation: Generation) =>
  array(generation === 'since 0.5.5' ? describedWrapper : pickledWrapper);

const registration = (generation: Generation): Form<RequestOf<'REGISTER_KV_CACHE'>> =>
  form(
    'iasisma',
    frames<RequestOf<'REGISTER_KV_CACHE'>>({
      instanceId: looseInstanceId,
      wrappers: wrappersOf(generation),
      modelName: name,
      worldSize: looseIntegerIn(1, WORLD_SIZE_MAX, 'a world size'),
      engineType: enumeration(['vllm', 'sglang', 'trtllm', 'mock', 'atom']),
      layoutHints,
      engineGroupInfos: engineGroupInfos(generation),
    }),
  );

const engineDrivenContext = (generation: Generation) =>
  form(
    'm',
    oneFrame(
      struct<EngineDrivenContextRequest>({
        instanceId: field('instance_id', instanceId),
        modelName: field('model_name', name),
        worldSize: field('world_size', worldSize),
        blockSize: field('block_size', integer(1, BLOCK_SIZE_MAX)),
        layerCount: field('num_layers', integer(1, LAYER_COUNT_MAX)),
        hiddenSize: field('hidden_dim_size', integer(1, HIDDEN_SIZE_MAX)),
        dtype: field('dtype_str', dtypeText),
        usesMla: field('use_mla', bool),
        physicalSlotCount: newField<number | null>(
          generation,
          fieldOr('num_physical_slots', nullable(integer(1, BLOCK_SIZE_MAX)), null),
        ),
      }),
    ),
  );

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

/** A malformed list is a value: only the engine can give back what was reserved for it. */
const commitStoreFrames = mappedFrames(
  frames<Omit<RequestOf<'COMMIT_STORE'>, 'data'> & { data: Uint8Array }>({
    ...keyed,
    data: inlineData,
  }),
  (request, reader): RequestOf<'COMMIT_STORE'> => ({
    ...request,
    data: readInlinePayload(request.key, request.data, reader.chunkSizeTokens),
  }),
  ({ data, ...rest }) => ({ ...rest, data: writeTensorList(data) }),
);

/** The data of a COMMIT_STORE, whose key says how many tensors there can be. */
export function readInlinePayload(
  key: CacheKey,
  data: Uint8Array,
  chunkSizeTokens: number,
): InlinePayload {
  return readTensorList(data, chunkCountMax(key, chunkSizeTokens));
}

/** Chunks that the range of a key can touch. The range may be nonsense: the handler says so. */
function chunkCountMax(
  { startToken, endToken, tokens }: CacheKey,
  chunkSizeTokens: number,
): number {
  const first = Math.floor(Math.max(startToken, 0) / chunkSizeTokens);
  const end = Math.ceil(Math.min(endToken, tokens.count) / chunkSizeTokens);
  return Math.max(end - first, 0);
}

const storeFrames = { ...keyed, blockIds: blockIdsPerGroup, event: bytes };
const byWorker = form('i', byInstance);
const store = form('miab', frames<RequestOf<'STORE'>>(storeFrames));
const keyedTransfer = form('mi', frames<RequestOf<'PREPARE_STORE'>>(keyed));

export const TRANSFER_OPERATIONS = {
  REGISTER_KV_CACHE: operation('REGISTER_KV_CACHE', nothing, REGISTRATION),
  UNREGISTER_KV_CACHE: operation('UNREGISTER_KV_CACHE', nothing, NIL),
  REGISTER_Q_CACHE: operation('REGISTER_Q_CACHE', nothing, REGISTRATION),
  UNREGISTER_Q_CACHE: operation('UNREGISTER_Q_CACHE', nothing, NIL),
  STORE_Q: operation('STORE_Q', transferReply, REFUSED_TRANSFER),
  STORE: operation('STORE', transferReply, REFUSED_TRANSFER),
  RETRIEVE: operation('RETRIEVE', transferReply, REFUSED_TRANSFER),
  REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: operation(
    'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
    poolReply,
    REGISTRATION,
  ),
  UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: operation(
    'UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
    nothing,
    NIL,
  ),
  PREPARE_STORE: operation(
    'PREPARE_STORE',
    prepareStoreReply,
    neutral(prepareStoreReply, { context: {} }),
  ),
  COMMIT_STORE: operation('COMMIT_STORE', bool, FALSE),
  PREPARE_RETRIEVE: operation(
    'PREPARE_RETRIEVE',
    prepareRetrieveReply,
    neutral(prepareRetrieveReply, { success: false, data: new Uint8Array(0), context: {} }),
  ),
  COMMIT_RETRIEVE: operation('COMMIT_RETRIEVE', bool, FALSE),
} as const;

/** Forms that never changed. */
export const TRANSFER_FORMS = {
  UNREGISTER_KV_CACHE: [byWorker],
  UNREGISTER_Q_CACHE: [byWorker],
  STORE: [store],
  STORE_Q: [store],
  RETRIEVE: [
    form('miabi', frames<RequestOf<'RETRIEVE'>>({ ...storeFrames, skipFirstTokens: looseInteger })),
  ],
  UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: [byWorker],
  PREPARE_STORE: [keyedTransfer],
  COMMIT_STORE: [form('mib', commitStoreFrames)],
  PREPARE_RETRIEVE: [keyedTransfer],
  COMMIT_RETRIEVE: [keyedTransfer],
} as const;

/** The others, by generation. */
export const REGISTRATION_FORMS = {
  'before 0.5.5': {
    REGISTER_KV_CACHE: [registration('before 0.5.5')],
    REGISTER_Q_CACHE: [registration('before 0.5.5')],
    REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: [engineDrivenContext('before 0.5.5')],
  },
  'since 0.5.5': {
    REGISTER_KV_CACHE: [registration('since 0.5.5')],
    REGISTER_Q_CACHE: [registration('since 0.5.5')],
    REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: [engineDrivenContext('since 0.5.5')],
  },
} as const;
