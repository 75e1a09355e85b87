/** `GET /status` of a server, for the commands that read it. */
import { readEnvironment } from '../config/sources.ts';
import { CommandError } from './arguments.ts';

export type Document = { readonly [key: string]: unknown };

export const isDocument = (value: unknown): value is Document =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The document at a path; empty when the server does not have it. */
export function section(document: Document, ...path: string[]): Document {
  let current = document;
  for (const key of path) {
    const next = current[key];
    if (!isDocument(next)) return {};
    current = next;
  }
  return current;
}

/** `localhost:8080/` → `http://localhost:8080` */
export function toBaseUrl(text: string): string {
  const withScheme = text.includes('://') ? text : `http://${text}`;
  return withScheme.replace(/\/+$/, '');
}

export async function fetchStatus(url: string, timeoutMs: number): Promise<Document> {
  const token = readEnvironment()['KVD_HTTP_TOKEN'];
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  let response: Response;
  try {
    response = await fetch(`${url}/status`, { headers, signal: AbortSignal.timeout(timeoutMs) });
  } catch (error) {
    const { cause, message } = error as Error;
    const reason = cause instanceof Error && cause.message !== '' ? cause.message : message;
    throw new CommandError(`Cannot connect to ${url}: ${reason}`);
  }
  const text = await response.text();
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    // Not our server: the text itself is the best explanation.
    body = text.slice(0, 200);
  }
  if (response.ok && isDocument(body)) return body;
  const reason = isDocument(body) ? (body['error'] ?? body['detail']) : body;
  const kind = response.status === 503 ? 'Server unhealthy' : 'Server error';
  throw new CommandError(`${kind}: ${String(reason)} (HTTP ${response.status})`);
}
