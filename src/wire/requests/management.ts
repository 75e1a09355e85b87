/** The server itself: liveness, settings, observation, cache events (spec wire 3, 8.1, 8.2). */
import type {
  BlockAllocationRecord,
  KvEventBatch,
  KvEventRecord,
  ReplyOf,
  RequestOf,
} from '../../engine/api.ts';
import { form, neutral, operation } from '../operation.ts';
import { frames, noFrames, oneFrame } from '../payload-frames.ts';
import {
  array,
  bigInteger,
  bool,
  bytes,
  encode,
  enumeration,
  instanceId,
  integer,
  integers,
  looseBool,
  looseInstanceId,
  looseInteger,
  nothing,
  nullable,
  text,
} from '../schema.ts';
import { field, fieldOr, struct } from '../struct.ts';
import { CHUNK_LIST_COUNT_MAX } from '../wire-limits.ts';
import {
  EMPTY_ARRAY,
  FALSE,
  looseIntegerIn,
  MINUS_ONE,
  NAME_BYTES_MAX,
  NIL,
  name,
} from './fields.ts';

const blockAllocationRecord = struct<BlockAllocationRecord>({
  requestId: field('req_id', name),
  newBlockIds: field('new_block_ids', integers),
  newTokenIds: field('new_token_ids', integers),
});

/** Records of one batch; the reference has the same bound. */
const EVENT_COUNT_MAX = 1024;

const kvEventBatch = struct<KvEventBatch>({
  isEnabled: field('enabled', bool),
  incarnation: field('incarnation', bigInteger),
  nextCursor: field('next_cursor', integer(0)),
  isLost: field('lost', bool),
  events: field(
    'events',
    array(
      struct<KvEventRecord>({
        seq: field('seq', integer(0)),
        kind: field('kind', enumeration(['stored', 'removed'])),
        medium: field('medium', name),
        modelName: field('model_name', name),
        blockHashes: field('block_hashes', array(bytes, CHUNK_LIST_COUNT_MAX)),
        parentBlockHash: field('parent_block_hash', nullable(bytes)),
        tokenIds: field('token_ids', integers),
      }),
      EVENT_COUNT_MAX,
    ),
  ),
});

const moduleCall = struct<RequestOf<'SERVER_MODULE_CALL'>>({
  method: field('method', name),
  payload: field('payload', bytes),
});
const moduleReply = struct<ReplyOf<'SERVER_MODULE_CALL'>>({
  success: field('success', bool),
  payload: fieldOr('payload', bytes, new Uint8Array(0)),
  error: fieldOr('error', text(0xffff_ffff), ''),
});

export const MANAGEMENT_OPERATIONS = {
  CLEAR: operation('CLEAR', nothing, NIL),
  GET_CHUNK_SIZE: operation('GET_CHUNK_SIZE', looseInteger, MINUS_ONE),
  PING: operation('PING', bool, FALSE),
  REPORT_BLOCK_ALLOCATION: operation('REPORT_BLOCK_ALLOCATION', nothing, NIL),
  NOOP: operation('NOOP', name, neutral(name, 'ERROR')),
  GET_EXPERIMENTAL: operation('GET_EXPERIMENTAL', array(name), EMPTY_ARRAY),
  SERVER_MODULE_CALL: operation('SERVER_MODULE_CALL', moduleReply, {
    kind: 'explained',
    frame: (error) => encode(moduleReply, { success: false, payload: new Uint8Array(0), error }),
  }),
  SUBSCRIBE_KV_EVENTS: operation(
    'SUBSCRIBE_KV_EVENTS',
    kvEventBatch,
    // "Nothing is recorded here": the client gives up without asking again and again.
    neutral(kvEventBatch, {
      isEnabled: false,
      incarnation: 0n,
      nextCursor: 0,
      isLost: false,
      events: [],
    }),
    { isStream: true },
  ),
} as const;

export const CLEAR_UNFORCED = form('t', frames<RequestOf<'CLEAR'>>({ isForced: looseBool }));
/** Clients up to 0.5.5 mean everything, also what is in use. */
export const CLEAR_ALL = form('', noFrames<RequestOf<'CLEAR'>>({ isForced: true }));

export const MANAGEMENT_FORMS = {
  GET_CHUNK_SIZE: [form('', noFrames<RequestOf<'GET_CHUNK_SIZE'>>({}))],
  PING: [form('i n', frames<RequestOf<'PING'>>({ instanceId: nullable(instanceId) }))],
  REPORT_BLOCK_ALLOCATION: [
    form(
      'isa',
      frames<RequestOf<'REPORT_BLOCK_ALLOCATION'>>({
        instanceId: looseInstanceId,
        modelName: name,
        records: array(blockAllocationRecord),
      }),
    ),
  ],
  NOOP: [form('', noFrames<RequestOf<'NOOP'>>({}))],
  GET_EXPERIMENTAL: [form('', noFrames<RequestOf<'GET_EXPERIMENTAL'>>({}))],
  SERVER_MODULE_CALL: [form('m', oneFrame(moduleCall))],
  SUBSCRIBE_KV_EVENTS: [
    form(
      'isii',
      frames<RequestOf<'SUBSCRIBE_KV_EVENTS'>>({
        instanceId: looseInstanceId,
        modelName: text(NAME_BYTES_MAX),
        cursor: looseIntegerIn(0, Number.MAX_SAFE_INTEGER, 'a cursor'),
        eventCountMax: looseIntegerIn(1, EVENT_COUNT_MAX, 'a number of events'),
      }),
    ),
  ],
} as const;
