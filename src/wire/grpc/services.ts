/**
 * The services of the gRPC transport (spec wire, appendix): methods, messages, field numbers.
 *
 * A method is one operation of dialect C. Its request is what the payload frames of that operation
 * hold, and its reply is what the response frame holds (`fields.ts`).
 */
import type { OperationName } from '../../engine/api.ts';
import { CHUNK_LIST_COUNT_MAX } from '../wire-limits.ts';
import {
  bool,
  bytes,
  data,
  double,
  entries,
  int,
  type MessageTable,
  many,
  map,
  msgpack,
  nested,
  only,
  optional,
  text,
  tuple,
  wrapper,
} from './fields.ts';

export interface MethodTable {
  /** As HTTP/2 has it. */
  readonly path: string;
  readonly operation: OperationName;
  readonly request: MessageTable;
  readonly reply: MessageTable;
}

const chunks = (field: ReturnType<typeof nested>) => many(field, CHUNK_LIST_COUNT_MAX);

const KEY = map(
  'IpcCacheServerKey',
  text(1, 'model_name'),
  int(2, 'world_size'),
  optional(int(3, 'worker_id')),
  many(int(4, 'token_ids')),
  int(5, 'start'),
  int(6, 'end'),
  text(7, 'request_id'),
  text(8, 'cache_salt'),
  optional(msgpack(9, 'request_configs')),
  int(10, 'num_kv_readers'),
);
const BLOCK_IDS = only('BlockIdGroup', many(int(1, 'block_ids')));
const WRAPPER = only('DeviceIpcWrapper', wrapper(1, 'pickled_payload'));
const ENGINE_GROUP = map(
  'EngineGroupInfo',
  int(1, 'engine_group_id'),
  many(int(2, 'layer_indices')),
  int(3, 'tokens_per_block'),
  int(4, 'sw_size_tokens'),
  int(5, 'extra_object_group_tag'),
  bool(6, 'recurrent_state'),
);
const BLEND_MATCH = map(
  'CbMatchResult',
  int(1, 'old_st'),
  int(2, 'old_ed'),
  int(3, 'cur_st'),
  int(4, 'cur_ed'),
  bytes(5, 'hash'),
);
const OBJECT_KEY = map(
  'ObjectKey',
  bytes(1, 'chunk_hash'),
  text(2, 'model_name'),
  int(3, 'kv_rank'),
  int(4, 'object_group_id'),
  text(5, 'cache_salt'),
);
const LAYOUT = map(
  'MemoryLayoutDesc',
  many(nested(1, 'shapes', only('TensorShape', many(int(1, 'dims'))))),
  many(text(2, 'dtypes')),
);

const NOTHING = tuple('Nothing');
const BY_INSTANCE = tuple('ByInstance', int(1, 'instance_id'));
const BY_REQUEST = tuple('ByRequest', text(1, 'request_id'));
const KEYED = tuple('KeyedTransfer', nested(1, 'key', KEY), int(2, 'instance_id'));
const WITH_TP_SIZE = tuple('KeyAndTpSize', nested(1, 'key', KEY), int(2, 'tp_size'));

const SUCCESS = only('Success', bool(1, 'success'));
const NUMBER = only('Number', int(1, 'number'));
const CHUNK_COUNT = only('ChunkCount', optional(int(1, 'chunk_count')));
const TRANSFERRED = only(
  'Transferred',
  nested(
    1,
    'result',
    tuple('EventIpcHandleResult', bytes(1, 'event_ipc_handle'), bool(2, 'success')),
  ),
);

const REGISTRATION = tuple(
  'RegisterKvCacheRequest',
  int(1, 'instance_id'),
  many(nested(2, 'kv_cache', WRAPPER)),
  text(3, 'model_name'),
  int(4, 'world_size'),
  text(5, 'engine_type'),
  msgpack(6, 'layout_hints'),
  many(nested(7, 'engine_group_infos', ENGINE_GROUP)),
);
const STORE = [
  nested(1, 'key', KEY),
  int(2, 'instance_id'),
  many(nested(3, 'gpu_block_ids', BLOCK_IDS)),
  bytes(4, 'event_ipc_handle'),
] as const;

function service(
  name: string,
  methods: Readonly<Record<string, readonly [OperationName, MessageTable, MessageTable]>>,
): MethodTable[] {
  return Object.entries(methods).map(([method, [operation, request, reply]]) => ({
    path: `/lmcache.mp.${name}/${method}`,
    ...{ operation, request, reply },
  }));
}

