/**
 * Who may use which route (spec http 8).
 *
 *   class      without a token configured   with a token
 *   probe      open                         open
 *   public     open                         open (versions, metrics)
 *   internal   open                         token
 *   sensitive  open                         token
 *   mutating   not from other web sites     token, and not from other web sites
 *
 * The cross-site check is for browsers: a page of another origin could otherwise empty the cache
 * of a server on localhost. Tools send neither header and are not affected.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { MiddlewareHandler } from 'hono';
import { HTTPException } from 'hono/http-exception';
import { errorResponse } from './json.ts';

export type RouteClass = 'probe' | 'public' | 'internal' | 'sensitive' | 'mutating';

export type Guard = (routeClass: RouteClass) => MiddlewareHandler;

/** Digests have one length, so neither length nor content of the token shows in the time taken. */
const digest = (text: string) => createHash('sha256').update(text).digest();

function isCrossSite(request: Request): boolean {
  if (request.headers.get('sec-fetch-site') === 'cross-site') return true;
  const origin = request.headers.get('origin');
  if (origin === null) return false;
  const host = request.headers.get('host') ?? new URL(request.url).host;
  return !URL.canParse(origin) || new URL(origin).host !== host.toLowerCase();
}

export function createGuard(token: string | null): Guard {
  const expected = token === null ? null : digest(token);
  const isAuthorized = (request: Request) => {
    if (!expected) return true;
    const given = /^Bearer +(\S+)$/i.exec(request.headers.get('authorization') ?? '')?.[1] ?? '';
    return timingSafeEqual(digest(given), expected);
  };
  return (routeClass) => async (c, next) => {
    const isOpen = routeClass === 'probe' || routeClass === 'public';
    if (!isOpen && !isAuthorized(c.req.raw)) {
      const res = errorResponse(401, 'Unauthorized', { 'www-authenticate': 'Bearer' });
      throw new HTTPException(401, { res });
    }
    if (routeClass === 'mutating' && isCrossSite(c.req.raw)) {
      throw new HTTPException(403, { message: 'Cross-site request refused' });
    }
    await next();
  };
}

const LOOPBACK = /^(localhost|127\.\d+\.\d+\.\d+|::1|\[::1\]|0:0:0:0:0:0:0:1)$/i;

export function isLoopback(host: string): boolean {
  return LOOPBACK.test(host);
}
