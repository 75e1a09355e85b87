/**
 * Dialect C: LMCache 0.5.5 and 0.5.6 (spec wire 8).
 *
 * 0.5.5 numbers its operations; 0.5.6 names them by text and sends the number where there is one.
 * These clients know a failed RETRIEVE, need no event for it, and survive a reply that they cannot
 * read. A text in place of the operation makes 0.5.6 fail the request at once with that text, which
 * is how a registration is refused; 0.5.5 drops it and waits, as for silence.
 *
 * Of the releases only 0.5.6 has streams, describes device memory without pickles, and forces CLEAR
 * by a payload; what 0.5.5 sends in their place is read as well.
 */
import type { OperationName } from '../../engine/api.ts';
import { exceptionReply, neutralReply } from '../reply.ts';
import { BLEND_RETRIEVE_OF_GROUPS, ROPE_SINCE_053, ROPE_SINCE_056 } from '../requests/blend.ts';
import { CLEAR_ALL, CLEAR_UNFORCED } from '../requests/management.ts';
import { P2P_LOOKUP_OF_GROUPS } from '../requests/peers.ts';
import { REGISTRATION_FORMS } from '../requests/transfers.ts';
import { type Dialect, defineDialect } from './define-dialect.ts';
import { NAMES_SINCE_053 } from './dialect-b.ts';

/** Only 0.5.5 has it, by its number. */
const NEVER_SPELLED: OperationName = 'QUERY_PREFETCH_LOOKUP_HITS';

export const DIALECT_C: Dialect = defineDialect({
  name: 'C',
  releases: '0.5.5 and 0.5.6',
  client: {
    reportsFailedRetrieve: true,
    acceptsEmptyEvent: true,
    looksUpToEnd: true,
    freeTakesResult: true,
    sendsNullBlocks: true,
    layoutRules: 'per-layer',
    reportsKvLayout: true,
  },
  refuse: (failed, error) => neutralReply(failed, error) ?? exceptionReply(failed.uid, error),
  // Of several engines for blending one is left, and its names lost the number.
  spell: (name) => (name === NEVER_SPELLED ? null : name.toLowerCase().replace(/_v3$/, '')),
  names: [
    ...NAMES_SINCE_053,
    'CB_REGISTER_ROPE_V3',
    'CB_UNREGISTER_ROPE_V3',
    'CB_RETRIEVE_PRE_COMPUTED_V3',
    'CB_UNIFIED_LOOKUP',
    'P2P_LOOKUP_AND_LOCK',
    'P2P_QUERY_LOOKUP_RESULTS',
    'P2P_UNLOCK_OBJECTS',
    'GET_EXPERIMENTAL',
    'CB_PROTOCOL_HANDSHAKE',
  ],
  unnumbered: ['CB_REORDER_PLAN', 'SUBSCRIBE_KV_EVENTS', 'SERVER_MODULE_CALL'],
  forms: {
    ...REGISTRATION_FORMS['since 0.5.5'],
    CLEAR: [CLEAR_UNFORCED, CLEAR_ALL],
    CB_REGISTER_ROPE_V3: [ROPE_SINCE_056, ROPE_SINCE_053],
    CB_RETRIEVE_PRE_COMPUTED_V3: [BLEND_RETRIEVE_OF_GROUPS],
    P2P_LOOKUP_AND_LOCK: [P2P_LOOKUP_OF_GROUPS],
  },
});
