/**
 * The L2 adapters of the running server, and changes of them (spec http 5.2, storage 12).
 *
 *   GET    /l2/adapters, /config/adapters       list; each release of the peer knows its own path
 *   POST   /config/adapters                     add one; the body is the JSON of --l2-adapter
 *   POST   /config/adapters/{id}/drain          no new work; done when the running work is
 *   DELETE /config/adapters/{id}                the same, then it is closed and gone
 *   PATCH  /config/l1                           watermark and ratio of L1's eviction
 *
 * `?timeout_seconds=` (30) bounds the wait of the middle two: 504, and it is still draining; the
 * request may be repeated. Changes need --enable-reconfigure-api: they open places and addresses
 * that the client names.
 */
import type { Context } from 'hono';
import { HTTPException } from 'hono/http-exception';
import { KvdError } from '../../errors.ts';
import type { AdapterSummary } from '../../storage/l2/adapter-control.ts';
import type { L1Limits, RuntimeChanges } from '../backend.ts';
import { jsonResponse } from '../json.ts';
import type { OneAtATime } from '../one-at-a-time.ts';
import { backendOf, type Room } from '../room.ts';
import { FieldReader, requireBodyFields } from '../validation.ts';

const TIMEOUT_SECONDS = { fallback: 30, min: 0, max: 600 };

function showAdapter(adapter: AdapterSummary, index: number) {
  return {
    index,
    type_name: adapter.typeName,
    tier: 'l2',
    primary: index === 0,
    // By the peer's device routes; kvd's own take every adapter.
    reconfigurable: false,
    id: adapter.id,
    state: adapter.isDraining ? 'draining' : 'active',
    is_healthy: adapter.isHealthy,
    shared: adapter.isShared,
    can_list: adapter.canList,
  };
}

function changesOf(room: Room): RuntimeChanges {
  const { changes } = backendOf(room);
  if (changes) return changes;
  const message = 'changes need a server that was started with --enable-reconfigure-api';
  throw new HTTPException(403, { message });
}

function findById(room: Room, c: Context): AdapterSummary {
  const fields = new FieldReader();
  const id = Number(fields.integer(['path', 'id'], c.req.param('id'), 0n));
  fields.finish();
  const found = backendOf(room)
    .adapters.list()
    .find((adapter) => adapter.id === id);
  if (found) return found;
  throw new HTTPException(404, { message: `no L2 adapter with id ${id}` });
}

function readTimeoutMs(c: Context): number {
  const fields = new FieldReader();
  const name = 'timeout_seconds';
  const seconds = fields.integerBetween(['query', name], c.req.query(name), TIMEOUT_SECONDS);
  fields.finish();
  return seconds * 1000;
}

function stillBusy({ id, typeName }: AdapterSummary): never {
  const message = `L2 adapter ${id} ('${typeName}') is draining and not idle yet; ask again`;
  throw new HTTPException(504, { message });
}

function addAdapterChanges(room: Room, heavy: OneAtATime): void {
  const { app, guard } = room;
  app.post('/config/adapters', guard('mutating'), async (c) => {
    const changes = changesOf(room);
    const spec = await requireBodyFields(c.req.raw);
    try {
      const { id } = await heavy.run(() => changes.addAdapter(spec));
      const all = backendOf(room).adapters.list();
      const index = all.findIndex((adapter) => adapter.id === id);
      return jsonResponse({ added: showAdapter(all[index] as AdapterSummary, index) }, 201);
    } catch (error) {
      // As a flag it is our operator's mistake and ends the start; here it is the client's.
      const isMistake = error instanceof KvdError && error.code === 'ERR_CONFIG';
      if (!isMistake) throw error;
      throw new HTTPException(400, { message: error.message, cause: error });
    }
  });

  app.post('/config/adapters/:id/drain', guard('mutating'), async (c) => {
    const changes = changesOf(room);
    const [adapter, timeoutMs] = [findById(room, c), readTimeoutMs(c)];
    if (!(await changes.drainAdapter(adapter.id, timeoutMs))) stillBusy(adapter);
    return jsonResponse({ id: adapter.id, type_name: adapter.typeName, status: 'drained' });
  });

  app.delete('/config/adapters/:id', guard('mutating'), async (c) => {
    const changes = changesOf(room);
    const [adapter, timeoutMs] = [findById(room, c), readTimeoutMs(c)];
    if (!(await changes.removeAdapter(adapter.id, timeoutMs))) stillBusy(adapter);
    return jsonResponse({ id: adapter.id, type_name: adapter.typeName, status: 'removed' });
  });
}

function readRatio(body: Readonly<Record<string, unknown>>, name: string): number | undefined {
  const value = body[name];
  if (value === undefined) return undefined;
  if (typeof value === 'number' && value > 0 && value <= 1) return value;
  const message = `${name} must be a number above 0 and at most 1, got ${JSON.stringify(value)}`;
  throw new HTTPException(400, { message });
}

function addL1Changes(room: Room): void {
  const { app, guard } = room;
  app.patch('/config/l1', guard('mutating'), async (c) => {
    const changes = changesOf(room);
    const body = await requireBodyFields(c.req.raw);
    const names = ['eviction_trigger_watermark', 'eviction_ratio'];
    const unknown = Object.keys(body).find((name) => !names.includes(name));
    if (unknown !== undefined) {
      const message = `${unknown} cannot be changed at runtime; known: ${names.join(', ')}`;
      throw new HTTPException(400, { message });
    }
    const triggerWatermark = readRatio(body, 'eviction_trigger_watermark');
    const evictionRatio = readRatio(body, 'eviction_ratio');
    const limits: Partial<L1Limits> = {
      ...(triggerWatermark === undefined ? {} : { triggerWatermark }),
      ...(evictionRatio === undefined ? {} : { evictionRatio }),
    };
    const now = changes.changeL1(limits);
    return jsonResponse({
      status: 'ok',
      eviction_trigger_watermark: now.triggerWatermark,
      eviction_ratio: now.evictionRatio,
    });
  });
}

export function addAdapterRoutes(room: Room, heavy: OneAtATime): void {
  const { app, guard } = room;
  for (const path of ['/l2/adapters', '/config/adapters']) {
    app.get(path, guard('internal'), () =>
      jsonResponse({ adapters: backendOf(room).adapters.list().map(showAdapter) }),
    );
  }
  addAdapterChanges(room, heavy);
  addL1Changes(room);
}
