/**
 * What the engine offers, in domain words: one handler signature per operation.
 *
 * A door (`wire/`, later others) decodes bytes to these requests and encodes these replies; a
 * module (`lookup.ts`, `management.ts`, `transfer/`) implements some of them. Nothing here knows
 * operation ids, msgpack or protocol generations. Field meanings: spec wire 3 and 4.
 */
import type { TokenSpan } from '../core/chunk-hasher.ts';
import type { DtypeName, TensorWrapper } from '../device/tensor-wrapper.ts';
import type { KvdError } from '../errors.ts';

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
  /** Readers per object as newer clients state it; null = derive it from `tpSize`. */
  readonly readerCount: number | null;
}

export type EngineType = 'vllm' | 'sglang' | 'trtllm' | 'mock';

export interface LayoutHints {
  readonly kvLayout?: 'NHD' | 'HND';
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

export interface ObjectKey {
  readonly chunkHash: Uint8Array;
  readonly modelName: string;
  /** Up to 40 bits for world sizes above 255: a number, never a 32-bit integer. */
  readonly kvRank: number;
  readonly objectGroupId: number;
  readonly cacheSalt: string;
}

export interface MemoryLayout {
  readonly shapes: readonly (readonly number[])[];
  readonly dtypes: readonly DtypeName[];
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
    request: ById & { cosSinCache: TensorWrapper; headSize: number; isNeoxStyle: boolean };
    reply: void;
  };
  CB_UNREGISTER_ROPE_V3: { request: ById; reply: void };
  CB_RETRIEVE_PRE_COMPUTED_V3: {
    request: KeyedTransfer & {
      matches: readonly BlendMatch[];
      blockIds: readonly number[];
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
    request: { keys: readonly ObjectKey[]; layout: MemoryLayout };
    reply: number;
  };
  P2P_QUERY_LOOKUP_RESULTS: {
    request: { taskId: number };
    reply: readonly { offset: number; size: number }[] | null;
  };
  P2P_UNLOCK_OBJECTS: { request: { keys: readonly ObjectKey[] }; reply: void };
}

export type OperationName = keyof Operations;
export type RequestOf<N extends OperationName> = Operations[N]['request'];
export type ReplyOf<N extends OperationName> = Operations[N]['reply'];

/** What the client at the other end can bear. Set by the door, per client generation. */
export interface ClientTraits {
  /** False: the client takes a failed RETRIEVE for a success (vLLM ≤ 0.5.4): strict mode. */
  readonly reportsFailedRetrieve: boolean;
  /** False: the client opens every event handle it gets, so an empty one would break it. */
  readonly acceptsEmptyEvent: boolean;
}

export interface RequestContext {
  /** One per client connection; never reused while the server runs. */
  readonly connectionId: number;
  readonly client: ClientTraits;
}

/**
 * One request on its way. It is abandoned when its client has been told that it failed: whatever
 * it still does must not take effect, because the client has gone on without it.
 */
export interface Attempt {
  /** Monotonic; when the request reached the dispatch, before it waited in a lane. */
  readonly arrivedMs: number;
  readonly isAbandoned: boolean;
  /** Runs `listener` at once when the attempt is abandoned while its handler runs. */
  onAbandon(listener: () => void): void;
}

export type Handler<N extends OperationName> = (
  request: RequestOf<N>,
  context: RequestContext,
  attempt: Attempt,
) => ReplyOf<N> | Promise<ReplyOf<N>>;

export type HandlerTable = { readonly [N in OperationName]?: Handler<N> };

/** A part of the engine: some operations, some keys of `/status`, something to close. */
export interface EngineModule {
  readonly name: string;
  readonly handlers: HandlerTable;
  /** Keys that this module adds to the top level of `GET /status`. */
  status(): Record<string, unknown>;
  /** The server begins to shut down: nothing may keep a reply back any more. */
  beginDrain?(): void;
  close(): Promise<void>;
}

/**
 * The door's side of the dispatch: value when the handler is synchronous, else a promise.
 *
 * After a promise `onSettled` runs when the handler needs the request's bytes no more, which can be
 * long after the answer (a deadline). After a value they are not needed any more.
 */
export interface RequestSink {
  dispatch<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    onSettled?: () => void,
  ): ReplyOf<N> | Promise<ReplyOf<N>>;
  /**
   * The door refuses a request that it has decoded (shutdown, overload). Returns what the client is
   * to be told, later if it is a promise: not every client can bear every failure.
   */
  refuse<N extends OperationName>(
    name: N,
    request: RequestOf<N>,
    context: RequestContext,
    error: KvdError,
  ): KvdError | Promise<KvdError>;
}
