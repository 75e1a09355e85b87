/**
 * Objects by key: what an L2 adapter holds, and taking objects away (spec http 5.4 to 5.6).
 *
 *   0.5.0   GET /l2/keys         DELETE /l2               L2 only, adapter in the query
 *   later   GET /cache/objects   DELETE /cache/objects    tiers, adapter in the query or the body
 *
 * The order of the checks is the reference's: types, number of keys, keys, adapter. The adapter is
 * found before anything is deleted.
 */
import type { Context } from 'hono';
import { HTTPException } from 'hono/http-exception';
import { KvdError } from '../../errors.ts';
import type { DeleteResult, ListPage } from '../../l2/backend.ts';
import type { ObjectKey } from '../../l2/object-key.ts';
import type { AdapterSummary } from '../../storage/l2/adapter-control.ts';
import { findAdapter } from '../adapter-choice.ts';
import type { AdapterBackend, HttpBackend, ObjectListRequest } from '../backend.ts';
import { jsonResponse } from '../json.ts';
import { decodeKeys, encodeKey, readEncodedKeys } from '../object-keys.ts';
import type { OneAtATime } from '../one-at-a-time.ts';
import { backendOf, type Room } from '../room.ts';
import { FieldReader, requireBodyFields } from '../validation.ts';

const PAGE_SIZE = { fallback: 500, min: 1, max: 5000 };
const TIERS = ['l1', 'l2', 'all'] as const;

// ---------------------------------------------------------------- lists

function readListRequest(c: Context, fields: FieldReader): ObjectListRequest {
  return {
    modelName: c.req.query('model_name') || null,
    pageSize: fields.integerBetween(['query', 'page_size'], c.req.query('page_size'), PAGE_SIZE),
    token: c.req.query('page_token') || null,
  };
}

async function listPage(
  adapters: AdapterBackend,
  { id, typeName }: AdapterSummary,
  request: ObjectListRequest,
): Promise<ListPage> {
  try {
    return await adapters.listObjects(id, request);
  } catch (error) {
    // What the client has got wrong says so by its status; the rest is the store's fault.
    if (error instanceof KvdError && error.row.httpStatus < 500) throw error;
    const message = `L2 adapter '${typeName}' cannot be listed: ${(error as Error).message}`;
    throw new HTTPException(502, { message, cause: error });
  }
}

/** `refusal`: what says that an adapter cannot list; clients of each release know their own. */
async function answerList(
  c: Context,
  { adapters }: HttpBackend,
  request: ObjectListRequest,
  refusal: 501 | 503,
): Promise<Response> {
  const adapter = findAdapter(adapters, c.req.query('adapter'));
  const { typeName, isShared } = adapter;
  if (!adapter.canList) {
    const reason = 'its store cannot name what it holds';
    const message = `L2 adapter '${typeName}' does not support listing: ${reason}`;
    throw new HTTPException(refusal, { message });
  }
  const { objects, nextToken } = await listPage(adapters, adapter, request);
  return jsonResponse({
    adapter: typeName,
    entries: objects.map(({ key, sizeBytes }) => ({
      key: encodeKey(key),
      size_bytes: sizeBytes,
    })),
    next_page_token: nextToken,
    shared: isShared,
  });
}

function addListRoutes(room: Room): void {
  const { app, guard } = room;
  app.get('/l2/keys', guard('sensitive'), (c) => {
    const fields = new FieldReader();
    const request = readListRequest(c, fields);
    fields.finish();
    return answerList(c, backendOf(room), request, 501);
  });

  app.get('/cache/objects', guard('sensitive'), (c) => {
    const fields = new FieldReader();
    const tier = fields.choice(['query', 'tier'], c.req.query('tier'), TIERS, 'l2');
    const request = readListRequest(c, fields);
    fields.finish();
    if (tier !== 'l2') {
      throw new HTTPException(400, { message: `tier '${tier}' not supported; only 'l2'` });
    }
    return answerList(c, backendOf(room), request, 503);
  });
}

// ---------------------------------------------------------------- deletions

interface L2Deletion {
  readonly deletedCount: number;
  /** Somebody is about to load them. */
  readonly skippedCount: number;
  readonly error: string | null;
}

const NOTHING: L2Deletion = { deletedCount: 0, skippedCount: 0, error: null };

function countResults(results: readonly DeleteResult[]): L2Deletion {
  const isLocked = (result: DeleteResult) =>
    result instanceof KvdError && result.code === 'ERR_L2_LOCKED';
  const failures = results.filter((result) => result instanceof Error && !isLocked(result));
  return {
    deletedCount: results.filter((result) => result === 'deleted').length,
    skippedCount: results.filter(isLocked).length,
    error: failures.length > 0 ? (failures[0] as Error).message : null,
  };
}

async function deleteFromL2(
  { adapters }: HttpBackend,
  { id }: AdapterSummary,
  keys: readonly ObjectKey[],
): Promise<L2Deletion> {
  return countResults(await adapters.deleteObjects(id, keys));
}

function outcomeOf({ error }: L2Deletion) {
  return error === null ? { ok: true } : { ok: false, error };
}

function addDeleteRoutes(room: Room, heavy: OneAtATime): void {
  const { app, guard } = room;
  app.delete('/l2', guard('mutating'), async (c) => {
    const body = await requireBodyFields(c.req.raw);
    const fields = new FieldReader();
    const encoded = readEncodedKeys(fields, body['keys']);
    fields.finish();
    const keys = decodeKeys(encoded);
    const backend = backendOf(room);
    const adapter = findAdapter(backend.adapters, c.req.query('adapter'));
    const deletion = await heavy.run(() => deleteFromL2(backend, adapter, keys));
    return jsonResponse({
      requested: keys.length,
      adapter: adapter.typeName,
      ...outcomeOf(deletion),
      l2_deleted: deletion.deletedCount,
      l2_skipped: deletion.skippedCount,
    });
  });

  app.delete('/cache/objects', guard('mutating'), async (c) => {
    const body = await requireBodyFields(c.req.raw);
    const fields = new FieldReader();
    const encoded = readEncodedKeys(fields, body['keys']);
    const tier = fields.choice(['body', 'tier'], body['tier'], TIERS, 'l2');
    const isForced = fields.boolean(['body', 'force'], body['force'], false);
    const name = fields.bodyText(['body', 'adapter'], body['adapter'] ?? undefined, '');
    fields.finish();
    const keys = decodeKeys(encoded);
    const backend = backendOf(room);
    const adapter = tier === 'l1' ? null : findAdapter(backend.adapters, name || undefined);
    return heavy.run(async () => {
      const l1 =
        tier === 'l2' ? { deletedCount: 0, lockedCount: 0 } : backend.deleteFromL1(keys, isForced);
      const l2 = adapter ? await deleteFromL2(backend, adapter, keys) : NOTHING;
      return jsonResponse({
        deleted: l1.deletedCount + l2.deletedCount,
        skipped: l1.lockedCount,
        ...outcomeOf(l2),
        l1_deleted: l1.deletedCount,
        l2_deleted: l2.deletedCount,
        l2_skipped: l2.skippedCount,
      });
    });
  });
}

export function addObjectRoutes(room: Room, heavy: OneAtATime): void {
  addListRoutes(room);
  addDeleteRoutes(room, heavy);
}
