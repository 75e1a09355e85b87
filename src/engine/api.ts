/**
 * What the engine offers, in domain words: request and reply of every operation.
 *
 * A door (`wire/`, later others) decodes bytes to these requests and encodes these replies; a
 * module (`lookup.ts`, `management.ts`, `transfer/`) implements some of them (handlers.ts). Nothing
 * here knows operation ids, msgpack or protocol generations. Field meanings: spec wire 3 and 4.
 */
import type { TokenSpan } from '../core/chunk-hasher.ts';
import type { DtypeName, TensorWrapper } from '../device/tensor-wrapper.ts';
import type { ObjectKey } from '../l2/object-key.ts';

/** Key of a cache request: which tokens of which prompt, for which model and rank. */
export interface CacheKey {
  readonly modelName: string;
  readonly worldSize: number;
  /** Rank of the worker; null = all ranks (schedulers). */
  readonly workerId: number | null;
  readonly tokens: TokenSpan;
  /** Range of token indexes, `[startToken, endToken)`. May be nonsense: handlers check it. */
  readonly startToken: number;
  readonly endToken: number;
  readonly requestId: string;
  readonly cacheSalt: string;
  /** Readers per object as newer clients state it (0 = not stated); null = no such field. */
  readonly readerCount: number | null;
  /** Settings that the user of the engine attached to the request; null = none. */
  readonly requestConfigs: RequestConfigs | null;
}

/** Free-form; values are what msgpack can carry. Nothing in it is ever executed or resolved. */
export type RequestConfigs = Readonly<Record<string, unknown>>;

export type EngineType = 'vllm' | 'sglang' | 'trtllm' | 'mock' | 'atom';

export interface LayoutHints {
  /** The last two have blocks outermost, with gaps between them: BL + HNC or NHC. */
  readonly kvLayout?: 'NHD' | 'HND' | 'BLHNC' | 'BLNHC';
  /** SGLang: one list of keys and one of values, or one list for both. */
  readonly kvListLayout?: 'k_v' | 'unified';
  readonly numKvHeads?: number;
  readonly tokensPerBlock?: number;
  readonly headDim?: number;
}

export interface EngineGroupInfo {
  readonly engineGroupId: number;
  readonly layerIndices: readonly number[];
  /** 0 = not reported. */
  readonly tokensPerBlock: number;
  /** −1 = no sliding window. */
  readonly slidingWindowTokens: number;
  /** 0 = a regular group; > 0 = private to the connector, bucketed by this number. */
  readonly extraObjectGroupTag: number;
  /** Pages hold snapshots of recurrent state (Mamba): only the last one counts. */
  readonly isRecurrentState: boolean;
}

/** Worker ids have up to 63 bits, so they are bigints everywhere. */
export type InstanceId = bigint;

export interface RegisterKvCacheRequest {
  readonly instanceId: InstanceId;
  readonly wrappers: readonly TensorWrapper[];
  readonly modelName: string;
  readonly worldSize: number;
  readonly engineType: EngineType;
  readonly layoutHints: LayoutHints;
  readonly engineGroupInfos: readonly EngineGroupInfo[];
}

export interface StoreRequest {
  readonly key: CacheKey;
  readonly instanceId: InstanceId;
  /** One list per kernel group. Numbers as sent: may be negative or out of range. */
  readonly blockIds: readonly (readonly number[])[];
  readonly event: Uint8Array;
}

export interface RetrieveRequest extends StoreRequest {
  readonly skipFirstTokens: number;
}

/** `[event, ok]`: an event handle of the device, and whether the transfer was accepted. */
export interface TransferReply {
  readonly event: Uint8Array;
  readonly ok: boolean;
}

export interface EngineDrivenContextRequest {
  readonly instanceId: InstanceId;
  readonly modelName: string;
  readonly worldSize: number;
  readonly blockSize: number;
  readonly layerCount: number;
  readonly hiddenSize: number;
  readonly dtype: DtypeName;
  readonly usesMla: boolean;
  /** Slots of one chunk in a compressed cache; null = one per token. */
  readonly physicalSlotCount: number | null;
}

/** One tensor of an inline payload: a strided view of bytes that came with the message. */
export interface HostTensor {
  readonly dtype: DtypeName;
  readonly shape: readonly number[];
  /** In elements, one per dimension. */
  readonly stride: readonly number[];
  /** Of the first element inside `bytes`. Every element that the view reaches lies in `bytes`. */
  readonly offsetBytes: number;
  /** Part of the received frame, never copied. */
  readonly bytes: Uint8Array;
}

