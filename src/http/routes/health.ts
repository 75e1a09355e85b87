/**
 * Probes. `/healthcheck` says whether a restart would help; `/readyz` whether to send work here.
 * Troubles of slower tiers are no reason for a restart: `degraded` with 200 (spec http 10.1).
 */
import { jsonResponse } from '../json.ts';
import type { Room } from '../room.ts';

function probeFailure(status: string, reason: string): Response {
  return jsonResponse({ status, reason, detail: reason, error: reason }, 503);
}

export function addHealthRoutes(room: Room): void {
  const { app, guard, findBackend } = room;
  app.get('/', guard('probe'), () => jsonResponse({ status: 'ok', service: 'LMCache HTTP API' }));

  app.get('/healthcheck', guard('probe'), () => {
    const backend = findBackend();
    if (!backend) return probeFailure('starting', 'engine not initialized');
    const reason = backend.unhealthyReason();
    if (reason !== null) return probeFailure('unhealthy', reason);
    return jsonResponse({ status: 'healthy' });
  });

  app.get('/readyz', guard('probe'), async () => {
    const backend = findBackend();
    if (!backend) return probeFailure('starting', 'engine not initialized');
    const { state, reasons } = await backend.readiness();
    if (state === 'unready') return probeFailure(state, reasons.join('; '));
    return jsonResponse(state === 'ready' ? { status: state } : { status: state, reasons });
  });
}
