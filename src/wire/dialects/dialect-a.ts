/**
 * Dialect A: LMCache 0.5.0 to 0.5.2 (spec wire 3, 7.2).
 *
 * These clients take any reply to a registration for success, and vLLM workers take a failed
 * RETRIEVE for a success: both are answered by silence where the engine says so. They open every
 * event handle they get. An undecodable reply ends their receiving thread, so nothing but the
 * reply's own type is ever sent.
 */
import type { OperationName } from '../../engine/api.ts';
import type { Dialect } from '../dialect.ts';
import { neutralReply } from '../reply.ts';
import { OPERATIONS, type Operation } from '../requests.ts';

/** In the order of their ids, which begin with 1. */
const NAMES: readonly OperationName[] = [
  'REGISTER_KV_CACHE',
  'UNREGISTER_KV_CACHE',
  'STORE',
  'RETRIEVE',
  'LOOKUP',
  'QUERY_PREFETCH_STATUS',
  'WAIT_PREFETCH_STATUS',
  'QUERY_PREFETCH_LOOKUP_HITS',
  'FREE_LOOKUP_LOCKS',
  'END_SESSION',
  'REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
  'UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT',
  'PREPARE_STORE',
  'COMMIT_STORE',
  'PREPARE_RETRIEVE',
  'COMMIT_RETRIEVE',
  'CLEAR',
  'GET_CHUNK_SIZE',
  'PING',
  'REPORT_BLOCK_ALLOCATION',
  'NOOP',
  'CB_REGISTER_KV_CACHE',
  'CB_UNREGISTER_KV_CACHE',
  'CB_STORE_PRE_COMPUTED',
  'CB_LOOKUP_PRE_COMPUTED',
  'CB_RETRIEVE_PRE_COMPUTED',
  'CB_STORE_FINAL',
  'CB_LOOKUP_PRE_COMPUTED_V2',
  'CB_RETRIEVE_PRE_COMPUTED_V2',
  'CB_REGISTER_ROPE_V3',
  'CB_UNREGISTER_ROPE_V3',
  'CB_RETRIEVE_PRE_COMPUTED_V3',
  'CB_UNIFIED_LOOKUP',
  'P2P_LOOKUP_AND_LOCK',
  'P2P_QUERY_LOOKUP_RESULTS',
  'P2P_UNLOCK_OBJECTS',
];

const operationsById: ReadonlyMap<number, Operation> = new Map(
  NAMES.map((name, index) => [index + 1, OPERATIONS[name] as unknown as Operation]),
);

export const DIALECT_A: Dialect = {
  name: 'A',
  releases: '0.5.0 to 0.5.2',
  client: { reportsFailedRetrieve: false, acceptsEmptyEvent: false },
  operationsById,
  refuse: neutralReply,
};