/**
 * What a COMMIT_STORE carries. Malformed is a value and not an error of the door, because the
 * engine has to give the pending reservation back before it refuses.
 */
export type InlinePayload =
  | { readonly kind: 'none' }
  | { readonly kind: 'tensors'; readonly tensors: readonly HostTensor[] }
  | { readonly kind: 'malformed'; readonly reason: string };

export interface TransferSlot {
  readonly offset: number;
  readonly length: number;
  readonly shape: readonly number[];
  readonly dtype: string;
}

/** Empty object = inline transport. */
export interface TransferContext {
  readonly slots?: readonly TransferSlot[];
  readonly chunk_indices?: readonly number[];
}

export interface BlockAllocationRecord {
  readonly requestId: string;
  readonly newBlockIds: readonly number[];
  readonly newTokenIds: readonly number[];
}

export interface BlendMatch {
  readonly oldStart: number;
  readonly oldEnd: number;
  readonly currentStart: number;
  readonly currentEnd: number;
  readonly hash: Uint8Array;
}

export interface MemoryLayout {
  readonly shapes: readonly (readonly number[])[];
  readonly dtypes: readonly DtypeName[];
}

/** `stored`: one chunk, its tokens and the chunk before it. `removed`: any number of chunks. */
export interface KvEventRecord {
  /** From 1, without gaps in the server's log. */
  readonly seq: number;
  readonly kind: 'stored' | 'removed';
  readonly medium: string;
  readonly modelName: string;
  readonly blockHashes: readonly Uint8Array[];
  readonly parentBlockHash: Uint8Array | null;
  readonly tokenIds: readonly number[];
}

export interface KvEventBatch {
  readonly isEnabled: boolean;
  /** Start of this server in nanoseconds; another one means that all earlier records are void. */
  readonly incarnation: bigint;
  readonly nextCursor: number;
  /** Records behind the cursor are gone: earlier announcements are void. */
  readonly isLost: boolean;
  readonly events: readonly KvEventRecord[];
}

/**
 * A reply of many parts, pulled by the door: it asks for the next one when the client has taken
 * the last. `next` settles once per call, with null at the end; it never rejects.
 */
export interface ReplyStream<T> {
  next(): Promise<T | null>;
  /** The client wants no more or has left. A pending `next` settles with null. */
  cancel(): void;
  /** Nothing but null would come from here on. */
  readonly isEnded: boolean;
}

type KeyedTransfer = { readonly key: CacheKey; readonly instanceId: InstanceId };
type TpKey = { readonly key: CacheKey; readonly tpSize: number };
type ById = { readonly instanceId: InstanceId };
type ByRequest = { readonly requestId: string };
type BlendKey = { key: CacheKey; offset: number; instanceId: InstanceId; event: Uint8Array };
type Nothing = Readonly<Record<string, never>>;

