/** What the route files share: the backend, once there is one, and the guard per route class. */
import type { Hono } from 'hono';
import { HTTPException } from 'hono/http-exception';
import type { HttpBackend } from './backend.ts';
import type { Guard } from './security.ts';

export interface Version {
  readonly version: string;
  /** '' = unknown. */
  readonly commit: string;
}

export interface Room {
  readonly app: Hono;
  readonly guard: Guard;
  readonly version: Version;
  /** null while the engine is being built. */
  readonly findBackend: () => HttpBackend | null;
}

export function backendOf(room: Room): HttpBackend {
  const backend = room.findBackend();
  if (!backend) throw new HTTPException(503, { message: 'engine not initialized' });
  return backend;
}
