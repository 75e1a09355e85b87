/**
 * Bytes that tenants may hold in L2 (spec http 6). `_default` stands for the empty salt, in paths
 * and in answers. GB are 2^30 bytes.
 *
 * Beside the reference's keys: `current_l1_usage_gb`, `effective` (false while no adapter evicts by
 * quota), and `default_limit_gb`, the limit of salts without a quota (null = none).
 */
import { HTTPException } from 'hono/http-exception';
import { GIB } from '../../units.ts';
import type { QuotaBackend } from '../backend.ts';
import { jsonResponse } from '../json.ts';
import { saltProblem } from '../object-keys.ts';
import { backendOf, type Room } from '../room.ts';
import { FieldReader } from '../validation.ts';

const DEFAULT_NAME = '_default';
/** 2^53 bytes: beyond it bytes are not exact any more. */
const LIMIT_GB_MAX = 8_388_608;
const NUMBER = /^\s*[+-]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(e[+-]?\d+)?\s*$/i;
const NOT_FINITE = /^\s*[+-]?(inf|infinity|nan)\s*$/i;

function refuse(message: string): never {
  throw new HTTPException(400, { message });
}

function readSalt(name: string): string {
  const cacheSalt = name === DEFAULT_NAME ? '' : name;
  const problem = saltProblem(cacheSalt);
  if (problem !== null) refuse(problem);
  return cacheSalt;
}

const nameOf = (cacheSalt: string): string => (cacheSalt === '' ? DEFAULT_NAME : cacheSalt);

/** NaN and infinities are no JSON, but the reference's reader takes them and names the fault. */
function readJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    try {
      return JSON.parse(text.replaceAll(/-?\b(NaN|Infinity)\b/g, '"$&"'));
    } catch {
      return refuse('invalid JSON body');
    }
  }
}

function readLimitGb(text: string): number {
  const body = readJson(text);
  const isObject = typeof body === 'object' && body !== null && !Array.isArray(body);
  if (!isObject || !Object.hasOwn(body, 'limit_gb')) refuse("body must be {'limit_gb': <float>}");
  const raw = (body as Record<string, unknown>)['limit_gb'];
  if (typeof raw === 'string' && NOT_FINITE.test(raw)) refuse('limit_gb must be finite');
  const isText = typeof raw === 'string' && NUMBER.test(raw);
  if (typeof raw !== 'number' && !isText) refuse('limit_gb must be numeric');
  const limitGb = Number(isText ? raw.replaceAll('_', '') : raw);
  if (!Number.isFinite(limitGb)) refuse('limit_gb must be finite');
  if (limitGb < 0) refuse('limit_gb must be non-negative');
  if (limitGb >= LIMIT_GB_MAX) refuse(`limit_gb must be below ${LIMIT_GB_MAX}`);
  return limitGb;
}

function notesOf({ isEffective, defaultLimitBytes }: QuotaBackend) {
  const defaultLimitGb = defaultLimitBytes === null ? null : defaultLimitBytes / GIB;
  return { effective: isEffective, default_limit_gb: defaultLimitGb };
}

/** What each tenant holds. */
function usageReader(quotas: QuotaBackend) {
  const bytesBySalt = quotas.usageBySalt();
  return (cacheSalt: string) => ({
    current_usage_gb: (bytesBySalt.get(cacheSalt) ?? 0) / GIB,
    current_l1_usage_gb: quotas.usedL1BytesOf(cacheSalt) / GIB,
  });
}

function listUsers(quotas: QuotaBackend, hasUnregistered: boolean): Record<string, unknown> {
  const usageOf = usageReader(quotas);
  const users = new Map<string, unknown>();
  for (const { cacheSalt, limitBytes } of quotas.list()) {
    users.set(nameOf(cacheSalt), { limit_gb: limitBytes / GIB, ...usageOf(cacheSalt) });
  }
  for (const cacheSalt of hasUnregistered ? quotas.usageBySalt().keys() : []) {
    if (users.has(nameOf(cacheSalt))) continue;
    users.set(nameOf(cacheSalt), { limit_gb: 0, ...usageOf(cacheSalt), exists: false });
  }
  return Object.fromEntries(users);
}

export function addQuotaRoutes(room: Room): void {
  const { app, guard } = room;
  app.get('/quota', guard('internal'), (c) => {
    const fields = new FieldReader();
    const name = 'include_unregistered';
    const hasUnregistered = fields.boolean(['query', name], c.req.query(name), false);
    fields.finish();
    const { quotas } = backendOf(room);
    return jsonResponse({ users: listUsers(quotas, hasUnregistered), ...notesOf(quotas) });
  });

  app.get('/quota/:salt', guard('internal'), (c) => {
    const cacheSalt = readSalt(c.req.param('salt'));
    const { quotas } = backendOf(room);
    const limitBytes = quotas.quotaOf(cacheSalt);
    const { current_usage_gb, ...usage } = usageReader(quotas)(cacheSalt);
    return jsonResponse({
      cache_salt: nameOf(cacheSalt),
      limit_gb: (limitBytes ?? 0) / GIB,
      current_usage_gb,
      exists: limitBytes !== null,
      ...usage,
      ...notesOf(quotas),
    });
  });

  app.put('/quota/:salt', guard('mutating'), async (c) => {
    const cacheSalt = readSalt(c.req.param('salt'));
    const limitGb = readLimitGb(await c.req.text());
    const { quotas } = backendOf(room);
    await quotas.set(cacheSalt, Math.trunc(limitGb * GIB));
    const { effective } = notesOf(quotas);
    return jsonResponse({
      cache_salt: nameOf(cacheSalt),
      limit_gb: limitGb,
      status: 'ok',
      effective,
    });
  });

  app.delete('/quota/:salt', guard('mutating'), async (c) => {
    const cacheSalt = readSalt(c.req.param('salt'));
    const isRemoved = await backendOf(room).quotas.delete(cacheSalt);
    const status = isRemoved ? 'removed' : 'not_found';
    return jsonResponse({ cache_salt: nameOf(cacheSalt), status });
  });
}
