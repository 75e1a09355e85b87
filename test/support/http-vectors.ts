/** Exchanges that were recorded with the reference's HTTP server (test/vectors/http). */
import type { Hono } from 'hono';
import * as assert from 'uvu/assert';
import { type Json, json } from './http-house.ts';

export interface Exchange {
  readonly request: {
    method: string;
    path: string;
    headers?: Record<string, string>;
    body?: unknown;
    raw_body?: string;
  };
  readonly response: { status: number; headers: Record<string, string>; json?: Json };
}

export function labelOf({ request }: Exchange): string {
  const { method, path, body, raw_body: rawBody } = request;
  const shown = rawBody ?? (body === undefined ? '' : JSON.stringify(body));
  return `${method} ${path} ${shown.slice(0, 60)}`;
}

export async function send(app: Hono, { request }: Exchange): Promise<Response> {
  const { method, path, body, raw_body: rawBody } = request;
  const text = rawBody ?? (body === undefined ? null : JSON.stringify(body));
  const headers = request.headers ?? { 'Content-Type': 'application/json' };
  return app.request(path, { method, headers, body: text });
}

/** Status, and every key of the recorded answer; of 422 entries only `loc` and `type` count. */
export async function expectAnswer(answer: Response, exchange: Exchange): Promise<void> {
  const label = labelOf(exchange);
  const { response } = exchange;
  assert.is(answer.status, response.status, label);
  if (response.json) contains(await json(answer), response.json, label);
  const expectedAllow = response.headers['allow'];
  if (expectedAllow) {
    const allowed = (answer.headers.get('allow') ?? '').split(', ');
    assert.ok(allowed.includes(expectedAllow), `${label}: allow ${allowed}`);
  }
}

function contains(actual: Json, expected: Json, label: string): void {
  for (const [key, value] of Object.entries(expected)) {
    if (key !== 'detail' || typeof value === 'string') {
      covers(actual[key], value, `${label}: ${key}`);
      continue;
    }
    const essence = (issues: unknown) =>
      (issues as { loc: unknown; type: unknown }[]).map(({ loc, type }) => ({ loc, type }));
    assert.equal(essence(actual[key]), essence(value), label);
  }
}

/** Equal, but objects may have further keys. */
function covers(actual: unknown, expected: unknown, label: string): void {
  if (typeof expected !== 'object' || expected === null) {
    assert.equal(actual, expected, label);
    return;
  }
  if (Array.isArray(expected)) {
    assert.is((actual as unknown[]).length, expected.length, label);
  }
  for (const [key, value] of Object.entries(expected)) {
    covers((actual as Json)[key], value, `${label}.${key}`);
  }
}
