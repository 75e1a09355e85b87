/**
 * Clearing L1. Both paths, because each version of the reference's CLI knows only its own.
 *
 * `/clear-cache` (0.5.0) always takes locked objects too; `/cache/clear` (0.5.6) only with
 * `force`. Either way memory that somebody still uses is freed later, so no transfer is harmed.
 */
import { HTTPException } from 'hono/http-exception';
import type { ClearResult } from '../backend.ts';
import { jsonResponse } from '../json.ts';
import type { OneAtATime } from '../one-at-a-time.ts';
import { backendOf, type Room } from '../room.ts';
import { FieldReader, readBodyFields } from '../validation.ts';

const counts = (result: ClearResult) => ({
  removed_objects: result.removedObjectCount,
  deferred_objects: result.deferredObjectCount,
  freed_bytes: result.freedBytes,
});

export function addCacheRoutes(room: Room, heavy: OneAtATime): void {
  const { app, guard } = room;
  app.post('/clear-cache', guard('mutating'), async () => {
    const backend = backendOf(room);
    const result = await heavy.run(() => backend.clear({ isForced: true }));
    return jsonResponse({ status: 'ok', ...counts(result) });
  });

  app.post('/cache/clear', guard('mutating'), async (c) => {
    const body = await readBodyFields(c.req.raw);
    const fields = new FieldReader();
    const tier = fields.choice(['body', 'tier'], body['tier'], ['l1', 'l2', 'all'], 'l1');
    const isForced = fields.boolean(['body', 'force'], body['force'], false);
    fields.finish();
    if (tier !== 'l1') {
      throw new HTTPException(400, { message: `tier '${tier}' not supported; only 'l1'` });
    }
    const backend = backendOf(room);
    const result = await heavy.run(() => backend.clear({ isForced }));
    return jsonResponse({ status: 'ok', cleared: { tier }, ...counts(result) });
  });
}
