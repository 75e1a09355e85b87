/** What the server is and has: versions, state, configuration, metrics, registered workers. */
import { HTTPException } from 'hono/http-exception';
import { jsonResponse } from '../json.ts';
import { backendOf, type Room } from '../room.ts';
import { FieldReader } from '../validation.ts';

function addVersionRoutes({ app, guard, version: { version, commit } }: Room): void {
  const full = `${version || 'NA'}-${commit || 'NA'}`;
  app.get('/version', guard('public'), () => jsonResponse(full));
  app.get('/lmc_version', guard('public'), () => jsonResponse(version));
  app.get('/commit_id', guard('public'), () => jsonResponse(commit));
}

/** Prometheus asks for a version by `Accept`; without it the type is the reference's. */
export function metricsResponse(text: string, accept: string | undefined): Response {
  const type = accept?.includes('version=0.0.4')
    ? 'text/plain; version=0.0.4; charset=utf-8'
    : 'text/plain; charset=utf-8';
  return new Response(text, { headers: { 'content-type': type, vary: 'accept' } });
}

export function addStateRoutes(room: Room): void {
  const { app, guard } = room;
  addVersionRoutes(room);
  app.get('/status', guard('internal'), () => jsonResponse(backendOf(room).status()));
  for (const path of ['/conf', '/config']) {
    app.get(path, guard('sensitive'), () => jsonResponse(backendOf(room).config(), 200, 2));
  }
  app.get('/metrics', guard('public'), async (c) =>
    metricsResponse(await backendOf(room).metricsText(), c.req.header('accept')),
  );

  app.delete('/instances/:id', guard('mutating'), async (c) => {
    const fields = new FieldReader();
    const id = fields.integer(['path', 'instance_id'], c.req.param('id'), 0n);
    fields.finish();
    const isDropped = await backendOf(room).dropInstance(id);
    if (!isDropped) throw new HTTPException(404, { message: `instance_id ${id} not registered` });
    return jsonResponse({ instance_id: id, dropped: true });
  });
}
