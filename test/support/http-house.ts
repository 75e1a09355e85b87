/** The HTTP app over a backend whose answers a test sets. */
import * as assert from 'uvu/assert';
import { createHttpApp } from '../../src/http/app.ts';
import { silentLogger } from '../../src/observability/log.ts';
import { LogLevels } from '../../src/observability/log-levels.ts';
import { FakeHttpBackend } from './fake-http-backend.ts';
import { VirtualClock } from './virtual-clock.ts';

export const VERSION = { version: '1.2.3', commit: 'abc' };

export function house(token: string | null = null) {
  const backend = new FakeHttpBackend();
  const options = {
    ...{ token, version: VERSION, log: silentLogger, clock: new VirtualClock() },
    logLevels: new LogLevels({ root: 'info' }),
  };
  const app = createHttpApp({ ...options, findBackend: () => backend });
  const early = createHttpApp({ ...options, findBackend: () => null });
  return { backend, app, early };
}

export type Json = { readonly [key: string]: unknown };

export async function json(response: Response): Promise<Json> {
  assert.is(response.headers.get('content-type'), 'application/json');
  return (await response.json()) as Json;
}
