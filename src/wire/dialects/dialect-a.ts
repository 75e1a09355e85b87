/**
 * Dialect A: LMCache 0.5.0 to 0.5.2 (spec wire 3, 7.2).
 *
 * These clients take any reply to a registration for success, and vLLM workers take a failed
 * RETRIEVE for a success: both are answered by silence. They open every event handle they get. An
 * undecodable reply ends their receiving thread, so nothing but the reply's own type is ever sent.
 */
import { neutralReply } from '../reply.ts';
import { BLEND_RETRIEVE_OF_BLOCKS, ROPE_SINCE_050, ROPE_SINCE_052 } from '../requests/blend.ts';
import { CLEAR_ALL } from '../requests/management.ts';
import { P2P_LOOKUP_OF_ONE_LAYOUT } from '../requests/peers.ts';
import { REGISTRATION_FORMS } from '../requests/transfers.ts';
import { type Dialect, defineDialect } from './define-dialect.ts';

export const DIALECT_A: Dialect = defineDialect({
  name: 'A',
  releases: '0.5.0 to 0.5.2',
  client: {
    reportsFailedRetrieve: false,
    acceptsEmptyEvent: false,
    looksUpToEnd: false,
    freeTakesResult: false,
    sendsNullBlocks: false,
    layoutRules: 'first-tensor',
    reportsKvLayout: false,
  },
  refuse: neutralReply,
  names: [
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
  ],
  forms: {
    ...REGISTRATION_FORMS['before 0.5.5'],
    CLEAR: [CLEAR_ALL],
    CB_REGISTER_ROPE_V3: [ROPE_SINCE_050, ROPE_SINCE_052],
    CB_RETRIEVE_PRE_COMPUTED_V3: [BLEND_RETRIEVE_OF_BLOCKS],
    P2P_LOOKUP_AND_LOCK: [P2P_LOOKUP_OF_ONE_LAYOUT],
  },
});