/** Request and reply of every operation. Names are those of the protocol. */
export interface Operations {
  REGISTER_KV_CACHE: { request: RegisterKvCacheRequest; reply: void };
  UNREGISTER_KV_CACHE: { request: ById; reply: void };
  STORE: { request: StoreRequest; reply: TransferReply };
  RETRIEVE: { request: RetrieveRequest; reply: TransferReply };
  LOOKUP: { request: TpKey; reply: void };
  /** Leading hit chunks; null = still running. */
  QUERY_PREFETCH_STATUS: { request: ByRequest; reply: number | null };
  WAIT_PREFETCH_STATUS: { request: ByRequest & { timeoutSeconds: number }; reply: number | null };
  QUERY_PREFETCH_LOOKUP_HITS: { request: ByRequest; reply: number | null };
  FREE_LOOKUP_LOCKS: { request: TpKey; reply: void };
  END_SESSION: { request: ByRequest; reply: void };
  REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: {
    request: EngineDrivenContextRequest;
    reply: { shmName: string; poolSizeBytes: number };
  };
  UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT: { request: ById; reply: void };
  PREPARE_STORE: { request: KeyedTransfer; reply: { context: TransferContext } };
  COMMIT_STORE: { request: KeyedTransfer & { data: InlinePayload }; reply: boolean };
  PREPARE_RETRIEVE: {
    request: KeyedTransfer;
    reply: { success: boolean; data: Uint8Array; context: TransferContext };
  };
  COMMIT_RETRIEVE: { request: KeyedTransfer; reply: boolean };
  CLEAR: { request: { isForced: boolean }; reply: void };
  GET_CHUNK_SIZE: { request: Nothing; reply: number };
  PING: { request: { instanceId: InstanceId | null }; reply: boolean };
  REPORT_BLOCK_ALLOCATION: {
    request: ById & { modelName: string; records: readonly BlockAllocationRecord[] };
    reply: void;
  };
  NOOP: { request: Nothing; reply: string };
  CB_REGISTER_KV_CACHE: {
    request: ById & { wrappers: readonly TensorWrapper[]; modelName: string; worldSize: number };
    reply: void;
  };
  CB_UNREGISTER_KV_CACHE: { request: ById; reply: void };
  CB_STORE_PRE_COMPUTED: { request: BlendKey; reply: TransferReply };
  CB_LOOKUP_PRE_COMPUTED: { request: { key: CacheKey }; reply: readonly [number, number][] };
  CB_RETRIEVE_PRE_COMPUTED: {
    request: BlendKey & { ranges: readonly [number, number][] };
    reply: TransferReply;
  };
  CB_STORE_FINAL: { request: BlendKey; reply: TransferReply };
  CB_LOOKUP_PRE_COMPUTED_V2: { request: { key: CacheKey }; reply: readonly BlendMatch[] };
  CB_RETRIEVE_PRE_COMPUTED_V2: {
    request: BlendKey & { matches: readonly BlendMatch[] };
    reply: TransferReply;
  };
  CB_REGISTER_ROPE_V3: {
    request: ById & {
      cosSinCaches: readonly TensorWrapper[];
      headSize: number;
      isNeoxStyle: boolean;
      /** Index of the cache of each kernel group. Empty: the only cache is everybody's. */
      groupToCache: readonly number[];
      /** Offset and width of the rotated part of a head, per kernel group. */
      groupRotations: readonly (readonly [number, number])[];
      groupHeadSizes: readonly number[];
      /** '' = not quantised. */
      kvQuantisation: string;
    };
    reply: void;
  };
  CB_UNREGISTER_ROPE_V3: { request: ById; reply: void };
  CB_RETRIEVE_PRE_COMPUTED_V3: {
    request: KeyedTransfer & {
      matches: readonly BlendMatch[];
      /** One list per kernel group. */
      blockIds: readonly (readonly number[])[];
      event: Uint8Array;
    };
    reply: TransferReply;
  };
  CB_UNIFIED_LOOKUP: {
    request: TpKey;
    reply: {
      prefixCoverageTokens: number;
      nonPrefixSegments: readonly BlendMatch[];
      segmentedPrefixSegments: readonly BlendMatch[];
    } | null;
  };
  P2P_LOOKUP_AND_LOCK: {
    /** Layout of the objects of each object group. */
    request: { keys: readonly ObjectKey[]; layouts: ReadonlyMap<number, MemoryLayout> };
    reply: number;
  };
  P2P_QUERY_LOOKUP_RESULTS: {
    request: { taskId: number };
    reply: readonly { offset: number; size: number }[] | null;
  };
  P2P_UNLOCK_OBJECTS: { request: { keys: readonly ObjectKey[] }; reply: void };
  REGISTER_Q_CACHE: { request: RegisterKvCacheRequest; reply: void };
  UNREGISTER_Q_CACHE: { request: ById; reply: void };
  STORE_Q: { request: StoreRequest; reply: TransferReply };
  CB_PROTOCOL_HANDSHAKE: {
    request: { clientVersion: number };
    reply: { serverVersion: number; isCompatible: boolean };
  };
  CB_REORDER_PLAN: {
    request: { key: CacheKey; keepPrefix: number; budgetMs: number };
    reply: readonly number[];
  };
  /** Names of optional abilities of this server. */
  GET_EXPERIMENTAL: { request: Nothing; reply: readonly string[] };
  SERVER_MODULE_CALL: {
    request: { method: string; payload: Uint8Array };
    reply: { success: boolean; payload: Uint8Array; error: string };
  };
  SUBSCRIBE_KV_EVENTS: {
    request: ById & { modelName: string; cursor: number; eventCountMax: number };
    reply: ReplyStream<KvEventBatch>;
  };
}

export type OperationName = keyof Operations;
export type RequestOf<N extends OperationName> = Operations[N]['request'];
export type ReplyOf<N extends OperationName> = Operations[N]['reply'];

/** The worker that a request is about; null where it names none. */
export function instanceIdOf(request: RequestOf<OperationName>): InstanceId | null {
  return 'instanceId' in request ? request.instanceId : null;
}
