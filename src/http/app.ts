/**
 * The HTTP interface as a Hono app: testable with `app.request('/path')`, no port needed.
 *
 *   request ─ count (64 at a time) ─ log ─ body limit ─ 405/OPTIONS ─ guard ─ route ─ backend
 *
 * For operators, probes and the reference's tools; never on the data path. Differences from the
 * reference that clients can see (spec http 10): HEAD on every GET, 204 for OPTIONS, full `Allow`
 * lists, a trailing slash is served, errors carry `detail` and `error`, 500 is JSON with a
 * request id and never shows a stack.
 */
import { randomUUID } from 'node:crypto';
import { Hono, type MiddlewareHandler } from 'hono';
import { bodyLimit } from 'hono/body-limit';
import { HTTPException } from 'hono/http-exception';
import { methodNotAllowed } from 'hono/method-not-allowed';
import type { Clock } from '../clock.ts';
import { KvdError } from '../errors.ts';
import type { Logger, LogLevels } from '../observability/log.ts';
import { MIB } from '../units.ts';
import type { HttpBackend } from './backend.ts';
import { errorResponse, jsonResponse } from './json.ts';
import { OneAtATime } from './one-at-a-time.ts';
import type { Room, Version } from './room.ts';
import { addAdapterRoutes } from './routes/adapters.ts';
import { addCacheRoutes } from './routes/cache.ts';
import { addHealthRoutes } from './routes/health.ts';
import { addKvCacheRoutes } from './routes/kvcache.ts';
import { addLogLevelRoutes } from './routes/loglevel.ts';
import { addObjectRoutes } from './routes/objects.ts';
import { addPrefetchRoutes } from './routes/prefetches.ts';
import { addQuotaRoutes } from './routes/quota.ts';
import { addReconfigureRoutes } from './routes/reconfigure.ts';
import { addStateRoutes, metricsResponse } from './routes/state.ts';
import { createGuard } from './security.ts';
import { ValidationError } from './validation.ts';

export const BODY_BYTES_MAX = 16 * MIB;
export const CONCURRENT_REQUESTS_MAX = 64;

export interface HttpAppOptions {
  /** null while the engine is being built: probes answer `starting`, the rest 503. */
  readonly findBackend: () => HttpBackend | null;
  /** Bearer token; null = open. */
  readonly token: string | null;
  readonly version: Version;
  readonly logLevels: LogLevels;
  readonly log: Logger;
  readonly clock: Clock;
}

/** Asked every few seconds by machines; their lines would hide the others. */
const QUIET_PATHS = new Set(['/', '/healthcheck', '/readyz', '/status', '/metrics']);

function logRequests(log: Logger, clock: Clock): MiddlewareHandler {
  return async (c, next) => {
    const startMs = clock.preciseMs();
    await next();
    const fields = {
      status: c.res.status,
      ms: Number((clock.preciseMs() - startMs).toFixed(2)),
    };
    const level = QUIET_PATHS.has(c.req.path) ? 'debug' : 'info';
    log[level](`${c.req.method} ${c.req.path}`, fields);
  };
}

function limitConcurrency(): MiddlewareHandler {
  let running = 0;
  return async (_, next) => {
    if (running >= CONCURRENT_REQUESTS_MAX) {
      throw new HTTPException(503, { message: 'too many requests at the same time' });
    }
    running += 1;
    try {
      await next();
    } finally {
      running -= 1;
    }
  };
}

function createErrorHandler(log: Logger) {
  return (error: Error): Response => {
    if (error instanceof ValidationError) {
      return jsonResponse({ detail: error.issues, error: error.message }, 422);
    }
    if (error instanceof HTTPException) {
      return error.res ?? errorResponse(error.status, error.message);
    }
    if (error instanceof KvdError && error.row.httpStatus !== 500) {
      return errorResponse(error.row.httpStatus, error.message);
    }
    const requestId = randomUUID();
    log.error(`request ${requestId} failed: ${error.stack ?? error.message}`);
    const text = 'Internal Server Error';
    return jsonResponse({ detail: text, error: text, request_id: requestId }, 500);
  };
}

export function createHttpApp(options: HttpAppOptions): Hono {
  const { findBackend, log, clock, version } = options;
  const app = new Hono({ strict: false });
  const room: Room = { app, guard: createGuard(options.token), version, findBackend };
  app.onError(createErrorHandler(log));
  app.notFound(() => errorResponse(404, 'Not Found'));
  app.use(logRequests(log, clock));
  app.use(limitConcurrency());
  app.use(
    bodyLimit({
      maxSize: BODY_BYTES_MAX,
      onError: () => errorResponse(413, `Request body exceeds ${BODY_BYTES_MAX} bytes`),
    }),
  );
  app.use(
    methodNotAllowed({
      app,
      onMethodNotAllowed: (c, methods) => {
        const allow = [...methods, 'OPTIONS'].join(', ');
        if (c.req.method === 'OPTIONS') return c.body(null, 204, { allow });
        return errorResponse(405, 'Method Not Allowed', { allow });
      },
    }),
  );
  addHealthRoutes(room);
  addStateRoutes(room);
  addLogLevelRoutes(room, { levels: options.logLevels, log: options.log });
  const heavy = new OneAtATime();
  addCacheRoutes(room, heavy);
  addObjectRoutes(room, heavy);
  addAdapterRoutes(room, new OneAtATime());
  addQuotaRoutes(room);
  addReconfigureRoutes(room);
  addKvCacheRoutes(room, new OneAtATime());
  addPrefetchRoutes(room);
  return app;
}

/** The second listener of `--prometheus-port`: metrics on any path, as the reference's does. */
export function createMetricsApp(options: Pick<HttpAppOptions, 'findBackend' | 'log'>): Hono {
  const app = new Hono();
  app.onError(createErrorHandler(options.log));
  app.get('*', async (c) => {
    const backend = options.findBackend();
    if (!backend) return errorResponse(503, 'engine not initialized');
    return metricsResponse(await backend.metricsText(), c.req.header('accept'));
  });
  return app;
}
