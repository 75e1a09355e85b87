/**
 * Dialect B: LMCache 0.5.3 and 0.5.4 (spec wire 9).
 *
 * Operations on query caches were put in front, so nearly every number moved; otherwise these
 * clients are like those before them, in what they send and in what they can bear.
 */
import type { OperationName } from '../../engine/api.ts';
import { neutralReply } from '../reply.ts';
import { BLEND_RETRIEVE_OF_GROUPS, ROPE_SINCE_053 } from '../requests/blend.ts';
import { CLEAR_ALL, CLEAR_UNFORCED } from '../requests/management.ts';
import { P2P_LOOKUP_OF_GROUPS } from '../requests/peers.ts';
import { REGISTRATION_FORMS } from '../requests/transfers.ts';
import { type Dialect, defineDialect } from './define-dialect.ts';

/** The ids 1 to 24 since 0.5.3. */
export const NAMES_SINCE_053: readonly OperationName[] = [
  'REGISTER_KV_CACHE',
  'UNREGISTER_KV_CACHE',
  'REGISTER_Q_CACHE',
  'UNREGISTER_Q_CACHE',
  'STORE_Q',
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
];

export const DIALECT_B: Dialect = defineDialect({
  name: 'B',
  releases: '0.5.3 and 0.5.4',
  client: {
    reportsFailedRetrieve: false,
    acceptsEmptyEvent: false,
    looksUpToEnd: false,
    freeTakesResult: false,
    sendsNullBlocks: false,
    layoutRules: 'per-layer',
    reportsKvLayout: false,
  },
  refuse: neutralReply,
  names: [
    ...NAMES_SINCE_053,
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
    'GET_EXPERIMENTAL',
  ],
  forms: {
    ...REGISTRATION_FORMS['before 0.5.5'],
    CLEAR: [CLEAR_ALL, CLEAR_UNFORCED],
    CB_REGISTER_ROPE_V3: [ROPE_SINCE_053],
    CB_RETRIEVE_PRE_COMPUTED_V3: [BLEND_RETRIEVE_OF_GROUPS],
    P2P_LOOKUP_AND_LOCK: [P2P_LOOKUP_OF_GROUPS],
  },
});
