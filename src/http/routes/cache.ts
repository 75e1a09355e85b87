/**
 * Clearing. Both paths, because each version of the reference's CLI knows only its own.
 *
 * `/clear-cache` (0.5.0) always takes locked objects too; `/cache/clear` (0.5.6) only with
 * `force`. Either way memory that somebody still uses is freed later, so no transfer is harmed.
 * What a lookup has found in L2 and not yet loaded stays there, with `force` too.
 */
import { HTTPException } from 'hono/http-exception';
import type { AdapterClearResult } from '../../storage/l2/adapter-control.ts';
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

const NOTHING: ClearResult = { removedObjectCount: 0, deferredObjectCount: 0, freedBytes: 0 };

function showL2(results: readonly AdapterClearResult[]) {
  return {
    removed_objects: results.reduce((sum, one) => sum + one.removedObjectCount, 0),
    skipped_objects: results.reduce((sum, one) => sum + one.skippedObjectCount, 0),
    freed_bytes: results.reduce((sum, one) => sum + one.freedBytes, 0),
    adapters: results.map(({ adapter, error, ...result }) => ({
      id: adapter.id,
      type_name: adapter.typeName,
      removed_objects: result.removedObjectCount,
      skipped_objects: result.skippedObjectCount,
      freed_bytes: result.freedBytes,
      ok: error === null,
      ...(error !== null && { error }),
    })),
  };
}

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
    const backend = backendOf(room);
    if (tier === 'l2' && backend.adapters.list().length === 0) {
      throw new HTTPException(503, { message: 'no L2 adapters configured' });
    }
    return heavy.run(async () => {
      const l1 = tier === 'l2' ? NOTHING : await backend.clear({ isForced });
      const l2 = tier === 'l1' ? [] : await backend.adapters.clear();
      const failed = l2.find(({ error }) => error !== null);
      return jsonResponse({
        status: failed ? 'incomplete' : 'ok',
        cleared: { tier },
        ...counts(l1),
        ...(failed && { error: failed.error }),
        tiers: {
          ...(tier === 'l2' ? {} : { l1: counts(l1) }),
          ...(tier === 'l1' ? {} : { l2: showL2(l2) }),
        },
      });
    });
  });
}