const LOOKUPS = service('LookupService', {
  Lookup: ['LOOKUP', WITH_TP_SIZE, NOTHING],
  QueryPrefetchStatus: ['QUERY_PREFETCH_STATUS', BY_REQUEST, CHUNK_COUNT],
  WaitPrefetchStatus: [
    'WAIT_PREFETCH_STATUS',
    tuple('WaitPrefetchStatusRequest', text(1, 'request_id'), double(2, 'timeout')),
    CHUNK_COUNT,
  ],
  FreeLookupLocks: ['FREE_LOOKUP_LOCKS', WITH_TP_SIZE, NOTHING],
  EndSession: ['END_SESSION', BY_REQUEST, NOTHING],
});

const SERVER_DRIVEN = service('LMCacheDrivenService', {
  RegisterKvCache: ['REGISTER_KV_CACHE', REGISTRATION, NOTHING],
  UnregisterKvCache: ['UNREGISTER_KV_CACHE', BY_INSTANCE, NOTHING],
  Store: ['STORE', tuple('StoreRequest', ...STORE), TRANSFERRED],
  Retrieve: [
    'RETRIEVE',
    tuple('RetrieveRequest', ...STORE, int(5, 'skip_first_n_tokens')),
    TRANSFERRED,
  ],
});

const ENGINE_DRIVEN = service('EngineDrivenService', {
  RegisterKvCacheEngineDrivenContext: [
    'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
    map(
      'RegisterKvCacheEngineDrivenContextRequest',
      int(1, 'instance_id'),
      text(2, 'model_name'),
      int(3, 'world_size'),
      int(4, 'block_size'),
      int(5, 'num_layers'),
      int(6, 'hidden_dim_size'),
      text(7, 'dtype_str'),
      bool(8, 'use_mla'),
      optional(int(9, 'num_physical_slots')),
    ),
    map('RegisterKvCacheEngineDrivenContextResponse', text(1, 'shm_name'), int(2, 'pool_size')),
  ],
  UnregisterKvCacheEngineDrivenContext: [
    'UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
    BY_INSTANCE,
    NOTHING,
  ],
  PrepareStore: ['PREPARE_STORE', KEYED, map('PrepareStoreResponse', msgpack(1, 'context'))],
  CommitStore: [
    'COMMIT_STORE',
    tuple('CommitStoreRequest', ...KEYED.fields, data(3, 'data')),
    SUCCESS,
  ],
  PrepareRetrieve: [
    'PREPARE_RETRIEVE',
    KEYED,
    map('PrepareRetrieveResponse', bool(1, 'success'), bytes(2, 'data'), msgpack(3, 'context')),
  ],
  CommitRetrieve: ['COMMIT_RETRIEVE', KEYED, SUCCESS],
});

const CONTROLLER = service('ControllerService', {
  Clear: ['CLEAR', tuple('ClearRequest', optional(bool(1, 'force'))), NOTHING],
  GetChunkSize: ['GET_CHUNK_SIZE', NOTHING, NUMBER],
  GetExperimental: ['GET_EXPERIMENTAL', NOTHING, only('Names', many(text(1, 'names')))],
  Ping: ['PING', tuple('PingRequest', optional(int(1, 'instance_id'))), SUCCESS],
  ServerModuleCall: [
    'SERVER_MODULE_CALL',
    map('ServerModuleCallRequest', text(1, 'method'), bytes(2, 'payload')),
    map('ServerModuleCallResponse', bool(1, 'success'), bytes(2, 'payload'), text(3, 'error')),
  ],
});

const DEBUG = service('DebugService', {
  Noop: ['NOOP', NOTHING, only('NoopResponse', text(1, 'message'))],
});

const KV_EVENT = map(
  'KVEventRecord',
  int(1, 'seq'),
  text(2, 'kind'),
  text(3, 'medium'),
  text(4, 'model_name'),
  many(bytes(5, 'block_hashes'), CHUNK_LIST_COUNT_MAX),
  optional(bytes(6, 'parent_block_hash')),
  many(int(7, 'token_ids')),
);

const OBSERVABILITY = service('ObservabilityService', {
  ReportBlockAllocation: [
    'REPORT_BLOCK_ALLOCATION',
    tuple(
      'ReportBlockAllocationRequest',
      int(1, 'instance_id'),
      text(2, 'model_name'),
      many(
        nested(
          3,
          'records',
          map(
            'BlockAllocationRecord',
            text(1, 'req_id'),
            many(int(2, 'new_block_ids')),
            many(int(3, 'new_token_ids')),
          ),
        ),
      ),
    ),
    NOTHING,
  ],
  SubscribeKvEvents: [
    'SUBSCRIBE_KV_EVENTS',
    tuple(
      'SubscribeKvEventsRequest',
      int(1, 'instance_id'),
      text(2, 'model_name'),
      int(3, 'cursor'),
      int(4, 'max_events'),
    ),
    map(
      'KVEventBatch',
      bool(1, 'enabled'),
      int(2, 'incarnation'),
      int(3, 'next_cursor'),
      bool(4, 'lost'),
      many(nested(5, 'events', KV_EVENT)),
    ),
  ],
});

