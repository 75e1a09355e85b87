/** Schedulers: look-ups, their results, locks and sessions (spec wire 3). */
import type { RequestOf } from '../../engine/api.ts';
import { form, operation } from '../operation.ts';
import { frames } from '../payload-frames.ts';
import { float, mapped, nothing, nullable } from '../schema.ts';
import { anyInteger, byRequest, NIL, name, withTpSize, ZERO } from './fields.ts';

/** WAIT's timeout: any number, also infinity, but not "not a number". */
const timeoutSeconds = mapped<number, number>(
  float,
  (value, reader) => (Number.isNaN(value) ? reader.fail('expected a number of seconds') : value),
  (value) => value,
);

const hitCount = nullable(anyInteger);

export const LOOKUP_OPERATIONS = {
  LOOKUP: operation('LOOKUP', nothing, NIL),
  QUERY_PREFETCH_STATUS: operation('QUERY_PREFETCH_STATUS', hitCount, ZERO),
  WAIT_PREFETCH_STATUS: operation('WAIT_PREFETCH_STATUS', hitCount, ZERO),
  QUERY_PREFETCH_LOOKUP_HITS: operation('QUERY_PREFETCH_LOOKUP_HITS', hitCount, ZERO),
  FREE_LOOKUP_LOCKS: operation('FREE_LOOKUP_LOCKS', nothing, NIL),
  END_SESSION: operation('END_SESSION', nothing, NIL),
} as const;

export const LOOKUP_FORMS = {
  LOOKUP: [form('mi', withTpSize)],
  QUERY_PREFETCH_STATUS: [form('s', byRequest)],
  WAIT_PREFETCH_STATUS: [
    form('sf si', frames<RequestOf<'WAIT_PREFETCH_STATUS'>>({ requestId: name, timeoutSeconds })),
  ],
  QUERY_PREFETCH_LOOKUP_HITS: [form('s', byRequest)],
  FREE_LOOKUP_LOCKS: [form('mi', withTpSize)],
  END_SESSION: [form('s', byRequest)],
} as const;
