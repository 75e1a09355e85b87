/**
 * The request table: every operation of the protocol, and those forms of requests that are the same
 * for all generations of clients. Forms that changed are put in by the dialects that have them.
 *
 * Operations are known by name here. Which number or text stands for a name is a matter of the
 * client's generation (`dialects/`), and what a request means is a matter of the engine
 * (`engine/api.ts`; which queue it runs in is decided there, too). The entries are in `requests/`,
 * by subject.
 */
import type { OperationName, RequestOf } from '../engine/api.ts';
import type { Form, Operation } from './operation.ts';
import { BLEND_FORMS, BLEND_OPERATIONS } from './requests/blend.ts';
import { LOOKUP_FORMS, LOOKUP_OPERATIONS } from './requests/lookups.ts';
import { MANAGEMENT_FORMS, MANAGEMENT_OPERATIONS } from './requests/management.ts';
import { PEER_FORMS, PEER_OPERATIONS } from './requests/peers.ts';
import { TRANSFER_FORMS, TRANSFER_OPERATIONS } from './requests/transfers.ts';

export type OperationTable = { readonly [N in OperationName]: Operation<N> };
export type FormTable = { readonly [N in OperationName]?: readonly Form<RequestOf<N>>[] };

export const OPERATIONS: OperationTable = {
  ...TRANSFER_OPERATIONS,
  ...LOOKUP_OPERATIONS,
  ...MANAGEMENT_OPERATIONS,
  ...BLEND_OPERATIONS,
  ...PEER_OPERATIONS,
};

export const UNCHANGED_FORMS = {
  ...TRANSFER_FORMS,
  ...LOOKUP_FORMS,
  ...MANAGEMENT_FORMS,
  ...BLEND_FORMS,
  ...PEER_FORMS,
} satisfies FormTable;