const BLEND = service('BlendService', {
  CbProtocolHandshake: [
    'CB_PROTOCOL_HANDSHAKE',
    tuple('CbProtocolHandshakeRequest', int(1, 'client_version')),
    tuple('CbProtocolHandshakeResponse', int(1, 'server_version'), bool(2, 'client_compatible')),
  ],
  CbRegisterRope: [
    'CB_REGISTER_ROPE_V3',
    tuple(
      'CbRegisterRopeRequest',
      int(1, 'instance_id'),
      many(nested(2, 'cos_sin_caches_ipc', WRAPPER)),
      int(3, 'head_size'),
      bool(4, 'is_neox_style'),
      many(int(5, 'group_to_cache')),
      many(nested(6, 'group_rot', only('RopeWindow', many(int(1, 'values'))))),
      many(int(7, 'group_head_size')),
      text(8, 'kv_quant'),
    ),
    NOTHING,
  ],
  CbUnregisterRope: ['CB_UNREGISTER_ROPE_V3', BY_INSTANCE, NOTHING],
  CbRetrievePreComputed: [
    'CB_RETRIEVE_PRE_COMPUTED_V3',
    tuple(
      'CbRetrievePreComputedRequest',
      nested(1, 'key', KEY),
      chunks(nested(2, 'cb_match_result', BLEND_MATCH)),
      many(nested(3, 'gpu_block_ids', BLOCK_IDS)),
      int(4, 'instance_id'),
      bytes(5, 'event_ipc_handle'),
    ),
    TRANSFERRED,
  ],
  CbUnifiedLookup: [
    'CB_UNIFIED_LOOKUP',
    WITH_TP_SIZE,
    only(
      'CbUnifiedLookupResponse',
      optional(
        nested(
          1,
          'payload',
          map(
            'CbUnifiedLookupPayload',
            int(1, 'prefix_coverage_tokens'),
            chunks(nested(2, 'non_prefix_segments', BLEND_MATCH)),
            chunks(nested(3, 'segmented_prefix_segments', BLEND_MATCH)),
          ),
        ),
      ),
    ),
  ],
  CbReorderPlan: [
    'CB_REORDER_PLAN',
    tuple(
      'CbReorderPlanRequest',
      nested(1, 'key', KEY),
      int(2, 'keep_prefix'),
      int(3, 'budget_ms'),
    ),
    only('CbReorderPlanResponse', many(int(1, 'token_ids'))),
  ],
});

const OBJECT_KEYS = chunks(nested(1, 'keys', OBJECT_KEY));
const ADDRESS = map('TransferChannelAddress', int(1, 'offset'), int(2, 'size'));

const PEERS = service('P2PService', {
  P2PLookupAndLock: [
    'P2P_LOOKUP_AND_LOCK',
    tuple('P2pLookupAndLockRequest', OBJECT_KEYS, entries(nested(2, 'group_layout_descs', LAYOUT))),
    NUMBER,
  ],
  P2PQueryLookupResults: [
    'P2P_QUERY_LOOKUP_RESULTS',
    tuple('P2pQueryLookupResultsRequest', int(1, 'task_id')),
    only(
      'P2pQueryLookupResultsResponse',
      optional(
        nested(
          1,
          'addresses',
          only('TransferChannelAddressList', chunks(nested(1, 'addresses', ADDRESS))),
        ),
      ),
    ),
  ],
  P2PUnlockObjects: ['P2P_UNLOCK_OBJECTS', tuple('P2pUnlockObjectsRequest', OBJECT_KEYS), NOTHING],
});

const QUERY_CACHES = service('QStoreService', {
  RegisterQCache: ['REGISTER_Q_CACHE', REGISTRATION, NOTHING],
  UnregisterQCache: ['UNREGISTER_Q_CACHE', BY_INSTANCE, NOTHING],
  StoreQ: ['STORE_Q', tuple('StoreRequest', ...STORE), TRANSFERRED],
});

export const METHODS: readonly MethodTable[] = [
  ...LOOKUPS,
  ...SERVER_DRIVEN,
  ...ENGINE_DRIVEN,
  ...CONTROLLER,
  ...DEBUG,
  ...OBSERVABILITY,
  ...BLEND,
  ...PEERS,
  ...QUERY_CACHES,
];
